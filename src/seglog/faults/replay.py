"""A recording, played to a broker: the same requests in the same order, and where the answers differ.

Each recorded connection becomes a connection. Requests are sent, and answers awaited, in the order in which they were
recorded, so that requests which waited for each other do so again. Brokers choose some values: topic ids, producer ids,
member ids, fetch sessions. Where an answer has another one than was recorded, later requests use the broker's.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Mapping
from struct import Struct
from typing import Any, Final, NamedTuple
from uuid import UUID

from seglog.core.errors import CorruptError, InvalidRequestError
from seglog.core.fs import OsFs
from seglog.faults.recording import RecordedAnswer, RecordedRequest, answer_body, read_recording, request_body, shown
from seglog.protocol.apis import name_of
from seglog.protocol.framing import read_header
from seglog.protocol.message_writer import write_message
from seglog.protocol.schema import request_class
from seglog.records.batch import BATCH_OVERHEAD, build_batch, entries
from seglog.records.batch import read_header as read_batch_header
from seglog.records.record import decode_records

__all__ = ["Difference", "replay"]

_SIZE: Final = Struct(">i")
_SECONDS: Final = 30.0
_BATCH: Final = 2
"""The magic of batches; older messages have no producer."""
_CHOSEN: Final = frozenset({"topic_id", "member_id", "leader", "producer_id", "session_id"})
"""Fields whose values a broker chooses, and clients send back."""
_SESSION: Final = "session_id"
_NO_SESSION: Final = 0
_IGNORED: Final = frozenset(
    {"host", "port", "cluster_id", "throttle_time", "log_append_time", "session_id", "timestamp", "error_message"}
)
"""Fields that say nothing about behaviour."""


class Difference(NamedTuple):
    """Where the answer to the recorded request ``number`` differs. ``path`` names the field; it is "" if there is no
    answer on one side. Bytes are as in the recording."""

    number: int
    api: str
    path: str
    recorded: Any
    replayed: Any


def replay(path: str, bootstrap: str) -> list[Difference]:
    """Play the recording at ``path`` to the broker ``bootstrap`` (``host:port``).

    An answer that a fault lost or cut is not compared. `FaultError` if the file is not a recording; OSError."""
    player = _Player(bootstrap)
    try:
        return list(player.play(read_recording(OsFs(), path)))
    finally:
        player.close()


class _Player:
    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._address = (host, int(port))
        self._sockets: dict[int, socket.socket] = {}
        self._asked: dict[int, RecordedRequest] = {}
        self._theirs: dict[Any, Any] = {}
        """By the recorded value that a broker chose: this broker's."""

    def play(self, events: Iterable[RecordedRequest | RecordedAnswer]) -> Iterator[Difference]:
        for event in events:
            if isinstance(event, RecordedRequest):
                self._asked[event.number] = event
                self._socket(event.connection).sendall(self._translated(event))
            elif (asked := self._asked.pop(event.number, None)) is not None:
                yield from self._answer(asked, event)

    def close(self) -> None:
        for one in self._sockets.values():
            one.close()

    def _socket(self, connection: int) -> socket.socket:
        if connection not in self._sockets:
            self._sockets[connection] = socket.create_connection(self._address, _SECONDS)
        return self._sockets[connection]

    def _answer(self, asked: RecordedRequest, recorded: RecordedAnswer) -> Iterator[Difference]:
        if recorded.ending is None and recorded.frame is None:
            return  # a request without an answer
        found = self._receive(asked.connection)
        if recorded.ending is not None:
            if recorded.ending != "hang":
                self._sockets.pop(asked.connection).close()
            return
        assert recorded.frame is not None
        api = name_of(asked.key)
        if found is None:
            yield Difference(asked.number, api, "", "an answer", "no answer")
            return
        before = answer_body(asked.key, asked.version, recorded.frame)
        now = answer_body(asked.key, asked.version, found)
        self._learn(before, now)
        for path, one, other in _differences(self._translate(before), now, ""):
            yield Difference(asked.number, api, path, shown(one), shown(other))

    def _receive(self, connection: int) -> bytes | None:
        raw = self._socket(connection)
        try:
            size = _exactly(raw, _SIZE.size)
            return size + _exactly(raw, _SIZE.unpack(size)[0])
        except (ConnectionError, TimeoutError, EOFError):
            return None

    # Values that brokers choose

    def _learn(self, before: Any, now: Any, name: str = "") -> None:
        if isinstance(before, Mapping) and isinstance(now, Mapping):
            for field, one in before.items():
                self._learn(one, now.get(field), field)
        elif isinstance(before, tuple) and isinstance(now, tuple):
            for one, other in zip(before, now, strict=False):
                self._learn(one, other, name)
        elif name in _CHOSEN and before != now and _is_chosen(name, before) and _is_chosen(name, now):
            self._theirs[name, before] = now

    def _translate(self, value: Any, name: str = "") -> Any:
        if isinstance(value, Mapping):
            return {field: self._translate(one, field) for field, one in value.items()}
        if isinstance(value, tuple):
            return tuple(self._translate(one, name) for one in value)
        if isinstance(value, bytes) and name == "records":
            return self._translated_batches(value)
        same = "member_id" if name == "leader" else name
        return self._theirs.get((name, value), self._theirs.get((same, value), value)) if _is_plain(value) else value

    def _translated(self, asked: RecordedRequest) -> bytes:
        """The frame with its size, and with this broker's values."""
        frame = asked.frame
        if self._theirs:
            header = read_header(frame)
            try:
                body = request_body(asked.key, asked.version, header.body, frame)
            except InvalidRequestError:
                body = {}
            if body and (changed := self._translate(body)) != body:
                frame = frame[: header.body] + write_message(request_class(asked.key, asked.version), changed)
        return _SIZE.pack(len(frame)) + frame

    def _translated_batches(self, data: bytes) -> bytes:
        """The batches with this broker's producer ids."""
        producers = {one: other for (name, one), other in self._theirs.items() if name == "producer_id"}
        out = bytearray()
        try:
            for entry in entries(data):
                end = entry.position + entry.size
                header = read_batch_header(data, entry.position) if entry.magic == _BATCH else None
                if header is not None and header.producer_id in producers:
                    header = header._replace(producer_id=producers[header.producer_id])
                    out += build_batch(header, data[entry.position + BATCH_OVERHEAD : end])
                else:
                    out += data[entry.position : end]
        except CorruptError:
            return data
        return bytes(out)


def _differences(one: Any, other: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for name, value in one.items():
            if name not in _IGNORED:
                yield from _differences(value, other.get(name), f"{path}.{name}" if path else name)
    elif isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        for at, (value, its) in enumerate(zip(one, other, strict=True)):
            yield from _differences(value, its, f"{path}[{at}]")
    elif path.endswith("records") and isinstance(one, bytes) and isinstance(other, bytes):
        if _records(one) != _records(other):
            yield path, one, other
    elif one != other:
        yield path, one, other


def _records(data: bytes) -> list[Any]:
    """Offsets, keys, values and headers: timestamps may be the broker's."""
    found: list[Any] = []
    try:
        for entry in entries(data):
            if entry.magic != _BATCH:
                found.append(data[entry.position : entry.position + entry.size])
                continue
            header = read_batch_header(data, entry.position)
            decoded = decode_records(data, header, entry.position)
            found += [(one.offset, one.key, one.value, one.headers) for one in decoded]
    except CorruptError:
        found.append(data)
    return found


def _is_chosen(name: str, value: Any) -> bool:
    """Whether the value stands for something that the broker made."""
    return value not in (None, "", -1) and not (name == _SESSION and value == _NO_SESSION)


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int | UUID)


def _exactly(raw: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        part = raw.recv(size - len(found))
        if not part:
            raise EOFError
        found += part
    return bytes(found)
