"""May these batches be appended, and what exactly is written then? Every reason for a refusal is here. Pure.

Rules of Kafka 4.3's ``UnifiedLog.append``, ``analyzeAndValidateRecords`` and ``LogValidator``. Unlike Kafka this
decodes the records of a batch only where the topic asks for it: it is compacted, changes the codec, limits how old a
record may be, or has ``seglog.validate.records``; and where the header's timestamps are too late or contradict each
other. A header that hides a record's timestamp beyond ``message.timestamp.after.max.ms``, and records that cannot be
decoded under a right CRC, are stored else.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from seglog.core.config import PRODUCER, LogConfig
from seglog.core.errors import (
    CorruptBatchError,
    FencedLeaderEpochError,
    InvalidRecordError,
    InvalidTimestampError,
    RecordListTooLargeError,
    RecordTooLargeError,
    UnexpectedAppendOffsetError,
    UnknownLeaderEpochError,
    UnsupportedCompressionTypeError,
)
from seglog.core.types import MAX_INT64, NO_EPOCH, NO_TIMESTAMP, Buffer, TimestampType
from seglog.records import legacy, view
from seglog.records.batch import (
    BATCH_OVERHEAD,
    CODEC_MASK,
    CONTROL_BIT,
    CRC_START,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
    entries,
    patch_log_append_time,
    patch_max_timestamp,
    patch_offset_and_epoch,
    read_header,
)
from seglog.records.compression import Codec
from seglog.records.record import ControlRecord, NewRecord, decode_records, encode_batch, parse_control
from seglog.storage import validate
from seglog.storage.producers import Origin, Producers, ProducerUpdates

__all__ = ["AppendPlan", "Duplicate", "Origin", "admit"]

_ATTRIBUTES: Final = Struct(">h")
_LAST_CODEC: Final = max(Codec)


class AppendPlan(NamedTuple):
    """What to write and what changes with it. Nothing in it can be refused any more.

    ``data`` is ready to be written, whole batches; ``batches`` are their headers, in order, their positions following
    from their sizes. ``offset_of_max_timestamp`` is the last offset of the first batch with the largest timestamp (-1
    if none has one). ``epoch_starts`` are to be assigned in order, after forgetting all epochs if ``clears_epochs``
    (a message of an old format has none). ``log_append_time`` is -1 unless the topic has LogAppendTime.
    """

    data: bytes | bytearray
    first_offset: int
    last_offset: int
    max_timestamp: int
    offset_of_max_timestamp: int
    batches: Sequence[BatchHeader]
    updates: ProducerUpdates | None
    epoch_starts: tuple[tuple[int, int], ...]
    log_append_time: int
    record_count: int
    clears_epochs: bool = False


class Duplicate(NamedTuple):
    """The batch is in the log already: where, and with which (largest) timestamp."""

    base_offset: int
    last_offset: int
    timestamp: int


def admit(
    data: Buffer,
    *,
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
    if origin is Origin.REPLICATION:
        return _admit_replica(data, end_offset, producers, latest_epoch, leader_epoch, config)
    if leader_epoch < latest_epoch:
        raise FencedLeaderEpochError(f"leader epoch {leader_epoch} appends to a log that has seen {latest_epoch}")
    batches: Sequence[BatchHeader]
    size = len(data)
    if size >= BATCH_OVERHEAD and (header := read_header(data)).length + LOG_OVERHEAD == size and header.magic == 2:
        _check_batch(data, 0, header, config, origin)
        out, header = _place(data, 0, header, end_offset, leader_epoch, config, now_ms)
        batches = (header,)
        count = header.records_count
        max_timestamp = header.max_timestamp
        offset_of_max = end_offset + count - 1 if max_timestamp >= 0 else -1
        has_producer = header.producer_id >= 0
    else:
        out, batches = _place_all(data, end_offset, leader_epoch, config, origin, now_ms)
        count = sum(header.records_count for header in batches)
        max_timestamp, offset_of_max = _newest(batches)
        has_producer = any(header.producer_id >= 0 for header in batches)
    if len(out) > config.segment_bytes:
        raise RecordListTooLargeError(f"{len(out)} bytes in one append; a segment takes {config.segment_bytes}")
    updates = None
    if has_producer:
        if origin is not Origin.COORDINATOR and (duplicate := _duplicate(batches, producers)):
            return duplicate
        controls = _controls(out, batches) if origin is Origin.COORDINATOR else None
        updates = producers.prepare(batches, origin, controls=controls, transaction_version=transaction_version)
    return AppendPlan(
        out,
        end_offset,
        end_offset + count - 1,
        max_timestamp,
        offset_of_max,
        batches,
        updates,
        () if leader_epoch == latest_epoch else ((leader_epoch, end_offset),),
        NO_TIMESTAMP if config.message_timestamp_type is TimestampType.CREATE_TIME else now_ms,
        count,
    )


def _check_batch(data: Buffer, position: int, header: BatchHeader, config: LogConfig, origin: Origin) -> None:
    """What the header alone says, and the CRC."""
    base_offset, length, _, _, crc, attributes, delta, _, _, producer_id, epoch, sequence, count = header
    size = length + LOG_OVERHEAD
    if size > config.max_message_bytes:
        raise RecordTooLargeError(f"a batch of {size} bytes; max.message.bytes is {config.max_message_bytes}")
    computed = crc32c(memoryview(data)[position + CRC_START : position + size])
    if computed != crc:
        raise CorruptBatchError(f"stored CRC {crc} is not the computed {computed}", position=position)
    if count != delta + 1 or count <= 0:
        raise InvalidRecordError(f"a batch of {count} records with offset deltas up to {delta}")
    if attributes & CODEC_MASK > _LAST_CODEC:
        raise UnsupportedCompressionTypeError(f"codec {attributes & CODEC_MASK} is unknown")
    if origin is Origin.COORDINATOR:
        return
    if attributes & CONTROL_BIT:
        raise InvalidRecordError("clients may not write control records")
    if base_offset and origin is Origin.CLIENT:
        raise InvalidRecordError(f"the base offset of a client's batch is {base_offset}, not 0")
    if producer_id >= 0 and (sequence < 0 or epoch < 0):
        raise InvalidRecordError(f"producer {producer_id} without a sequence or epoch: {sequence}, {epoch}")


def _place(
    data: Buffer, position: int, header: BatchHeader, offset: int, leader_epoch: int, config: LogConfig, now_ms: int
) -> tuple[bytearray, BatchHeader]:
    """The batch as it goes into the log at ``offset``, and its header there."""
    attributes = header.attributes
    max_timestamp = header.max_timestamp
    create_time = config.message_timestamp_type is TimestampType.CREATE_TIME
    stamped = attributes & TIMESTAMP_TYPE_BIT
    if stamped and not (create_time and max_timestamp >= 0):
        raise InvalidTimestampError("a producer may not set the timestamp type to LogAppendTime")
    codec = attributes & CODEC_MASK
    if config.compression_type != PRODUCER:
        codec = validate.target_codec(header, config)
    if (
        codec != attributes & CODEC_MASK
        or config.seglog_validate_records
        or (config.compact and not attributes & CONTROL_BIT)
        or (
            create_time
            and (
                max_timestamp - now_ms > config.message_timestamp_after_max_ms
                or header.base_timestamp > max_timestamp
                or config.message_timestamp_before_max_ms != MAX_INT64
            )
        )
    ):
        records = validate.decode(data, header, position, config)
        largest = validate.check_records(records, header, config, now_ms)
        if create_time:
            max_timestamp = largest
        if codec != attributes & CODEC_MASK:
            out = validate.rebuild(
                records,
                header,
                codec,
                base_offset=offset,
                leader_epoch=leader_epoch,
                config=config,
                now_ms=now_ms,
            )
            if len(out) > config.max_message_bytes:
                raise RecordTooLargeError(
                    f"a batch of {len(out)} bytes after recompression; max.message.bytes is {config.max_message_bytes}"
                )
            return out, read_header(out)
    out = bytearray(data if len(data) == header.length + LOG_OVERHEAD else _slice(data, position, header))
    patch_offset_and_epoch(out, 0, offset, leader_epoch)
    if create_time and not stamped and max_timestamp == header.max_timestamp:
        return out, tuple.__new__(BatchHeader, (offset, header[1], leader_epoch, *header[3:]))
    if create_time:
        _ATTRIBUTES.pack_into(out, CRC_START, attributes & ~TIMESTAMP_TYPE_BIT)
        patch_max_timestamp(out, 0, header, max_timestamp)
    else:
        patch_log_append_time(out, 0, header, now_ms)
    return out, read_header(out)


def _slice(data: Buffer, position: int, header: BatchHeader) -> memoryview:
    return memoryview(data)[position : position + header.length + LOG_OVERHEAD]


def _place_all(
    data: Buffer, offset: int, leader_epoch: int, config: LogConfig, origin: Origin, now_ms: int
) -> tuple[bytearray, list[BatchHeader]]:
    """As `_place` for what is not just one batch of magic 2."""
    if len(data) > MAGIC_POSITION and data[MAGIC_POSITION] < 2:
        data = _convert_up(data, config, origin)
    out = bytearray()
    placed: list[BatchHeader] = []
    end = 0
    for entry in entries(data):
        if placed and origin is not Origin.BULK:
            raise InvalidRecordError("more than one batch")
        if entry.magic != 2:
            raise InvalidRecordError(f"a message of magic {entry.magic} behind batches of magic 2")
        header = read_header(data, entry.position)
        _check_batch(data, entry.position, header, config, origin)
        batch, header = _place(data, entry.position, header, offset, leader_epoch, config, now_ms)
        out += batch
        placed.append(header)
        offset += header.records_count
        end = entry.position + entry.size
    if end != len(data):
        raise CorruptBatchError(f"{len(data) - end} bytes are no whole batch", position=end)
    if not placed:
        raise InvalidRecordError("no batch")
    return out, placed


def _convert_up(data: Buffer, config: LogConfig, origin: Origin) -> Buffer:
    """Messages of magic 0 and 1 as magic 2: of a client, whose offsets say nothing, one batch; else what is best."""
    found: list[BatchHeader] = []
    records: list[NewRecord] = []
    end = 0
    for entry in entries(data):
        if entry.size > config.max_message_bytes:
            raise RecordTooLargeError(
                f"a message of {entry.size} bytes; max.message.bytes is {config.max_message_bytes}"
            )
        view.check(data, entry)
        header = view.describe(data, entry)
        if found and header.magic != found[0].magic:
            raise InvalidRecordError(f"messages of magic {found[0].magic} and {header.magic} in one append")
        if header.attributes & TIMESTAMP_TYPE_BIT and config.message_timestamp_type is not TimestampType.CREATE_TIME:
            raise InvalidTimestampError("a producer may not set the timestamp type to LogAppendTime")
        found.append(header)
        end = entry.position + entry.size
        if origin is not Origin.BULK:
            if len(found) > 1 and (header.codec or found[0].codec):
                raise InvalidRecordError("more than one compressed message")
            records += [NewRecord(found.value, found.key, found.timestamp) for found in view.decode(data, entry)]
    if end != len(data):
        raise CorruptBatchError(f"{len(data) - end} bytes are no whole message", position=end)
    if origin is Origin.BULK:
        return legacy.convert_up(data, run_bytes=config.max_message_bytes // 2)
    return encode_batch(records, codec=found[0].codec)


def _newest(batches: Sequence[BatchHeader]) -> tuple[int, int]:
    """The largest timestamp, and the last offset of the first batch that has it; -1 and -1 if there is none."""
    max_timestamp, offset = NO_TIMESTAMP, -1
    for header in batches:
        if header.max_timestamp > max_timestamp:
            max_timestamp, offset = header.max_timestamp, header.last_offset
    return max_timestamp, offset


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
    """What a leader sent: its offsets and epochs count, a torn batch at the end is left out, nothing is rewritten.

    Batches of a later epoch than ``leader_epoch``, in which they were fetched, are left out too (KAFKA-18723).
    """
    batches: list[BatchHeader] = []
    epoch_starts: list[tuple[int, int]] = []
    clears_epochs = False
    last_offset = end_offset - 1
    end = 0
    for entry in entries(data):
        header = view.describe(data, entry)
        epoch = header.leader_epoch
        if epoch > leader_epoch:
            if not batches:
                raise UnknownLeaderEpochError(f"a batch of leader epoch {epoch} in an append of epoch {leader_epoch}")
            break
        view.check(data, entry)
        if header.base_offset <= last_offset:
            raise UnexpectedAppendOffsetError(
                f"a replica's batch at offset {header.base_offset}, where the log goes on at {last_offset + 1}"
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
    written = data if end == len(data) and not isinstance(data, memoryview) else bytes(memoryview(data)[:end])
    return AppendPlan(
        written,
        batches[0].base_offset,
        last_offset,
        *_newest(batches),
        batches,
        producers.prepare(batches, Origin.REPLICATION, controls=_controls(written, batches)),
        tuple(epoch_starts),
        NO_TIMESTAMP,
        sum(header.records_count for header in batches),
        clears_epochs,
    )
