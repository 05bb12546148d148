"""Add the new records of a log to a table: from its snapshot's offsets to the last stable offset.

Ranges of the log are decoded in compiled loops and written as Parquet, one file each, by tasks that run at once; each
round of files is one commit. `seglog.table.iceberg.log_table` makes that exactly once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from seglog.core.clock import Clock, SystemClock
from seglog.core.errors import InvalidConfigError
from seglog.core.extras import require
from seglog.core.types import TopicPartition
from seglog.sources.offsets import resolve_bound
from seglog.sources.options.read_options import ReadOptions
from seglog.sources.query import source_of
from seglog.sources.ranges import OffsetRange
from seglog.table.continuation import check_topic, continue_from, rounds, share_files
from seglog.table.iceberg.layout import DELTA_LOG
from seglog.table.iceberg.positions import Position, Positions
from seglog.table.log_survey import Log, LogState, log_options, survey_log
from seglog.values.value_options import NAMES

if TYPE_CHECKING:
    from seglog.table.files.file_task import Executor, TaskResult
    from seglog.table.files.record_decoding import RecordDecoding
    from seglog.table.iceberg.catalogs import CatalogOptions
    from seglog.table.iceberg.log_table import LogTable

_OPTIONS: Final = (
    *("startingOffsets", "startingOffsetsByTimestamp", "startingTimestamp", "failOnDataLoss", "replica", "mode"),
    *NAMES,
)
"""The source's options that a table takes, besides ``kafka.*``. The start counts for new partitions."""
FILE_BYTES: Final = 256 << 20
"""Bytes of log that become one file, about."""
ROUND_BYTES: Final = 4 << 30
"""Bytes of log that are committed at a time: what a job that dies does again."""


class Retention(NamedTuple):
    """Which files of a table go: those whose records all are older than ``keep_ms``, or with ``as_log`` all lie below
    the log start offset. A file goes as a whole, so some records stay longer."""

    keep_ms: int | None = None
    as_log: bool = False


KEEP_ALL: Final = Retention()


@dataclass(frozen=True, slots=True, kw_only=True)
class TableUpdate:
    """The result of a run: what it added, and what the table has now.

    ``expired_files`` went by `Retention`, ``rewritten_files`` were small, ``deleted_files`` had no snapshot any more.
    With ``mode=permissive``, ``undecodable`` keys and values were added as null, with their bytes, and
    ``null_timestamps`` timestamps, which are out of range, as null.
    ``behind`` is the number of offsets between the table and the end of the log, committed or not. ``losses`` are
    records that retention deleted before they were added; ``notes`` are warnings about the log directory.
    """

    table: str
    snapshot: int | None
    added_records: int
    added_files: int
    added_bytes: int
    undecodable: int
    null_timestamps: int
    commits: int
    expired_files: int
    rewritten_files: int
    deleted_files: int
    records: int
    files: int
    bytes: int
    partitions: int
    behind: int
    losses: tuple[str, ...]
    notes: tuple[str, ...]


def update_table(
    log: Log,
    table: str | os.PathLike[str],
    *,
    topic: str,
    options: Mapping[str, str] | None = None,
    workers: int | None = None,
    retention: Retention = KEEP_ALL,
    bloom: Sequence[str] | None = None,
    delta: bool = False,
    catalog: CatalogOptions | None = None,
    partition_by: Literal["day"] | None = None,
    executor: Executor | None = None,
) -> TableUpdate:
    """Add the committed records of ``topic`` that ``table`` does not have. It is created if need be.

    ``log`` is a log directory, which may be in use, or several of one cluster, separated by commas; or brokers, as in
    ``host:9092``. ``table`` is ``warehouse/name``, or ``s3://bucket/warehouse/name`` with a ``catalog``
    (`CatalogOptions`). Small files are rewritten, and files that no snapshot names are deleted after a day. ``bloom``:
    the columns that have Bloom filters in files from now on; None leaves it as it is. ``delta`` makes a Delta log over
    the same files; from then on, it follows the table in every run. ``retention``: which records the table lets go.

    ``workers`` files are written at a time, by default one for each core, by threads; through brokers there is one. An
    ``executor`` runs the tasks instead: a ``ProcessPoolExecutor``, or processes on other machines that see the log and
    the warehouse under the same paths. Through brokers, its tasks must not share a process.

    ``partition_by="day"``: each file has records of one day, in UTC; only a new table takes it, and keeps it.

    Raises `DataLossError` if the log no longer has the records that follow the table's, `TableInUseError` if another
    job changes the table, `InvalidConfigError` if it is of another topic, `CatalogError` if the catalog does not
    answer, and errors of reading and writing.
    """
    require("pyiceberg.catalog.sql", "table", purpose="a table")
    from seglog.table.files.record_decoding import RecordDecoding
    from seglog.table.iceberg.catalogs import OWN_CATALOG
    from seglog.table.iceberg.log_table import LogTable

    source = log_options(log, topic, options or {}, _OPTIONS, maxBytesPerPartition=str(FILE_BYTES))
    decoding = RecordDecoding.choose(options or {}, source, topic)
    with (
        LogTable.open_or_create(
            table,
            columns=decoding.columns,
            formats=decoding.pinned,
            by_day=partition_by is not None,
            catalog=catalog or OWN_CATALOG,
        ) as opened,
        opened.locked(),
    ):
        if opened.key_buckets is not None:
            raise InvalidConfigError(
                f"the table {opened.path.root} has the newest value of each key, so it cannot become one of all "
                "records: give --latest, or name another warehouse"
            )
        if partition_by is not None and not opened.form.by_day:
            raise InvalidConfigError(f"{opened.path.root} is not partitioned by day, and stays so: build another table")
        check_delta(opened, wanted=delta)
        run = _Run(opened, source, decoding, topic, workers or os.cpu_count() or 1, executor, with_delta=delta)
        run.take_columns()
        if bloom is not None:
            opened.set_bloom(bloom)
        return run.run(retention)


class _Run:
    """One run. The caller holds the table's lock."""

    def __init__(
        self,
        table: LogTable,
        options: ReadOptions,
        decoding: RecordDecoding,
        topic: str,
        workers: int,
        executor: Executor | None,
        *,
        with_delta: bool,
    ) -> None:
        self._table = table
        self._options = options
        self._source = source_of(replace(options, permissive=False))  # damage is never left out
        self._decoding = decoding
        self._topic = topic
        self._with_delta = has_delta(table, wanted=with_delta)
        self._executor = executor
        is_shared = executor is None and options.client is not None
        self._workers = 1 if is_shared else workers  # a connection to a broker is for one thread

    def take_columns(self) -> None:
        """Let the table have the columns of this run. If it cannot, it is unchanged. Raises `InvalidConfigError`."""
        if self._with_delta:
            require("deltalake", "table", purpose="a Delta log")
            from seglog.table.delta_log import check_columns

            check_columns(self._table, self._decoding.columns)
        self._table.evolve(self._decoding.columns, self._decoding.pinned)

    def run(self, retention: Retention) -> TableUpdate:
        from seglog.table.maintenance import maintain

        known = self._table.positions()
        log = survey_log(self._source, known)
        before = known or Positions(topic=self._topic, topic_id=log.topic_id)
        check_topic(before, self._topic, log.topic_id)
        found = continue_from(
            before,
            log.extents,
            resolve_bound("starting", log.extents, self._options.starting, self._source.find_by_time),
            log.epochs_before(before),
            fail_on_data_loss=self._options.fail_on_data_loss,
        )
        added, commits, positions = self._add(before, log, found.ranges)
        follow_with_delta(self._table, SystemClock(), wanted=self._with_delta)
        expired = self._expire(log, retention)
        follow_with_delta(self._table, SystemClock(), wanted=self._with_delta)
        done = maintain(self._table.files, self._table, SystemClock())
        follow_with_delta(self._table, SystemClock(), wanted=self._with_delta)
        after = self._table.snapshot()
        written = [file for one in added for file in one.files]
        return TableUpdate(
            table=self._table.path.root,
            snapshot=None if after is None else after.id,
            added_records=sum(one.records for one in written),
            added_files=len(written),
            added_bytes=sum(one.size for one in written),
            undecodable=sum(one.undecodable for one in added),
            null_timestamps=sum(one.null_timestamps for one in added),
            commits=commits,
            expired_files=expired,
            rewritten_files=done.rewritten,
            deleted_files=done.deleted,
            records=0 if after is None else after.records,
            files=0 if after is None else len(after.files),
            bytes=0 if after is None else after.size,
            partitions=len(positions.partitions),
            behind=sum(one.log_end - found.ranges[one.topic_partition].end for one in log.extents),
            losses=tuple(found.losses),
            notes=tuple(log.notes),
        )

    def _add(
        self, before: Positions, log: LogState, ranges: Mapping[TopicPartition, OffsetRange]
    ) -> tuple[list[TaskResult], int, Positions]:
        """Write and commit, round by round."""
        from seglog.table.files.file_task import FileTask

        planned = rounds(share_files(self._source.plan(log.extents, ranges, self._workers)), ROUND_BYTES) or [[]]
        added: list[TaskResult] = []
        positions, commits = before, 0
        task = FileTask(
            source=self._source,
            decoding=self._decoding,
            form=self._table.form,
            files=self._table.files,
            directory=self._table.path.data,
        )
        with ExitStack() as stack:
            executor = self._executor or stack.enter_context(
                ThreadPoolExecutor(self._workers, thread_name_prefix="seglog-table")
            )
            for groups in planned:
                results = list(executor.map(task, groups))
                ends = {one.topic_partition: one.offsets.end for group in groups for one in group}
                if groups is planned[-1]:  # also where compaction has left no bytes up to the end
                    ends = {name: offsets.end for name, offsets in ranges.items()}
                starts, changed = dict[int, int](), dict[int, Position]()
                for name, end in ends.items():
                    known = positions.partitions.get(name.partition)
                    if known is None or known.upto != end:
                        starts[name.partition] = ranges[name].start if known is None else known.upto
                        changed[name.partition] = Position(end, log.epochs[name.partition].epoch_for_offset(end - 1))
                if changed:
                    positions = positions.advanced(changed)
                    self._table.append([file.path for one in results for file in one.files], positions, starts)
                    added += results
                    commits += 1
        return added, commits, positions

    def _expire(self, log: LogState, retention: Retention) -> int:
        """Let the files go that are past their time. Their number."""
        if retention == KEEP_ALL:
            return 0
        from seglog.table.retention import below, older_than

        files, ids = self._table.data_files(), self._table.form.ids
        gone = []
        if retention.keep_ms is not None:
            gone += older_than(files, ids, SystemClock().now_ms() - retention.keep_ms)
        if retention.as_log:
            starts = {extent.topic_partition.partition: extent.log_start for extent in log.extents}
            gone += [one for one in below(files, ids, starts, self._table.read) if one not in gone]
        if gone:
            self._table.replace(gone, [])
        return len(gone)


def check_delta(table: LogTable, *, wanted: bool) -> None:
    if wanted and not table.path.is_local:
        raise InvalidConfigError(f"{table.path.root}: a Delta log is for a warehouse in a directory")


def has_delta(table: LogTable, *, wanted: bool) -> bool:
    """Whether a Delta log is ``wanted``, or exists."""
    return wanted or (table.path.is_local and table.files.exists(os.path.join(table.path.data, DELTA_LOG)))


def follow_with_delta(table: LogTable, clock: Clock, *, wanted: bool) -> None:
    """Bring a Delta log up that is ``wanted`` or there. After each step, so that it says which commits changed records,
    and which only files."""
    if has_delta(table, wanted=wanted):
        require("deltalake", "table", purpose="a Delta log")
        from seglog.table.delta_log import follow

        follow(table.files, table, clock)
