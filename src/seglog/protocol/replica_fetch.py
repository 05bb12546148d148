"""Fetch of followers, by hand: encodes and decodes requests of version 17, and decodes responses
(`seglog.protocol.fetch` writes them).

::

    request   max_wait_ms int32 | min_bytes int32 | max_bytes int32 | isolation_level int8
              | session_id int32 | session_epoch int32
              | [topic_id | [partition int32 | current_leader_epoch int32 | fetch_offset int64
                             | last_fetched_epoch int32 | log_start_offset int64 | partition_max_bytes int32]]
              | forgotten [topic_id | [partition int32]] | rack_id | tag 1: replica_id int32, replica_epoch int64
    response  throttle_time int32 | error int16 | session_id int32
              | [topic_id | [partition int32 | error int16 | high_watermark int64 | last_stable_offset int64
                             | log_start_offset int64 | [producer_id int64 | first_offset int64] nullable
                             | preferred_read_replica int32 | records | tag 0: epoch int32, end_offset int64]]

Lengths are varints of length + 1, and tagged fields follow each part. In a response, topic ids stay bytes: making
UUIDs would take longer than all the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from struct import Struct
from typing import Final, NamedTuple
from uuid import UUID

from seglog.core.errors import InvalidRequestError
from seglog.protocol.wire import WireReader, uvarint

VERSION: Final = 17
_REQUEST: Final = Struct(">iiibii")
_WANTED: Final = Struct(">iiqiqix")
_NUMBER: Final = Struct(">i")
_REPLICA_STATE: Final = Struct(">iq")
_RESPONSE: Final = Struct(">ihi")
_PARTITION: Final = Struct(">ihqqq")
_ABORTED: Final = Struct(">qq")
_DIVERGING: Final = Struct(">iq")
_SMALLEST_TOPIC: Final = 16 + 1 + 1
_SMALLEST_PARTITION: Final = _PARTITION.size + 1 + _NUMBER.size + 1 + 1
_NOTHING: Final = memoryview(b"")
_DIVERGING_EPOCH: Final = 0
_REPLICA: Final = 1
_TAIL: Final = bytes((1, 1, _REPLICA, _REPLICA_STATE.size + 1))
"""The end of a request: no rack, and one tagged field."""


class RequestHead(NamedTuple):
    """The fields of a request beside its partitions. ``replica_id`` and ``replica_epoch`` are -1 for a consumer."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    session_id: int
    session_epoch: int
    replica_id: int
    replica_epoch: int
    isolation_level: int = 0


class WantedPartition(NamedTuple):
    """In the order of the wire. An unknown epoch is -1."""

    partition: int
    leader_epoch: int
    offset: int
    last_epoch: int
    log_start_offset: int
    max_bytes: int


class AnsweredPartition(NamedTuple):
    """``diverging`` is the leader's largest epoch up to ours, and its end offset there. ``records`` is a slice of the
    response."""

    topic_id: bytes
    partition: int
    error: int
    high_watermark: int
    log_start_offset: int
    diverging: tuple[int, int] | None
    records: memoryview


class FetchResponse(NamedTuple):
    error: int
    session_id: int
    partitions: list[AnsweredPartition]


def write_request(
    head: RequestHead, wanted: Mapping[bytes, Sequence[WantedPartition]], forgotten: Mapping[bytes, Sequence[int]]
) -> bytes:
    """Encode the body of a request; partitions are grouped by topic id."""
    max_wait_ms, min_bytes, max_bytes, session_id, session_epoch, replica_id, replica_epoch, isolation_level = head
    out = bytearray(_REQUEST.pack(max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch))
    out += uvarint(len(wanted) + 1)
    for topic_id, partitions in wanted.items():
        out += topic_id
        out += uvarint(len(partitions) + 1)
        for partition in partitions:
            out += _WANTED.pack(*partition)
        out.append(0)
    out += uvarint(len(forgotten) + 1)
    for topic_id, numbers in forgotten.items():
        out += topic_id
        out += uvarint(len(numbers) + 1)
        for number in numbers:
            out += _NUMBER.pack(number)
        out.append(0)
    out += _TAIL
    out += _REPLICA_STATE.pack(replica_id, replica_epoch)
    out.append(0)
    return bytes(out)


class FollowerRequest(NamedTuple):
    """A request as the leader decodes it."""

    head: RequestHead
    wanted: list[tuple[UUID, WantedPartition]]
    forgotten: list[tuple[UUID, int]]


def read_request(data: memoryview, position: int) -> FollowerRequest | None:
    """Decode the body of a request at ``position`` if `write_request` encoded it; None for any other request, which
    takes the general way."""
    end = len(data) - len(_TAIL) - _REPLICA_STATE.size - 1
    if end < position or data[end : end + len(_TAIL)] != _TAIL or data[-1]:
        return None
    reader = WireReader(data[:end], position)
    try:
        max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch = reader.numbers(_REQUEST)
        wanted: list[tuple[UUID, WantedPartition]] = []
        for _ in range(_count(reader, _SMALLEST_TOPIC)):
            topic_id = _uuid(reader.take(16))
            numbers = range(_count(reader, _WANTED.size))
            wanted += [(topic_id, WantedPartition(*reader.numbers(_WANTED))) for _ in numbers]
            reader.skip_tags()
        forgotten: list[tuple[UUID, int]] = []
        for _ in range(_count(reader, _SMALLEST_TOPIC)):
            topic_id = _uuid(reader.take(16))
            forgotten += [(topic_id, reader.numbers(_NUMBER)[0]) for _ in range(_count(reader, _NUMBER.size))]
            reader.skip_tags()
    except InvalidRequestError:
        return None
    replica_id, replica_epoch = _REPLICA_STATE.unpack_from(data, end + len(_TAIL))
    if reader.left or replica_id < 0:
        return None
    head = RequestHead(
        max_wait_ms, min_bytes, max_bytes, session_id, session_epoch, replica_id, replica_epoch, isolation_level
    )
    return FollowerRequest(head, wanted, forgotten)


@lru_cache(maxsize=4096)
def _uuid(raw: bytes) -> UUID:
    return UUID(bytes=raw)


def read_response(data: memoryview) -> FetchResponse:
    """Decode the body of a response, all of ``data``.

    Raises `InvalidRequestError`, whatever the bytes are, and nothing else.
    """
    reader = WireReader(data)
    _, error, session_id = reader.numbers(_RESPONSE)
    found: list[AnsweredPartition] = []
    for _ in range(_count(reader, _SMALLEST_TOPIC)):
        topic_id = reader.take(16)
        found += [_read_partition(reader, topic_id) for _ in range(_count(reader, _SMALLEST_PARTITION))]
        reader.skip_tags()
    reader.skip_tags()
    if reader.left:
        raise InvalidRequestError(f"{reader.left} bytes after the end")
    return FetchResponse(error, session_id, found)


def _read_partition(reader: WireReader, topic_id: bytes) -> AnsweredPartition:
    number, error, high_watermark, _, log_start_offset = reader.numbers(_PARTITION)
    for _ in range(_count(reader, _ABORTED.size + 1, is_nullable=True)):
        reader.numbers(_ABORTED)
        reader.skip_tags()
    reader.numbers(_NUMBER)
    length = reader.uvarint() - 1
    records = _NOTHING
    if length > 0:
        if length > reader.left:
            raise InvalidRequestError(f"{length} bytes of records where {reader.left} are left")
        start = reader.position
        reader.position = start + length
        records = memoryview(reader.data)[start : reader.position]
    diverging = _read_tags(reader)
    return AnsweredPartition(topic_id, number, error, high_watermark, log_start_offset, diverging, records)


def _read_tags(reader: WireReader) -> tuple[int, int] | None:
    """The diverging epoch among the tagged fields; None if it is absent or negative."""
    diverging = None
    for _ in range(reader.tags()):
        tag, size = reader.uvarint(), reader.uvarint()
        if size > reader.left:
            raise InvalidRequestError(f"tagged field {tag} of {size} bytes where {reader.left} are left")
        end = reader.position + size
        if tag == _DIVERGING_EPOCH:
            epoch, offset = reader.numbers(_DIVERGING)
            reader.skip_tags()
            if reader.position != end:
                raise InvalidRequestError(f"tagged field {tag} claims {size} bytes, but has a different size")
            diverging = (epoch, offset) if epoch >= 0 else None
        reader.position = end
    return diverging


def _count(reader: WireReader, smallest: int, *, is_nullable: bool = False) -> int:
    """An array's length, if the rest of the buffer can hold that many elements."""
    length = reader.uvarint() - 1
    if length < 0 and not is_nullable:
        raise InvalidRequestError("an array that is null")
    if length * smallest > reader.left:
        raise InvalidRequestError(f"an array of {length} elements where {reader.left} bytes are left")
    return max(length, 0)
