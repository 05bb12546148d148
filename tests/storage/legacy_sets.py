"""Messages of formats 0 and 1, as Kafka wrote them before 0.11. The layout is drawn in `seglog.records.legacy`."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from struct import Struct
from typing import Final

from seglog.core.types import Buffer
from seglog.records.compression import compress
from seglog.records.record import NewRecord

_ENTRY: Final = Struct(">qiI")
_MAGIC_ATTRIBUTES: Final = Struct(">bb")
_INT64: Final = Struct(">q")
_INT32: Final = Struct(">i")


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


def encode_set(
    records: Sequence[NewRecord], *, offset: int, magic: int, codec: int = 0, append_time: int | None = None
) -> bytes:
    """Messages at ``offset`` and on: one entry each, or all in a compressed one.

    In a compressed one of format 1 offsets count from the first message. With ``append_time`` that is the timestamp
    of all, and its type LogAppendTime (format 1 only).
    """
    time_type = 0 if append_time is None else 8
    first = 0 if codec and magic else offset
    inner = b"".join(
        encode_message(
            first + at,
            magic,
            time_type,
            record.timestamp if append_time is None else append_time,
            record.key,
            record.value,
        )
        for at, record in enumerate(records)
    )
    if not codec:
        return inner
    timestamp = max(record.timestamp for record in records) if append_time is None else append_time
    value = compress(codec, inner, magic=magic)
    return encode_message(offset + len(records) - 1, magic, codec | time_type, timestamp, None, value)
