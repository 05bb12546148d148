"""A broker's watermarks, its count of strays and its generation follow the set of its replicas."""

from __future__ import annotations

from collections.abc import Mapping

from seglog.broker.stray_reports import StrayReports
from seglog.broker.watermarks import Watermarks
from seglog.cluster.generation import SeenGenerations
from seglog.replication.replica import Replica
from seglog.storage.directory.log_dir import LogDir


class PublishedReplicas:
    """A `seglog.replication.replicas.ReplicaObserver`: it publishes the replicas' watermarks in each directory's file,
    has strays counted, and stores the generation before logs are created or removed."""

    def __init__(self, watermarks: Mapping[LogDir, Watermarks], strays: StrayReports, seen: SeenGenerations) -> None:
        self._watermarks = watermarks
        self._strays = strays
        self._seen = seen

    def shown(self, replica: Replica) -> None:
        self._watermarks[replica.directory].add(replica)

    def hidden(self, replica: Replica) -> None:
        self._watermarks[replica.directory].remove(replica)

    def strays_changed(self) -> None:
        self._strays.changed()

    async def before_changes(self) -> None:
        await self._seen.note()
