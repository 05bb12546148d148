"""Log directories as what a query reads from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from seglog.core.fs import Fs, OsFs
from seglog.core.types import TopicPartition
from seglog.sources.directories.partition_files import find_by_time, plan_index
from seglog.sources.directories.partitions import MissingDirectory, find_partitions
from seglog.sources.directories.planning import DirectoryExtent, ReadRange, plan
from seglog.sources.directories.survey import survey
from seglog.sources.options.read_options import Assign, ReadOptions
from seglog.sources.ranges import OffsetRange
from seglog.sources.record_source import Available, Survey

if TYPE_CHECKING:
    import pyarrow as pa

_KEPT_INDEXES: Final = 16


class DirectorySource:
    """The directories that ``options`` name. `RecordSource` describes the methods."""

    def __init__(self, options: ReadOptions, fs: Fs | None = None) -> None:
        """``fs`` is by default the operating system's."""
        self._options = options
        self._own_fs = fs

    @property
    def _fs(self) -> Fs:
        return self._own_fs or OsFs()

    def survey(
        self, *, until: str | None = None, only: Sequence[TopicPartition] | None = None, may_be_away: bool = False
    ) -> Survey[DirectoryExtent]:
        options = replace(self._options, until=until or self._options.until)
        if only is not None:
            options = replace(options, selection=Assign(partitions=tuple(only)))
        return survey(self._fs, options, may_be_away=may_be_away)

    def available(self) -> Available:
        away: list[MissingDirectory] = []
        found = find_partitions(self._fs, self._options.paths, away)
        return Available(frozenset(one.topic_partition for one in found), bool(away))

    def find_by_time(self, wanted: Sequence[tuple[DirectoryExtent, int]]) -> list[int | None]:
        return [find_by_time(self._fs, extent, timestamp) for extent, timestamp in wanted]

    def plan(
        self, extents: Sequence[DirectoryExtent], ranges: Mapping[TopicPartition, OffsetRange], cores: int | None
    ) -> list[ReadRange]:
        return plan(
            extents,
            ranges,
            plan_index(self._fs, _KEPT_INDEXES),
            max_bytes=self._options.max_bytes,
            min_partitions=self._options.min_partitions,
            max_records=self._options.max_records,
            cores=cores,
        )

    def read(self, task: Sequence[ReadRange], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        from seglog.sources.directories.task_reader import read_range

        for one in task:
            yield from read_range(self._fs, one, schema, self._options)

    def publish(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Directories have no groups to commit to."""
