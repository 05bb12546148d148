"""Produce and consume over TLS and over TLS with SASL: MB/s, and both sides' CPU seconds per GB, beside Kafka.

``SEGLOG_BENCH_MB`` is what each turn moves. The first lines are without TLS, on the same brokers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Final

from bench import librdkafka
from bench.brokers import Server, delete_topic, load, new_topic, show, turn_about
from bench.kafka import BROKER, describe
from bench.secured import SecuredServer, both_secured

_MB: Final = int(os.environ.get("SEGLOG_BENCH_MB", "128"))
_SIZE: Final = 1000
_COUNT: Final = _MB * 1_000_000 // _SIZE
_BATCHES: Final[Mapping[str, Mapping[str, str]]] = {
    "16 KB batches": {"batch.size": "16384", "linger.ms": "5"},
    "1 MB batches": {"linger.ms": "5"},
}
_LISTENERS: Final = {"PLAINTEXT": "plaintext", "TLS": "TLS", "SASL_TLS": "SASL_SSL"}


def main() -> None:
    print(f"{describe(BROKER)}; librdkafka {librdkafka.version()}; {_MB} MB a turn, records of 1 KB; {load()}")
    with both_secured() as (servers, settings):
        for listener, title in _LISTENERS.items():
            client = settings[listener]
            for batches, more in _BATCHES.items():
                uses = turn_about(servers, partial(_produce, servers, listener, {**client, **more}))
                show(f"produce, {title}, {batches}", uses, _COUNT * _SIZE)
            topics = {name: new_topic(server) for name, server in servers.items()}
            for name, server in servers.items():
                librdkafka.produce(server.bootstrap, topics[name], _COUNT, _SIZE, _BATCHES["16 KB batches"])
            uses = turn_about(servers, partial(_consume, servers, topics, listener, client))
            show(f"consume, {title}", uses, _COUNT * _SIZE)
            for name, server in servers.items():
                delete_topic(server, topics[name])


def _produce(
    servers: Mapping[str, SecuredServer], listener: str, settings: Mapping[str, str], name: str, server: Server
) -> float:
    topic = new_topic(server)
    took = librdkafka.produce(servers[name].at(listener), topic, _COUNT, _SIZE, settings)
    delete_topic(server, topic)
    return took


def _consume(
    servers: Mapping[str, SecuredServer],
    topics: Mapping[str, str],
    listener: str,
    settings: Mapping[str, str],
    name: str,
    _: Server,
) -> float:
    return librdkafka.consume(servers[name].at(listener), topics[name], _COUNT, settings)


if __name__ == "__main__":
    main()
