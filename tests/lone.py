"""The topics and replicas that a lone broker serves from a directory, without the broker, for tests of its parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast
from uuid import UUID

from seglog.broker.topics.directory_topics import BROKER_EPOCH, DirectoryTopics
from seglog.broker.topics.topics import Topics
from seglog.broker.watermarks import Watermarks
from seglog.cluster.cluster_view import ClusterView, NamedValue
from seglog.cluster.model import (
    PARTITIONS,
    BrokerRegistration,
    Member,
    PartitionState,
    TopicRules,
    VersionedState,
    decode_partition,
    parse_partition_name,
)
from seglog.cluster.store import MetadataStore, VersionedValue
from seglog.core.types import TopicPartition
from seglog.replication.replica import Replica, ReplicaListener
from seglog.storage.directory.log_dir import LogDir
from tests.kit.log_changes import take_over

NODE: Final = 1
_BROKERS: Final[Mapping[int, BrokerRegistration]] = {
    NODE: BrokerRegistration(node_id=NODE, epoch=BROKER_EPOCH, kept_since=BROKER_EPOCH)
}
_LAG_MS: Final = 30_000


def view_of_nothing() -> ClusterView:
    """One that no store keeps up: a test notes what there is."""
    return ClusterView(cast(MetadataStore, None), lambda _: TopicRules())


def lead(replica: Replica, state: PartitionState, version: int = 0) -> None:
    me = Member(NODE, BROKER_EPOCH)
    take_over(replica, VersionedState(state, version), me, _BROKERS, lag_max_ms=_LAG_MS)


def led(
    directory: LogDir,
    partition: TopicPartition,
    topic_id: UUID,
    *,
    listener: ReplicaListener | None = None,
) -> Replica:
    """The only replica of a partition of the directory, which leads it in the next epoch."""
    log = directory.logs[partition]
    replica = Replica(directory, partition, topic_id, log, listener=listener)
    isr = (Member(NODE, BROKER_EPOCH),)
    lead(replica, PartitionState(replicas=(NODE,), leader=NODE, leader_epoch=log.epochs.latest + 1, isr=isr))
    return replica


class LoneTopics(Topics):
    """Those of a directory; `refresh` after each change of the directory's. ``watermarks`` publish the replicas."""

    def __init__(self, directory: LogDir, watermarks: Watermarks | None = None) -> None:
        self.directory = directory
        self._watermarks = watermarks
        self._noted = view_of_nothing()
        self._names: set[str] = set()
        self._here: dict[tuple[UUID, int], Replica] = {}
        self._version = 0
        super().__init__(self._noted, self._here, lambda: (directory,), node_id=NODE)
        self.refresh()

    def refresh(self) -> None:
        """Take over what the directory has now; a replica that is there stays the same object."""
        self._version += 1
        values = DirectoryTopics(self.directory, NODE).load()
        gone = self._names - values.keys()
        self._names = set(values)
        self._noted.note_all(
            [
                *(NamedValue(name, None) for name in gone),
                *(NamedValue(n, VersionedValue(v, self._version)) for n, v in values.items()),
            ]
        )
        for name in gone:
            left = self._here.pop(parse_partition_name(name), None) if name.startswith(PARTITIONS) else None
            if left is not None and self._watermarks is not None:
                self._watermarks.remove(left)
        for name, value in values.items():
            if name.startswith(PARTITIONS):
                self._open(parse_partition_name(name), decode_partition(name, value))

    def _open(self, key: tuple[UUID, int], state: PartitionState) -> None:
        partition = TopicPartition(self._noted.topics_by_id[key[0]].name, key[1])
        log = self.directory.logs.get(partition)
        if log is None or key in self._here:
            return
        replica = self._here[key] = Replica(self.directory, partition, key[0], log)
        lead(replica, state)
        if self._watermarks is not None:
            self._watermarks.add(replica)
