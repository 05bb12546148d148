"""The records of a batch that is to be appended: what a topic asks of each, and the batch made again where it must be.
Pure.

Rules of Kafka 4.4's ``LogValidator.java``, for batches of magic 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from seglog.core.config import PRODUCER, UNLIMITED_DECOMPRESSED, LogConfig
from seglog.core.errors import (
    AppendError,
    CorruptRecordError,
    InvalidRecordError,
    InvalidTimestampError,
    RecordTooLargeError,
    TooLargeError,
)
from seglog.core.types import NO_TIMESTAMP, Buffer, TimestampType
from seglog.records.batch import CODEC_MASK, CONTROL_BIT, TIMESTAMP_TYPE_BIT, TRANSACTIONAL_BIT, BatchHeader
from seglog.records.compression import Codec
from seglog.records.record import NewRecord, Record, decode_records, encode_batch

_SHOWN: Final = 3
"""Record errors that a message has at most, as Kafka's."""
_CODECS: Final = {codec.name.lower(): codec for codec in Codec if codec} | {"uncompressed": Codec.NONE}


def target_codec(header: BatchHeader, config: LogConfig) -> int:
    """The codec that the topic wants the batch stored with. A control batch that is not compressed stays so."""
    codec = header.attributes & CODEC_MASK
    if config.compression_type == PRODUCER or (header.attributes & CONTROL_BIT and not codec):
        return codec
    return _CODECS[config.compression_type]


def decode(data: Buffer, header: BatchHeader, position: int, config: LogConfig) -> list[Record]:
    """The records of a batch from outside, which may not grow beyond 64 MiB or 16 times ``max.message.bytes``. Each of
    a compressed batch may have ``max.decompressed.message.bytes``."""
    limit = max(64 << 20, 16 * config.max_message_bytes)
    most = config.max_decompressed_message_bytes
    try:
        records = decode_records(data, header, position, limit=limit)
    except CorruptRecordError as error:
        raise InvalidRecordError(f"the batch's CRC is right, its records are not: {error}") from error
    except TooLargeError as error:
        raise RecordTooLargeError(str(error)) from error
    if header.attributes & CODEC_MASK and most != UNLIMITED_DECOMPRESSED:
        largest = max(_size_of_body(record, header) for record in records)
        if largest > most:
            raise InvalidRecordError(
                f"Invalid record size: {largest} exceeds the configured maximum record size of {most}."
            )
    return records


def _size_of_body(record: Record, header: BatchHeader) -> int:
    """The length that the record has before it, as a producer writes it."""
    size = 1 + _size_of_varint(record.timestamp - header.base_timestamp)
    size += _size_of_varint(record.offset - header.base_offset) + _size_of_varint(len(record.headers))
    size += _size_of_field(record.key) + _size_of_field(record.value)
    for name, value in record.headers:
        size += _size_of_field(name.encode()) + _size_of_field(value)
    return size


def _size_of_field(data: bytes | None) -> int:
    return 1 if data is None else _size_of_varint(len(data)) + len(data)


def _size_of_varint(value: int) -> int:
    """Of a zig-zag varint."""
    return max(1, ((value << 1 ^ value >> 63).bit_length() + 6) // 7)


def check_records(records: Sequence[Record], header: BatchHeader, config: LogConfig, now_ms: int) -> int:
    """The largest timestamp, -1 if none has one; `InvalidTimestampError` or `InvalidRecordError` if one may not be
    stored, with all of those that may not.

    A topic that is compacted needs keys. With CreateTime a timestamp must be within
    ``message.timestamp.before.max.ms`` and ``message.timestamp.after.max.ms`` of ``now_ms``; a record without one
    passes, and like all of a topic with LogAppendTime it may not come with that type.
    """
    needs_key = config.compact and not header.attributes & CONTROL_BIT
    create_time = config.message_timestamp_type is TimestampType.CREATE_TIME
    stamped = bool(header.attributes & TIMESTAMP_TYPE_BIT)
    earliest = now_ms - config.message_timestamp_before_max_ms
    latest = now_ms + config.message_timestamp_after_max_ms
    largest = NO_TIMESTAMP
    refused: list[tuple[int, str]] = []
    untimely = 0
    for index, record in enumerate(records):
        timestamp = record.timestamp
        if timestamp > largest:
            largest = timestamp
        if needs_key and record.key is None:
            refused.append((index, _NO_KEY))
        elif create_time and timestamp != NO_TIMESTAMP:
            if not earliest <= timestamp <= latest:
                untimely += 1
                refused.append((index, _out_of_range(index, timestamp, earliest, latest)))
        elif stamped:
            untimely += 1
            refused.append((index, _stamped(index, record, header, config)))
    if refused:
        what = f"{len(refused)} of {len(records)} records are refused: "
        what += "; ".join(f"record {index}: {why}" for index, why in refused[:_SHOWN])
        raise (InvalidTimestampError if untimely else InvalidRecordError)(what, refused)
    return largest


_NO_KEY: Final = f"Compacted topic cannot accept message without key in topic partition {AppendError.PARTITION}"


def _out_of_range(index: int, timestamp: int, earliest: int, latest: int) -> str:
    return (
        f"Timestamp {timestamp} of message with offset {index} is out of range. The timestamp should be within "
        f"[{earliest}, {latest}]"
    )


def _stamped(index: int, record: Record, header: BatchHeader, config: LogConfig) -> str:
    """Kafka checks only the sizes of keys and values in a batch that it stores without recompression."""
    codec = header.attributes & CODEC_MASK
    kind, null = (
        ("PartialDefaultRecord", -1) if codec and target_codec(header, config) == codec else ("DefaultRecord", 0)
    )
    key, value = (null if data is None else len(data) for data in (record.key, record.value))
    shown = f"{kind}(offset={index}, timestamp={record.timestamp}, key={key} bytes, value={value} bytes)"
    return f"Invalid timestamp type in message {shown}. Producer should not set timestamp type to LogAppendTime."


def rebuild(
    records: Sequence[Record],
    header: BatchHeader,
    codec: int,
    *,
    base_offset: int,
    leader_epoch: int,
    config: LogConfig,
    now_ms: int,
) -> bytearray:
    """The batch again with ``codec``, at consecutive offsets from ``base_offset``."""
    timestamp_type = config.message_timestamp_type
    return encode_batch(
        [NewRecord(record.value, record.key, record.timestamp, record.headers) for record in records],
        base_offset=base_offset,
        codec=codec,
        level=_level(codec, config),
        timestamp_type=timestamp_type,
        log_append_time=now_ms if timestamp_type is TimestampType.LOG_APPEND_TIME else NO_TIMESTAMP,
        leader_epoch=leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        transactional=bool(header.attributes & TRANSACTIONAL_BIT),
    )


def _level(codec: int, config: LogConfig) -> int | None:
    """The topic's level for its codec; None, the codec's default, for one that the producer chose."""
    if config.compression_type == PRODUCER:
        return None
    if codec == Codec.GZIP:
        return config.compression_gzip_level
    if codec == Codec.LZ4:
        return config.compression_lz4_level
    return config.compression_zstd_level if codec == Codec.ZSTD else None
