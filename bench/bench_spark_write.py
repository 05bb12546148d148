"""Writing by Spark: frames and files into a log by us, beside reading the files and writing with Spark's connector.

Both sides write the same rows in batches of 16 KiB: the connector through a running Kafka, we into a log directory.

    python -m bench spark_write
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame

from bench.connector import CORES, Beside, beside, describe, records, rows
from bench.segments import rounds
from bench.sides import Cost, in_turn
from seglog.spark import to_log
from seglog.spark.jobs.ingest import Columns, ingest

_SIZES: Final = (100, 1000)
_MICRO_BATCHES: Final = 20


def main() -> None:
    print(f"writing, medians of {rounds()} rounds; {describe()}")
    with beside() as both:
        for value_bytes in _SIZES:
            count = records(value_bytes)
            files = both.root / f"rows-{value_bytes}"
            rows(both.spark, count, value_bytes).selectExpr(
                "cast(key as string) as key", "cast(value as string) as value"
            ).write.json(str(files))
            print(f"values of {value_bytes} B, {count:,} records, one partition", flush=True)
            costs = in_turn(_sides(both, value_bytes, count, files), rounds())
            _show(count, costs)
        _micro_batches(both)


def _sides(both: Beside, value_bytes: int, count: int, files: Path) -> dict[str, Callable[[], object]]:
    topic = f"w{value_bytes}"
    both.create(topic)
    log = both.root / f"log-{value_bytes}"

    def frame() -> DataFrame:
        return rows(both.spark, count, value_bytes)

    def read() -> DataFrame:
        return both.spark.read.schema("key string, value string").json(str(files))

    def ours(write: Callable[[str], object]) -> None:
        shutil.rmtree(log, ignore_errors=True)
        write(str(log))

    def load(path: str) -> None:
        ingest(both.spark, str(files / "*.json"), path, topic, columns=Columns(value="value", key="key"))

    return {
        "frame: connector": lambda: both.fill(topic, frame()),
        "frame: seglog": partial(ours, lambda path: to_log(frame(), path, topic=topic)),
        "files: connector": lambda: both.fill(topic, read()),
        "files: seglog ingest": partial(ours, load),
    }


def _show(count: int, costs: dict[str, Cost]) -> None:
    for name, cost in costs.items():
        print(f"  {name:28} {cost.wall:6.2f} s  {count / cost.wall / 1e6:5.2f} M rows/s")
    walls = {name: cost.wall for name, cost in costs.items()}
    frames = walls["frame: connector"] / walls["frame: seglog"]
    files = walls["files: connector"] / walls["files: seglog ingest"]
    print(f"  frame to log {frames:5.2f}x, asked 1.5x; files to log {files:5.2f}x, asked 4x", flush=True)


def _micro_batches(both: Beside) -> None:
    """A stream of small micro-batches: what each takes, sink and source."""
    both.create("micro")
    both.fill("micro", rows(both.spark, _MICRO_BATCHES * 100, 100))
    for name in ("kafka", "seglog"):
        reader = both.spark.readStream.format(name).option("subscribe", "micro").option("startingOffsets", "earliest")
        reader = reader.option("maxOffsetsPerTrigger", "100")
        if name == "kafka":
            reader = reader.option("kafka.bootstrap.servers", both.node.bootstrap)
        else:
            reader = reader.option("path", str(both.node.log_dir))
        query = (
            reader.load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(both.root / f"checkpoint-{name}"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        times = sorted(one["durationMs"]["triggerExecution"] for one in query.recentProgress if one["numInputRows"])
        print(
            f"micro-batches of 100 rows, {CORES} cores, {name}: median {times[len(times) // 2]} ms of {len(times)}",
            flush=True,
        )
