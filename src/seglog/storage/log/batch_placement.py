"""Batches as they go into the log: checked one by one, and given their offsets, epoch and times. Pure.

The rules of Kafka 4.4's ``UnifiedLog.analyzeAndValidateRecords`` and ``LogValidator``; see `seglog.storage.log.admit`.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

from crc32c import crc32c

from seglog.core.config import PRODUCER, UNLIMITED_DECOMPRESSED, LogConfig
from seglog.core.errors import (
    CorruptBatchError,
    InvalidRecordError,
    InvalidTimestampError,
    RecordTooLargeError,
    UnsupportedCompressionTypeError,
)
from seglog.core.types import MAX_INT64, Buffer, TimestampType
from seglog.records import any_magic, legacy
from seglog.records.batch import (
    BATCH_OVERHEAD,
    CODEC_MASK,
    CONTROL_BIT,
    CRC_START,
    HEADER,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    entries,
    patch_log_append_time,
    patch_max_timestamp,
    patch_offset_and_epoch,
    read_header,
)
from seglog.records.compression import Codec
from seglog.records.record import NewRecord, encode_batch
from seglog.storage.log import record_validation
from seglog.storage.log.producers import Origin

_ATTRIBUTES: Final = Struct(">h")
_PLACE: Final = Struct(">qii")
"""Base offset, length, leader epoch: what a batch begins with, none of it under its CRC."""
_LAST_CODEC: Final = max(Codec)
_new: Final = tuple.__new__
"""Makes a named tuple in half the time that its own constructor takes."""
# An enum's member costs 70 ns each time it is looked up in its class.
_BULK: Final = Origin.BULK
_CLIENT: Final = Origin.CLIENT
_COORDINATOR: Final = Origin.COORDINATOR
_CREATE_TIME: Final = TimestampType.CREATE_TIME


def place_one(
    data: Buffer, offset: int, leader_epoch: int, config: LogConfig, origin: Origin, now_ms: int
) -> tuple[bytearray, BatchHeader] | None:
    """Place a single batch of magic 2; None: ``data`` is something else. Raises as `seglog.storage.log.admit` says.

    Nearly all appends are a batch that is stored without changes. The first condition finds these: they pass all checks
    of `_check_batch` and `_place`, which would give the same result in twice the time.
    """
    if len(data) < BATCH_OVERHEAD:
        return None
    (
        base_offset, length, _, magic, crc, attributes, delta, base_timestamp, max_timestamp, producer_id, epoch,
        sequence, count,
    ) = HEADER.unpack_from(data)  # fmt: skip
    size = length + LOG_OVERHEAD
    if magic != 2 or size != len(data):
        return None
    if (
        config.stores_as_is
        and size <= config.max_message_bytes
        and not base_offset
        and 0 <= attributes & ~TRANSACTIONAL_BIT <= _LAST_CODEC
        and 0 < count == delta + 1
        and base_timestamp <= max_timestamp <= now_ms + config.message_timestamp_after_max_ms
        and (producer_id < 0 or (sequence >= 0 and epoch >= 0))
        and crc32c(memoryview(data)[CRC_START:]) == crc
    ):
        out = bytearray(data)
        _PLACE.pack_into(out, 0, offset, length, leader_epoch)
        header = (
            offset, length, leader_epoch, magic, crc, attributes, delta, base_timestamp, max_timestamp, producer_id,
            epoch, sequence, count,
        )  # fmt: skip
        return out, _new(BatchHeader, header)
    found = read_header(data)
    _check_batch(data, 0, found, config, origin)
    return _place(data, 0, found, offset, leader_epoch, config, now_ms)


def _check_batch(data: Buffer, position: int, header: BatchHeader, config: LogConfig, origin: Origin) -> None:
    """Check the header by itself, and the CRC."""
    base_offset, length, _, _, crc, attributes, delta, _, _, producer_id, epoch, sequence, count = header
    if base_offset and origin is _CLIENT:
        raise InvalidRecordError(f"the base offset of a client's batch is {base_offset}, not 0")
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
    if origin is _COORDINATOR:
        return
    if attributes & CONTROL_BIT:
        raise InvalidRecordError("clients may not write control records")
    if producer_id >= 0 and (sequence < 0 or epoch < 0):
        raise InvalidRecordError(f"producer {producer_id} without a sequence or epoch: {sequence}, {epoch}")


def _place(
    data: Buffer, position: int, header: BatchHeader, offset: int, leader_epoch: int, config: LogConfig, now_ms: int
) -> tuple[bytearray, BatchHeader]:
    """The batch as it goes into the log at ``offset``, and its header there."""
    attributes = header.attributes
    max_timestamp = header.max_timestamp
    create_time = config.message_timestamp_type is _CREATE_TIME
    stamped = attributes & TIMESTAMP_TYPE_BIT
    codec = attributes & CODEC_MASK
    if config.compression_type != PRODUCER:
        codec = record_validation.target_codec(header, config)
    if (
        codec != attributes & CODEC_MASK
        or config.seglog_validate_records
        or (codec and config.max_decompressed_message_bytes != UNLIMITED_DECOMPRESSED)
        or (stamped and not (create_time and max_timestamp >= 0))
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
        records = record_validation.decode(data, header, position, config)
        largest = record_validation.check_records(records, header, config, now_ms)
        if create_time:
            max_timestamp = largest
        if codec != attributes & CODEC_MASK:
            out = record_validation.rebuild(
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
    out = bytearray(_slice(data, position, header))
    patch_offset_and_epoch(out, 0, offset, leader_epoch)
    if create_time and not stamped and max_timestamp == header.max_timestamp:
        return out, header._replace(base_offset=offset, leader_epoch=leader_epoch)
    if create_time:
        _ATTRIBUTES.pack_into(out, CRC_START, attributes & ~TIMESTAMP_TYPE_BIT)
        patch_max_timestamp(out, 0, header, max_timestamp)
    else:
        patch_log_append_time(out, 0, header, now_ms)
    return out, read_header(out)


def _slice(data: Buffer, position: int, header: BatchHeader) -> memoryview:
    return memoryview(data)[position : position + header.length + LOG_OVERHEAD]


def place_all(
    data: Buffer, offset: int, leader_epoch: int, config: LogConfig, origin: Origin, now_ms: int
) -> tuple[bytearray, Sequence[BatchHeader]]:
    """Place messages of old formats, which are converted, or several batches from a bulk writer."""
    if origin is _BULK and (plain := _place_plain_run(data, offset, leader_epoch, config, now_ms)) is not None:
        return plain
    if len(data) > MAGIC_POSITION and data[MAGIC_POSITION] < 2:
        data = _convert_up(data, config, origin)
    out = bytearray()
    placed: list[BatchHeader] = []
    end = 0
    for entry in entries(data):
        if placed and origin is not _BULK:
            raise InvalidRecordError("more than one batch")
        if entry.magic != 2:
            raise InvalidRecordError(f"a message of magic {entry.magic} after batches of magic 2")
        header = read_header(data, entry.position)
        _check_batch(data, entry.position, header, config, origin)
        batch, header = _place(data, entry.position, header, offset, leader_epoch, config, now_ms)
        out += batch
        placed.append(header)
        offset += header.records_count
        end = entry.position + entry.size
    if end != len(data):
        raise CorruptBatchError(f"{len(data) - end} bytes do not form a whole batch", position=end)
    if not placed:
        raise InvalidRecordError("no batch")
    return out, placed


def _place_plain_run(
    data: Buffer, offset: int, leader_epoch: int, config: LogConfig, now_ms: int
) -> tuple[bytearray, list[BatchHeader]] | None:
    """Place batches that are stored without changes, as most in `place_one`; their base offsets may be any. Else None.

    They are copied at once: the loop of `place_all` gives the same result in three times the time.
    """
    if not config.stores_as_is:
        return None
    out = bytearray(data)
    view, end = memoryview(out), len(out)
    unpack, pack = HEADER.unpack_from, _PLACE.pack_into
    most, latest = config.max_message_bytes, now_ms + config.message_timestamp_after_max_ms
    placed: list[BatchHeader] = []
    at = 0
    while at + BATCH_OVERHEAD <= end:
        (
            _, length, _, magic, crc, attributes, delta, base_timestamp, max_timestamp, producer_id, epoch,
            sequence, count,
        ) = unpack(out, at)  # fmt: skip
        size = length + LOG_OVERHEAD
        following = at + size
        is_plain = (
            magic == 2
            and BATCH_OVERHEAD <= size <= most
            and following <= end
            and 0 <= attributes & ~TRANSACTIONAL_BIT <= _LAST_CODEC
            and 0 < count == delta + 1
            and base_timestamp <= max_timestamp <= latest
            and (producer_id < 0 or (sequence >= 0 and epoch >= 0))
            and crc32c(view[at + CRC_START : following]) == crc
        )
        if not is_plain:
            return None
        pack(out, at, offset, length, leader_epoch)
        header = (
            offset, length, leader_epoch, magic, crc, attributes, delta, base_timestamp, max_timestamp, producer_id,
            epoch, sequence, count,
        )  # fmt: skip
        placed.append(_new(BatchHeader, header))
        offset += count
        at = following
    return (out, placed) if at == end and placed else None


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
        any_magic.check(data, entry)
        header = any_magic.describe(data, entry)
        if found and header.magic != found[0].magic:
            raise InvalidRecordError(f"messages of magic {found[0].magic} and {header.magic} in one append")
        if header.attributes & TIMESTAMP_TYPE_BIT and config.message_timestamp_type is not _CREATE_TIME:
            raise InvalidTimestampError("a producer may not set the timestamp type to LogAppendTime")
        found.append(header)
        end = entry.position + entry.size
        if origin is not _BULK:
            if len(found) > 1 and (header.codec or found[0].codec):
                raise InvalidRecordError("more than one compressed message")
            records += [NewRecord(found.value, found.key, found.timestamp) for found in any_magic.decode(data, entry)]
    if end != len(data):
        raise CorruptBatchError(f"{len(data) - end} bytes do not form a whole message", position=end)
    if origin is _BULK:
        return legacy.convert_up(data, run_bytes=config.max_message_bytes // 2)
    return encode_batch(records, codec=found[0].codec)
