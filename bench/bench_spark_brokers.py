"""A batch read by Spark through a broker: by us, beside its own connector, from the directory, and from broker and
directory together, on the same topics.

python -m bench spark_brokers
SEGLOG_BENCH_MB=512 python -m bench spark_brokers
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pyspark.sql import DataFrame

from bench.connector import CORES, Beside, beside, describe, readings, records, rows, show
from bench.segments import rounds
from bench.sides import in_turn

_VALUES: Final = (100, 1000)
_TWO: Final = ("offset", "timestamp")
_SEGMENT: Final = 16 << 20
"""Small enough that nearly all records lie in sealed segments."""
_RATIOS: Final = (
    ("all columns", "connector", "brokers", "3x (100 B), 1.7x (1 KB)"),
    ("beside minPartitions", f"connector, minPartitions={CORES}", "brokers", "2x (100 B), 1.4x (1 KB)"),
    ("of the directory source", "directory", "brokers", "0.75x"),
    ("with a mount, of directory", "directory", "brokers and directory", "nothing"),
    ("two columns", "connector, two columns", "brokers, two columns", "4x"),
)


def main() -> None:
    print(f"batch reads through Kafka, medians of {rounds()} rounds; {describe()}")
    with beside() as both:
        for value_bytes in _VALUES:
            count = records(value_bytes)
            topic = f"v{value_bytes}"
            both.create(topic, segment_bytes=_SEGMENT)
            both.fill(topic, rows(both.spark, count, value_bytes))
            print(f"values of {value_bytes} B, 1 partition, {count:,} records", flush=True)
            show(count, in_turn(_sides(both, topic), rounds()), _RATIOS)


def _sides(both: Beside, topic: str) -> dict[str, Callable[[], None]]:
    frames: dict[str, Callable[[], DataFrame]] = {
        "connector": lambda: both.theirs(topic),
        f"connector, minPartitions={CORES}": lambda: both.theirs(topic, minPartitions=CORES),
        "brokers": lambda: both.brokers(topic),
        "directory": lambda: both.ours(topic),
        "brokers and directory": lambda: both.mounted(topic),
        "connector, two columns": lambda: both.theirs(topic).select(*_TWO),
        "brokers, two columns": lambda: both.brokers(topic, columns=",".join(_TWO)),
    }
    return readings(frames)
