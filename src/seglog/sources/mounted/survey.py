"""Finds the mounted replicas of the partitions to read, and asks the cluster which of their records are its own."""

from __future__ import annotations

import os.path
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from seglog.client.cluster_connections import ClusterConnections
from seglog.client.leader_offsets import epoch_ends
from seglog.client.topics import topic_config
from seglog.core.errors import RequestFailedError
from seglog.core.fs import Fs
from seglog.core.types import TopicPartition
from seglog.sources.brokers.planning import BrokerExtent
from seglog.sources.directories.planning import DirectoryExtent
from seglog.sources.mounted.coverage import (
    Coverage,
    LeaderLog,
    TransactionsBelow,
    boundary_of,
    committed,
    cover,
    questions,
    refusal,
)
from seglog.sources.mounted.planning import MountedExtent
from seglog.sources.mounted.replica_files import ReplicaFiles, find_replicas, transactions_below
from seglog.sources.ranges import OffsetRange
from seglog.storage.log.epochs import EpochEnd

_POLICY: Final = "cleanup.policy"


class MountedSurvey(NamedTuple):
    """The parts of partitions that files cover, and why others are read through the brokers: the log directories or
    paths and the reasons, each with the partitions that it is about."""

    extents: Mapping[TopicPartition, MountedExtent]
    reasons: Mapping[tuple[str, str], Sequence[TopicPartition]]


def survey_mount(
    fs: Fs,
    cluster: ClusterConnections,
    paths: Sequence[str],
    extents: Sequence[BrokerExtent],
    ranges: Mapping[TopicPartition, OffsetRange],
    *,
    read_committed: bool,
) -> MountedSurvey:
    """Of several replicas of a partition the one that covers the most is read. A cluster that does not answer leaves
    all to the brokers."""
    work = _Survey(fs, cluster, read_committed=read_committed)
    return work.of(paths, [one for one in extents if ranges[one.topic_partition].size], ranges)


class _Survey:
    def __init__(self, fs: Fs, cluster: ClusterConnections, *, read_committed: bool) -> None:
        self._fs = fs
        self._cluster = cluster
        self._read_committed = read_committed
        self._reasons: dict[tuple[str, str], list[TopicPartition]] = {}

    def of(
        self,
        paths: Sequence[str],
        extents: Sequence[BrokerExtent],
        ranges: Mapping[TopicPartition, OffsetRange],
    ) -> MountedSurvey:
        by_partition = {extent.topic_partition: extent for extent in extents}
        found = find_replicas(self._fs, paths, by_partition)
        for problem in found.problems:
            self._reasons[", ".join(paths), problem] = []
        # Everything below the high watermark can be confirmed, also after the end of this range.
        wanted = {one: OffsetRange(ranges[one].start, by_partition[one].log_end) for one in found.by_partition}
        replicas = [
            (partition, files)
            for partition, several in found.by_partition.items()
            for files in several
            if questions(files.replica, ranges[partition])
        ]
        leaders = self._ask(replicas, by_partition, wanted)
        best: dict[TopicPartition, MountedExtent] = {}
        for partition, files in replicas:
            extent = self._cover(files, leaders[partition], wanted[partition], ranges[partition])
            if extent is not None and (partition not in best or extent.offsets.size > best[partition].offsets.size):
                best[partition] = extent
        return MountedSurvey(best, self._reasons)

    def _ask(
        self,
        replicas: Sequence[tuple[TopicPartition, ReplicaFiles]],
        extents: Mapping[TopicPartition, BrokerExtent],
        wanted: Mapping[TopicPartition, OffsetRange],
    ) -> dict[TopicPartition, LeaderLog]:
        """The facts about the partitions, of which only those are asked for that a replica may be able to use."""
        asked: dict[TopicPartition, set[int]] = {}
        cluster_id = self._cluster_id() if replicas else ""
        for partition, files in replicas:
            if not refusal(files.replica, cluster_id=cluster_id, topic_id=extents[partition].topic_id):
                asked.setdefault(partition, set()).update(questions(files.replica, wanted[partition]))
        policies = self._policies({partition.topic for partition in asked})
        ends = self._epoch_ends({one: epochs for one, epochs in asked.items() if not _is_compacted(one, policies)})
        return {
            partition: LeaderLog(
                cluster_id=cluster_id,
                topic_id=extents[partition].topic_id,
                is_compacted=_is_compacted(partition, policies),
                epoch_ends=ends.get(partition),
            )
            for partition, _ in replicas
        }

    def _cluster_id(self) -> str:
        try:
            return self._cluster.metadata(()).cluster_id
        except RequestFailedError:
            return ""

    def _policies(self, topics: Collection[str]) -> dict[str, str]:
        try:
            return topic_config(self._cluster, topics, _POLICY) if topics else {}
        except RequestFailedError:
            return {}

    def _epoch_ends(
        self, asked: Mapping[TopicPartition, Collection[int]]
    ) -> Mapping[TopicPartition, Mapping[int, EpochEnd]]:
        try:
            return epoch_ends(self._cluster, asked) if asked else {}
        except RequestFailedError:
            return {}

    def _cover(
        self, files: ReplicaFiles, leader: LeaderLog, wanted: OffsetRange, range_: OffsetRange
    ) -> MountedExtent | None:
        replica = files.replica
        coverage = cover(replica, leader, wanted)
        transactions = None
        if self._read_committed and coverage.spans:
            boundary = boundary_of(replica, coverage)
            if boundary is not None:
                transactions = transactions_below(self._fs, replica.directory, boundary)
            coverage = committed(coverage, transactions)
        coverage = coverage.below(range_.end)
        partition = files.topic_partition
        if coverage.reason:
            self._reasons.setdefault((os.path.dirname(replica.directory), coverage.reason), []).append(partition)
        if not coverage.spans or replica.topic_id is None:
            return None
        return MountedExtent(_extent(files, coverage, transactions), replica.topic_id, coverage.spans)


def _is_compacted(partition: TopicPartition, policies: Mapping[str, str]) -> bool | None:
    policy = policies.get(partition.topic)
    return None if policy is None else "compact" in policy


def _extent(files: ReplicaFiles, coverage: Coverage, transactions: TransactionsBelow | None) -> DirectoryExtent:
    return DirectoryExtent(
        topic_partition=files.topic_partition,
        directory=files.replica.directory,
        log_start=coverage.offsets.start,
        log_end=files.replica.sealed.end,
        until=coverage.offsets.end,
        segments=files.segments,
        aborted=() if transactions is None else transactions.aborted,
        mounts=(files.mount,),
    )
