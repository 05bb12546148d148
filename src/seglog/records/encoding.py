"""From records to the bytes of a batch of magic 2; the layout is drawn in `seglog.records.record`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from seglog.core.errors import InvalidRecordError, InvalidTimestampError, RecordListTooLargeError
from seglog.core.types import (
    MAX_INT32,
    MAX_INT64,
    NO_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    Buffer,
    TimestampType,
)
from seglog.records.batch import BATCH_OVERHEAD, TIMESTAMP_TYPE_BIT, TRANSACTIONAL_BIT, BatchHeader, build_batch
from seglog.records.compression import compress
from seglog.records.decoding import Record


class NewRecord(NamedTuple):
    """A record to be written; milliseconds since 1970, or -1 for a record without a timestamp."""

    value: Buffer | None
    key: Buffer | None = None
    timestamp: int = NO_TIMESTAMP
    headers: Sequence[tuple[str, Buffer | None]] = ()


_SHORT: Final = tuple(bytes((raw,)) for raw in range(128))


def encode_varint(value: int) -> bytes:
    """``value`` of up to 64 bits, zig-zag, seven bits a byte, low bits first.

    >>> encode_varint(-1), encode_varint(64)
    (b'\\x01', b'\\x80\\x01')
    """
    raw = value << 1 ^ value >> 63
    if raw < 128:
        return _SHORT[raw]
    if raw < 16384:
        return bytes((raw & 127 | 128, raw >> 7))
    out = bytearray()
    while raw > 127:
        out.append(raw & 127 | 128)
        raw >>= 7
    out.append(raw)
    return bytes(out)


_NULL: Final = encode_varint(-1)
_NO_HEADERS: Final = encode_varint(0)


def _encode_record(
    offset_delta: int,
    timestamp_delta: int,
    key: Buffer | None,
    value: Buffer | None,
    headers: Sequence[tuple[str, Buffer | None]],
) -> tuple[bytes, bytes]:
    """Length and body."""
    if key is not None and key.__class__ is not bytes:
        key = memoryview(key).tobytes()  # the length of another buffer may count larger things than bytes
    if value is not None and value.__class__ is not bytes:
        value = memoryview(value).tobytes()
    body = b"".join(
        (
            b"\x00",
            encode_varint(timestamp_delta),
            encode_varint(offset_delta),
            _NULL if key is None else encode_varint(len(key)),
            key or b"",
            _NULL if value is None else encode_varint(len(value)),
            value or b"",
            _encode_headers(headers) if headers else _NO_HEADERS,
        )
    )
    return encode_varint(len(body)), body


def _encode_headers(headers: Sequence[tuple[str, Buffer | None]]) -> bytes:
    parts: list[Buffer] = [encode_varint(len(headers))]
    for key, value in headers:
        if value is not None and value.__class__ is not bytes:
            value = memoryview(value).tobytes()
        name = key.encode(errors="replace")
        parts += (encode_varint(len(name)), name)
        if value is None:
            parts.append(_NULL)
        else:
            parts += (encode_varint(len(value)), value)
    return b"".join(parts)


def encode_batch(
    records: Sequence[NewRecord],
    *,
    base_offset: int = 0,
    codec: int = 0,
    level: int | None = None,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    log_append_time: int = NO_TIMESTAMP,
    leader_epoch: int = NO_EPOCH,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
) -> bytearray:
    """One batch of ``records`` at consecutive offsets, byte for byte as Kafka's ``MemoryRecordsBuilder`` (no codec).

    The base timestamp is that of the first record; the largest is that of the records, or ``log_append_time`` with
    that timestamp type. Raises `InvalidRecordError` on no records or a producer that is not whole,
    `InvalidTimestampError` on a negative timestamp other than -1, `RecordListTooLargeError` over 2 GiB.
    """
    _check_producer(producer_id, producer_epoch, base_sequence, transactional)
    if not records:
        raise InvalidRecordError("a batch needs at least one record")
    append = timestamp_type == TimestampType.LOG_APPEND_TIME
    attributes = codec | (TIMESTAMP_TYPE_BIT if append else 0) | (TRANSACTIONAL_BIT if transactional else 0)
    base_timestamp = records[0].timestamp
    max_timestamp = NO_TIMESTAMP
    parts: list[bytes] = []
    for delta, (value, key, timestamp, headers) in enumerate(records):
        if timestamp < NO_TIMESTAMP or timestamp > MAX_INT64:
            raise InvalidTimestampError(f"timestamp {timestamp} of record {delta}: -1 or 0 to {MAX_INT64}")
        if timestamp > max_timestamp:
            max_timestamp = timestamp
        parts += _encode_record(delta, timestamp - base_timestamp, key, value, headers)
    area: Buffer = b"".join(parts)
    if codec:
        area = compress(codec, area, level)
    return _build(
        BatchHeader(
            base_offset=base_offset,
            length=0,
            leader_epoch=leader_epoch,
            magic=2,
            crc=0,
            attributes=attributes,
            last_offset_delta=len(records) - 1,
            base_timestamp=base_timestamp,
            max_timestamp=log_append_time if append else max_timestamp,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            records_count=len(records),
        ),
        area,
    )


def _check_producer(producer_id: int, producer_epoch: int, base_sequence: int, transactional: bool) -> None:
    """``MemoryRecordsBuilder.validateProducerState``."""
    if transactional and producer_id == NO_PRODUCER_ID:
        raise InvalidRecordError("a transactional batch needs a producer id")
    if producer_id != NO_PRODUCER_ID and (producer_epoch < 0 or base_sequence < 0):
        raise InvalidRecordError(
            f"producer {producer_id} needs an epoch and a sequence, not {producer_epoch} and {base_sequence}"
        )


def _build(header: BatchHeader, area: Buffer) -> bytearray:
    if len(area) > MAX_INT32 - BATCH_OVERHEAD:
        raise RecordListTooLargeError(f"{len(area)} bytes of records do not fit into a batch")
    return build_batch(header, area)


def encode_records(records: Sequence[Record], *, base_offset: int, base_timestamp: int) -> bytearray:
    """The uncompressed records of a batch, their offsets kept, as compaction needs them.

    ``base_timestamp`` is the first record's, or the delete horizon. Raises `InvalidRecordError` on offsets that do not
    rise or are out of 32 bits from ``base_offset``.
    """
    area = bytearray()
    previous = -1
    for offset, timestamp, key, value, headers, _ in records:
        delta = offset - base_offset
        if not previous < delta <= MAX_INT32:
            raise InvalidRecordError(f"offset {offset} after delta {previous} in a batch at offset {base_offset}")
        previous = delta
        length, body = _encode_record(delta, timestamp - base_timestamp, key, value, headers)
        area += length
        area += body
    return area
