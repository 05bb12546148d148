"""From the start of the process to an answer on its port: an empty directory, and one with many partitions."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

from bench.brokers import ROUNDS, Seglog, load, new_topic
from bench.kafka import BROKER, QUIET, describe
from tests.kafka.node import KafkaNode
from tests.kafka.process import answers_api_versions
from tests.kit.waiting import wait_until

_PARTITIONS: Final = int(os.environ.get("SEGLOG_BENCH_PARTITIONS", "1000"))
_POLL: Final = 0.002


def main() -> None:
    print(f"{describe(BROKER)}; medians of {ROUNDS} rounds; {load()}")
    with tempfile.TemporaryDirectory(prefix="seglog-bench-") as name:
        root = Path(name)
        ours, theirs = [], []
        for number in range(ROUNDS):
            ours.append(_seconds(Seglog(root / f"ours{number}")))
            node = KafkaNode(root / f"theirs{number}", jvm=(*BROKER, QUIET))
            _seconds(node)  # which formats the directory first
            theirs.append(_seconds(node))
        _show("an empty directory", ours, theirs)
        broker, node = Seglog(root / "ours"), KafkaNode(root / "theirs", jvm=(*BROKER, QUIET))
        for server in (broker, node):
            with server:
                new_topic(server, _PARTITIONS)
        _show(f"{_PARTITIONS} partitions", [_seconds(broker) for _ in range(ROUNDS)], [_seconds(node)])


def _seconds(server: Seglog | KafkaNode) -> float:
    """Until it answers; it is stopped cleanly afterwards."""
    began = time.perf_counter()
    with server:
        wait_until(lambda: answers_api_versions(server.port), f"an answer on port {server.port}", every=_POLL)
        return time.perf_counter() - began


def _show(title: str, ours: list[float], theirs: list[float]) -> None:
    mine, other = statistics.median(ours), statistics.median(theirs)
    print(f"  {title:24} seglog {mine:.2f} s; Kafka {other:.2f} s: {other / mine:.1f}x as fast; {load()}", flush=True)


if __name__ == "__main__":
    main()
