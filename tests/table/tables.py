"""Logs to make tables of, and what a table has, to compare it with `seglog.scan`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seglog
from seglog.records.columns import COLUMNS, SCHEMA
from seglog.records.record import NewRecord
from seglog.storage.directory.log_dir import LogDir
from seglog.table.iceberg.catalogs import OWN_CATALOG, CatalogOptions
from seglog.table.iceberg.log_table import LogTable

SMALL = {"internal.segment.bytes": 4_000, "segment.index.bytes": 600, "index.interval.bytes": 300, "retention.ms": -1}
TIME_MS = 1_357_034_400_000


def flights(first: int, count: int) -> list[NewRecord]:
    """Records with each kind of null, and some with headers."""
    return [
        NewRecord(
            b"flight %d" % at if at % 7 else None,
            b"N%d" % (at % 5) if at % 3 else None,
            TIME_MS + at,
            (("from", b"EWR"), ("to", None)) if at % 4 == 0 else (),
        )
        for at in range(first, first + count)
    ]


def append(path: Path, records: Iterable[NewRecord], *, partition: int = 0, partitions: int = 2) -> None:
    with LogDir.open(path) as directory:
        if "flights" not in directory.topics():
            directory.create_topic("flights", partitions, SMALL)
        log, left = directory.log("flights", partition), list(records)
        for at in range(0, len(left), 20):
            log.append_records(left[at : at + 20])


def scanned(path: Path, topic: str = "flights") -> pa.Table:
    """The committed records of a log, by partition and offset."""
    return by_offset(seglog.scan(path, topics=topic, isolation_level="read_committed").read_all())


def stored(table: Path | str, catalog: CatalogOptions = OWN_CATALOG) -> pa.Table:
    """The records in the files of a table's snapshot, by partition and offset, twice if they are there twice."""
    with LogTable.open(table, catalog=catalog) as opened:
        parts = [pq.read_table(opened.read(one), columns=list(COLUMNS)) for one in opened.data_files()]
    return by_offset(pa.concat_tables(parts)) if parts else SCHEMA.empty_table()


def by_offset(rows: pa.Table) -> pa.Table:
    return rows.sort_by([("partition", "ascending"), ("offset", "ascending")])


def digests(rows: pa.Table) -> dict[int, str]:
    """A hash of the records of each partition, in the order of their offsets, whichever reader they come from."""
    found: dict[int, Any] = {}
    for row in by_offset(rows.select(list(COLUMNS)).cast(SCHEMA)).to_pylist():
        row["headers"] = row["headers"] or None  # pyiceberg 0.12 returns an empty list where a list is null
        found.setdefault(row["partition"], hashlib.sha256()).update(repr(row).encode())
    return {partition: hashed.hexdigest() for partition, hashed in sorted(found.items())}


@contextmanager
def without_a_lock(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two machines whose file system has no locks."""

    @contextmanager
    def free(self: LogTable) -> Iterator[None]:
        self.refresh()
        yield

    with monkeypatch.context() as patched:
        patched.setattr(LogTable, "locked", free)
        yield
