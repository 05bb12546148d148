"""A batch read by Spark through a broker: by us, beside its own connector, from the directory, and from broker and
directory together, on the same topics.

python -m bench spark_brokers
SEGLOG_BENCH_MB=512 python -m bench spark_brokers
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from pyspark.sql import DataFrame

from bench.connector import CORES, Beside, beside, describe, noop, records, rows
from bench.segments import rounds
from bench.sides import Cost, in_turn

_VALUES: Final = (100, 1000)
_TWO: Final = ("offset", "timestamp")
_SEGMENT: Final = 16 << 20
"""Small enough that nearly all records lie in sealed segments."""


def main() -> None:
    print(f"batch reads through Kafka, medians of {rounds()} rounds; {describe()}")
    with beside() as both:
        for value_bytes in _VALUES:
            count = records(value_bytes)
            topic = f"v{value_bytes}"
            both.create(topic, segment_bytes=_SEGMENT)
            both.fill(topic, rows(both.spark, count, value_bytes))
            print(f"values of {value_bytes} B, 1 partition, {count:,} records", flush=True)
            _show(count, in_turn(_sides(both, topic), rounds()))


def _sides(both: Beside, topic: str) -> dict[str, Callable[[], None]]:
    """Each makes its frame anew, so that planning counts."""
    frames: dict[str, Callable[[], DataFrame]] = {
        "connector": lambda: both.theirs(topic),
        f"connector, minPartitions={CORES}": lambda: both.theirs(topic, minPartitions=CORES),
        "brokers": lambda: both.brokers(topic),
        "directory": lambda: both.ours(topic),
        "brokers and directory": lambda: both.mounted(topic),
        "connector, two columns": lambda: both.theirs(topic).select(*_TWO),
        "brokers, two columns": lambda: both.brokers(topic, columns=",".join(_TWO)),
    }
    return {name: partial(_make_rows, make) for name, make in frames.items()}


def _make_rows(make: Callable[[], DataFrame]) -> None:
    noop(make())


def _show(count: int, costs: dict[str, Cost]) -> None:
    for name, cost in costs.items():
        print(f"  {name:28} {cost.wall:6.2f} s  {count / cost.wall / 1e6:5.2f} M rows/s")
    walls = {name: cost.wall for name, cost in costs.items()}
    for title, theirs, ours, asked in (
        ("all columns", "connector", "brokers", "3x (100 B), 1.7x (1 KB)"),
        ("beside minPartitions", f"connector, minPartitions={CORES}", "brokers", "2x (100 B), 1.4x (1 KB)"),
        ("of the directory source", "directory", "brokers", "0.75x"),
        ("with a mount, of directory", "directory", "brokers and directory", "nothing"),
        ("two columns", "connector, two columns", "brokers, two columns", "4x"),
    ):
        print(f"  {title:28} {walls[theirs] / walls[ours]:5.2f}x, asked {asked}", flush=True)
