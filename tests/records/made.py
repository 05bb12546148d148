"""Batches of magic 2 made by hand, with right CRCs around anything."""

from __future__ import annotations

from typing import Final

from seglog.records.batch import BatchHeader, build_batch, read_header
from seglog.records.record import NewRecord, Record, decode_records
from tests.records.peers import as_bytes

_EMPTY: Final = BatchHeader(0, 0, -1, 2, 0, 0, 0, 0, 0, -1, -1, -1, 1)

BODY: Final = b"\x00\x00\x00\x01\x01\x00"
"""Attributes, timestamp delta 0, offset delta 0, null key, null value, no headers."""
ONE: Final = b"\x0c" + BODY


def decode(batch: bytes | bytearray, **options: int) -> list[Record]:
    return decode_records(batch, read_header(batch), **options)


def batch_of(area: bytes | bytearray, **header: int) -> bytearray:
    """A batch around any bytes at all; the CRC is right."""
    return build_batch(_EMPTY._replace(**header), area)


def expected(records: list[NewRecord], base_offset: int = 0, sequence: int = -1) -> list[Record]:
    return [
        Record(
            base_offset + delta,
            timestamp,
            as_bytes(key),
            as_bytes(value),
            tuple((name, as_bytes(content)) for name, content in headers),
            -1 if sequence < 0 else (sequence + delta) % 2**31,
        )
        for delta, (value, key, timestamp, headers) in enumerate(records)
    ]
