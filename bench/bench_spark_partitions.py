"""A topic of thousands of partitions with ten records each, planned and counted by Spark: through brokers, ours and
Kafka's, from the directory, and by Spark's own connector.

    python -m bench spark_partitions
    SEGLOG_BENCH_PARTITIONS=2000 SEGLOG_BENCH_ROUNDS=3 python -m bench spark_partitions
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from confluent_kafka import Producer
from pyspark.sql import SparkSession

from bench.brokers import Seglog, create_topic
from bench.connector import CORES, describe
from bench.kafka import BROKER, QUIET
from bench.segments import rounds
from bench.sides import Cost, in_turn, measure, tree_cpu
from pyspark_seglog import DefaultSource
from seglog.client.kept_connections import close_all
from seglog.spark import get_spark
from tests.broker.python_clients import NewTopic
from tests.kafka.connector import connector_config
from tests.kafka.node import KafkaNode

_PARTITIONS: Final = int(os.environ.get("SEGLOG_BENCH_PARTITIONS", "2000"))
_EACH: Final = 10


def main() -> None:
    print(f"{_PARTITIONS} partitions of {_EACH} records, medians of {rounds()} rounds; {describe()}")
    with TemporaryDirectory(prefix="seglog-bench-") as name, ExitStack() as stack:
        root = Path(name)
        theirs = stack.enter_context(KafkaNode(root / "kafka", jvm=(*BROKER, QUIET)))
        ours = stack.enter_context(Seglog(root / "seglog"))
        for server in (theirs, ours):
            create_topic(server.bootstrap, NewTopic("t", _PARTITIONS, 1))
            _fill(server.bootstrap)
        targets = {
            "directory": {"path": str(ours.path)},
            "seglog": {"kafka.bootstrap.servers": ours.bootstrap},
            "Kafka": {"kafka.bootstrap.servers": theirs.bootstrap},
        }
        for side, options in targets.items():
            _show(f"plan, first, {side}", measure(partial(_plan, options)))
            _show(f"plan, again, {side}", measure(partial(_plan, options)))
        close_all()
        with _session(root) as spark:
            counts = {side: _counting(spark, "seglog", options) for side, options in targets.items()}
            _show_all(in_turn(counts, rounds(), cpu=tree_cpu))
            connector = {"connector, seglog": _counting(spark, "kafka", targets["seglog"])}
            _show_all(in_turn(connector, 1, cpu=tree_cpu))  # a task for each partition


def _show_all(costs: Mapping[str, Cost]) -> None:
    for side, cost in costs.items():
        _show(f"count, {side}", cost)


@contextmanager
def _session(root: Path) -> Iterator[SparkSession]:
    spark = get_spark(
        "seglog bench", master=f"local[{CORES}]", config=connector_config(), jvm_log=str(root / "spark.log")
    )
    try:
        yield spark
    finally:
        spark.stop()


def _fill(bootstrap: str) -> None:
    producer = Producer(
        {"bootstrap.servers": bootstrap, "queue.buffering.max.messages": 1_000_000, "linger.ms": 100, "log_level": 2}
    )
    for number in range(_PARTITIONS * _EACH):
        producer.produce("t", b"v" * 100, partition=number % _PARTITIONS)
        producer.poll(0)
    assert producer.flush(300) == 0


def _plan(options: dict[str, Any]) -> None:
    source = DefaultSource({**options, "subscribe": "t"})
    assert source.reader(source.schema()).partitions()


def _counting(spark: SparkSession, kind: str, options: dict[str, Any]) -> Callable[[], None]:
    def count() -> None:
        assert spark.read.format(kind).options(**options, subscribe="t").load().count() == _PARTITIONS * _EACH

    return count


def _show(what: str, cost: Cost) -> None:
    print(f"  {what:24} {cost.wall:6.2f} s, {cost.cpu:6.2f} s of CPU", flush=True)
