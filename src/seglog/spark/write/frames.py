"""Frames as the sink likes them best: `to_log` writes one, `by_partition` puts it in order, `log_columns` trims it."""

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
from seglog.spark.options.write_options import parse_write_options
from seglog.spark.read.directories.partitions import expand
from seglog.spark.write.directories.commit_client import directory_of
from seglog.storage.adopt import read_ledger
from seglog.storage.formats.paths import list_partitions

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

ARROW_ROWS: Final = 20_000
"""Rows that Spark hands over at once; see the measurements in docs/spark.md."""
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
    """Append ``frame`` to the log directory at ``path``, all or nothing: ``df.write.format("seglog")`` at its best.

    ``topic`` is where all rows go, made with that many ``partitions`` if it is not there; else the column ``topic``
    says it. ``ordered`` keeps the frame's order within each partition, or that of the columns ``order``, at the price
    of a shuffle (`by_partition`). ``options`` are those of the sink. NULL headers become empty ones before Spark hands
    them over, which the log cannot tell apart and Spark does a hundred times faster; while this runs, the session hands
    over ``arrow_rows`` rows at once. A transaction (``txnAppId``, ``txnVersion``) that was adopted before is not
    computed again.
    """
    path = os.fspath(path)
    if _was_adopted(path, options or {}):
        return
    frame = log_columns(frame)
    if ordered or order:
        if topic is None:
            raise InvalidConfigError("an order needs the option topic: the number of partitions is its")
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
    """For ``foreachBatch``: append each micro-batch to the log directory at ``path`` with `to_log`, exactly once.

    The rows that a batch of ``outputMode("update")`` has changed become records: on a compacted topic the newest of
    each key stays. A batch goes by the query's id and its own, so that a query that is started again from its
    checkpoint writes none twice.

    ``counts.writeStream.outputMode("update").foreachBatch(batch_writer("/data/log", topic="counts")).start()``
    """
    given = dict(options or {})
    if {"txnappid", "txnversion"} & {name.lower() for name in given}:
        raise InvalidConfigError(
            "options txnAppId and txnVersion: a micro-batch has its own, by the query and its number"
        )

    def write(frame: DataFrame, batch: int) -> None:
        query = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        if not query:
            raise InvalidConfigError(
                "batch_writer is for foreachBatch of a streaming query; a frame is written by to_log"
            )
        transaction: dict[str, str | int] = {"txnAppId": f"foreachBatch:{query}", "txnVersion": batch}
        if _was_adopted(os.fspath(path), transaction):
            # A batch with state must be computed all the same: Spark checks that each state store has committed it.
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
    """The columns that a log takes, and of NULL headers empty ones. For streams as well, before ``writeStream``."""
    chosen = [functions.col(name) for name in frame.columns if name in _COLUMNS and name != "headers"]
    if "headers" in frame.columns:
        none = functions.array().cast(_HEADERS)
        chosen.append(functions.coalesce(functions.col("headers").cast(_HEADERS), none).alias("headers"))
    return frame.select(*chosen)


def by_partition(frame: DataFrame, partitions: int, *, order: Sequence[str | Column] = ()) -> DataFrame:
    """The frame with its column ``partition`` filled in as Kafka's default partitioner would, one task for each.

    Within each the rows are in the order of the frame, or of the columns ``order``. So the order per key holds, which a
    frame of several tasks else has within each task only. Rows without key go to the partitions by turns.
    """
    if partitions < 1:
        raise InvalidConfigError(f"{partitions} partitions: 1 or more")
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
    # A number that there is not is refused by the sink, with a better word than here.
    spread = functions.pmod(functions.col("partition"), functions.lit(partitions))
    return ready.repartitionById(partitions, spread).sortWithinPartitions(*order, _ORDER).drop(_ORDER)


def _murmur2_partition(keys: pa.Array, partitions: pa.Array) -> pa.Array:
    import numpy as np

    from seglog.records.columnar_encode import byte_column
    from seglog.records.partition_kernels import partitions_of

    if not len(keys):
        return pa.array([], pa.int32())
    spans = byte_column("key", keys, len(keys))
    return pa.array(partitions_of(spans.data, spans.spans, int(partitions[0].as_py())).astype(np.int32))


def _partitions(path: str, topic: str) -> int:
    """How many partitions a topic has; 0 for one that is not there."""
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
