"""Spark, its own Kafka connector, a real Kafka and our data source in one place: what the benchmarks of Spark share."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import pyspark
from pyspark.sql import DataFrame, SparkSession

from bench import kafka
from bench.commands import ENVIRONMENT
from bench.sides import Cost
from seglog.spark import get_spark
from tests.kafka import tools
from tests.kafka.connector import CONNECTOR, connector_config
from tests.kafka.node import KafkaNode

CORES: Final = 2


class Beside(NamedTuple):
    """One Spark session in which both formats work, beside one running Kafka."""

    spark: SparkSession
    node: KafkaNode
    root: Path

    def theirs(self, topic: str, **options: object) -> DataFrame:
        """The topic through the broker, by Spark's own connector."""
        reader = self.spark.read.format("kafka").option("kafka.bootstrap.servers", self.node.bootstrap)
        return _with(reader.option("subscribe", topic), options).load()

    def ours(self, topic: str, **options: object) -> DataFrame:
        """The topic from the log directory of the running broker, by us."""
        reader = self.spark.read.format("seglog").option("path", str(self.node.log_dir))
        return _with(reader.option("subscribe", topic), options).load()

    def brokers(self, topic: str, **options: object) -> DataFrame:
        """The topic through the broker, by us."""
        reader = self.spark.read.format("seglog").option("kafka.bootstrap.servers", self.node.bootstrap)
        return _with(reader.option("subscribe", topic), options).load()

    def mounted(self, topic: str, **options: object) -> DataFrame:
        """The topic through the broker, with its directory mounted, by us."""
        return self.brokers(topic, path=self.node.log_dir, **options)

    def create(self, topic: str, partitions: int = 1, segment_bytes: int = 1 << 30) -> None:
        config = ("--config", f"segment.bytes={segment_bytes}")
        tools.topics(self.node.bootstrap, "--create", "--topic", topic, "--partitions", str(partitions), *config)

    def fill(self, topic: str, rows: DataFrame, codec: str = "none") -> None:
        """Write ``rows`` (key, value) by the connector, in batches of 16 KiB."""
        writer = rows.write.format("kafka").option("kafka.bootstrap.servers", self.node.bootstrap)
        writer.option("topic", topic).option("kafka.compression.type", codec).option("kafka.linger.ms", "50").save()


def _with(reader: pyspark.sql.DataFrameReader, options: dict[str, object]) -> pyspark.sql.DataFrameReader:
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader


@contextmanager
def beside() -> Iterator[Beside]:
    """Both, ready; ended in the end. Kafka has its stock heap and garbage collector."""
    with tempfile.TemporaryDirectory(prefix="seglog-bench-") as name:
        root = Path(name)
        os.environ["PYTHONPATH"] = ENVIRONMENT["PYTHONPATH"]
        with KafkaNode(root / "kafka", jvm=(*kafka.BROKER, "-Dorg.slf4j.simpleLogger.defaultLogLevel=error")) as node:
            spark = get_spark(
                "seglog bench",
                master=f"local[{CORES}]",
                config={**connector_config(), "spark.driver.memory": "2g"},
                jvm_log=str(root / "spark.log"),
            )
            try:
                yield Beside(spark, node, root)
            finally:
                spark.stop()


def describe() -> str:
    """The compared sides and their settings."""
    return (
        f"local[{CORES}], driver 2g, PySpark {pyspark.__version__} with its Kafka connector {CONNECTOR}; "
        f"{kafka.describe(kafka.BROKER)}"
    )


def records(value_bytes: int) -> int:
    """How many records a topic shall have, by default about 128 MB of values."""
    return int(os.environ.get("SEGLOG_BENCH_MB", "128")) * 1_000_000 // (value_bytes + 28)


def rows(spark: SparkSession, count: int, value_bytes: int, keys: int = 100_000) -> DataFrame:
    """Records as a frame: a key of 8 bytes, a value of hexadecimal noise that compresses to about half."""
    digits = " || ".join(f"sha2(cast(id * 31 + {number} as string), 512)" for number in range(-(-value_bytes // 128)))
    return spark.range(0, count, 1, CORES).selectExpr(
        f"cast(lpad(cast(pmod(hash(id), {keys}) as string), 8, '0') as binary) as key",
        f"cast(substr({digits}, 1, {value_bytes}) as binary) as value",
    )


def noop(frame: DataFrame) -> None:
    """Make every row, and drop it in the JVM."""
    frame.write.format("noop").mode("overwrite").save()


def readings(frames: Mapping[str, Callable[[], DataFrame]]) -> dict[str, Callable[[], None]]:
    """Each makes its frame again and reads it, so that planning counts."""

    def read(make: Callable[[], DataFrame]) -> None:
        noop(make())

    return {name: partial(read, make) for name, make in frames.items()}


def show(count: int, costs: Mapping[str, Cost], ratios: Sequence[tuple[str, str, str, str]]) -> None:
    """Print what each side took for ``count`` records, and ratios: a title, theirs, ours and the ratio that is
    asked."""
    for name, cost in costs.items():
        print(f"  {name:28} {cost.wall:6.2f} s  {count / cost.wall / 1e6:5.2f} M rows/s")
    for title, theirs, ours, asked in ratios:
        print(f"  {title:28} {costs[theirs].wall / costs[ours].wall:5.2f}x, asked {asked}", flush=True)
