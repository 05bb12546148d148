"""Records as Kafka's Java classes read them, damaged or not, for `seglog dump`.

Kafka reads a record if its lengths add up (``DefaultRecord.java``, ``AbstractLegacyRecordBatch.java``); offsets may go
backwards, sums wrap at 64 bits, any negative length means null. `seglog.records` is stricter on purpose.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from struct import Struct
from typing import Final, NamedTuple

from seglog.core.errors import CorruptRecordError
from seglog.core.types import MAX_INT32, Buffer, TimestampType
from seglog.core.utf8 import decode_utf8
from seglog.records.batch import BATCH_OVERHEAD, LOG_OVERHEAD, BatchHeader
from seglog.records.java_text import int32, int64

_INT32: Final = Struct(">i")
_INT64: Final = Struct(">q")
_LEGACY_PREFIX: Final = Struct(">qiIbb")
_LEGACY_SMALLEST: Final = 14
_QUARTER: Final = 1 << 62
"""A sum of two smaller numbers needs no more than 64 bits."""


Decoder = Callable[[Buffer | None, Buffer | None, int], tuple[str | None, str | None]]
"""Turns key, value and offset of a record into the text after ``key:`` and ``payload:``; None is not printed."""

LaxRecord = tuple[int, int, int, bytes | None, bytes | None, list[str] | None]
"""A record of format 2: offset, timestamp, sequence, key, value, and its header keys as text (None: no headers)."""


class LaxMessage(NamedTuple):
    """A message of format 0 or 1. Sizes are as stored, correct or not; a negative one means null."""

    offset: int
    timestamp: int
    key_size: int
    value_size: int
    key_start: int
    value_start: int
    message: memoryview
    crc: int

    @property
    def is_valid(self) -> bool:
        return self.crc == zlib.crc32(self.message[4:])

    @property
    def key(self) -> memoryview | None:
        return self._part(self.key_start, self.key_size)

    @property
    def value(self) -> memoryview | None:
        return self._part(self.value_start, self.value_size)

    def _part(self, start: int, size: int) -> memoryview | None:
        if size < 0:
            return None
        if size > len(self.message) - start:
            raise CorruptRecordError(f"a key or value of {size} bytes in a smaller message", offset=self.offset)
        return self.message[start : start + size]


def increment_sequence(sequence: int, increment: int) -> int:
    """``DefaultRecordBatch.incrementSequence``: wraps from 2^31-1 to 0."""
    if sequence > int32(MAX_INT32 - increment):
        return int32(increment - (MAX_INT32 - sequence) - 1)
    return int32(sequence + increment)


def lax_records(data: Buffer, start: int, end: int, header: BatchHeader) -> Iterator[LaxRecord]:
    """The records of the whole batch of format 2 in ``data[start:end]``.

    An uncompressed batch yields the records before the damage and then raises `CorruptRecordError`; a compressed one
    raises first, because Kafka decompresses all of it before it returns a record.
    """
    if header.records_count == 0:
        return iter(())
    if header.codec == 0:
        return _read(data if isinstance(data, bytes) else bytes(data), start + BATCH_OVERHEAD, end, header)
    from seglog.records.compression import Codec, decompress

    area = bytes(decompress(Codec(header.codec), memoryview(data)[start + BATCH_OVERHEAD : end]))
    return iter(list(_read(area, 0, len(area), header)))


def _read(data: bytes, position: int, end: int, header: BatchHeader) -> Iterator[LaxRecord]:
    """A varint of one byte is read in place, because calls would take half of the time."""
    if header.records_count < 0:
        raise CorruptRecordError(f"record count {header.records_count} is negative", offset=header.base_offset)
    base_offset, base_timestamp, base_sequence = header.base_offset, header.base_timestamp, header.base_sequence
    append_time = header.max_timestamp if header.timestamp_type is TimestampType.LOG_APPEND_TIME else None
    wraps = not (abs(base_offset) < _QUARTER and abs(base_timestamp) < _QUARTER)
    offset = base_offset
    for left in range(header.records_count - 1, -1, -1):
        try:
            size, position = _varint(data, position)
            following = position + size
            if size < 0 or following > end:
                raise CorruptRecordError(f"a record of {size} bytes, {max(end - position, 0)} are left", offset=offset)
            delta = data[position + 1]
            if delta < 0x80:
                delta = (delta >> 1) ^ -(delta & 1)
                position += 2
            else:
                delta, position = _varint(data, position + 1, 64)
                wraps = wraps or abs(delta) >= _QUARTER
            timestamp = base_timestamp + delta if append_time is None else append_time
            delta = data[position]
            if delta < 0x80:
                delta = (delta >> 1) ^ -(delta & 1)
                position += 1
            else:
                delta, position = _varint(data, position)
            offset = base_offset + delta
            key = value = keys = None
            size = data[position]
            position += 1
            if size < 0x80:
                size = (size >> 1) ^ -(size & 1)
            else:
                size, position = _varint(data, position - 1)
            if size >= 0:
                key = data[position : position + size]
                position += size
            size = data[position]
            position += 1
            if size < 0x80:
                size = (size >> 1) ^ -(size & 1)
            else:
                size, position = _varint(data, position - 1)
            if size >= 0:
                value = data[position : position + size]
                position += size
            if position >= end:
                raise IndexError
            if data[position]:
                keys, position = _header_keys(data, position, end)
            else:
                position += 1
        except IndexError:
            raise CorruptRecordError("the bytes end within a record", offset=offset) from None
        if position != following:
            raise CorruptRecordError(f"a record of {size} bytes has {position - following + size}", offset=offset)
        if not left and position != end:
            raise CorruptRecordError(f"{end - position} bytes follow the last record", offset=offset)
        if wraps:
            timestamp, offset = int64(timestamp), int64(offset)
        sequence = increment_sequence(base_sequence, delta) if base_sequence >= 0 else -1
        yield offset, timestamp, sequence, key, value, keys


def _varint(data: bytes, position: int, bits: int = 32) -> tuple[int, int]:
    """A zig-zag number of at most ``bits``, and the position after it. Higher bits of its last byte are cut."""
    byte = data[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    value, shift = byte & 0x7F, 7
    while True:
        position += 1
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            value &= (1 << bits) - 1
            return (value >> 1) ^ -(value & 1), position + 1
        shift += 7
        if shift >= bits:
            raise CorruptRecordError(f"a varint of more than {-(-bits // 7)} bytes", position=position)


def _sized(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    size = data[position]
    position += 1
    if size < 0x80:
        size = (size >> 1) ^ -(size & 1)
    else:
        size, position = _varint(data, position - 1)
    if size < 0:
        return None, position
    following = position + size
    if following > end:
        raise IndexError
    return data[position:following], following


def _header_keys(data: bytes, position: int, end: int) -> tuple[list[str], int]:
    count, position = _varint(data, position)
    if not 0 <= count <= end - position:
        raise CorruptRecordError(f"{count} headers in a record with {end - position} bytes left")
    keys = []
    for _ in range(count):
        key, position = _sized(data, position, end)
        if key is None:
            raise CorruptRecordError("a header without a key")
        keys.append(decode_utf8(key))
        _, position = _sized(data, position, end)
    return keys, position


def lax_messages(data: Buffer, start: int, end: int) -> Iterator[LaxMessage]:
    """The messages in the entry of format 0 or 1 in ``data[start:end]``: itself, or those in its compressed value."""
    view = memoryview(data)[start:end]
    offset, _, _, magic, attributes = _LEGACY_PREFIX.unpack_from(view)
    codec = attributes & 0x07
    if codec == 0:
        return iter((_message(view[LOG_OVERHEAD:], offset, None),))
    return _inner(view, offset, magic, codec, append_time=bool(attributes & 0x08))


def _inner(view: memoryview, offset: int, magic: int, codec: int, *, append_time: bool) -> Iterator[LaxMessage]:
    """Messages in a compressed wrapper (``DeepRecordsIterator``): offsets absolute in format 0, relative in 1."""
    from seglog.records.compression import Codec, decompress

    wrapper = _message(view[LOG_OVERHEAD:], offset, None)
    if magic not in (0, 1) or codec > Codec.LZ4 or wrapper.value is None:
        raise CorruptRecordError(
            f"a compressed message of format {magic}, codec {codec} has no messages", offset=offset
        )
    area = memoryview(decompress(Codec(codec), wrapper.value, magic=magic))
    found: list[tuple[int, memoryview]] = []
    position = 0
    while position + LOG_OVERHEAD <= len(area):
        (inner_offset,), (size,) = _INT64.unpack_from(area, position), _INT32.unpack_from(area, position + 8)
        if size < _LEGACY_SMALLEST:
            raise CorruptRecordError(f"an inner message of {size} bytes", offset=offset)
        position += LOG_OVERHEAD + size
        if position > len(area):
            break
        found.append((inner_offset, area[position - size : position]))
    if not found:
        raise CorruptRecordError("a compressed message without messages in it", offset=offset)
    base = 0
    if magic == 1 and offset:  # with offset 0, as some versions of librdkafka left it, nothing is added
        base = offset - found[-1][0]
        if base < 0:
            raise CorruptRecordError(f"wrapper offset {offset} is under the inner {found[-1][0]}", offset=offset)
    timestamp = wrapper.timestamp if append_time and magic == 1 else None
    for inner_offset, message in found:
        if message[5] & 0x07:
            raise CorruptRecordError("a compressed message within a compressed one", offset=offset)
        yield _message(message, int64(base + inner_offset), timestamp)


def _message(message: memoryview, offset: int, append_time: int | None) -> LaxMessage:
    """A message from its CRC on."""
    magic = message[4]
    key_start = 18 if magic else 10
    try:
        timestamp = -1
        if magic:
            timestamp = _INT64.unpack_from(message, 6)[0] if append_time is None else append_time
        key_size = _INT32.unpack_from(message, key_start - 4)[0]
        value_start = key_start + max(key_size, 0) + 4
        value_size = _INT32.unpack_from(message, value_start - 4)[0]
    except struct.error:
        raise CorruptRecordError("the bytes end within a message", offset=offset) from None
    crc = int.from_bytes(message[:4])
    return LaxMessage(offset, timestamp, key_size, value_size, key_start, value_start, message, crc)
