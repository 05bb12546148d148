"""The records of a batch of magic 2, in plain Python: decode, encode, and control records.

Layout of a record (``DefaultRecord.java``); varint and varlong are zig-zag LEB128 of 32 and 64 bits:

=============== ======= ==========================================================
length          varint  of what follows
attributes      int8    unused
timestampDelta  varlong from the batch's base timestamp
offsetDelta     varint  from the batch's base offset
keyLength       varint  -1: null
key
valueLength     varint  -1: null
value
headersCount    varint  then for each: keyLength, key (UTF-8), valueLength (-1: null), value
=============== ======= ==========================================================

A batch decodes if Kafka's own writers could have written it. This is stricter than Kafka's reader, which accepts offset
deltas that do not rise or leave 0 to lastOffsetDelta, lengths under -1, varints of more than 32 or 64 bits, timestamps
beyond 64 bits, and bytes after the header of a batch of no records. Every length and count is compared with the bytes
that are left before it is used. 150 records of 16 KiB take about 200 µs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple, NoReturn

from seglog.core.errors import (
    CorruptBatchError,
    CorruptError,
    CorruptRecordError,
    InvalidRecordError,
    InvalidTimestampError,
    RecordListTooLargeError,
)
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
from seglog.core.utf8 import decode_utf8
from seglog.records.batch import (
    BATCH_OVERHEAD,
    CODEC_MASK,
    CONTROL_BIT,
    LOG_OVERHEAD,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    build_batch,
    check_header,
)
from seglog.records.compression import DEFAULT_LIMIT, Codec, compress, decompress

MIN_RECORD: Final = 7
"""Bytes of the smallest record: null key, null value, no headers."""
_MIN_BODY: Final = MIN_RECORD - 1
_MIN_INT64: Final = -MAX_INT64 - 1

Header = tuple[str, bytes | None]
"""Key and value of a record header."""


class Record(NamedTuple):
    """A record of a log. ``sequence`` is -1 where the batch has no producer."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()
    sequence: int = NO_SEQUENCE


def decode_records(
    batch: Buffer, header: BatchHeader, position: int = 0, *, limit: int = DEFAULT_LIMIT
) -> list[Record]:
    """All records of the batch of magic 2 at ``position``, whose header was read there. The CRC is not checked.

    Raises `CorruptBatchError` for an impossible header or a batch with missing bytes, `CorruptRecordError` for records
    that contradict the header, `TooLargeError` above ``limit`` decompressed bytes. Positions count from the start of
    ``batch``; an error in compressed records has the position of their first byte.
    """
    return list(iter_records(batch, header, position, limit=limit))


def iter_records(
    batch: Buffer, header: BatchHeader, position: int = 0, *, limit: int = DEFAULT_LIMIT
) -> Iterator[Record]:
    """As `decode_records`, one record at a time. The header and the compressed stream are checked at once, a record
    before it is yielded, and the bytes after the last record after that."""
    check_header(header, position)
    size = header.length + LOG_OVERHEAD
    if len(batch) - position < size:
        raise CorruptBatchError(
            f"the batch claims {size} bytes, but only {len(batch) - position} are left",
            position=position,
            offset=header.base_offset,
        )
    start = position + BATCH_OVERHEAD
    area = memoryview(batch)[start : position + size]
    codec = header.attributes & CODEC_MASK
    if codec and (header.records_count or codec > Codec.ZSTD):
        try:
            data = decompress(codec, area, limit=limit)
        except CorruptError as error:
            raise error.at(base=start, offset=header.base_offset) from None
    else:
        data = bytes(area)
    records = _Records(data, header, start, bool(codec))
    if header.records_count * MIN_RECORD > len(data):
        records.fail(f"{header.records_count} records do not fit into {len(data)} bytes", 0)
    if data and not header.records_count:
        records.fail(f"{len(data)} bytes of records in a batch that says it has none", 0)
    return records.decode()


class _Records:
    """The uncompressed records of one batch."""

    __slots__ = ("compressed", "data", "header", "start")

    def __init__(self, data: bytes, header: BatchHeader, start: int, compressed: bool) -> None:
        self.data = data
        self.header = header
        self.start = start
        self.compressed = compressed

    def fail(self, reason: str, at: int, delta: int = 0) -> NoReturn:
        """Raise for the record that begins at ``at``; ``delta`` is the offset delta nearest to it."""
        if self.compressed:
            raise CorruptRecordError(
                f"{reason} (byte {at} of the decompressed records)",
                position=self.start,
                offset=self.header.base_offset + delta,
            )
        raise CorruptRecordError(reason, position=self.start + at, offset=self.header.base_offset + delta)

    def decode(self) -> Iterator[Record]:
        """The hottest loop: local names, and varints of one byte are read in place."""
        data, header = self.data, self.header
        base_offset, base_timestamp, base_sequence = header.base_offset, header.base_timestamp, header.base_sequence
        append_time = header.max_timestamp if header.attributes & TIMESTAMP_TYPE_BIT else None
        last_delta = header.last_offset_delta
        end = len(data)
        new = tuple.__new__
        sequence = NO_SEQUENCE
        position = start = 0
        delta = previous = -1
        try:
            for _ in range(header.records_count):
                start = position
                position += 1
                if (raw := data[start]) > 127:
                    raw, position = _varint(data, position, raw)
                stop = position + (raw >> 1)
                if raw & 1 or stop > end or stop - position < _MIN_BODY:
                    self.fail(f"a record of {_signed(raw)} bytes, {end - position} are left", start, previous + 1)
                raw = data[position + 1]
                position += 2
                if raw > 127:
                    raw, position = _varint(data, position, raw, 64)
                timestamp = base_timestamp + (raw >> 1 ^ -(raw & 1)) if append_time is None else append_time
                raw = data[position]
                position += 1
                if raw > 127:
                    raw, position = _varint(data, position, raw)
                delta = raw >> 1
                if raw & 1 or not previous < delta <= last_delta or not _MIN_INT64 <= timestamp <= MAX_INT64:
                    self._fail_delta(_signed(raw), timestamp, start, previous)
                key, position = _nullable(data, position)
                value, position = _nullable(data, position)
                raw = data[position]
                position += 1
                headers: tuple[Header, ...] = ()
                if raw:
                    headers, position = _headers(data, position, raw, stop)
                if position != stop:
                    self.fail(f"the fields of a record end {position - stop:+d} bytes from its end", start, delta)
                previous = delta
                if base_sequence >= 0:
                    sequence = base_sequence + delta & MAX_INT32
                yield new(Record, (base_offset + delta, timestamp, key, value, headers, sequence))
        except IndexError:
            self.fail("a record continues after the end of the records", start, previous + 1)
        except _MalformedError as error:
            self.fail(str(error), start, previous + 1)
        if position != end:
            self.fail(f"{end - position} bytes remain after {header.records_count} records", position, max(previous, 0))

    def _fail_delta(self, delta: int, timestamp: int, start: int, previous: int) -> NoReturn:
        if not _MIN_INT64 <= timestamp <= MAX_INT64:
            self.fail(f"timestamp {timestamp} is beyond 64 bits", start, previous + 1)
        self.fail(
            f"offset delta {delta} after {previous} in a batch whose last is {self.header.last_offset_delta}",
            start,
            previous + 1,
        )


class _MalformedError(Exception):
    """A field of a record is malformed. The caller adds the position of the record."""


def _signed(raw: int) -> int:
    return raw >> 1 ^ -(raw & 1)


def _varint(data: bytes, position: int, first: int, bits: int = 32) -> tuple[int, int]:
    """The zig-zag value whose first byte is ``first``, before ``position``, and the position after it.

    As in Kafka, a value may be padded with zeros up to the 5 or 10 bytes that ``bits`` can need.
    """
    byte = data[position]
    position += 1
    if byte < 128:
        return first & 127 | byte << 7, position
    raw = first & 127 | (byte & 127) << 7
    shift = 14
    while byte > 127:
        byte = data[position]
        position += 1
        raw |= (byte & 127) << shift
        shift += 7
        if raw >> bits or shift > bits + 6:
            raise _MalformedError("a varint of too many bits")
    return raw, position


def _nullable(data: bytes, position: int) -> tuple[bytes | None, int]:
    """The bytes after a length (None for -1), and the position after them, which may be beyond the end of ``data``."""
    raw = data[position]
    position += 1
    if raw > 127:
        raw, position = _varint(data, position, raw)
    if raw & 1:
        if raw != 1:
            raise _MalformedError(f"length {_signed(raw)}")
        return None, position
    stop = position + (raw >> 1)
    return data[position:stop], stop


def _headers(data: bytes, position: int, raw: int, stop: int) -> tuple[tuple[Header, ...], int]:
    """Headers of a record that ends at ``stop``; ``raw`` is the first byte of their count."""
    if raw > 127:
        raw, position = _varint(data, position, raw)
    count = raw >> 1
    if raw & 1 or count * 2 > stop - position:
        raise _MalformedError(f"{_signed(raw)} headers in {stop - position} bytes")
    headers: list[Header] = []
    for _ in range(count):
        key, position = _nullable(data, position)
        if key is None:
            raise _MalformedError("a header without a key")
        value, position = _nullable(data, position)
        if position > stop:
            raise _MalformedError("a header continues after the end of its record")
        headers.append((decode_utf8(key), value))
    return tuple(headers), position


# Encoding


class NewRecord(NamedTuple):
    """A record to write. ``timestamp``: milliseconds since 1970, or -1 for none."""

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
    """The uncompressed records of a batch at their own offsets, as compaction needs them.

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


# Control records


class ControlType(IntEnum):
    """The type of a control record (``ControlRecordType.java``). Skip `UNKNOWN`, which a newer Kafka wrote."""

    UNKNOWN = -1
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


class ControlRecord(NamedTuple):
    """The key of a control record. ``coordinator_epoch`` is None unless it is the marker of a transaction's end."""

    version: int
    type: ControlType
    coordinator_epoch: int | None


_CONTROL_KEY: Final = Struct(">hh")
_END_TXN_VALUE: Final = Struct(">hi")
_CONTROL_TYPES: Final = {kind.value: kind for kind in ControlType}


def parse_control(record: Record) -> ControlRecord:
    """A record of a control batch. Raises `CorruptRecordError` for a key or a marker that is too short.

    Longer keys and values and higher versions are read as version 0, as Kafka does.
    """
    key, value = record.key, record.value
    if key is None or len(key) < _CONTROL_KEY.size:
        raise CorruptRecordError("the key of a control record is under 4 bytes", offset=record.offset)
    version, code = _CONTROL_KEY.unpack_from(key)
    if version < 0:
        raise CorruptRecordError(f"version {version} of a control record", offset=record.offset)
    kind = _CONTROL_TYPES.get(code, ControlType.UNKNOWN)
    if kind not in (ControlType.ABORT, ControlType.COMMIT):
        return ControlRecord(version, kind, None)
    if value is None or len(value) < _END_TXN_VALUE.size:
        raise CorruptRecordError("the value of a transaction marker is under 6 bytes", offset=record.offset)
    value_version, epoch = _END_TXN_VALUE.unpack_from(value)
    if value_version < 0:
        raise CorruptRecordError(f"version {value_version} of a transaction marker", offset=record.offset)
    return ControlRecord(version, kind, epoch)


def end_txn_marker(
    *,
    commit: bool,
    coordinator_epoch: int,
    producer_id: int,
    producer_epoch: int,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = NO_EPOCH,
) -> bytearray:
    """The control batch that ends a transaction (``MemoryRecords.withEndTransactionMarker``)."""
    kind = ControlType.COMMIT if commit else ControlType.ABORT
    key = _CONTROL_KEY.pack(0, kind)
    value = _END_TXN_VALUE.pack(0, coordinator_epoch)
    return build_batch(
        BatchHeader(
            base_offset=base_offset,
            length=0,
            leader_epoch=leader_epoch,
            magic=2,
            crc=0,
            attributes=TRANSACTIONAL_BIT | CONTROL_BIT,
            last_offset_delta=0,
            base_timestamp=timestamp,
            max_timestamp=timestamp,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=NO_SEQUENCE,
            records_count=1,
        ),
        encode_records([Record(base_offset, timestamp, key, value)], base_offset=base_offset, base_timestamp=timestamp),
    )
