"""Produce and consume with Kafka's own ProducerPerformance and ConsumerPerformance, by what they say themselves.

Their producer is idempotent and has five requests in flight; the start of their JVM is not in their figures.
"""

from __future__ import annotations

import os
import re
import subprocess
from functools import partial
from typing import Final

from bench.brokers import Server, both, delete_topic, load, new_topic, show, turn_about
from bench.kafka import BROKER, QUIET, TOOL, describe
from tests.kafka.jars import CURRENT, class_path

_MB: Final = int(os.environ.get("SEGLOG_BENCH_MB", "128"))
_PACKAGE: Final = "org.apache.kafka.tools"
_RECORD: Final = 1000
_RATE: Final = re.compile(r"([0-9.]+) records/sec")
_FETCH_RATE: Final = 9
"""``fetch.nMsg.sec`` among the columns that ConsumerPerformance prints."""


def main() -> None:
    print(f"{describe(BROKER)}; {_MB} MB a turn; {load()}")
    count = _MB * 1_000_000 // _RECORD
    with both() as servers:
        for title, batch in (("16 KB batches", 16_384), ("1 MB batches", 1_000_000)):
            uses = turn_about(servers, partial(_produce, count, batch))
            show(f"produce, {title} of 1 KB", uses, count * _RECORD)
        topics = {name: new_topic(server) for name, server in servers.items()}
        for name, server in servers.items():
            _fill(server, topics[name], count, 16_384)
        uses = turn_about(servers, lambda name, server: _consume(server, topics[name], count))
        show("consume, 16 KB batches of 1 KB", uses, count * _RECORD)


def _produce(count: int, batch: int, _: str, server: Server) -> float:
    topic = new_topic(server)
    rates = _RATE.findall(_fill(server, topic, count, batch))
    delete_topic(server, topic)
    return count / float(rates[-1])


def _fill(server: Server, topic: str, count: int, batch: int) -> str:
    settings = (f"bootstrap.servers={server.bootstrap}", f"batch.size={batch}", "linger.ms=5")
    size = ("--num-records", str(count), "--record-size", str(_RECORD), "--throughput", "-1")
    return _run("ProducerPerformance", "--topic", topic, *size, "--producer-props", *settings)


def _consume(server: Server, topic: str, count: int) -> float:
    out = _run(
        "ConsumerPerformance", "--bootstrap-server", server.bootstrap, "--topic", topic, "--num-records", str(count)
    )
    return count / float(out.strip().split("\n")[-1].split(",")[_FETCH_RATE])


def _run(tool: str, *arguments: str) -> str:
    command = ["java", *TOOL, QUIET, "-cp", class_path(CURRENT), f"{_PACKAGE}.{tool}", *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


if __name__ == "__main__":
    main()
