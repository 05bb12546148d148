"""Comparison of the replicas on the disks of a cluster's brokers, after they have stopped."""

from __future__ import annotations

from seglog.core.fs import OsFs
from seglog.storage.formats.paths import list_partitions
from seglog.storage.offline.compare_directories import compare_directories
from tests.kit.cluster import SeglogCluster

FACTOR = 3


def differences(cluster: SeglogCluster) -> list[str]:
    """Stop all brokers; what differs between the replicas of each partition, batches and bytes, to the logs' ends."""
    for broker in cluster.brokers.values():
        broker.stop()
    replicas: dict[str, list[str]] = {}
    for broker in cluster.brokers.values():
        for directory in broker.directories:
            for one in list_partitions(OsFs(), str(directory)):
                replicas.setdefault(str(one.topic_partition), []).append(one.path)
    wrong = [f"{name} is in {paths}" for name, paths in replicas.items() if len(paths) != FACTOR]
    for first, *others in replicas.values():
        for other in others:
            found = compare_directories(first, other, until="logEnd")
            wrong += [f"{one} ({first}, {other})" for one in found if not one.is_fine]
    return wrong
