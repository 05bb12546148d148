"""Messages of formats 0 and 1 written again, as compaction needs it; nothing else writes these formats.

The layout is drawn in `seglog.records.legacy`. A compressed wrapper holds its messages with their own offsets in format
0, counted from the first of them in format 1, and has the last one's offset (``MemoryRecordsBuilder.java``).
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from seglog.core.types import NO_TIMESTAMP, Buffer
from seglog.records.batch import CODEC_MASK, TIMESTAMP_TYPE_BIT, BatchHeader
from seglog.records.compression import compress
from seglog.records.record import Record

_ENTRY: Final = Struct(">qiI")
_MAGIC_ATTRIBUTES: Final = Struct(">bb")
_INT64: Final = Struct(">q")
_INT32: Final = Struct(">i")


class Wrapper(NamedTuple):
    data: bytes
    max_timestamp: int


def encode_message(
    offset: int, magic: int, attributes: int, timestamp: int, key: Buffer | None, value: Buffer | None
) -> bytes:
    """One entry of a message set; ``timestamp`` is left out in format 0."""
    body = b"".join(
        (
            _MAGIC_ATTRIBUTES.pack(magic, attributes),
            _INT64.pack(timestamp) if magic else b"",
            _INT32.pack(-1 if key is None else len(key)),
            key or b"",
            _INT32.pack(-1 if value is None else len(value)),
            value or b"",
        )
    )
    return _ENTRY.pack(offset, len(body) + 4, zlib.crc32(body)) + body


def encode_wrapper(records: Sequence[Record], header: BatchHeader) -> Wrapper:
    """A compressed wrapper of some of the messages of an old one, whose `describe` is ``header``."""
    magic, codec = header.magic, header.attributes & CODEC_MASK
    time_type = header.attributes & TIMESTAMP_TYPE_BIT if magic else 0
    first = records[0].offset if magic else 0
    timestamp = NO_TIMESTAMP
    if time_type:
        timestamp = header.max_timestamp
    elif magic:
        timestamp = max(NO_TIMESTAMP, *(record.timestamp for record in records))
    inner = b"".join(
        encode_message(
            record.offset - first,
            magic,
            time_type,
            timestamp if time_type else record.timestamp,
            record.key,
            record.value,
        )
        for record in records
    )
    value = compress(codec, inner, magic=magic)
    data = encode_message(records[-1].offset, magic, codec | time_type, timestamp, None, value)
    return Wrapper(data, timestamp)
