"""Compaction on Spark: the last record of each key stays. One partition uses all cores (`seglog.storage.compaction`).

The engine plans a round, its loops write it and its steps put it in place, so the result is byte for byte what the
engine writes with a map that has room for all keys. Spark's workers only do the work:

1. Workers hash the keys of stretches of the log to 128 bits and shuffle them by hash to buckets, which then know the
   last offset of each key. In between the keys are on disk, 24 bytes each. A bucket has at most about `BUCKET_KEYS`
   keys, so a worker holds at most 130 MiB of them; the driver holds none.
2. Workers rewrite each group of segments under ``<topic>-N/.seglog/staging/compact-…``, from a bit for each offset.
3. When all groups are on disk, the driver renames them one by one, as the engine does: ``.cleaned``, ``.swap``, plain
   name. Last, it records in ``cleaner-offset-checkpoint`` up to where the log is clean.

The driver has the log directory open, with its lock, as long as the job runs. If it dies, each group is either old or
new, and the next job removes what is left in staging. All machines must see the path.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from seglog.core.config import LogDirConfig
from seglog.core.errors import CorruptError, InvalidConfigError, SeglogError, UnknownTopicError
from seglog.core.extras import require
from seglog.core.fs import Fs
from seglog.core.ground import Ground
from seglog.core.types import TopicPartition
from seglog.spark.jobs.compact_staging import StagedGroup, staged_round
from seglog.spark.jobs.driver import Progress, watched
from seglog.storage.compaction import log_cleaner
from seglog.storage.compaction.cleanable import CleanablePart
from seglog.storage.compaction.round import COMPILED, Round, group_sources
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.formats.paths import DELETED, segment_paths
from seglog.storage.log.log import Log
from seglog.storage.offline.batch_boundaries import IndexBoundaries

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from seglog.storage.compaction.parts import SourceStretch

__all__ = ["CompactedPartition", "CompactionResult", "compact"]

SPARK_FROM: Final = 256 << 20
"""A partition with this many bytes to read is worth a Spark job; the engine cleans smaller ones in the driver."""
BUCKET_KEYS: Final = 2_500_000
"""The most keys that a worker holds with their last offsets: a table of 100 MiB, and 25 more while it grows."""
_STRETCH_BYTES: Final = 256 << 20
_SMALLEST_STRETCH: Final = 4 << 20
_TASKS_PER_CORE: Final = 4
_MAP_BYTES: Final = 1 << 30
"""The size of the engine's offset map: the plan needs it, although this job has no such map."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedPartition:
    """The cleaning of a partition. After a ``dry_run`` the fields that only the work could fill are zero.

    Everything below ``end_offset`` is clean; keys were collected from ``first_dirty`` on. ``dirty_bytes`` of the
    ``total_bytes`` were dirty. ``by`` is "spark", or "engine" for a small partition.
    """

    topic: str
    partition: int
    by: str
    first_dirty: int
    end_offset: int
    dirty_bytes: int
    total_bytes: int
    segments_before: int
    segments_after: int = 0
    records_read: int = 0
    records_written: int = 0
    bytes_written: int = 0
    keys: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionResult:
    """The result of a job. ``failed`` partitions are unchanged, with the reason; ``clean`` had nothing to do."""

    partitions: tuple[CompactedPartition, ...]
    failed: Mapping[TopicPartition, str]
    clean: int
    dry_run: bool

    @property
    def bytes_saved(self) -> int:
        return sum(one.total_bytes - one.bytes_written for one in self.partitions) if not self.dry_run else 0


def compact(
    spark: SparkSession,
    path: str | os.PathLike[str],
    *,
    topics: Collection[str] | None = None,
    force: bool = False,
    min_dirty_ratio: float = 0.0,
    roll: bool = False,
    dry_run: bool = False,
    config: LogDirConfig | None = None,
    ground: Ground | None = None,
    spark_from: int = SPARK_FROM,
    progress: Progress | None = None,
) -> CompactionResult:
    """Clean the compacted topics of the log directory at ``path``, or only ``topics``.

    The same is cleaned as by the engine and by Kafka: partitions whose dirty part is above ``min_dirty_ratio``, without
    the active segment (``roll`` starts a new one first), records younger than ``min.compaction.lag.ms``, and anything
    from the last stable offset on. ``force`` ignores the ``cleanup.policy`` of the named topics: in a directory that
    Kafka made, topics are configured elsewhere. It refuses partitions that have records without a key. ``progress`` is
    called with bytes. A second job right after this one has nothing to do.

    Raises `LogDirInUseError` while a broker or another job has the directory open, `UnknownTopicError`,
    `InvalidConfigError`. A partition that is damaged is in `CompactionResult.failed`.
    """
    require("numba", "fast", purpose="compaction on Spark")
    if force and not topics:
        raise InvalidConfigError("force needs the names of the topics to compact")
    done: list[CompactedPartition] = []
    failed: dict[TopicPartition, str] = {}
    clean = 0
    with LogDir.open(path, create=False, config=config, ground=ground) as directory, directory.compacting:
        job = _CompactionRun(spark, directory, spark_from, progress, forced=force)
        for name in _chosen(directory, topics, force=force):
            log = directory.logs.get(name)
            if log is None:
                failed[name] = str(directory.refused[name])
                continue
            if roll and not dry_run:
                log.roll()
            part = log_cleaner.cleanable(log, directory.checkpoints.cleaner_offsets.get(name))
            if part.cleanable_bytes == 0 or not part.is_due(min_dirty_ratio):
                clean += 1
                continue
            try:
                done.append(job.planned(log, part) if dry_run else job.clean(log, part))
            except (CorruptError, KeylessError) as error:
                failed[name] = str(error)
    return CompactionResult(partitions=tuple(done), failed=failed, clean=clean, dry_run=dry_run)


class KeylessError(SeglogError):
    """A topic has records without a key, which compaction would drop."""


def _chosen(directory: LogDir, topics: Collection[str] | None, *, force: bool) -> list[TopicPartition]:
    there = sorted([*directory.logs, *directory.refused])
    for topic in topics or ():
        found = [name for name in there if name.topic == topic]
        if not found:
            raise UnknownTopicError(f"there is no topic {topic!r} in {directory.path}")
        if not force and not any(_is_compacted(directory, name) for name in found):
            raise InvalidConfigError(
                f"topic {topic} is not compacted according to {directory.path} (cleanup.policy in seglog.topics): "
                "change its configuration, or force it"
            )
    return [name for name in there if (name.topic in topics if topics else _is_compacted(directory, name))]


def _is_compacted(directory: LogDir, name: TopicPartition) -> bool:
    log = directory.logs.get(name)
    if log is not None:
        return log.config.compact
    entry = directory.entries.get(name.topic)
    return entry is not None and directory.config.topics.with_overrides(entry.config).compact


class _CompactionRun:
    """Rounds over the logs of one directory."""

    def __init__(
        self, spark: SparkSession, directory: LogDir, spark_from: int, progress: Progress | None, *, forced: bool
    ) -> None:
        self._spark = spark
        self._directory = directory
        self._spark_from = spark_from
        self._progress = progress
        self._forced = forced

    def _by(self, part: CleanablePart) -> str:
        small = part.clean_bytes + part.cleanable_bytes < self._spark_from
        return "engine" if small and not self._forced else "spark"

    def planned(self, log: Log, part: CleanablePart) -> CompactedPartition:
        return CompactedPartition(
            topic=log.topic_partition.topic,
            partition=log.topic_partition.partition,
            by=self._by(part),
            first_dirty=part.first_dirty,
            end_offset=part.first_uncleanable,
            dirty_bytes=part.cleanable_bytes,
            total_bytes=part.clean_bytes + part.cleanable_bytes,
            segments_before=sum(segment.base_offset < part.first_uncleanable for segment in log.segments),
        )

    def clean(self, log: Log, part: CleanablePart) -> CompactedPartition:
        """Clean a partition and record it in the checkpoint."""
        first_dirty, bound = part.first_dirty, part.first_uncleanable
        if self._by(part) == "engine":
            config = self._directory.config
            stats = log_cleaner.compact(log, first_dirty=first_dirty, first_uncleanable=bound, config=config)
        else:
            planned = log_cleaner.plan(
                log, first_dirty=first_dirty, first_uncleanable=bound, map_bytes=_MAP_BYTES, engine=COMPILED
            )
            round_ = planned.round
            events = staged_round(log, round_, lambda staging: self._work(log, round_, staging))
            stats = log_cleaner.carry_out(log, planned, lambda _stop: events)
        self._directory.checkpoints.note_cleaned(log, stats.end_offset)
        _remove_old(log)
        return replace(
            self.planned(log, part),
            end_offset=stats.end_offset,
            segments_before=stats.segments_before,
            segments_after=stats.segments_after,
            records_read=stats.messages_read,
            records_written=stats.messages_written,
            bytes_written=stats.bytes_written,
            keys=stats.map_entries,
            seconds=stats.seconds,
        )

    def _work(self, log: Log, round_: Round, staging: str) -> list[StagedGroup]:
        from seglog.spark.jobs import compact_tasks as tasks
        from seglog.storage.compaction.parts import new_hash_key

        groups = group_sources(
            round_.sources,
            segment_bytes=round_.segment_bytes,
            index_bytes=round_.index_bytes,
            first_uncleanable=round_.first_uncleanable,
        )
        cores = self._spark.sparkContext.defaultParallelism
        task = tasks.CompactionPlan(
            round=round_,
            stretches=tuple(stretches(log.fs, round_, cores)),
            groups=tuple(groups),
            key=new_hash_key(),
            buckets=buckets(round_, cores),
            staging=staging,
        )
        total = sum(source.size for source in round_.sources)
        with watched(self._spark, total, task.tasks, self._progress):
            written = tasks.run(self._spark, task)
        self._check_keys(log, sum(one.group.keyless for one in written))
        return written

    def _check_keys(self, log: Log, keyless: int) -> None:
        if keyless and self._forced:
            raise KeylessError(
                f"{log.path}: {keyless} records have no key, and compaction would drop them. Is "
                f"{log.topic_partition.topic} a compacted topic? Nothing was changed"
            )


def _remove_old(log: Log) -> None:
    """Delete replaced files now: this process has the directory, and ends before ``file.delete.delay.ms`` is over."""
    for name in log.fs.listdir(log.path):
        if name.endswith(DELETED):
            log.fs.unlink(os.path.join(log.path, name))


def stretches(fs: Fs, round_: Round, cores: int) -> Iterator[SourceStretch]:
    """The round's segments cut at batch boundaries, for some tasks for each core, in the log's order."""
    from seglog.storage.compaction.parts import SourceStretch

    total = sum(source.size for source in round_.sources)
    wanted = min(max(total // (cores * _TASKS_PER_CORE), _SMALLEST_STRETCH), _STRETCH_BYTES)
    for source in round_.sources:
        path = segment_paths(round_.directory, source.base_offset).log
        boundaries = IndexBoundaries(fs, _SegmentBytes(source.base_offset, path, source.size))
        start = 0
        while source.size - start > wanted + wanted // 2:
            end = boundaries.cut(start, start + wanted, source.size)
            yield SourceStretch(source, start, end)
            start = end
        if start < source.size:
            yield SourceStretch(source, start, source.size)


class _SegmentBytes(NamedTuple):
    base_offset: int
    log: str
    size: int


def buckets(round_: Round, cores: int) -> int:
    """The number of buckets that gives each at most about `BUCKET_KEYS` keys: there are no more keys than offsets."""
    offsets = round_.first_uncleanable - max(round_.first_dirty, round_.sources[0].base_offset)
    return max(-(-offsets // BUCKET_KEYS), cores)
