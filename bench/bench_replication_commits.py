"""How long OffsetCommit takes on three nodes on one disk, with and without the flush of ``__consumer_offsets``, beside
Kafka, which does not flush; and what the commits cost a producer with acks=all meanwhile."""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, Producer, TopicPartition

from bench.brokers import load
from bench.clusters import Cluster, kafka_cluster, new_topic, seglog_cluster
from seglog.core.types import MAX_INT64
from tests.broker.python_clients import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

_SECONDS: Final = float(os.environ.get("SEGLOG_BENCH_SECONDS", "10"))
_GROUPS: Final = (1, 50)
_PRODUCED_EVERY: Final = 0.01
_TOPIC: Final = "read"


def main() -> None:
    print(f"3 nodes, RF 3, one disk, {_SECONDS:.0f} s each; {load()}")
    with tempfile.TemporaryDirectory(prefix="seglog-bench-") as name:
        with seglog_cluster(Path(name) / "seglog") as cluster:
            _measure(cluster, "seglog, flushed", is_new=True)
            _measure(cluster, "seglog, not flushed", is_new=False)
        if "SEGLOG_BENCH_ALONE" not in os.environ:
            with kafka_cluster(Path(name) / "kafka") as kafka:
                _measure(kafka, "Kafka, not flushed", is_new=True)


def _measure(cluster: Cluster, name: str, *, is_new: bool) -> None:
    if is_new:
        new_topic(cluster, _TOPIC, 1)
        new_topic(cluster, "written", 1)
        _commit(cluster, 1, seconds=2)  # which makes the topic of offsets
    else:
        _set(cluster, "__consumer_offsets", "flush.messages", str(MAX_INT64))
    with _producing(cluster) as acknowledged:
        time.sleep(_SECONDS / 2)  # how long is measured: nothing else happens meanwhile
    print(f"  {name}, no groups: acks=all to another topic {_show(acknowledged)}; {load()}", flush=True)
    for groups in _GROUPS:
        disk = _show(_fsyncs())
        with _producing(cluster) as acknowledged:
            found = _commit(cluster, groups, seconds=_SECONDS)
        print(
            f"  {name}, {groups} group(s): {_show(found)}, {len(found) / _SECONDS:.0f} commits/s; acks=all to another "
            f"topic {_show(acknowledged)}; an fsync, {disk}; {load()}",
            flush=True,
        )


def _set(cluster: Cluster, topic: str, key: str, value: str) -> None:
    entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(30)


def _commit(cluster: Cluster, groups: int, *, seconds: float) -> list[float]:
    """Each group commits again when its last commit is answered."""
    found: list[float] = []
    ready = threading.Barrier(groups)

    def commit(number: int) -> None:
        config = {"bootstrap.servers": cluster.bootstrap, "group.id": f"g-{number}", "enable.auto.commit": False}
        consumer = Consumer(config)
        place = [TopicPartition(_TOPIC, 0, 0)]
        for _ in range(3):  # the coordinator is found, and may have to be made
            consumer.commit(offsets=place, asynchronous=False)
        ready.wait()
        end = time.perf_counter() + seconds
        while (begun := time.perf_counter()) < end:
            consumer.commit(offsets=place, asynchronous=False)
            found.append(time.perf_counter() - begun)
        consumer.close()

    _side_by_side([partial(commit, number) for number in range(groups)])
    return found


@contextmanager
def _producing(cluster: Cluster) -> Iterator[list[float]]:
    """Times of acknowledgement of a hundred records a second, one after the other."""
    found: list[float] = []
    is_over = threading.Event()

    def produce() -> None:
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "linger.ms": 0})
        while not is_over.is_set():
            begun = time.perf_counter()
            producer.produce("written", b"x" * 100)
            producer.flush(30)
            found.append(time.perf_counter() - begun)
            is_over.wait(_PRODUCED_EVERY)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield found
    finally:
        is_over.set()
        thread.join()


def _side_by_side(acts: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=act) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _fsyncs() -> list[float]:
    """Of small appends to one file on the same disk."""
    found = []
    with tempfile.TemporaryFile(buffering=0) as file:
        for _ in range(200):
            begun = time.perf_counter()
            file.write(bytes(200))
            os.fsync(file)
            found.append(time.perf_counter() - begun)
    return found


def _show(seconds: list[float]) -> str:
    points = statistics.quantiles(seconds, n=100)
    return f"p50 {points[49] * 1000:.1f} ms, p99 {points[98] * 1000:.1f} ms"


if __name__ == "__main__":
    main()
