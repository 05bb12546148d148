"""After a kill -9: how soon 1,000 partitions have new leaders, how soon a follower that comes back has caught up.

Beside three nodes of Kafka, with the same session timeout. ``SEGLOG_BENCH_MB`` is what the follower misses.
"""

from __future__ import annotations

import os
import time
from typing import Final

from bench import librdkafka
from bench.brokers import load
from bench.clusters import NODES, Cluster, both, look, memory, new_topic, wait
from bench.kafka import BROKER, describe
from seglog.cluster.health import ClusterStatus

_MB: Final = int(os.environ.get("SEGLOG_BENCH_MB", "128"))
_PARTITIONS: Final = int(os.environ.get("SEGLOG_BENCH_PARTITIONS", "1000"))
_KILLED: Final = 0


def main() -> None:
    print(f"{describe(BROKER)}; {_PARTITIONS} partitions, {_MB} MB missed; {load()}")
    with both() as clusters:
        for name, cluster in clusters.items():
            print(f"  {name:7} memory of {NODES} nodes at the start {_mb(memory(cluster))}", flush=True)
        for name, cluster in clusters.items():
            print(f"  {name:7} {_catching_up(cluster)}; {load()}", flush=True)
        for name, cluster in clusters.items():
            print(f"  {name:7} {_new_leaders(cluster)}; {load()}", flush=True)
        for name, cluster in clusters.items():
            print(f"  {name:7} memory of {NODES} nodes at the end {_mb(memory(cluster))}", flush=True)


def _catching_up(cluster: Cluster) -> str:
    """A node is stopped, misses some, and starts again: until it is in sync in all partitions."""
    topic = new_topic(cluster, "catch-up", 6)
    librdkafka.produce(cluster.bootstrap, topic, _MB * 1000 // 6, 1000, {"acks": "all"}, partitions=range(6))
    produced = memory(cluster)
    cluster.stop(_KILLED)
    librdkafka.produce(cluster.bootstrap, topic, _MB * 1000 // 6, 1000, {"acks": "all"}, partitions=range(6))
    began = time.perf_counter()
    cluster.start(_KILLED)
    ready = time.perf_counter()
    wait(cluster, lambda seen: all(len(one.isr) == NODES for one in seen.partitions), topics=[topic])
    done = time.perf_counter()
    return (
        f"a follower that missed {_MB} MB is in sync {done - began:.2f} s after its start, {done - ready:.2f} s after "
        f"it answers; memory after {2 * _MB} MB {_mb(produced)}"
    )


def _new_leaders(cluster: Cluster) -> str:
    """From the kill to the first new leader, which is when its death was seen; from there to the last one."""
    topic = new_topic(cluster, "many", _PARTITIONS)
    led = {one.number for one in look(cluster, [topic]).partitions if one.leader == _KILLED + 1}
    cluster.kill(_KILLED)
    killed = time.perf_counter()

    def moved(seen: ClusterStatus) -> int:
        return sum(one.number in led and one.leader not in (None, _KILLED + 1) for one in seen.partitions)

    wait(cluster, lambda seen: moved(seen) > 0, topics=[topic])
    first = time.perf_counter()
    wait(cluster, lambda seen: moved(seen) == len(led), topics=[topic])
    last = time.perf_counter()
    cluster.start(_KILLED)
    return (
        f"{len(led)} of {_PARTITIONS} partitions lost their leader: the first has a new one after "
        f"{first - killed:.2f} s, the last {last - first:.2f} s later"
    )


def _mb(size: int) -> str:
    return f"{size / 1e6:.0f} MB"


if __name__ == "__main__":
    main()
