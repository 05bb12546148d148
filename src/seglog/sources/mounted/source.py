"""Brokers, and a mounted replica's files, as what a query reads from."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from seglog.client.client_config import ClientConfig
from seglog.client.cluster_connections import ClusterConnections
from seglog.client.kept_connections import connections
from seglog.core.fs import Fs, OsFs
from seglog.core.types import TopicPartition
from seglog.sources.brokers.planning import BrokerExtent
from seglog.sources.brokers.sampling import bytes_per_offset
from seglog.sources.brokers.source import BrokerSource
from seglog.sources.directories.partition_files import plan_index
from seglog.sources.mounted.planning import MountedExtent, SharedRange, plan, rest
from seglog.sources.mounted.survey import MountedSurvey, survey_mount
from seglog.sources.options.read_options import ReadOptions
from seglog.sources.ranges import OffsetRange, PartitionRange
from seglog.sources.record_source import Available, Survey

if TYPE_CHECKING:
    import pyarrow as pa

_KEPT_INDEXES: Final = 16
_NAMED: Final = 5
"""Partitions that a warning names."""
_log: Final = logging.getLogger("seglog.spark")


class MountedSource:
    """The cluster that ``options`` name, with the files that they name in place of fetches. `RecordSource` describes
    the methods: partitions, offsets and errors are the brokers'."""

    def __init__(self, config: ClientConfig, options: ReadOptions, cluster: ClusterConnections | None = None) -> None:
        """``cluster`` as for `BrokerSource`."""
        self._config = config
        self._options = options
        self._own_cluster = cluster
        self._brokers = BrokerSource(config, options, cluster)
        self._said: set[tuple[str, str]] = set()

    @property
    def _fs(self) -> Fs:
        return OsFs()

    @property
    def _cluster(self) -> ClusterConnections:
        return self._own_cluster or connections(self._config)

    def survey(
        self, *, until: str | None = None, only: Sequence[TopicPartition] | None = None, may_be_away: bool = False
    ) -> Survey[BrokerExtent]:
        return self._brokers.survey(until=until, only=only, may_be_away=may_be_away)

    def available(self) -> Available:
        return self._brokers.available()

    def find_by_time(self, wanted: Sequence[tuple[BrokerExtent, int]]) -> list[int | None]:
        return self._brokers.find_by_time(wanted)

    def publish(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._brokers.publish(offsets)

    def plan(
        self, extents: Sequence[BrokerExtent], ranges: Mapping[TopicPartition, OffsetRange], cores: int | None
    ) -> list[SharedRange]:
        fs, options = self._fs, self._options
        found = survey_mount(fs, self._cluster, options.paths, extents, ranges, read_committed=options.read_committed)
        self._tell(found, ranges)
        return plan(
            extents,
            ranges,
            found.extents,
            bytes_per_offset(self._cluster, extents, _uncovered(extents, ranges, found.extents)),
            plan_index(fs, _KEPT_INDEXES),
            max_bytes=options.max_bytes,
            min_partitions=options.min_partitions,
            max_records=options.max_records,
            cores=cores,
        )

    def _tell(self, found: MountedSurvey, ranges: Mapping[TopicPartition, OffsetRange]) -> None:
        """Warn once about each reason for which files are not read, and log how much of the ranges they cover."""
        for (where, reason), partitions in found.reasons.items():
            if (where, reason) in self._said:
                continue
            self._said.add((where, reason))
            names = ", ".join(map(str, partitions[:_NAMED])) + (" …" if len(partitions) > _NAMED else "")
            warnings.warn(
                f"seglog: {names or 'everything'} is read through the brokers, not from {where}: {reason}", stacklevel=2
            )
        total = sum(one.size for one in ranges.values())
        covered = sum(extent.offsets.size for extent in found.extents.values())
        _log.info("seglog: %d of %d offsets are read from files, the others through the brokers", covered, total)

    def read(self, task: Sequence[SharedRange], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        from seglog.sources.mounted.task_reader import read_shared

        return read_shared(self._fs, self._cluster, task, schema, self._options)


def _uncovered(
    extents: Sequence[BrokerExtent],
    ranges: Mapping[TopicPartition, OffsetRange],
    mounted: Mapping[TopicPartition, MountedExtent],
) -> dict[TopicPartition, OffsetRange]:
    """The larger part of each range that is fetched."""
    found = {}
    for partition in (extent.topic_partition for extent in extents):
        covered = mounted[partition].offsets if partition in mounted else None
        parts = rest(PartitionRange(partition, ranges[partition]), covered)
        largest = max((part.offsets for part in parts), key=lambda one: one.size, default=None)
        found[partition] = largest or OffsetRange(ranges[partition].end, ranges[partition].end)
    return found
