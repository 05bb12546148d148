"""Fetch responses by hand: the bytes between slices of files, which are sent unchanged.

::

    throttle_time int32 | error int16 (7+) | session_id int32 (7+)
    | [topic | [partition int32 | error int16 | high_watermark int64 | last_stable_offset int64
                | log_start_offset int64 (5+) | [producer_id int64 | first_offset int64] nullable
                | preferred_read_replica int32 (11+) | records]]

Topic: name, from version 13 on id. From version 12 on lengths are varints of length + 1, and tagged fields follow each
part; of those ``diverging_epoch`` (0) and ``current_leader`` (1) of a partition are written.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple
from uuid import UUID

from seglog.core.types import NO_OFFSET, Slice
from seglog.protocol.wire import NodeEndpoint, put_count, put_endpoints, put_leader, put_text

FLEXIBLE: Final = 12
TOPIC_IDS: Final = 13
ENDPOINTS: Final = 16
_INT32: Final = Struct(">i")
_SESSION: Final = Struct(">ihi")
_PARTITION: Final = Struct(">ihqq")
_PARTITION_5: Final = Struct(">ihqqq")
_ABORTED: Final = Struct(">qq")
_DIVERGING: Final = Struct(">iq")


class FetchedPartition(NamedTuple):
    """``aborted`` has pairs of producer id and first offset, or None without read_committed. ``diverging`` is an epoch
    and its end offset. ``leader`` is the current leader and its epoch if another broker leads."""

    partition: int
    error: int = 0
    high_watermark: int = NO_OFFSET
    last_stable_offset: int = NO_OFFSET
    log_start_offset: int = NO_OFFSET
    aborted: Sequence[tuple[int, int]] | None = None
    preferred_read_replica: int = -1
    records: Slice | None = None
    diverging: tuple[int, int] | None = None
    leader: tuple[int, int] | None = None

    @property
    def is_urgent(self) -> bool:
        """Whether the client must learn of it at once, without waiting for more bytes."""
        return self.error != 0 or self.diverging is not None or self.preferred_read_replica >= 0


class FetchedTopic(NamedTuple):
    topic: str | UUID
    partitions: Sequence[FetchedPartition]


class FetchAnswer(NamedTuple):
    """``parts`` in their order, ``size`` bytes in all."""

    parts: list[bytes | Slice]
    size: int


def write_fetch(
    version: int,
    topics: Sequence[FetchedTopic],
    *,
    error: int = 0,
    session_id: int = 0,
    throttle_ms: int = 0,
    endpoints: Sequence[NodeEndpoint] = (),
) -> FetchAnswer:
    """The body of a Fetch response; ``endpoints`` are those of the leaders that it names (16+)."""
    flexible = version >= FLEXIBLE
    parts: list[bytes | Slice] = []
    size = 0
    out = bytearray(_SESSION.pack(throttle_ms, error, session_id) if version >= 7 else _INT32.pack(throttle_ms))
    put_count(out, len(topics), flexible=flexible)
    for topic, partitions in topics:
        if isinstance(topic, UUID):
            out += topic.bytes
        else:
            put_text(out, topic, flexible=flexible)
        put_count(out, len(partitions), flexible=flexible)
        for partition in partitions:
            records = partition.records
            length = 0 if records is None else records.size
            _put_head(out, partition, version, flexible=flexible)
            put_count(out, length, flexible=flexible)
            if records is not None and length:
                parts += (bytes(out), records)
                size += len(out) + length
                out.clear()
            if flexible:
                _put_tags(out, partition)
        if flexible:
            out.append(0)
    if flexible:
        put_endpoints(out, endpoints if version >= ENDPOINTS else ())
    parts.append(bytes(out))
    return FetchAnswer(parts, size + len(out))


def _put_head(out: bytearray, partition: FetchedPartition, version: int, *, flexible: bool) -> None:
    number, error, high_watermark, stable, log_start, aborted, preferred, _, _, _ = partition
    if version >= 5:
        out += _PARTITION_5.pack(number, error, high_watermark, stable, log_start)
    else:
        out += _PARTITION.pack(number, error, high_watermark, stable)
    put_count(out, -1 if aborted is None else len(aborted), flexible=flexible)
    for producer_id, first_offset in aborted or ():
        out += _ABORTED.pack(producer_id, first_offset)
        if flexible:
            out.append(0)
    if version >= 11:
        out += _INT32.pack(preferred)


def _put_tags(out: bytearray, partition: FetchedPartition) -> None:
    """Tagged structs: the number of tags; for each its tag, size and fields, and no nested tags."""
    out.append((partition.diverging is not None) + (partition.leader is not None))
    if partition.diverging is not None:
        out += bytes((0, _DIVERGING.size + 1)) + _DIVERGING.pack(*partition.diverging) + b"\0"
    if partition.leader is not None:
        out.append(1)
        put_leader(out, partition.leader)
