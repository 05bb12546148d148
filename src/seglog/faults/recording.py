"""A session between clients and a broker, in a file: every request and answer, raw and decoded.

A line of JSON for each::

    {"format": "seglog recording", "version": 1, "started_ms": …}
    {"request": 1, "at": 0.01, "connection": 1, "api": "Produce", "version": 9, "client_id": "c", "correlation_id": 4,
     "raw": "<base64: the frame without its size>", "decoded": {…}}
    {"answer": 1, "at": 0.02, "raw": "<base64: the frame with its size>", "decoded": {…}, "ending": null}

``at`` are seconds since the start, ``ending`` says how a fault ended the connection after the answer. An answer that
did not come has ``raw`` null. ``decoded`` shortens bytes; it is for people, and replay uses ``raw``.
"""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple
from uuid import UUID

from seglog.core.clock import Clock
from seglog.core.errors import InvalidRequestError
from seglog.core.fs import Fs
from seglog.faults.fault import FaultError
from seglog.protocol.apis import APIS, name_of
from seglog.protocol.framing import RequestHeader, frame_response
from seglog.protocol.message_reader import read_message
from seglog.protocol.messages import as_mapping, read_answer
from seglog.protocol.schema import request_class

FORMAT: Final = "seglog recording"
_SHOWN_BYTES: Final = 64
MAX_BYTES: Final = 1 << 30
"""A recording ends here: a test that forgets one must not fill the disk."""


class RecordedRequest(NamedTuple):
    number: int
    at: float
    connection: int
    key: int
    version: int
    frame: bytes


class RecordedAnswer(NamedTuple):
    """``frame`` is None if no answer was sent, and includes its size."""

    number: int
    at: float
    frame: bytes | None
    ending: str | None


class Recorder:
    """A `FrameObserver` that writes a file."""

    def __init__(self, fs: Fs, path: str, clock: Clock) -> None:
        """OSError. An older recording is replaced; `FaultError` for any other file."""
        if fs.exists(path):
            if not _is_recording(fs, path):
                raise FaultError(f"{path} exists and is not a recording; it was left unchanged")
            fs.unlink(path)
        self._file = fs.open(path, create=True)
        self._clock = clock
        self._began = clock.monotonic()
        self._numbers = itertools.count(1)
        self._asked: dict[int, RequestHeader] = {}
        self._end = 0
        self._write({"format": FORMAT, "version": 1, "started_ms": clock.now_ms()})

    def requested(self, connection: int, header: RequestHeader, frame: bytes) -> int:
        number = next(self._numbers)
        self._asked[number] = header
        self._write(
            {
                "request": number,
                "at": self._at(),
                "connection": connection,
                "api": name_of(header.key),
                "version": header.version,
                "client_id": header.client_id,
                "correlation_id": header.correlation_id,
                "raw": base64.b64encode(frame).decode(),
                "decoded": _decoded_request(header, frame),
            }
        )
        return number

    def answered(self, number: int, answer: bytes | None, ending: str | None) -> None:
        header = self._asked.pop(number, None)
        if header is None:  # asked before the recording
            return
        is_whole = answer is not None and ending is None
        self._write(
            {
                "answer": number,
                "at": self._at(),
                "raw": None if answer is None else base64.b64encode(answer).decode(),
                "decoded": _decoded_answer(header, answer) if is_whole and answer is not None else None,
                "ending": ending,
            }
        )

    def close(self) -> None:
        """Write nothing more: answers to requests that are under way are missing."""
        self._asked.clear()
        self._file.close()

    def _at(self) -> float:
        return round(self._clock.monotonic() - self._began, 6)

    def _write(self, document: Mapping[str, Any]) -> None:
        line = json.dumps(document).encode() + b"\n"
        if self._end + len(line) <= MAX_BYTES:
            self._file.pwrite(line, self._end)
            self._end += len(line)


def _is_recording(fs: Fs, path: str) -> bool:
    """Whether it begins as one, or is empty."""
    begin = b'{"format": "' + FORMAT.encode() + b'"'
    file = fs.open(path, write=False)
    try:
        return file.pread(len(begin), 0) in (b"", begin)
    finally:
        file.close()


def read_recording(fs: Fs, path: str) -> Iterator[RecordedRequest | RecordedAnswer]:
    """The events of a recording in their order. `FaultError` if the file is none; OSError."""
    keys = {name_of(key): int(key) for key in APIS}
    try:
        first, *lines = map(json.loads, fs.read(path).splitlines())
        if (first.get("format"), first.get("version")) != (FORMAT, 1):
            raise FaultError(f"{path} is not a recording of version 1")
        for line in lines:
            raw = None if line["raw"] is None else base64.b64decode(line["raw"])
            if "request" in line:
                key = keys[line["api"]]
                yield RecordedRequest(line["request"], line["at"], line["connection"], key, line["version"], raw or b"")
            else:
                yield RecordedAnswer(line["answer"], line["at"], raw, line["ending"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FaultError(f"{path} is not a recording: {error!r}") from error


def answer_body(key: int, version: int, answer: bytes) -> dict[str, Any]:
    """A whole answer as mappings. `InvalidRequestError` if it cannot be decoded."""
    found: dict[str, Any] = as_mapping(read_answer(key, version, answer[len(frame_response(key, version, 0, 0)) :]))
    return found


def request_body(key: int, version: int, body: int, frame: bytes) -> dict[str, Any]:
    message = request_class(key, version)
    found: dict[str, Any] = as_mapping(read_message(message, message, frame, body))
    return found


def _decoded_request(header: RequestHeader, frame: bytes) -> Any:
    try:
        return shown(request_body(header.key, header.version, header.body, frame))
    except InvalidRequestError:
        return None


def _decoded_answer(header: RequestHeader, answer: bytes) -> Any:
    try:
        return shown(answer_body(header.key, header.version, answer))
    except InvalidRequestError:
        return None


def shown(value: Any) -> Any:
    """A decoded message for people, as JSON."""
    if isinstance(value, Mapping):
        return {name: shown(one) for name, one in value.items()}
    if isinstance(value, tuple | list):
        return [shown(one) for one in value]
    if isinstance(value, bytes):
        head = base64.b64encode(value[:_SHOWN_BYTES]).decode()
        return {"bytes": len(value), "base64": head}
    return str(value) if isinstance(value, UUID) else value
