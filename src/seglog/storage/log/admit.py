"""May these batches be appended, and what exactly is written then? Pure.

Every reason for a refusal is here, in `seglog.storage.log.batch_placement` (of one batch) and in
`seglog.storage.log.producers`.

Rules of Kafka 4.4's ``UnifiedLog.append``, ``analyzeAndValidateRecords`` and ``LogValidator``. Unlike Kafka this
decodes the records of a batch only where the topic asks for it: it is compacted, changes the codec, limits how old a
record may be, or has ``seglog.validate.records``; and where the header's timestamps are too late or contradict each
other. A header that hides a record's timestamp beyond ``message.timestamp.after.max.ms``, and records that cannot be
decoded under a right CRC, are stored else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from seglog.core.config import LogConfig
from seglog.core.errors import (
    FencedLeaderEpochError,
    InvalidRecordError,
    RecordListTooLargeError,
    UnexpectedAppendOffsetError,
    UnknownLeaderEpochError,
)
from seglog.core.types import MAX_INT32, MAX_INT64, NO_EPOCH, NO_TIMESTAMP, Buffer, TimestampType
from seglog.records import any_magic
from seglog.records.batch import CONTROL_BIT, BatchHeader, entries
from seglog.records.record import ControlRecord, decode_records, parse_control
from seglog.storage.log.batch_placement import place_all, place_one
from seglog.storage.log.producers import Origin, Producers, ProducerUpdates

__all__ = ["AppendPlan", "Duplicate", "Origin", "admit"]

_new: Final = tuple.__new__
"""Makes a named tuple in half the time that its own constructor takes."""
# An enum's member costs 70 ns each time it is looked up in its class.
_COORDINATOR: Final = Origin.COORDINATOR
_REPLICATION: Final = Origin.REPLICATION
_CREATE_TIME: Final = TimestampType.CREATE_TIME


class AppendPlan(NamedTuple):
    """The bytes to write, and the changes that follow. Nothing can refuse it any more.

    ``data`` is ready to be written, whole batches; ``batches`` are their headers, in order, their positions following
    from their sizes. ``epoch_starts`` are to be assigned in order, after forgetting all epochs if ``clears_epochs``
    (a message of an old format has none). ``log_append_time`` is -1 unless the topic has LogAppendTime.
    """

    data: Buffer
    first_offset: int
    last_offset: int
    max_timestamp: int
    batches: Sequence[BatchHeader]
    updates: ProducerUpdates | None
    epoch_starts: tuple[tuple[int, int], ...]
    log_append_time: int
    clears_epochs: bool = False


class Duplicate(NamedTuple):
    """The batch is in the log already: where, and with which (largest) timestamp."""

    base_offset: int
    last_offset: int
    timestamp: int


def admit(
    data: Buffer,
    end_offset: int,
    config: LogConfig,
    producers: Producers,
    latest_epoch: int,
    leader_epoch: int,
    origin: Origin,
    now_ms: int,
    transaction_version: int = 0,
) -> AppendPlan | Duplicate:
    """Decide on an append at ``end_offset``; ``data`` is not changed.

    Raises a subclass of `AppendError`, `CorruptBatchError`, or for an epoch out of order `FencedLeaderEpochError` or
    `UnknownLeaderEpochError`. ``latest_epoch`` is the log's last known leader epoch, -1 if there is none.
    """
    if origin is _REPLICATION:
        return _admit_replica(data, end_offset, producers, latest_epoch, leader_epoch, config)
    if leader_epoch != latest_epoch:
        _check_epoch(leader_epoch, latest_epoch)
    placed = place_one(data, end_offset, leader_epoch, config, origin, now_ms)
    if placed is None:
        out, batches = place_all(data, end_offset, leader_epoch, config, origin, now_ms)
        count = sum(header.records_count for header in batches)
        max_timestamp = _largest_timestamp(batches)
        has_producer = any(header.producer_id >= 0 for header in batches)
    else:
        out, header = placed
        batches = (header,)
        count = header.records_count
        max_timestamp = header.max_timestamp
        has_producer = header.producer_id >= 0
    if len(out) > config.segment_bytes:
        raise RecordListTooLargeError(f"{len(out)} bytes in one append; a segment takes {config.segment_bytes}")
    last_offset = end_offset + count - 1
    if last_offset >= MAX_INT64:
        raise UnexpectedAppendOffsetError(f"{count} records from offset {end_offset} on go beyond the last one")
    updates = None
    if has_producer:
        if origin is not _COORDINATOR and (duplicate := _duplicate(batches, producers)):
            return duplicate
        controls = _controls(out, batches) if origin is _COORDINATOR else None
        updates = producers.prepare(batches, origin, controls=controls, transaction_version=transaction_version)
    return _new(
        AppendPlan,
        (
            out,
            end_offset,
            last_offset,
            max_timestamp,
            batches,
            updates,
            () if leader_epoch == latest_epoch else ((leader_epoch, end_offset),),
            NO_TIMESTAMP if config.message_timestamp_type is _CREATE_TIME else now_ms,
            False,
        ),
    )


def _check_epoch(leader_epoch: int, latest_epoch: int) -> None:
    if leader_epoch < latest_epoch:
        raise FencedLeaderEpochError(f"leader epoch {leader_epoch} appends to a log that has seen {latest_epoch}")
    if leader_epoch > MAX_INT32:
        raise UnknownLeaderEpochError(f"leader epoch {leader_epoch} is above {MAX_INT32}, the last one")


def _largest_timestamp(batches: Iterable[BatchHeader]) -> int:
    return max([NO_TIMESTAMP, *(header.max_timestamp for header in batches)])


def _duplicate(batches: Sequence[BatchHeader], producers: Producers) -> Duplicate | None:
    """Where the batches are already, if all of them are. If only some are, the sequence of the others is wrong."""
    first = last = producers.find_duplicate(batches[0])
    for header in batches[1:]:
        if last is None:
            return None
        last = producers.find_duplicate(header)
    if first is None or last is None:
        return None
    return Duplicate(first.first_offset, last.last_offset, last.timestamp)


def _controls(data: Buffer, batches: Sequence[BatchHeader]) -> list[ControlRecord | None] | None:
    """The markers of the control batches that have a producer, by batch; None if there are no such batches."""
    controls: list[ControlRecord | None] = []
    position = 0
    found = False
    for header in batches:
        control = None
        if header.magic == 2 and header.attributes & CONTROL_BIT and header.producer_id >= 0 and header.records_count:
            control = parse_control(decode_records(data, header, position)[0])
            found = True
        controls.append(control)
        position += header.size
    return controls if found else None


def _admit_replica(
    data: Buffer, end_offset: int, producers: Producers, latest_epoch: int, leader_epoch: int, config: LogConfig
) -> AppendPlan:
    """Admit batches from a leader: its offsets and epochs count, a torn last batch is left out, nothing is rewritten.

    Batches of a later epoch than ``leader_epoch``, in which they were fetched, are left out too (KAFKA-18723).
    """
    batches: list[BatchHeader] = []
    epoch_starts: list[tuple[int, int]] = []
    clears_epochs = False
    last_offset = end_offset - 1
    end = 0
    for entry in entries(data):
        header = any_magic.describe(data, entry)
        epoch = header.leader_epoch
        if epoch > leader_epoch:
            if not batches:
                raise UnknownLeaderEpochError(f"a batch of leader epoch {epoch} in an append of epoch {leader_epoch}")
            break
        any_magic.check(data, entry)
        if header.base_offset <= last_offset:
            raise UnexpectedAppendOffsetError(
                f"a replica's batch at offset {header.base_offset}, but the log continues at {last_offset + 1}"
            )
        if header.magic < 2:
            clears_epochs = clears_epochs or latest_epoch >= 0
            epoch_starts.clear()
            latest_epoch = NO_EPOCH
        elif epoch >= 0 and epoch != latest_epoch:
            epoch_starts.append((epoch, header.base_offset))
            latest_epoch = epoch
        batches.append(header)
        last_offset = header.last_offset
        end = entry.position + entry.size
    if not batches:
        raise InvalidRecordError("no whole batch")
    if end > config.segment_bytes:
        raise RecordListTooLargeError(f"{end} bytes in one append; a segment takes {config.segment_bytes}")
    written = data if end == len(data) else memoryview(data)[:end]
    return AppendPlan(
        written,
        batches[0].base_offset,
        last_offset,
        _largest_timestamp(batches),
        batches,
        producers.prepare(batches, Origin.REPLICATION, controls=_controls(written, batches)),
        tuple(epoch_starts),
        NO_TIMESTAMP,
        clears_epochs,
    )
