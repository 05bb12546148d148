"""A table beside the source of the same log, for values of each kind and size: constant, repeated, random, null.

Each kind is a log of its own, and a table of it. All columns go to the noop sink, turn about, in one session.

    python -m bench table_kinds
    SEGLOG_BENCH_MB=64 python -m bench table_kinds
    SEGLOG_BENCH_MB=2400 SEGLOG_BENCH_RECORDS=20_000_000 SEGLOG_BENCH_KINDS="constant 100;100 different 100" \
        python -m bench table_kinds
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from bench.connector import CORES, noop
from bench.segments import megabytes, rounds, write_log
from bench.sides import tree_cpu, turn_about
from seglog.spark import get_spark, table
from seglog.table.building import update_table

_ROWS: Final = 1 << 13
_TIME: Final = 1_790_000_000_000
_OVERHEAD: Final = 20
"""Bytes of a record beside its value, about."""
_MOST_RECORDS: Final = int(os.environ.get("SEGLOG_BENCH_RECORDS", "4_000_000"))
_SIZES: Final = (10, 100, 1000, 10_000)


class Kind(NamedTuple):
    """Values of so many bytes: ``pool`` of them, which repeat, or None if all are different."""

    name: str
    value_bytes: int
    pool: int | None

    @property
    def records(self) -> int:
        return min((megabytes() << 20) // (self.value_bytes + _OVERHEAD), _MOST_RECORDS) // CORES * CORES


def _kinds() -> Iterator[Kind]:
    yield Kind("null", 0, 1)
    for size in _SIZES:
        yield Kind("constant", size, 1)
        yield Kind("100 different", size, 100)
        if size <= 100:
            yield Kind("20,000 different", size, 20_000)
        yield Kind("a third different", size, max(Kind("", size, 1).records // 3, 1))
        yield Kind("random", size, None)


def main() -> None:
    spark = get_spark(master=f"local[{CORES}]")
    chosen = os.environ.get("SEGLOG_BENCH_KINDS")
    try:
        for kind in _kinds():
            if chosen is not None and f"{kind.name} {kind.value_bytes}" not in chosen.split(";"):
                continue
            with TemporaryDirectory(prefix="seglog-bench-") as root:
                _compare(spark, Path(root), kind)
    finally:
        spark.stop()


def _compare(spark: SparkSession, root: Path, kind: Kind) -> None:
    log = write_log(root / "log", partial(_columns, kind), CORES)
    done = update_table(log, root / "w" / "t", topic="t")
    assert done.records == kind.records
    reader = spark.read.format("seglog").options(path=str(log), subscribe="t", includeHeaders="true")

    def of_table() -> None:
        noop(table(spark, root / "w" / "t"))

    found = turn_about(of_table, lambda: noop(reader.load()), rounds(), cpu=tree_cpu)
    rate, other = (kind.records / one.wall / 1e6 for one in (found.first, found.second))
    print(
        f"  {kind.name:17} {kind.value_bytes:6} B: {kind.records:9,} records, table {rate:5.2f} M rows/s, source "
        f"{other:5.2f}, {1 / found.wall_ratio:4.2f} times as fast, {found.cpu_ratio:4.2f} of its CPU; "
        f"{done.bytes / kind.records:.2f} B a record",
        flush=True,
    )


def _columns(kind: Kind, partition: int) -> Iterator[pa.RecordBatch]:
    values = _values(kind, np.random.default_rng(partition))
    for first in range(0, kind.records // CORES, _ROWS):
        rows = min(_ROWS, kind.records // CORES - first)
        times = pa.array(np.arange(_TIME + first, _TIME + first + rows), pa.int64())
        yield pa.RecordBatch.from_arrays([values(rows), times], names=["value", "timestamp"])


def _values(kind: Kind, noise: np.random.Generator) -> Callable[[int], pa.Array]:
    if not kind.value_bytes:
        return lambda rows: pa.nulls(rows, pa.binary())
    if kind.pool is None:
        return lambda rows: pa.array([noise.bytes(kind.value_bytes) for _ in range(rows)], pa.binary())
    letters = random.Random(1)
    pool = pa.array([letters.randbytes(kind.value_bytes) for _ in range(kind.pool)], pa.binary())
    return lambda rows: pool.take(pa.array(noise.integers(0, len(pool), rows)))


if __name__ == "__main__":
    main()
