"""Compares two log directories on Spark, with the same result as `compare_directories`.

Spark's workers run `seglog.storage.offline.compare` on pieces of logs. Logs are divided at batch boundaries, so one
large partition keeps every core busy. The driver reads small files and indexes, and joins the results. All machines
must see both directories under the same paths.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from seglog.core.fs import OsFs
from seglog.spark.jobs.driver import Path, Progress, watched
from seglog.spark.runtime.processes import freeze_imports
from seglog.storage.offline.compare import REPLICAS, CompareRules, Comparison, RangeKind, Side, compare, join
from seglog.storage.offline.compare_directories import (
    STRETCH,
    PairComparison,
    PartitionPair,
    Until,
    missing_whole,
    pairs,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA: Final = (
    "topic string, partition int, kind string, missingIn string, place string, first bigint, end bigint, "
    "records bigint, fields array<string>, damagedIn string, reason string"
)
"""The schema of `differences_frame`; offsets go from ``first`` to before ``end``."""

_TASKS_PER_CORE: Final = 4


class _PairPiece(NamedTuple):
    """A piece of the pair ``number``."""

    number: int
    left: Side
    right: Side
    first: int
    end: int


def plan(
    left: Path, right: Path, *, topics: str | Sequence[str] = (), until: Until = "highWatermark"
) -> tuple[list[PartitionPair], int]:
    """The pairs of partitions to compare, and their bytes; see `seglog.storage.offline.compare_directories.pairs`."""
    chosen = [topics] if isinstance(topics, str) else topics
    found = list(pairs(OsFs(), os.fspath(left), os.fspath(right), topics=chosen, until=until))
    return found, _size(found)


def _size(planned: Iterable[PartitionPair]) -> int:
    both = [(pair.left, pair.right) for pair in planned if pair.left is not None and pair.right is not None]
    return sum(segment.size for replicas in both for one in replicas for segment in one.side.segments)


def diff(
    spark: SparkSession,
    planned: Sequence[PartitionPair],
    *,
    rules: CompareRules = REPLICAS,
    progress: Progress | None = None,
) -> list[PairComparison]:
    """Compare the pairs of `plan`. ``progress`` is called with the number of further bytes that were compared.

    Damage is a finding. Raises OSError, and `JobFailedError` if a worker fails.
    """
    orders = list(_orders(planned))
    found: list[list[Comparison]] = [[] for _ in planned]
    if orders:
        tasks = min(len(orders), max(_TASKS_PER_CORE * spark.sparkContext.defaultParallelism, len(orders) // 64))
        with watched(spark, _size(planned), tasks, progress):
            work = spark.sparkContext.parallelize(orders, tasks)
            pieces = work.mapPartitions(lambda part: _compare(part, rules)).collect()
        for number, findings in pieces:
            found[number] = join(chain(found[number], findings))
    return [
        PairComparison(pair, findings or missing_whole(pair), rules)
        for pair, findings in zip(planned, found, strict=True)
    ]


def differences_frame(spark: SparkSession, compared: Sequence[PairComparison]) -> DataFrame:
    """The differences as a DataFrame of `SCHEMA`, by partition and offset."""
    rows = [
        (*one.pair.partition, each.kind.value,
         each.side if each.kind is RangeKind.MISSING else None, each.place or None,
         each.first, each.end, each.records, list(each.fields),
         each.side if each.kind is RangeKind.DAMAGED else None, each.reason or None)
        for one in compared
        for each in one.differences
    ]  # fmt: skip
    return spark.createDataFrame(rows, SCHEMA)


def _orders(planned: Sequence[PartitionPair]) -> Iterator[_PairPiece]:
    fs = OsFs()
    for number, pair in enumerate(planned):
        if pair.left is None or pair.right is None:
            continue
        for first, end in pair.cuts(fs, STRETCH):
            yield _PairPiece(number, pair.left.side.within(first, end), pair.right.side.within(first, end), first, end)


def _compare(orders: Iterable[_PairPiece], rules: CompareRules) -> Iterator[tuple[int, list[Comparison]]]:
    """Compare pieces, in a worker."""
    fs = OsFs()
    for number, left, right, first, end in orders:
        yield number, compare(fs, left, right, first, end, rules)
    freeze_imports()
