"""A topic with keys that is written, compacted and made a table of, and a dictionary that knows its newest values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import seglog
from seglog.core.ground import Ground
from seglog.core.types import MAX_INT64, TopicPartition
from seglog.records.columns import COLUMNS
from seglog.records.record import NewRecord
from seglog.storage.compaction import log_cleaner
from seglog.storage.compaction.round import COMPILED
from seglog.storage.directory.log_dir import LogDir
from seglog.table.iceberg.log_table import LogTable
from seglog.table.keyed.building import KeyedTableUpdate, update_keyed_table
from tests.kit.manual_clock import ManualClock

START_MS = 1_790_000_000_000
DAY_MS = 86_400_000
CONFIG = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": 1500,
    "segment.index.bytes": 600,
    "index.interval.bytes": 300,
    "file.delete.delay.ms": 0,
    "message.timestamp.after.max.ms": MAX_INT64,
}

Newest = dict[tuple[int, bytes], tuple[int, bytes]]
"""By partition and key: offset and value."""


class KeyedLog:
    """A log directory with topic ``t``, and its table. ``newest`` is updated by each write, so compaction cannot change
    it."""

    def __init__(self, root: Path, *, partitions: int = 2, **config: object) -> None:
        self.path, self.table = root / "log", root / "warehouse" / "t"
        self.clock = ManualClock(START_MS)
        self.newest: Newest = {}
        self.tombstones = 0
        with self.open() as directory:
            directory.create_topic("t", partitions, {**CONFIG, **{k.replace("_", "."): v for k, v in config.items()}})

    def open(self) -> LogDir:
        return LogDir.open(self.path, ground=Ground(clock=self.clock))

    def write(self, values: Iterable[tuple[bytes, bytes | None]], *, partition: int = 0) -> None:
        """Append a record for each key and value, one batch each."""
        with self.open() as directory:
            log = directory.log("t", partition)
            for key, value in values:
                offset = log.log_end_offset
                log.append_records([NewRecord(value, key, self.clock.now_ms(), (("at", b"%d" % offset),))])
                if value is None:
                    self.newest.pop((partition, key), None)
                    self.tombstones += 1
                else:
                    self.newest[partition, key] = offset, value

    def compact(self, *, partition: int = 0) -> None:
        """A round up to the end of the log."""
        with self.open() as directory:
            log = directory.log("t", partition)
            log.roll()
            known = directory.checkpoints.cleaner_offsets.get(TopicPartition("t", partition))
            part = log_cleaner.cleanable(log, known)
            stats = log_cleaner.compact(log, first_dirty=part.first_dirty, engine=COMPILED, in_child=False)
            directory.checkpoints.note_cleaned(log, stats.end_offset)

    def update(self, **options: Any) -> KeyedTableUpdate:
        return update_keyed_table(self.path, self.table, topic="t", clock=self.clock, workers=2, **options)

    @property
    def split(self) -> int:
        """The keys that several partitions have."""
        keys = [key for _, key in self.newest]
        return sum(keys.count(key) > 1 for key in set(keys))


def stored(table: Path) -> Newest:
    """What the files of a table have; a row that is there twice fails."""
    with LogTable.open(table) as opened:
        snapshot = opened.snapshot()
    if snapshot is None or not snapshot.files:
        return {}
    return newest_in(pa.concat_tables([pq.read_table(file, columns=list(COLUMNS)) for file in snapshot.files]))


def newest_in(rows: pa.Table) -> Newest:
    found: Newest = {}
    for row in rows.to_pylist():
        place = row["partition"], row["key"]
        assert place not in found, place
        assert row["value"] is not None, place
        found[place] = row["offset"], row["value"]
    return found


def by_dictionary(path: Path, topic: str = "t") -> Newest:
    """What a consumer of all committed records that puts them into a dictionary has at the end."""
    found: Newest = {}
    for row in seglog.scan(path, topics=topic, isolation_level="read_committed").read_all().to_pylist():
        place = row["partition"], row["key"]
        if row["value"] is None:
            found.pop(place, None)
        else:
            found[place] = row["offset"], row["value"]
    return found


def said(table: Path) -> Mapping[str, str]:
    """The current snapshot's summary."""
    with LogTable.open(table) as opened:
        current = opened.iceberg.current_snapshot()
    assert current is not None
    assert current.summary is not None
    return current.summary.additional_properties
