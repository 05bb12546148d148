"""Produce and consume through librdkafka: MB/s, and the server's CPU seconds per GB, beside a running Kafka.

``SEGLOG_BENCH_MB`` is what each turn moves. Client and server share the machine's cores, so that a fast broker is also
measured by how little it takes from its client.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Final

from bench import librdkafka
from bench.brokers import Server, both, delete_topic, load, new_topic, show, turn_about
from bench.kafka import BROKER, describe

_MB: Final = int(os.environ.get("SEGLOG_BENCH_MB", "128"))
_PRODUCE: Final[Mapping[str, tuple[int, Mapping[str, str]]]] = {
    "16 KB batches of 1 KB": (1000, {"batch.size": "16384", "linger.ms": "5"}),
    "batches of 100 x 100 B": (100, {"batch.num.messages": "100", "linger.ms": "5"}),
    "1 MB batches of 1 KB": (1000, {"linger.ms": "5"}),
}
"""Size of a record, and what makes the batches."""


def main() -> None:
    print(f"{describe(BROKER)}; librdkafka {librdkafka.version()}; {_MB} MB a turn; {load()}")
    with both() as servers:
        for title, (size, settings) in _PRODUCE.items():
            count = _MB * 1_000_000 // size
            uses = turn_about(servers, partial(_produce, count, size, settings))
            show(f"produce, {title}", uses, count * size)
        for title, (size, settings) in _PRODUCE.items():
            count = _MB * 1_000_000 // size
            topics = {name: new_topic(server) for name, server in servers.items()}
            for name, server in servers.items():
                librdkafka.produce(server.bootstrap, topics[name], count, size, settings)
            show(f"consume, {title}", turn_about(servers, partial(_consume, topics, count)), count * size)
            for name, server in servers.items():
                delete_topic(server, topics[name])


def _produce(count: int, size: int, settings: Mapping[str, str], _: str, server: Server) -> float:
    topic = new_topic(server)
    took = librdkafka.produce(server.bootstrap, topic, count, size, settings)
    delete_topic(server, topic)
    return took


def _consume(topics: Mapping[str, str], count: int, name: str, server: Server) -> float:
    return librdkafka.consume(server.bootstrap, topics[name], count, {})


if __name__ == "__main__":
    main()
