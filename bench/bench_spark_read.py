"""A batch read by Spark: from the log's files by us, beside its own connector through Kafka, on the same topics.

``rows without decoding`` hands over ready Arrow batches of the same shape: what Spark costs, and a limit to both.

    python -m bench spark_read
    SEGLOG_BENCH_MB=512 python -m bench spark_read
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

import seglog
from bench.connector import CORES, Beside, beside, describe, readings, records, rows, show
from bench.segments import rounds
from bench.sides import in_turn
from seglog.spark.read.schema import record_schema

if TYPE_CHECKING:
    import pyarrow as pa

_CASES: Final = (
    (100, "none", 1),
    (1000, "none", 1),
    (100, "zstd", 1),
    (1000, "zstd", 1),
    (100, "none", 8),
    (1000, "none", 8),
)
_KEY: Final = "00012345"
_RATIOS: Final = (
    ("all columns", "connector", "seglog", "3.5x (100 B), 3x (1 KB)"),
    ("beside minPartitions", f"connector, minPartitions={CORES}", "seglog", "2.2x (100 B), 1.8x (1 KB)"),
    ("of Spark's own limit", "rows without decoding", "seglog", "0.75x"),
    ("two columns", "connector, two columns", "seglog, two columns", "4x"),
    ("one key", "connector, one key", "seglog, one key", "10x"),
    ("headers of batches", "connector", "seglog, view=batches", "10x"),
)


def main() -> None:
    print(f"batch reads, medians of {rounds()} rounds; {describe()}")
    with beside() as both:
        for value_bytes, codec, partitions in _CASES:
            count = records(value_bytes)
            topic = f"v{value_bytes}-{codec}-{partitions}"
            both.create(topic, partitions)
            both.fill(topic, rows(both.spark, count, value_bytes), codec)
            print(f"values of {value_bytes} B, {codec}, {partitions} partition(s), {count:,} records", flush=True)
            show(count, in_turn(_sides(both, topic, count), rounds()), _RATIOS)


def _sides(both: Beside, topic: str, count: int) -> dict[str, Callable[[], None]]:
    key = f"key = cast('{_KEY}' as binary)"
    two = ["offset", "timestamp"]
    frames: dict[str, Callable[[], DataFrame]] = {
        "connector": lambda: both.theirs(topic),
        f"connector, minPartitions={CORES}": lambda: both.theirs(topic, minPartitions=CORES),
        "seglog": lambda: both.ours(topic),
        "rows without decoding": _ceiling(both, topic, count),
        "connector, two columns": lambda: both.theirs(topic).select(*two),
        "seglog, two columns": lambda: both.ours(topic, columns=",".join(two)),
        "connector, one key": lambda: both.theirs(topic).where(key),
        "seglog, one key": lambda: both.ours(topic, keyEquals=_KEY),
        "seglog, view=batches": lambda: both.ours(topic, view="batches"),
    }
    return readings(frames)


def _ceiling(both: Beside, topic: str, count: int) -> Callable[[], DataFrame]:
    """The topic's first records, as Arrow, again and again."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    first = next(iter(seglog.scan(str(both.node.log_dir), topics=[topic], batch_rows=1 << 14)))
    schema = to_arrow_schema(record_schema(include_headers=False), timezone="UTC")
    arrays = [first.column(field.name).cast(field.type) for field in schema]
    tasks = [(pa.RecordBatch.from_arrays(arrays, schema=schema), count // CORES)] * CORES
    # A class that no module has goes to the workers by value, with its rows.
    both.spark.dataSource.register(type("_WithRows", (_Ready,), {"tasks": tasks}))
    return lambda: both.spark.read.format(_Ready.name()).load()


class _Ready(DataSource):
    """Hands over a batch so often that it makes a number of rows, in each task."""

    tasks: ClassVar[Sequence[tuple[pa.RecordBatch, int]]] = ()

    @classmethod
    def name(cls) -> str:
        return "ready"

    def schema(self) -> StructType:
        return record_schema(include_headers=False)

    def reader(self, schema: StructType) -> DataSourceReader:
        assert schema == self.schema()
        return _ReadyReader(self.tasks)


class _ReadyReader(DataSourceReader):
    def __init__(self, tasks: Sequence[tuple[pa.RecordBatch, int]]) -> None:
        self._tasks = tasks

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(task) for task in self._tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        batch, left = partition.value
        while left > 0:
            yield batch.slice(0, min(left, batch.num_rows))
            left -= batch.num_rows
