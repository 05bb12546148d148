"""How long an acknowledgement of all in-sync replicas takes at 1,000 records a second, beside three nodes of Kafka."""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
from collections.abc import Mapping
from typing import Any, Final

from bench import librdkafka
from bench.brokers import ROUNDS, load
from bench.clusters import Cluster, both, new_topic
from bench.commands import ENVIRONMENT, seglog
from bench.kafka import BROKER, describe

_SECONDS: Final = int(os.environ.get("SEGLOG_BENCH_SECONDS", "5"))
_RATE: Final = 1000
_WARM: Final = 10_000
_numbers: Final = itertools.count()


def main() -> None:
    print(f"{describe(BROKER)}; acks=all, records of 100 bytes, {_RATE}/s, medians of {ROUNDS} rounds; {load()}")
    with both() as clusters:
        for partitions in (1, 6):
            found: dict[str, list[Mapping[str, float]]] = {name: [] for name in clusters}
            for number in range(-1, ROUNDS):  # the first is not counted
                for name in list(clusters) if number % 2 == 0 else list(clusters)[::-1]:
                    latencies = _perf(clusters[name], partitions)
                    if number >= 0:
                        found[name].append(latencies)
            sides = []
            for name, rounds in found.items():
                medians = {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}
                sides.append(f"{name} {', '.join(f'{key} {value:.2f}' for key, value in medians.items())}")
            print(f"  {partitions} partition(s), in ms: {'; '.join(sides)}; {load()}", flush=True)


def _perf(cluster: Cluster, partitions: int) -> Mapping[str, float]:
    topic = new_topic(cluster, f"latency-{next(_numbers)}", partitions)
    # Followers of a new topic may have asked before it was there, and ask again a second later.
    librdkafka.produce(cluster.bootstrap, topic, _WARM, 100, {"acks": "all"}, partitions=range(partitions))
    command = seglog(
        *("perf", "produce", "--throughput", str(_RATE), "--linger-ms", "0", "-n", str(_RATE * _SECONDS)),
        *("-X", "acks=all", "--record-size", "100", "--json", "-t", topic, "-b", cluster.bootstrap),
    )
    out = subprocess.run(command, stdout=subprocess.PIPE, env=ENVIRONMENT, check=True).stdout
    latencies: Any = json.loads(out)["latencyMs"]
    return {name: float(value) for name, value in latencies.items()}


if __name__ == "__main__":
    main()
