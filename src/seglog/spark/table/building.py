"""Add the new records of a log to a table: from its snapshot's offsets to the last stable offset.

This needs no Spark. Ranges of the log are decoded in compiled loops and written as Parquet, one file each, by threads;
each round of files is one commit. `seglog.table.log_table` makes that exactly once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from seglog.core.errors import InvalidConfigError
from seglog.core.extras import require
from seglog.core.fs import Fs, OsFs
from seglog.core.types import TopicPartition
from seglog.spark.options.read_options import ReadOptions, parse_options
from seglog.spark.read.directories.planning import DirectoryExtent, ReadRange
from seglog.spark.read.directories.source import DirectorySource
from seglog.spark.read.offsets import resolve_bound
from seglog.spark.read.ranges import OffsetRange
from seglog.spark.table.continuation import check_topic, continue_from, rounds, share_files
from seglog.storage.formats.checkpoints import encode_id, read_leader_epochs, read_partition_metadata
from seglog.storage.log.epochs import LeaderEpochs
from seglog.table.positions import Position, Positions

if TYPE_CHECKING:
    import pyarrow as pa

    from seglog.table.log_table import LogTable
    from seglog.table.record_files import WrittenFile

_OPTIONS: Final = {
    name.lower(): name
    for name in ("startingOffsets", "startingOffsetsByTimestamp", "startingTimestamp", "failOnDataLoss", "replica")
}
"""The source's options that a table takes. The start counts for partitions that the table does not have yet."""
FILE_BYTES: Final = 256 << 20
"""Bytes of log that become one file, about."""
ROUND_BYTES: Final = 4 << 30
"""Bytes of log that are committed at a time: what a job that dies does again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableUpdate:
    """The result of a run: what it added, and what the table has now.

    ``behind`` is the number of offsets between the table and the end of the log, committed or not. ``losses`` are
    records that retention deleted before they were added; ``notes`` are warnings about the log directory.
    """

    table: str
    snapshot: int | None
    added_records: int
    added_files: int
    added_bytes: int
    commits: int
    records: int
    files: int
    bytes: int
    partitions: int
    behind: int
    losses: tuple[str, ...]
    notes: tuple[str, ...]


def update_table(
    path: str | os.PathLike[str],
    table: str | os.PathLike[str],
    *,
    topic: str,
    options: Mapping[str, str] | None = None,
    workers: int | None = None,
) -> TableUpdate:
    """Add the committed records of ``topic`` that ``table`` does not have. It is created if need be.

    ``path`` is a log directory, which may be in use, or several of one cluster, separated by commas. ``table`` is
    ``warehouse/name``. ``workers`` threads write files, by default one for each core.

    Raises `DataLossError` if the log no longer has the records that follow the table's, `TableInUseError` if another
    job changes the table, `InvalidConfigError` if it is of another topic, and errors of reading.
    """
    require("pyiceberg.catalog.sql", "table", purpose="a table")
    from seglog.table.log_table import LogTable

    source = _read_options(path, topic, options or {})
    with LogTable.open_or_create(table) as opened, opened.locked():
        return _Run(OsFs(), opened, source, topic, workers or os.cpu_count() or 1).run()


def _read_options(path: str | os.PathLike[str], topic: str, options: Mapping[str, str]) -> ReadOptions:
    for name in options:
        if name.lower() not in _OPTIONS:
            raise InvalidConfigError(f"a table does not take option {name}; it takes {', '.join(_OPTIONS.values())}")
    return parse_options(
        {
            **options,
            "path": os.fspath(path),
            "subscribe": topic,
            "isolationLevel": "read_committed",
            "maxBytesPerPartition": str(FILE_BYTES),
        }
    )


class _Run:
    """One run. The caller holds the table's lock."""

    def __init__(self, fs: Fs, table: LogTable, options: ReadOptions, topic: str, workers: int) -> None:
        self._fs = fs
        self._table = table
        self._options = options
        self._source = DirectorySource(options)
        self._topic = topic
        self._workers = workers

    def run(self) -> TableUpdate:
        survey = self._source.survey()
        extents = survey.extents
        topic_id = _topic_id(self._fs, extents)
        before = self._table.positions() or Positions(topic=self._topic, topic_id=topic_id)
        check_topic(before, self._topic, topic_id)
        epochs = _read_epochs(self._fs, extents, before)
        found = continue_from(
            before,
            extents,
            resolve_bound("starting", extents, self._options.starting, self._source.find_by_time),
            {
                number: epochs[number].epoch_for_offset(position.upto - 1)
                for number, position in before.partitions.items()
            },
            fail_on_data_loss=self._options.fail_on_data_loss,
        )
        written, commits, positions = self._add(before, extents, found.ranges, epochs)
        after = self._table.snapshot()
        return TableUpdate(
            table=self._table.path.root,
            snapshot=None if after is None else after.id,
            added_records=sum(one.records for one in written),
            added_files=len(written),
            added_bytes=sum(one.size for one in written),
            commits=commits,
            records=0 if after is None else after.records,
            files=0 if after is None else len(after.files),
            bytes=0 if after is None else after.size,
            partitions=len(positions.partitions),
            behind=sum(extent.log_end - found.ranges[extent.topic_partition].end for extent in extents),
            losses=tuple(found.losses),
            notes=tuple(survey.notes),
        )

    def _add(
        self,
        before: Positions,
        extents: Sequence[DirectoryExtent],
        ranges: Mapping[TopicPartition, OffsetRange],
        epochs: Mapping[int, LeaderEpochs],
    ) -> tuple[list[WrittenFile], int, Positions]:
        """Write and commit, round by round."""
        planned = rounds(share_files(self._source.plan(extents, ranges, self._workers)), ROUND_BYTES) or [[]]
        written: list[WrittenFile] = []
        positions, commits = before, 0
        with ThreadPoolExecutor(self._workers, thread_name_prefix="seglog-table") as pool:
            for groups in planned:
                files = [one for one in pool.map(self._write, groups) if one is not None]
                ends = {one.topic_partition: one.offsets.end for group in groups for one in group}
                if groups is planned[-1]:  # also where compaction has left no bytes up to the end
                    ends = {name: offsets.end for name, offsets in ranges.items()}
                starts, changed = dict[int, int](), dict[int, Position]()
                for name, end in ends.items():
                    known = positions.partitions.get(name.partition)
                    if known is None or known.upto != end:
                        starts[name.partition] = ranges[name].start if known is None else known.upto
                        changed[name.partition] = Position(end, epochs[name.partition].epoch_for_offset(end - 1))
                if changed:
                    positions = positions.advanced(changed)
                    self._table.append([one.path for one in files], positions, starts)
                    written += files
                    commits += 1
        return written, commits, positions

    def _write(self, group: Sequence[ReadRange]) -> WrittenFile | None:
        from seglog.table.record_files import write_records

        return write_records(self._fs, self._table.path.data, self._batches(group), self._table.field_ids)

    def _batches(self, group: Sequence[ReadRange]) -> Iterator[pa.RecordBatch]:
        from seglog.records.columns import SCHEMA

        for one in group:
            yield from self._source.read((one,), SCHEMA)


def _topic_id(fs: Fs, extents: Sequence[DirectoryExtent]) -> str | None:
    """The id in the partitions' files; None of a topic of an old Kafka, which has none."""
    for extent in extents:
        found = read_partition_metadata(fs, extent.directory)
        if found is not None:
            return encode_id(found)
    return None


def _read_epochs(fs: Fs, extents: Sequence[DirectoryExtent], positions: Positions) -> dict[int, LeaderEpochs]:
    """The leader epochs of the partitions; nothing is read for those that have not changed since the last run."""
    epochs = {number: LeaderEpochs() for number in positions.partitions}
    for extent in extents:
        number = extent.topic_partition.partition
        known = positions.partitions.get(number)
        is_same = known is not None and known.upto == extent.until
        epochs[number] = LeaderEpochs(() if is_same else read_leader_epochs(fs, extent.directory))
    return epochs
