"""Messages of magic 0 and 1, which Kafka wrote before 0.11 and still reads: decode them, convert them to magic 2.

Layout, all integers big-endian (``LegacyRecord.java``):

=========== === ==== ===========================================================================================
 off v0, v1 len       field                note
=========== === ==== ===========================================================================================
   0    0     8       offset               of a compressed message: that of the last message in it
   8    8     4       size                 bytes after this field
  12   12     4       crc                  CRC-32 of everything after it
  16   16     1       magic                0 or 1
  17   17     1       attributes           bits 0-2 codec, in v1 bit 3 timestamp type
   -   18     8       timestamp
  18   26     4       keySize              -1: null; then the key
   …    …     4       valueSize            -1: null; then the value
=========== === ==== ===========================================================================================

The value of a message with a codec is a set of such messages (``AbstractLegacyRecordBatch.DeepRecordsIterator``). In a
wrapper of magic 0 they carry their own offsets. In one of magic 1 their offsets count from a base, which is the
wrapper's offset less that of the last of them, or 0 where the wrapper's offset is 0 (some versions of librdkafka). If
the wrapper says LogAppendTime, its timestamp is that of every message of magic 1 in it.

As in Kafka, a message in a wrapper may not be compressed again, and zstd is refused. Stricter than Kafka: sizes must
add up to the byte, and a message cut off at the end of a wrapper is an error, where Kafka silently leaves it out.
"""

from __future__ import annotations

import zlib
from struct import Struct
from typing import Final, NamedTuple

from seglog.core.errors import (
    CorruptBatchError,
    CorruptError,
    CorruptRecordError,
    InvalidTimestampError,
    UnsupportedFormatError,
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
from seglog.records.batch import (
    CODEC_MASK,
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
    Entry,
    build_batch,
    entries,
)
from seglog.records.compression import DEFAULT_LIMIT, Codec, compress, decompress
from seglog.records.record import Record, encode_records

_CRC_START: Final = 16
_HEADERS: Final = (Struct(">qiIbb"), Struct(">qiIbbq"))
_SIZE: Final = Struct(">i")
_OVERHEAD: Final = (26, 34)
"""Bytes of the smallest message of each magic, with offset and size."""
_ATTRIBUTES: Final = (CODEC_MASK, CODEC_MASK | TIMESTAMP_TYPE_BIT)


class LegacyMessage(NamedTuple):
    """The fields of one message, compressed or not. ``timestamp`` is -1 in magic 0."""

    offset: int
    size: int
    crc: int
    magic: int
    attributes: int
    timestamp: int
    key: bytes | None
    value: bytes | None

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def timestamp_type(self) -> TimestampType:
        if self.magic == 0:
            return TimestampType.NONE
        return TimestampType.LOG_APPEND_TIME if self.attributes & TIMESTAMP_TYPE_BIT else TimestampType.CREATE_TIME


def read_message(data: Buffer, entry: Entry) -> LegacyMessage:
    """The message at ``entry``. Raises `CorruptRecordError` if its sizes do not add up; the CRC is not checked."""
    position, end = entry.position, entry.position + entry.size
    if not 0 <= entry.magic <= 1 or entry.size < _OVERHEAD[entry.magic] or end > len(data):
        raise CorruptRecordError(
            f"no message of magic {entry.magic} in {min(entry.size, len(data) - position)} bytes",
            position=position,
            offset=entry.offset,
        )
    header = _HEADERS[entry.magic]
    offset, size, crc, magic, attributes, *times = header.unpack_from(data, position)
    start = position + header.size
    key, start = _sized(data, start, end, entry)
    value, start = _sized(data, start, end, entry)
    if start != end:
        raise CorruptRecordError(f"{end - start} bytes too many in a message", position=start, offset=entry.offset)
    if offset < 0:
        raise CorruptRecordError(f"offset {offset} is negative", position=position)
    return LegacyMessage(offset, size, crc, magic, attributes, times[0] if times else NO_TIMESTAMP, key, value)


def _sized(data: Buffer, position: int, end: int, entry: Entry) -> tuple[bytes | None, int]:
    start = position + 4
    if start <= end:
        size: int = _SIZE.unpack_from(data, position)[0]
        if size == -1:
            return None, start
        if 0 <= size <= end - start:
            return bytes(data[start : start + size]), start + size
        reason = f"a key or value of {size} bytes, {end - start} are left"
    else:
        reason = "a message ends before the size of its value"
    raise CorruptRecordError(reason, position=position, offset=entry.offset)


def check_crc(data: Buffer, entry: Entry) -> None:
    """Raise `CorruptBatchError` if the CRC-32 of the message at ``entry`` is wrong."""
    start = entry.position + _CRC_START
    stored = int.from_bytes(data[start - 4 : start], "big")
    computed = zlib.crc32(memoryview(data)[start : entry.position + entry.size])
    if computed != stored:
        raise CorruptBatchError(
            f"stored CRC {stored} is not the computed {computed}", position=entry.position, offset=entry.offset
        )


def decode(data: Buffer, entry: Entry, *, limit: int = DEFAULT_LIMIT) -> list[Record]:
    """The records of the message at ``entry``: itself, or the messages in it, whose CRCs are checked.

    Raises `CorruptError`s as `read_message` and `seglog.records.compression.decompress`, `UnsupportedFormatError` on
    zstd. An error inside a compressed message has the position of that message.
    """
    message = read_message(data, entry)
    if not message.codec:
        return [Record(message.offset, message.timestamp, message.key, message.value)]
    try:
        return _decode_wrapper(message, limit)
    except CorruptError as error:
        inside = f"{error.reason} (byte {error.position} of its messages)" if error.position >= 0 else error.reason
        raise type(error)(inside, position=entry.position, offset=entry.offset) from None


def _decode_wrapper(wrapper: LegacyMessage, limit: int) -> list[Record]:
    if wrapper.codec == Codec.ZSTD:
        raise UnsupportedFormatError(f"zstd in a message of magic {wrapper.magic} at offset {wrapper.offset}")
    if wrapper.value is None:
        raise CorruptRecordError("a compressed message without a value")
    data = decompress(wrapper.codec, wrapper.value, limit=limit, magic=wrapper.magic)
    messages: list[LegacyMessage] = []
    end = 0
    for inner in entries(data):
        check_crc(data, inner)
        message = read_message(data, inner)
        if message.codec:
            raise CorruptRecordError("a compressed message in a compressed message", position=inner.position)
        messages.append(message)
        end = inner.position + inner.size
    if end != len(data) or not messages:
        raise CorruptRecordError(f"{len(data) - end} bytes are not a message", position=end)
    base = 0
    if wrapper.magic == 1 and wrapper.offset != 0:
        base = wrapper.offset - messages[-1].offset
        if base < 0:
            raise CorruptRecordError(f"its offset is under the {messages[-1].offset} of its last message")
    append_time = wrapper.timestamp if wrapper.timestamp_type == TimestampType.LOG_APPEND_TIME else None
    records: list[Record] = []
    for message in messages:
        timestamp = message.timestamp if append_time is None or message.magic == 0 else append_time
        if not 0 <= base + message.offset <= MAX_INT64:
            raise CorruptRecordError(f"offset {message.offset} of a message in it")
        records.append(Record(base + message.offset, timestamp, message.key, message.value))
    return records


def describe(data: Buffer, entry: Entry, *, deep: bool = True, limit: int = DEFAULT_LIMIT) -> BatchHeader:
    """A header in the form of magic 2: no epoch, no producer, the message's timestamp as the largest.

    The base offset and count of a compressed message can be known only by decompressing it. Without ``deep`` the base
    offset is the last offset, and the count is -1.
    """
    message = read_message(data, entry)
    base, base_timestamp, count = message.offset, message.timestamp, 1
    if message.codec and deep:
        records = decode(data, entry, limit=limit)
        base, base_timestamp, count = records[0].offset, records[0].timestamp, len(records)
        if not 0 <= message.offset - base <= MAX_INT32:
            raise CorruptRecordError(
                f"offsets from {base} to {message.offset} in one message", position=entry.position, offset=entry.offset
            )
    elif message.codec:
        count = -1
    return BatchHeader(
        base_offset=base,
        length=message.size,
        leader_epoch=NO_EPOCH,
        magic=message.magic,
        crc=message.crc,
        attributes=message.attributes & _ATTRIBUTES[message.magic],
        last_offset_delta=message.offset - base,
        base_timestamp=base_timestamp,
        max_timestamp=message.timestamp,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_EPOCH,
        base_sequence=NO_SEQUENCE,
        records_count=count,
    )


# To magic 2

DEFAULT_RUN_BYTES: Final = 16384


class _MessageRun(NamedTuple):
    """Messages that become one batch; ``append_time`` None: they keep the timestamps that they were created with."""

    codec: int
    append_time: int | None
    records: list[Record]


_NOTHING: Final = _MessageRun(0, None, [])


def convert_up(
    data: Buffer,
    *,
    run_bytes: int = DEFAULT_RUN_BYTES,
    limit: int = DEFAULT_LIMIT,
) -> bytes:
    """``data`` with its messages of magic 0 and 1 as batches of magic 2 at the same offsets; batches stay as they are.

    As Kafka's ``RecordsUtil`` and ``LogValidator``: a compressed message becomes one batch of its codec, a
    message without a timestamp gets -1, LogAppendTime stays. Of messages that are not compressed Kafka
    makes either one batch each or one of all; here a run of them becomes a batch of up to ``run_bytes`` of messages
    (one alone may be more), cut where the time of a LogAppendTime changes. CRCs are checked.

    Raises `CorruptError`s as `decode`, also on bytes after the last whole entry; `InvalidTimestampError` on timestamps
    under -1.
    """
    parts: list[Buffer] = []
    end = 0
    run = _NOTHING
    size = 0

    def close() -> None:
        if run.records:
            parts.append(_batch(run))

    for entry in entries(data):
        end = entry.position + entry.size
        if entry.magic == 2:
            close()
            run = _NOTHING
            parts.append(memoryview(data)[entry.position : end])
            continue
        check_crc(data, entry)
        next_run = _run_of(data, entry, limit)
        if run.records and size + entry.size <= run_bytes and _continues(run, next_run):
            run.records.extend(next_run.records)
            size += entry.size
        else:
            close()
            run, size = next_run, entry.size
    close()
    if end != len(data):
        raise CorruptBatchError(f"{len(data) - end} bytes are not a whole message", position=end)
    return b"".join(parts)


def _run_of(data: Buffer, entry: Entry, limit: int) -> _MessageRun:
    message = read_message(data, entry)
    append = message.timestamp_type == TimestampType.LOG_APPEND_TIME
    return _MessageRun(message.codec, message.timestamp if append else None, decode(data, entry, limit=limit))


def _continues(run: _MessageRun, following: _MessageRun) -> bool:
    first, last = run.records[0].offset, run.records[-1].offset
    return (
        not run.codec
        and not following.codec
        and run.append_time == following.append_time
        and last < following.records[0].offset <= first + MAX_INT32
    )


def _batch(run: _MessageRun) -> bytearray:
    first, last = run.records[0], run.records[-1]
    lowest = min(record.timestamp for record in run.records)
    if lowest < NO_TIMESTAMP:
        raise InvalidTimestampError(f"timestamp {lowest} in the messages from offset {first.offset}")
    area: Buffer = encode_records(run.records, base_offset=first.offset, base_timestamp=first.timestamp)
    if run.codec:
        area = compress(run.codec, area)
    latest = max(record.timestamp for record in run.records)
    return build_batch(
        BatchHeader(
            base_offset=first.offset,
            length=0,
            leader_epoch=NO_EPOCH,
            magic=2,
            crc=0,
            attributes=run.codec | (0 if run.append_time is None else TIMESTAMP_TYPE_BIT),
            last_offset_delta=last.offset - first.offset,
            base_timestamp=first.timestamp,
            max_timestamp=latest if run.append_time is None else run.append_time,
            producer_id=NO_PRODUCER_ID,
            producer_epoch=NO_EPOCH,
            base_sequence=NO_SEQUENCE,
            records_count=len(run.records),
        ),
        area,
    )
