"""DataFrames in the form that suits the sink: `to_log` writes one, `by_partition` orders it, `log_columns` trims it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import functions
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import IntegerType

from seglog.core.errors import InvalidConfigError
from seglog.core.fs import OsFs
from seglog.sources.directories.partitions import expand
from seglog.spark.write.directories.commit_client import directory_of
from seglog.spark.write.write_options import parse_write_options
from seglog.storage.adopt import read_ledger
from seglog.storage.formats.paths import list_partitions

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

ARROW_ROWS: Final = 20_000
"""Rows in each Arrow batch that Spark hands to the sink."""
_ARROW_ROWS_CONF: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
_COLUMNS: Final = ("key", "value", "topic", "partition", "timestamp", "headers")
_HEADERS: Final = "array<struct<key:string,value:binary>>"
_ORDER: Final = "__seglog_order"
_RUN: Final = 128
"""Rows without key that go to one partition together."""


def to_log(
    frame: DataFrame,
    path: str | os.PathLike[str],
    *,
    topic: str | None = None,
    partitions: int | None = None,
    ordered: bool = False,
    order: Sequence[str | Column] = (),
    options: Mapping[str, str | int] | None = None,
    arrow_rows: int = ARROW_ROWS,
) -> None:
    """Append ``frame`` to the log directory at ``path``, all or nothing: a tuned ``df.write.format("seglog")``.

    All rows go to ``topic``, which is created with ``partitions`` if it does not exist; without it the column ``topic``
    decides. ``ordered`` keeps the frame's order within each partition, and ``order`` sorts by columns; both cost a
    shuffle (`by_partition`). ``options`` are those of the sink. NULL headers become empty: the log cannot tell them
    apart, and Spark hands empty ones over a hundred times faster. Meanwhile the session uses Arrow batches of
    ``arrow_rows`` rows. A transaction (``txnAppId``, ``txnVersion``) that was adopted before is not computed again.
    """
    path = os.fspath(path)
    if _was_adopted(path, options or {}):
        return
    frame = log_columns(frame)
    if ordered or order:
        if topic is None:
            raise InvalidConfigError("ordered and order need topic, which determines the number of partitions")
        frame = by_partition(frame, _partitions(path, topic) or partitions or 1, order=order)
    writer = frame.write.format("seglog").mode("append").options(**dict(options or {}))
    if topic is not None:
        writer = writer.option("topic", topic)
    if partitions is not None:
        writer = writer.option("numPartitions", partitions)
    with _arrow_rows(frame.sparkSession, arrow_rows):
        writer.save(path)


def batch_writer(
    path: str | os.PathLike[str],
    *,
    topic: str | None = None,
    partitions: int | None = None,
    options: Mapping[str, str | int] | None = None,
) -> Callable[[DataFrame, int], None]:
    """A function for ``foreachBatch`` that appends each micro-batch to the log directory at ``path``, exactly once.

    With ``outputMode("update")`` the rows that a batch changed become records; a compacted topic keeps the newest of
    each key. A batch is identified by the query's id and its own, so a query that restarts from its checkpoint writes
    no batch twice.

    ``counts.writeStream.outputMode("update").foreachBatch(batch_writer("/data/log", topic="counts")).start()``
    """
    given = dict(options or {})
    if {"txnappid", "txnversion"} & {name.lower() for name in given}:
        raise InvalidConfigError(
            "options txnAppId and txnVersion: batch_writer sets them from the query and the batch id"
        )

    def write(frame: DataFrame, batch: int) -> None:
        query = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        if not query:
            raise InvalidConfigError(
                "batch_writer is for foreachBatch of a streaming query; use to_log to write a frame"
            )
        transaction: dict[str, str | int] = {"txnAppId": f"foreachBatch:{query}", "txnVersion": batch}
        if _was_adopted(os.fspath(path), transaction):
            # Compute the batch anyway: Spark checks that each state store has committed it.
            frame.write.format("noop").mode("overwrite").save()
            return
        to_log(frame, path, topic=topic, partitions=partitions, options={**given, **transaction})

    return write


def _was_adopted(path: str, options: Mapping[str, str | int]) -> bool:
    given = parse_write_options({"path": path, **{name: str(value) for name, value in options.items()}})
    transaction = given.transaction
    if transaction is None:
        return False
    return read_ledger(OsFs(), directory_of(path)).is_adopted(transaction.key, transaction.version)


def log_columns(frame: DataFrame) -> DataFrame:
    """Only the columns that a log stores, with empty headers for NULL ones. For streams too, before ``writeStream``."""
    chosen = [functions.col(name) for name in frame.columns if name in _COLUMNS and name != "headers"]
    if "headers" in frame.columns:
        none = functions.array().cast(_HEADERS)
        chosen.append(functions.coalesce(functions.col("headers").cast(_HEADERS), none).alias("headers"))
    return frame.select(*chosen)


def by_partition(frame: DataFrame, partitions: int, *, order: Sequence[str | Column] = ()) -> DataFrame:
    """The frame with its column ``partition`` filled in as by Kafka's default partitioner, and a task per partition.

    Within a partition the rows keep the order of the frame, or that of the columns ``order``. So the rows of a key are
    in order, which otherwise holds only within each task. Rows without a key go to the partitions in turn.
    """
    if partitions < 1:
        raise InvalidConfigError(f"partitions is {partitions}: it must be 1 or more")
    names = frame.columns
    numbered = frame.withColumn(_ORDER, functions.monotonically_increasing_id())
    run = functions.floor(functions.col(_ORDER) / _RUN)
    chosen = functions.pmod(functions.xxhash64(run), functions.lit(partitions)).cast(IntegerType())
    if "key" in names:
        key = functions.col("key")
        make_udf: Any = arrow_udf
        by_key = make_udf(_murmur2_partition, IntegerType())(key, functions.lit(partitions))
        chosen = functions.when(key.isNull(), chosen).otherwise(by_key)
    if "partition" in names:
        chosen = functions.coalesce(functions.col("partition"), chosen)
    ready = numbered.withColumn("partition", chosen)
    # The sink refuses a partition number that does not exist, with a better message than Spark's.
    spread = functions.pmod(functions.col("partition"), functions.lit(partitions))
    return ready.repartitionById(partitions, spread).sortWithinPartitions(*order, _ORDER).drop(_ORDER)


def _murmur2_partition(keys: pa.Array, partitions: pa.Array) -> pa.Array:
    import numpy as np

    from seglog.records.column_encoding import byte_column
    from seglog.records.partition_kernels import partitions_of

    if not len(keys):
        return pa.array([], pa.int32())
    spans = byte_column("key", keys, len(keys))
    return pa.array(partitions_of(spans.data, spans.spans, int(partitions[0].as_py())).astype(np.int32))


def _partitions(path: str, topic: str) -> int:
    """The number of partitions of a topic; 0 if it does not exist."""
    fs = OsFs()
    (directory,) = expand(fs, path)
    found = list_partitions(fs, directory) if fs.exists(directory) else []
    return sum(partition.topic_partition.topic == topic for partition in found)


@contextmanager
def _arrow_rows(session: SparkSession, rows: int) -> Iterator[None]:
    before = session.conf.get(_ARROW_ROWS_CONF, None)
    session.conf.set(_ARROW_ROWS_CONF, str(rows))
    try:
        yield
    finally:
        if before is None:
            session.conf.unset(_ARROW_ROWS_CONF)
        else:
            session.conf.set(_ARROW_ROWS_CONF, before)
