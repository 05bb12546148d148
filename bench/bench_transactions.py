"""How long a transaction of 100 records takes, from its begin to the answer of its commit, and how much transactions of
one second cost an idempotent producer; on one broker and on three, beside Kafka, turn about."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import Producer

from bench import brokers, clusters
from bench.brokers import ROUNDS, Reached, load
from tests.broker.python_clients import AdminClient, NewTopic

_SECONDS: Final = float(os.environ.get("SEGLOG_BENCH_SECONDS", "10"))
_COUNT: Final = 200
_RECORDS: Final = 100
_VALUE: Final = bytes(100)
_PARTITIONS: Final = 3
_PATIENCE: Final = 60


def main() -> None:
    with brokers.both() as both:
        _compare("one broker", both, replicas=1)
    if "SEGLOG_BENCH_ALONE" not in os.environ:
        with clusters.both() as three:
            _compare("three brokers, RF 3", three, replicas=3)


def _compare(what: str, sides: Mapping[str, Reached], *, replicas: int) -> None:
    print(f"{what}; {load()}")
    times: dict[str, list[float]] = {name: [] for name in sides}
    speeds: dict[str, dict[str, list[float]]] = {name: {"plain": [], "in transactions": []} for name in sides}
    for side in sides.values():
        topic = NewTopic("paid", num_partitions=_PARTITIONS, replication_factor=replicas)
        admin = AdminClient({"bootstrap.servers": side.bootstrap})
        for done in admin.create_topics([topic]).values():
            done.result(_PATIENCE)
        _short(side, 20)  # warm
    for number in range(ROUNDS):
        for name, side in sides.items():
            times[name] += _short(side, _COUNT)
        for name, side in sides.items():
            for kind in list(speeds[name])[:: -1 if number % 2 else 1]:  # the second one finds a fuller page cache
                speeds[name][kind].append(_throughput(side, in_transactions=kind != "plain"))
    for name in sides:
        found = sorted(times[name])
        p50, p99 = statistics.median(found), found[int(len(found) * 0.99)]
        plain, paid = (statistics.median(one) for one in speeds[name].values())
        print(
            f"  {name}: {_RECORDS} records in a transaction p50 {p50 * 1e3:.1f} ms, p99 {p99 * 1e3:.1f} ms; idempotent "
            f"{plain:.1f} MB/s, in transactions of 1 s {paid:.1f} MB/s ({paid / plain:.0%})",
            flush=True,
        )


def _short(side: Reached, count: int) -> list[float]:
    producer: Any = Producer({"bootstrap.servers": side.bootstrap, "transactional.id": "short", "linger.ms": 0})
    producer.init_transactions(_PATIENCE)
    found = []
    for _ in range(count):
        began = time.perf_counter()
        producer.begin_transaction()
        for number in range(_RECORDS):
            producer.produce("paid", _VALUE, partition=number % _PARTITIONS)
        producer.commit_transaction(_PATIENCE)
        found.append(time.perf_counter() - began)
    return found


def _throughput(side: Reached, *, in_transactions: bool) -> float:
    """MB/s of records of 1 KB with acks=all."""
    config = {"bootstrap.servers": side.bootstrap, "enable.idempotence": True, "linger.ms": 5, "batch.size": 1 << 18}
    producer: Any = Producer({**config, **({"transactional.id": "long"} if in_transactions else {})})
    if in_transactions:
        producer.init_transactions(_PATIENCE)
    value = bytes(1000)
    began = time.perf_counter()
    sent = 0
    while (now := time.perf_counter()) < began + _SECONDS / 2:
        if in_transactions:
            producer.begin_transaction()
        while time.perf_counter() < now + 1:
            try:
                producer.produce("paid", value, partition=sent % _PARTITIONS)
            except BufferError:
                producer.poll(0.01)
            else:
                sent += 1
                if not sent % 1000:
                    producer.poll(0)
        if in_transactions:
            producer.commit_transaction(_PATIENCE)
    producer.flush(_PATIENCE)
    return sent * len(value) / (time.perf_counter() - began) / 1e6
