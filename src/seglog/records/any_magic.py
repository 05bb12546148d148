"""Header, CRC and records of an `Entry`: a batch of magic 2, or a message of magic 0 or 1."""

from __future__ import annotations

from collections.abc import Iterator

from seglog.core.types import Buffer
from seglog.records import batch, legacy
from seglog.records.batch import BatchHeader, Entry
from seglog.records.compression import DEFAULT_LIMIT
from seglog.records.record import Record, decode_records, iter_records


def describe(data: Buffer, entry: Entry, *, deep: bool = True, limit: int = DEFAULT_LIMIT) -> BatchHeader:
    """The checked header of a batch, or a header made of the fields of a message (`legacy.describe`).

    Without ``deep`` nothing is decompressed. The base offset of a compressed message is then its last offset, and the
    count is -1.
    """
    if entry.magic < 2:
        return legacy.describe(data, entry, deep=deep, limit=limit)
    header = batch.read_header(data, entry.position)
    batch.check_header(header, entry.position)
    return header


def check(data: Buffer, entry: Entry) -> None:
    """Raise `CorruptBatchError` if the CRC at ``entry`` (CRC-32C, or CRC-32 in magic 0 and 1) is wrong."""
    if entry.magic < 2:
        legacy.check_crc(data, entry)
    else:
        batch.check_crc(data, batch.read_header(data, entry.position), entry.position)


def iterate(data: Buffer, entry: Entry, *, limit: int = DEFAULT_LIMIT) -> Iterator[Record]:
    """As `decode`, but decode the records of a batch of magic 2 one at a time."""
    if entry.magic < 2:
        return iter(legacy.decode(data, entry, limit=limit))
    return iter_records(data, batch.read_header(data, entry.position), entry.position, limit=limit)


def decode(data: Buffer, entry: Entry, *, limit: int = DEFAULT_LIMIT) -> list[Record]:
    """All records at ``entry``, decompressed. Raises as `decode_records` and `legacy.decode`."""
    if entry.magic < 2:
        return legacy.decode(data, entry, limit=limit)
    return decode_records(data, batch.read_header(data, entry.position), entry.position, limit=limit)
