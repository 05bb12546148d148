"""A bounded query: which ranges of offsets it reads, as its options and the logs say when it is planned."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from seglog.client.cluster_connections import ClusterConnections
from seglog.core.errors import UnknownPartitionError
from seglog.core.fs import Fs
from seglog.core.types import TopicPartition
from seglog.sources.brokers.source import BrokerSource
from seglog.sources.directories.source import DirectorySource
from seglog.sources.mounted.source import MountedSource
from seglog.sources.offsets import ResolvedRanges, resolve, resolve_bound
from seglog.sources.options.read_options import ReadOptions
from seglog.sources.planning import pack
from seglog.sources.ranges import OffsetRange, PartitionExtent
from seglog.sources.record_source import RecordSource

T = TypeVar("T")
_SURVEYS: Final = 4
"""Further surveys if partitions disappear meanwhile."""


def source_of(options: ReadOptions, cluster: ClusterConnections | None = None, fs: Fs | None = None) -> RecordSource:
    """The source that the options name: log directories, brokers, or both.

    ``cluster`` has the connections of the thread that will use the source, and ``fs`` the files. With either, the
    source cannot be sent to another process.
    """
    if options.client is None:
        return DirectorySource(options, fs)
    kind = MountedSource if options.paths else BrokerSource
    return kind(options.client, options, cluster)


class RecordQuery:
    """Plans a query over a `RecordSource`. It may be sent to other processes, so it has plain values only."""

    def __init__(self, options: ReadOptions, source: RecordSource | None = None) -> None:
        """``source`` is by default the one that the options name."""
        self._options = options
        self.source = source or source_of(options)

    @property
    def cores(self) -> int | None:
        """How many tasks can run at once; None if that is unknown."""
        return self._options.parallelism

    def tasks(self) -> list[tuple[Any, ...]]:
        """The tasks of the query, each with one or more ranges, by partition and offset."""
        return self.packed(self.ranges())

    def packed(self, ranges: Sequence[Any]) -> list[tuple[Any, ...]]:
        """A task for each of ``ranges``, or for several small ones, unless options say how many tasks there are."""
        if self._options.is_divided:
            return [(one,) for one in ranges]
        return pack(ranges, max_bytes=self._options.max_bytes, cores=self.cores)

    def ranges(self) -> Sequence[Any]:
        """The ranges that the query reads, by partition and offset."""
        extents, resolved = self.extents_and(self.resolve)
        for loss in resolved.losses:
            warnings.warn(f"seglog: data was lost: {loss}", stacklevel=2)
        return self.plan(extents, resolved.ranges)

    def extents(self) -> list[Any]:
        """The partitions to read and their ends, as they are now."""
        found = self.source.survey(may_be_away=not self._options.fail_on_data_loss)
        for note in found.notes:
            warnings.warn(f"seglog: {note}", stacklevel=2)
        return found.extents

    def extents_and(self, choose: Callable[[list[Any]], T]) -> tuple[list[Any], T]:
        """`extents`, and what ``choose`` finds out about them. If a partition or a segment is deleted in between, both
        are done again."""
        for _ in range(_SURVEYS):
            extents = self.extents()
            with suppress(UnknownPartitionError, FileNotFoundError):
                return extents, choose(extents)
        extents = self.extents()
        return extents, choose(extents)

    def resolve(self, extents: Sequence[PartitionExtent]) -> ResolvedRanges:
        """The offsets to read of each partition, as `seglog.sources.offsets.resolve` makes them of the options."""
        starting, ending = self._options.starting, self._options.ending
        fail = self._options.fail_on_data_loss
        return resolve(extents, starting, ending, self.source.find_by_time, fail_on_data_loss=fail)

    def starts(self, extents: Sequence[PartitionExtent]) -> dict[TopicPartition, int]:
        """Where the options let each partition begin; a number that they give may be outside of the log."""
        return resolve_bound("starting", extents, self._options.starting, self.source.find_by_time)

    def ends(self, extents: Sequence[PartitionExtent]) -> dict[TopicPartition, int]:
        """The same for where each partition ends."""
        return resolve_bound("ending", extents, self._options.ending, self.source.find_by_time)

    def plan(self, extents: Sequence[Any], ranges: Mapping[TopicPartition, OffsetRange]) -> Sequence[Any]:
        """Ranges for tasks; a batch of a stream is planned as a query is."""
        return self.source.plan(extents, ranges, self.cores)
