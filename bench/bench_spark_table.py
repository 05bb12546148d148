"""A topic as a table: building it, and Spark's reading of it beside our source and its own connector, on one topic.

Building runs in a child process, as a job does, from nothing each time.

    python -m bench spark_table
    SEGLOG_BENCH_MB=512 python -m bench spark_table
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame

from bench.commands import ENVIRONMENT
from bench.connector import CORES, Beside, beside, describe, noop, records, rows
from bench.segments import rounds
from bench.sides import Cost, in_turn, measure, median_of
from seglog.spark import table
from seglog.table.iceberg.log_table import LogTable
from tests.kit.waiting import wait_until

_CASES: Final = (100, 1000)
_KEY: Final = "00012345"


def main() -> None:
    print(f"tables, medians of {rounds()} rounds; {describe()}")
    with beside() as both:
        for value_bytes in _CASES:
            count = records(value_bytes)
            topic = f"v{value_bytes}"
            both.create(topic, CORES)
            both.fill(topic, rows(both.spark, count, value_bytes))
            print(f"values of {value_bytes} B, {CORES} partitions, {count:,} records", flush=True)
            path = both.root / "warehouse" / topic
            wait_until(partial(_is_whole, both, topic, path, count), "the high watermark that Kafka stores")
            built = median_of([_build(both, topic, path) for _ in range(rounds())])
            _show_built(both, topic, path, count, built)
            _show_read(count, in_turn(_sides(both, topic, path), rounds()))


def _is_whole(both: Beside, topic: str, path: Path, count: int) -> bool:
    _build(both, topic, path)
    with LogTable.open(path) as opened:
        snapshot = opened.snapshot()
    return snapshot is not None and snapshot.records == count


def _build(both: Beside, topic: str, path: Path) -> Cost:
    """The whole table, from nothing, with the start of Python and all its imports."""
    shutil.rmtree(path.parent, ignore_errors=True)
    command = [sys.executable, "-m", "seglog", "spark", "table", str(both.node.log_dir), str(path.parent)]
    run = partial(subprocess.run, [*command, "--topic", topic], check=True, stdout=subprocess.PIPE, env=ENVIRONMENT)
    return measure(run)


def _show_built(both: Beside, topic: str, path: Path, count: int, cost: Cost) -> None:
    with LogTable.open(path) as opened:
        snapshot = opened.snapshot()
    assert snapshot is not None
    log = sum(file.stat().st_size for file in both.node.log_dir.glob(f"{topic}-*/*.log"))
    print(
        f"  built in {cost.wall:.2f} s, {cost.cpu:.2f} s of CPU: {count / cost.wall / 1e6:.2f} M rows/s, "
        f"{log / cost.wall / 1e6:.0f} MB/s of log; {snapshot.size / log:.2f} of the log's {log / 1e6:.0f} MB",
        flush=True,
    )


def _sides(both: Beside, topic: str, path: Path) -> dict[str, Callable[[], None]]:
    """Each makes its frame again, so that planning counts. The table has headers too; they are read like the rest."""
    key = f"key = cast('{_KEY}' as binary)"
    two = ["offset", "timestamp"]
    frames: dict[str, Callable[[], DataFrame]] = {
        "connector, minPartitions": lambda: both.theirs(topic, minPartitions=CORES),
        "source": lambda: both.ours(topic),
        "table": lambda: table(both.spark, path),
        "table and tail": lambda: table(both.spark, path, tail=both.node.log_dir),
        "connector, two columns": lambda: both.theirs(topic, minPartitions=CORES).select(*two),
        "table, two columns": lambda: table(both.spark, path).select(*two),
        "connector, one key": lambda: both.theirs(topic, minPartitions=CORES).where(key),
        "table, one key": lambda: table(both.spark, path).where(key),
    }
    return {name: partial(_make_rows, make) for name, make in frames.items()}


def _make_rows(make: Callable[[], DataFrame]) -> None:
    noop(make())


def _show_read(count: int, costs: dict[str, Cost]) -> None:
    for name, cost in costs.items():
        print(f"  {name:28} {cost.wall:6.2f} s  {count / cost.wall / 1e6:5.2f} M rows/s")
    for title, theirs, ours, asked in (
        ("all columns", "connector, minPartitions", "table", "5.5x (100 B), 4.5x (1 KB)"),
        ("beside our source", "source", "table", ""),
        ("two columns", "connector, two columns", "table, two columns", "14x"),
        ("one key", "connector, one key", "table, one key", ""),
    ):
        ratio = costs[theirs].wall / costs[ours].wall
        print(f"  {title:28} {ratio:5.2f}x{f', asked {asked}' if asked else ''}", flush=True)
