"""A keyed table with its log's tail: a tail's row takes the place of the table's, and a tail's tombstone removes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from seglog.core.clock import SystemClock
from seglog.sources.options.read_options import ReadOptions
from seglog.spark.views.latest_frames import newest_or_tombstones
from seglog.table.keyed.compaction_guard import CompactionGuard
from seglog.table.log_survey import LogState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from seglog.table.iceberg.key_buckets import KeyedFacts
    from seglog.table.iceberg.positions import Positions

TOMBSTONE: Final = "isTombstone"
_SAME: Final = ("partition", "key")


def columns_to_merge(columns: Sequence[str] | None) -> Sequence[str] | None:
    """The columns to read of a table if ``columns`` are wanted; None for all."""
    return None if columns is None else list(dict.fromkeys([*columns, *_SAME]))


def check_tail(options: ReadOptions, log: LogState, positions: Positions, facts: KeyedFacts) -> None:
    """Raise `DataLossError` if compaction may have removed tombstones from the tail."""
    guard = CompactionGuard(options, positions.topic, log.extents, facts.delete_retention_ms)
    guard.check(positions.partitions, SystemClock().now_ms() - facts.surveyed_ms)


def merge_tail(rows: DataFrame, parts: DataFrame) -> DataFrame:
    """The newest of the table's ``rows`` and of ``parts`` of the tail, which also have `TOMBSTONE`.

    It is one join, because through brokers two readings of a tail can differ. It shuffles the table.
    """
    from pyspark.sql import functions as f

    table, tail = rows.alias("table"), newest_or_tombstones(parts).alias("tail")
    partition, key = (f.col(f"table.{one}") == f.col(f"tail.{one}") for one in _SAME)
    in_tail = f.col("tail.offset").isNotNull()
    return (
        table.join(tail, partition & key, "full_outer")
        .where(f"tail.{TOMBSTONE} is null or not tail.{TOMBSTONE}")
        .select(
            *(f.when(in_tail, f.col(f"tail.{one}")).otherwise(f.col(f"table.{one}")).alias(one) for one in rows.columns)
        )
    )
