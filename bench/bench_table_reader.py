"""A table's files by Spark's own Parquet reader and by pyarrow in Spark's Python workers, as an object store is read.

The files are local, so that the readers differ and not the stores. Values of 100 B and 1 KB, the noop sink, medians.

    python -m bench table_reader
    SEGLOG_BENCH_MB=512 python -m bench table_reader
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from tempfile import TemporaryDirectory
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession

from bench.connector import CORES, noop, records
from bench.segments import rounds
from bench.sides import in_turn
from seglog.records.columns import SCHEMA
from seglog.spark import get_spark, table
from seglog.table.files.record_files import write_records
from seglog.table.iceberg.log_table import LogTable
from seglog.table.iceberg.positions import Position, Positions

_BATCH: Final = 1 << 16
_READERS: Final = ("spark", "python")
_TWO: Final = ("offset", "timestamp")


def main() -> None:
    spark = get_spark(master=f"local[{CORES}]")
    try:
        for value_bytes in (100, 1000):
            with TemporaryDirectory(prefix="seglog-bench-") as root:
                _compare(spark, f"{root}/w/t", records(value_bytes), value_bytes)
    finally:
        spark.stop()


def _compare(spark: SparkSession, path: str, count: int, value_bytes: int) -> None:
    with LogTable.open_or_create(path) as made, made.locked():
        files = [
            write_records(made.files, made.path.data, _batches(number, count // CORES, value_bytes), made.form)
            for number in range(CORES)
        ]
        ends = {number: Position(count // CORES) for number in range(CORES)}
        paths = [one.path for one in files if one is not None]
        made.append(paths, Positions(topic="t", partitions=ends), dict.fromkeys(ends, 0))
    sides = {
        f"{reader}, {name}": partial(_read, spark, path, reader, columns)
        for name, columns in (("all columns", None), ("two columns", _TWO))
        for reader in _READERS
    }
    print(f"values of {value_bytes} B, {count:,} records", flush=True)
    for name, cost in in_turn(sides, rounds()).items():
        rate = count / cost.wall / 1e6
        print(f"  {name:20} {cost.wall:6.2f} s, {rate:5.2f} M rows/s", flush=True)


def _read(spark: SparkSession, path: str, reader: str, columns: tuple[str, ...] | None) -> None:
    noop(table(spark, path, reader="python" if reader == "python" else "spark", columns=columns))


def _batches(partition: int, count: int, value_bytes: int) -> Iterator[pa.RecordBatch]:
    noise = random.Random(partition)
    for start in range(0, count, _BATCH):
        rows = [
            {
                "key": b"%08d" % noise.randrange(100_000),
                "value": noise.randbytes(value_bytes // 2).hex().encode(),
                "topic": "t",
                "partition": partition,
                "offset": at,
                "timestampType": 0,
            }
            for at in range(start, min(start + _BATCH, count))
        ]
        yield from pa.Table.from_pylist(rows, schema=SCHEMA).to_batches()


if __name__ == "__main__":
    main()
