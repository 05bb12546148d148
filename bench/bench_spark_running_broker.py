"""Writing by Spark into a seglog broker that runs: segments taken over, beside the way through the protocol.

`SEGLOG_BENCH_MB` is the size of a turn. Another producer writes all the while; its longest wait is shown, too.

    python -m bench spark_running_broker
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from confluent_kafka import Producer
from pyspark.sql import DataFrame

from bench.brokers import Seglog
from bench.commands import ENVIRONMENT
from bench.connector import CORES, records, rows
from bench.segments import rounds
from bench.sides import in_turn
from seglog.core.clock import SystemClock
from seglog.core.config import LogConfig
from seglog.core.fs import OsFs
from seglog.core.types import TopicPartition
from seglog.records.record import NewRecord, encode_batch
from seglog.spark import get_spark
from seglog.spark.write.directories.broker_client import BrokerCommitClient, running_brokers
from seglog.spark.write.directories.commit_coordinator import JobRequest
from seglog.spark.write.write_options import parse_write_options
from seglog.storage.adopt import StagedPart, StagingWriter, staged_at
from tests.broker.python_clients import NewTopic
from tests.kit.topics import create_topics

_VALUE: Final = 1000
_BATCH: Final = 256 << 10


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="seglog-bench-") as name, Seglog(Path(name) / "log") as broker:
        create_topics(broker.bootstrap, *(NewTopic(topic, 1, 1) for topic in ("spark", "commit")))
        _commits(broker)
        _frames(broker, Path(name))


def _commits(broker: Seglog) -> None:
    """Segments that are staged already: the commit alone, and another producer of the same partition."""
    (owner,) = running_brokers([str(broker.path)])
    client = BrokerCommitClient([owner], parse_write_options({"path": str(broker.path), "topic": "commit"}))
    client.begin(JobRequest("bench", owner=os.getpid(), topic="commit", create={"commit": None}))
    leader = owner.node_id
    for number in range(2 * rounds()):
        owner.node_id = -1 if number % 2 else leader  # segments of another leader are sent
        job = uuid.uuid4().hex
        part = _stage(broker.path, job)
        with _producing(broker.bootstrap, "commit") as waits:
            begun = time.perf_counter()
            client.commit(job, f"job:{job}", 0, [part])
            seconds = time.perf_counter() - begun
        mb, longest = part.size / 1e6, max(waits, default=0) * 1000
        batches = sum(segment.batches for segment in part.segments)
        print(
            f"{'sent' if number % 2 else 'taken over'}: commit of {mb:.0f} MB, {batches} batches: {seconds:.2f} s, "
            f"{mb / seconds:,.0f} MB/s; longest of {len(waits)} waits of another producer: {longest:.0f} ms",
            flush=True,
        )


def _stage(path: Path, job: str) -> StagedPart:
    place = TopicPartition("commit", 0)
    directory = staged_at(place, job, "0")
    writer = StagingWriter(OsFs(), SystemClock(), str(path / directory), LogConfig())
    value = os.urandom(_VALUE)
    batch = bytes(encode_batch([NewRecord(value) for _ in range(_BATCH // _VALUE)]))
    for _ in range(records(_VALUE) * _VALUE // len(batch) + 1):
        writer.append(batch)
    return StagedPart.of(place, directory, writer.finish())


@contextmanager
def _producing(bootstrap: str, topic: str) -> Iterator[list[float]]:
    """Seconds that each record of a producer with acks=all has taken."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0, "log_level": 0})
    waits: list[float] = []
    over = threading.Event()

    def produce() -> None:
        while not over.is_set():
            begun = time.perf_counter()
            producer.produce(topic, b"other", partition=0)
            producer.flush(60)
            waits.append(time.perf_counter() - begun)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield waits
    finally:
        over.set()
        thread.join()


def _frames(broker: Seglog, root: Path) -> None:
    os.environ["PYTHONPATH"] = ENVIRONMENT["PYTHONPATH"]
    spark = get_spark("seglog bench", master=f"local[{CORES}]", jvm_log=str(root / "spark.log"))
    try:
        for value_bytes in (100, 1000):
            count = records(value_bytes)
            save = partial(_save, rows(spark, count, value_bytes))
            sides: dict[str, Callable[[], object]] = {
                "taken over": partial(save, {"path": str(broker.path)}),
                "through the protocol": partial(save, {"kafka.bootstrap.servers": broker.bootstrap}),
                "nobody has it open": partial(save, {"path": str(root / "closed")}),
            }
            costs = in_turn(sides, rounds())
            print(f"values of {value_bytes} B, {count:,} records, one partition, {CORES} cores")
            for name, cost in costs.items():
                mb = count * (value_bytes + 8) / 1e6
                rate = count / cost.wall / 1e6
                print(f"  {name:24} {cost.wall:6.2f} s  {rate:5.2f} M rows/s, {mb / cost.wall:5.0f} MB/s")
            ratio = costs["through the protocol"].wall / costs["taken over"].wall
            print(f"  {ratio:.2f}x the protocol's speed", flush=True)
    finally:
        spark.stop()


def _save(frame: DataFrame, options: dict[str, str]) -> None:
    frame.write.format("seglog").mode("append").options(topic="spark", **options).save()
