"""From the bytes of a batch of magic 2 to its records; the layout is drawn in `seglog.records.record`.

A batch decodes if it is what Kafka's own writers make; stricter than Kafka's reader, which lets these pass, are: offset
deltas that do not rise or leave 0 to lastOffsetDelta, lengths under -1, varints of more than 32 or 64 bits,
timestamps beyond 64 bits, and bytes after the header of a batch of no records. Everything that is read is compared with
what is left before it is used. 150 records of 16 KiB take about 200 µs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, NoReturn

from seglog.core.errors import CorruptBatchError, CorruptError, CorruptRecordError
from seglog.core.types import MAX_INT32, MAX_INT64, NO_SEQUENCE, Buffer
from seglog.core.utf8 import decode_utf8
from seglog.records.batch import (
    BATCH_OVERHEAD,
    CODEC_MASK,
    LOG_OVERHEAD,
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
    check_header,
)
from seglog.records.compression import DEFAULT_LIMIT, Codec, decompress

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
    """All records of the batch of magic 2 at ``position``, whose header was read there. The CRC is not looked at.

    Raises `CorruptBatchError` on an impossible header or a batch that is not all there, `CorruptRecordError` on records
    that are not what the header says, `TooLargeError` on more than ``limit`` decompressed bytes. Positions count from
    the start of ``batch``; what is wrong inside of compressed records is placed at their first byte.
    """
    return list(iter_records(batch, header, position, limit=limit))


def iter_records(
    batch: Buffer, header: BatchHeader, position: int = 0, *, limit: int = DEFAULT_LIMIT
) -> Iterator[Record]:
    """As `decode_records`, one record at a time. The header and the compressed stream are checked at once, a record
    when it is its turn, bytes after the last one when that is asked for."""
    check_header(header, position)
    size = header.length + LOG_OVERHEAD
    if len(batch) - position < size:
        raise CorruptBatchError(
            f"the batch says {size} bytes, {len(batch) - position} are there",
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
    """The uncompressed records of one batch, and how to say what is wrong with them."""

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
        """The loop of loops: local names, and a byte at a time for the common short varints."""
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
                    self.fail(f"a record takes {position - stop:+d} bytes than it says", start, delta)
                previous = delta
                if base_sequence >= 0:
                    sequence = base_sequence + delta & MAX_INT32
                yield new(Record, (base_offset + delta, timestamp, key, value, headers, sequence))
        except IndexError:
            self.fail("a record goes on after the end of the records", start, previous + 1)
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
    """Something inside of a record; the record's place is added further out."""


def _signed(raw: int) -> int:
    return raw >> 1 ^ -(raw & 1)


def _varint(data: bytes, position: int, first: int, bits: int = 32) -> tuple[int, int]:
    """Zig-zag value, not undone, whose byte ``first``, before ``position``, says that more follow; and where it ends.

    Zeros that pad a value are taken, as by Kafka, up to the 5 or 10 bytes that ``bits`` can need.
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
    """A length, -1 for null, and as many bytes; with fewer left, the place returned is behind the end of ``data``."""
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
            raise _MalformedError("a header goes on after the end of its record")
        headers.append((decode_utf8(key), value))
    return tuple(headers), position
