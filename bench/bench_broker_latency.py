"""How long a record takes: to its acknowledgement at 1,000 records a second, and to a consumer, one at a time.

``seglog perf`` with librdkafka is the client of both sides, as a process of its own.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
from collections.abc import Mapping
from typing import Any, Final

from bench.brokers import ROUNDS, Server, both, load, new_topic
from bench.commands import ENVIRONMENT, seglog
from bench.kafka import BROKER, describe

_SECONDS: Final = int(os.environ.get("SEGLOG_BENCH_SECONDS", "5"))
_RATE: Final = 1000
_WORK: Final[Mapping[str, tuple[str, ...]]] = {
    f"acknowledged, {_RATE}/s": (
        "produce",
        "--throughput",
        str(_RATE),
        "--linger-ms",
        "0",
        "-n",
        str(_RATE * _SECONDS),
    ),
    "end to end": ("e2e", "-n", str(_RATE)),
}


def main() -> None:
    print(f"{describe(BROKER)}; records of 100 bytes, medians of {ROUNDS} rounds; {load()}")
    with both() as servers:
        for title, arguments in _WORK.items():
            found: dict[str, list[Mapping[str, float]]] = {name: [] for name in servers}
            for number in range(-1, ROUNDS):  # the first is not counted
                for name in list(servers) if number % 2 == 0 else list(servers)[::-1]:
                    latencies = _perf(servers[name], *arguments)
                    if number >= 0:
                        found[name].append(latencies)
            _show(title, found)


def _perf(server: Server, *arguments: str) -> Mapping[str, float]:
    command = seglog(
        "perf", *arguments, "--record-size", "100", "--json", "-t", new_topic(server), "-b", server.bootstrap
    )
    out = subprocess.run(command, stdout=subprocess.PIPE, env=ENVIRONMENT, check=True).stdout
    latencies: Any = json.loads(out)["latencyMs"]
    return {name: float(value) for name, value in latencies.items()}


def _show(title: str, found: Mapping[str, list[Mapping[str, float]]]) -> None:
    sides = []
    for name, rounds in found.items():
        medians = {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}
        sides.append(f"{name} {', '.join(f'{key} {value:.2f}' for key, value in medians.items())}")
    print(f"  {title:24} in ms: {'; '.join(sides)}; {load()}", flush=True)


if __name__ == "__main__":
    main()
