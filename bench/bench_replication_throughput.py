"""Produce with acks=all to three nodes, min.insync.replicas=2: MB/s, beside three nodes of Kafka, turn about.

``SEGLOG_BENCH_MB`` is what each turn moves. Six nodes and the client share the machine's cores.
"""

from __future__ import annotations

import itertools
import os
import statistics
from collections.abc import Mapping
from typing import Final

from bench import librdkafka
from bench.brokers import ROUNDS, Use, delete_topic, load, median, own_cpu
from bench.clusters import Cluster, both, cpu, new_topic
from bench.kafka import BROKER, describe

_MB: Final = int(os.environ.get("SEGLOG_BENCH_MB", "128"))
_WARM_MB: Final = 2 * _MB
_ACKS: Final = {"acks": "all", "linger.ms": "5"}
_WORK: Final[Mapping[str, tuple[int, Mapping[str, str], int]]] = {
    "1 KB, linger 5 ms": (1000, _ACKS, 1),
    "batches of 100 x 100 B": (100, {**_ACKS, "batch.num.messages": "100"}, 4),
}
"""Size of a record, what makes the batches, and by how much less than ``_MB`` a turn moves."""
_numbers: Final = itertools.count()


def main() -> None:
    print(f"{describe(BROKER)}; librdkafka {librdkafka.version()}; acks=all, {_MB} MB a turn; {load()}")
    with both() as clusters:
        for cluster in clusters.values():  # a JVM compiles what it does often
            _turn(cluster, _WARM_MB * 1000 // 6, 1000, _ACKS, 6)
        for partitions in (1, 6):
            for title, (size, settings, less) in _WORK.items():
                count = _MB * 1_000_000 // size // partitions // less
                uses: dict[str, list[Use]] = {name: [] for name in clusters}
                for number in range(-1, ROUNDS):  # the first is not counted
                    for name in list(clusters) if number % 2 == 0 else list(clusters)[::-1]:
                        use = _turn(clusters[name], count, size, settings, partitions)
                        if number >= 0:
                            uses[name].append(use)
                total = count * partitions * size
                _show(f"{title}, {partitions} partition{'s' * (partitions > 1)}", uses, total)


def _turn(cluster: Cluster, count: int, size: int, settings: Mapping[str, str], partitions: int) -> Use:
    topic = new_topic(cluster, f"bench-{next(_numbers)}", partitions)
    own, theirs = own_cpu(), cpu(cluster)
    took = librdkafka.produce(cluster.bootstrap, topic, count, size, settings, partitions=range(partitions))
    use = Use(took, cpu(cluster) - theirs, own_cpu() - own)
    delete_topic(cluster, topic)
    return use


def _show(title: str, uses: Mapping[str, list[Use]], size: int) -> None:
    medians = {name: median(several) for name, several in uses.items()}
    sides = [
        f"{name} {size / use.wall / 1e6:.0f} MB/s, nodes {use.server / size * 1e9:.1f} s/GB"
        for name, use in medians.items()
    ]
    pairs = [theirs.wall / ours.wall for ours, theirs in zip(uses["seglog"], uses["Kafka"], strict=True)]
    print(f"  {title:36} {'; '.join(sides)}: {statistics.median(pairs):.2f}x as fast; {load()}", flush=True)


if __name__ == "__main__":
    main()
