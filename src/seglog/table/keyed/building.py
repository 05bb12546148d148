"""Bring a keyed table to the end of its log: the newest value of each partition and key, without tombstones.

Threads read the news of a partition each, and keep the newest row of each key. Then the buckets that have news are
merged with their old rows, one new file each, and one commit exchanges the files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from seglog.core.clock import Clock, SystemClock
from seglog.core.errors import DataLossError, InvalidConfigError
from seglog.core.extras import require
from seglog.core.fs import OsFs
from seglog.core.types import MAX_INT64, TopicPartition
from seglog.sources.latest.source import hash_key, latest_source
from seglog.sources.options.read_options import ReadOptions
from seglog.sources.ranges import OffsetRange
from seglog.table.building import check_delta, follow_with_delta
from seglog.table.continuation import check_topic, continue_from
from seglog.table.iceberg.positions import Position, Positions
from seglog.table.keyed.compaction_guard import CompactionGuard
from seglog.table.keyed.tombstone_age import is_renewal_due
from seglog.table.log_survey import Log, LogState, log_options, survey_log

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.manifest import DataFile

    from seglog.sources.latest.spill_file import SpillFile
    from seglog.table.files.record_files import WrittenFile
    from seglog.table.files.record_times import RecordTimes
    from seglog.table.iceberg.catalogs import CatalogOptions
    from seglog.table.iceberg.log_table import LogTable
    from seglog.table.keyed.changed_rows import ChangedRows

_OPTIONS: Final = ("replica", "maxMemoryPerTask", "mode")
"""The source's options that a keyed table takes, besides ``kafka.*``. ``mode`` counts for timestamps only."""
_BATCH_ROWS: Final = 1 << 16
_REBUILD: Final = "build the table anew, with --rebuild"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedTableUpdate:
    """The result of a run.

    ``changed_keys`` are the keys, by partition, that have a new value or a tombstone in the log. ``split_keys`` are the
    keys of the table that several partitions have; the table has a row for each of these. ``null_timestamps`` of the
    changed keys were out of range, and are null (``mode=permissive``). ``behind`` is the number of
    offsets between the table and the end of the log, committed or not.
    """

    table: str
    snapshot: int | None
    changed_keys: int
    null_timestamps: int
    rewritten_buckets: int
    written_bytes: int
    commits: int
    deleted_files: int
    records: int
    files: int
    bytes: int
    buckets: int
    partitions: int
    split_keys: int
    behind: int
    notes: tuple[str, ...]


def update_keyed_table(
    log: Log,
    table: str | os.PathLike[str],
    *,
    topic: str,
    options: Mapping[str, str] | None = None,
    workers: int | None = None,
    buckets: int | None = None,
    rebuild: bool = False,
    delete_retention_ms: int | None = None,
    bloom: Sequence[str] | None = None,
    delta: bool = False,
    catalog: CatalogOptions | None = None,
    clock: Clock | None = None,
) -> KeyedTableUpdate:
    """Have ``table`` hold the newest committed value of each key of each partition of ``topic``, without tombstones.

    ``log``, ``table``, ``bloom``, ``delta`` and ``catalog`` are those of `seglog.table.building.update_table`.
    The table is created if need be, with ``buckets``, 16 by default, which never changes. Only buckets with keys that
    changed are rewritten, by ``workers`` threads, by default one for each core. Each of them holds ``maxMemoryPerTask``
    (128m) bytes of rows, then spills. ``rebuild`` makes all of the table again from all of the log, in one commit.
    ``delete_retention_ms`` is the topic's ``delete.retention.ms``, for a log that does not tell it.

    Raises `InvalidRecordError` for a record without a key; `DataLossError` if the log no longer has the records that
    follow the table's, or if compaction may have removed tombstones among them; `TableInUseError` if another job
    changes the table; `InvalidConfigError` if it is not keyed, or of another topic; `TimestampRangeError`; and errors
    of reading.
    """
    require("pyiceberg.catalog.sql", "table", purpose="a table")
    from seglog.table.iceberg.catalogs import OWN_CATALOG
    from seglog.table.iceberg.key_buckets import DEFAULT_BUCKETS
    from seglog.table.iceberg.log_table import LogTable

    # The view that returns tombstones, with one range for a partition.
    view = {"view": "latest-parts", "maxBytesPerPartition": str(MAX_INT64)}
    source = log_options(log, topic, options or {}, _OPTIONS, **view)
    made = LogTable.open_or_create(table, catalog=catalog or OWN_CATALOG, key_buckets=buckets or DEFAULT_BUCKETS)
    with made as opened, opened.locked():
        check_delta(opened, wanted=delta)
        count = _check_kind(opened, buckets)
        if bloom is not None:
            opened.set_bloom(bloom)
        run = _Run(clock or SystemClock(), opened, count, source, topic, workers or os.cpu_count() or 1)
        return run.run(rebuild=rebuild, delete_retention_ms=delete_retention_ms, with_delta=delta)


def _check_kind(table: LogTable, buckets: int | None) -> int:
    """The table's number of buckets."""
    count = table.key_buckets
    if count is None:
        raise InvalidConfigError(
            f"the table {table.path.root} has all records of its topic, so it cannot become one of the newest values: "
            "leave out --latest, or name another warehouse"
        )
    if buckets not in (None, count):
        raise InvalidConfigError(f"the table {table.path.root} has {count} buckets, which never changes, not {buckets}")
    return count


class _Rewritten(NamedTuple):
    """A bucket's new file, None if it has no rows, and how many keys more than before are in several partitions."""

    bucket: int
    file: WrittenFile | None
    more_split_keys: int


class _Run:
    """One run. The caller holds the table's lock."""

    def __init__(
        self, clock: Clock, table: LogTable, buckets: int, options: ReadOptions, topic: str, workers: int
    ) -> None:
        from seglog.sources.latest.spill_file import SpillFile, spill_directory

        self._clock = clock
        self._table = table
        self._buckets = buckets
        self._source = latest_source(options)
        self._options = options
        self._topic = topic
        self._workers = workers
        self._readers = 1 if options.client is not None else workers  # a connection to a broker is for one thread
        self._hash_key = hash_key()
        self._new_file: partial[SpillFile] = partial(SpillFile, OsFs(), spill_directory(os.environ))

    def run(self, *, rebuild: bool, delete_retention_ms: int | None, with_delta: bool) -> KeyedTableUpdate:
        from seglog.table.files.record_times import RecordTimes
        from seglog.table.iceberg.key_buckets import KeyedFacts
        from seglog.table.keyed.changed_rows import ChangedRows
        from seglog.table.maintenance import maintain

        surveyed = self._clock.now_ms()
        known, facts = self._table.positions(), self._table.keyed_facts()
        self._check_topic_name(known)
        if rebuild:
            known, facts = None, None
        log = survey_log(self._source, known)
        before = known or Positions(topic=self._topic, topic_id=log.topic_id)
        ranges = self._ranges(before, log)
        guard = CompactionGuard(self._options, self._topic, log.extents, delete_retention_ms)

        def check_tombstones() -> None:
            if facts is not None:
                guard.check(before.partitions, self._clock.now_ms() - facts.surveyed_ms)

        check_tombstones()
        times = RecordTimes(null_timestamps=self._options.null_timestamps)
        rewritten: list[_Rewritten] = []
        with closing(ChangedRows(self._buckets, self._options.max_memory, self._new_file)) as changed:
            ends = self._read(log, ranges, times, changed)
            check_tombstones()
            touched = changed.finish()
            starts, after = _moved(before, log, ranges, ends)
            old = self._table.data_files()
            replaced = old if rebuild else [one for one in old if _bucket_of(one) in set(touched)]
            is_old = facts is not None and is_renewal_due(surveyed - facts.surveyed_ms, guard.delete_retention_ms)
            is_changed = bool(starts) or rebuild or is_old
            if is_changed:
                rewritten = self._rewrite(touched, [] if rebuild else replaced, changed)
                split = (0 if facts is None else facts.split_keys) + sum(one.more_split_keys for one in rewritten)
                facts = KeyedFacts(split, surveyed, guard.delete_retention_ms)
                self._table.exchange(replaced, _bucket_files(rewritten), after, starts, facts)
        follow_with_delta(self._table, self._clock, wanted=with_delta)
        deleted = maintain(self._table.files, self._table, self._clock).deleted
        now = self._table.snapshot()
        files = [one.file for one in rewritten if one.file is not None]
        return KeyedTableUpdate(
            table=self._table.path.root,
            snapshot=None if now is None else now.id,
            changed_keys=changed.rows,
            null_timestamps=times.nulls,
            rewritten_buckets=len(rewritten),
            written_bytes=sum(one.size for one in files),
            commits=int(is_changed),
            deleted_files=deleted,
            records=0 if now is None else now.records,
            files=0 if now is None else len(now.files),
            bytes=0 if now is None else now.size,
            buckets=self._buckets,
            partitions=len(after.partitions),
            split_keys=0 if facts is None else facts.split_keys,
            behind=sum(
                max(one.log_end - after.partitions[one.topic_partition.partition].upto, 0) for one in log.extents
            ),
            notes=tuple(log.notes),
        )

    def _check_topic_name(self, known: Positions | None) -> None:
        if known is not None:
            check_topic(known, self._topic, None)

    def _ranges(self, before: Positions, log: LogState) -> Mapping[TopicPartition, OffsetRange]:
        """The offsets that the table does not have yet."""
        missing = before.partitions.keys() - {one.topic_partition.partition for one in log.extents}
        if missing:
            raise DataLossError(f"the table has partition {min(missing)} of {self._topic!r}, and the log does not")
        check_topic(before, self._topic, log.topic_id)
        starts = {one.topic_partition: one.log_start for one in log.extents}
        epochs = log.epochs_before(before)
        return continue_from(before, log.extents, starts, epochs, fail_on_data_loss=True, hint=_REBUILD).ranges

    def _read(
        self,
        log: LogState,
        ranges: Mapping[TopicPartition, OffsetRange],
        times: RecordTimes,
        changed: ChangedRows,
    ) -> dict[TopicPartition, int]:
        """Put the newest records of the ranges into ``changed``. Where each partition that has some was read up to.

        Through brokers that may be behind its range: the record that was read last is the newest of its key.
        """
        planned = self._source.plan(log.extents, ranges, self._readers)
        tasks = [list(group) for _, group in groupby(planned, key=lambda one: one.range.topic_partition)]
        with ThreadPoolExecutor(self._readers, thread_name_prefix="seglog-table") as pool:
            found = pool.map(partial(self._read_partition, times, changed), tasks)
            return {task[0].range.topic_partition: end for task, end in zip(tasks, found, strict=True)}

    def _read_partition(self, times: RecordTimes, changed: ChangedRows, task: Sequence[Any]) -> int:
        import pyarrow.compute as pc

        from seglog.records.columns import SCHEMA

        end = 0
        for batch in self._source.read(task, SCHEMA):
            changed.add(times.checked(batch))
            end = max(end, pc.max(batch.column("offset")).as_py() + 1)
        return end

    def _rewrite(self, touched: Sequence[int], old: Sequence[DataFile], changed: ChangedRows) -> list[_Rewritten]:
        with ThreadPoolExecutor(self._workers, thread_name_prefix="seglog-table") as pool:
            return list(pool.map(partial(self._rewrite_bucket, old, changed), touched))

    def _rewrite_bucket(self, old: Sequence[DataFile], changed: ChangedRows, bucket: int) -> _Rewritten:
        from seglog.table.files.record_files import write_records
        from seglog.table.keyed.bucket_merge import BucketMerge

        merge = BucketMerge(self._options.max_memory, self._new_file, self._hash_key)
        files = [one for one in old if _bucket_of(one) == bucket]
        rows = merge.rows(self._stored_rows(files), changed.of_bucket(bucket))
        written = write_records(self._table.files, self._table.path.data, rows, self._table.form)
        return _Rewritten(bucket, written, merge.more_split_keys)

    def _stored_rows(self, files: Sequence[DataFile]) -> Iterator[pa.RecordBatch]:
        import pyarrow.parquet as pq

        from seglog.records.columns import COLUMNS, SCHEMA

        for one in files:
            with pq.ParquetFile(self._table.read(one)) as stored:
                for batch in stored.iter_batches(_BATCH_ROWS, columns=list(COLUMNS)):
                    yield batch.cast(SCHEMA)


def _moved(
    before: Positions,
    log: LogState,
    ranges: Mapping[TopicPartition, OffsetRange],
    ends: Mapping[TopicPartition, int],
) -> tuple[dict[int, int], Positions]:
    """The partitions that moved, with where they began; and the positions after it."""
    starts, changed = dict[int, int](), dict[int, Position]()
    for name, offsets in ranges.items():
        end = max(offsets.end, ends.get(name, 0))
        known = before.partitions.get(name.partition)
        if known is None or known.upto != end:
            starts[name.partition] = offsets.start
            changed[name.partition] = Position(end, log.epochs[name.partition].epoch_for_offset(end - 1))
    return starts, before.advanced(changed)


def _bucket_of(file: DataFile) -> int:
    from seglog.table.iceberg.key_buckets import bucket_of

    return bucket_of(file)


def _bucket_files(rewritten: Sequence[_Rewritten]) -> list[Any]:
    from seglog.table.iceberg.key_buckets import BucketFile

    return [BucketFile(one.file.path, one.bucket) for one in rewritten if one.file is not None]
