"""The content of log directories as a DataFrame: records, batches, segments, or committed offsets of groups."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from seglog.spark.jobs.driver import Paths, listed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def dump(
    spark: SparkSession,
    paths: Paths,
    *,
    view: str = "records",
    topics: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """The ``view`` of ``topics``, or of all, under ``paths`` (log directories, partitions' directories, globs).

    ``options`` are those of ``spark.read.format("seglog")``. Records have their headers unless ``includeHeaders`` is
    false.
    """
    reader = spark.read.format("seglog").option("view", view)
    if view == "records":
        reader = reader.option("includeHeaders", "true")
    if topics:
        reader = reader.option("subscribe", ",".join(topics))
    return reader.options(**dict(options or {})).load(listed(paths))


def documents(frame: DataFrame) -> Iterator[dict[str, Any]]:
    """The rows one by one as JSON documents: bytes in base64, timestamps in milliseconds, nulls included."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import TimestampType

    columns = [
        f.unix_millis(f.col(field.name)).alias(field.name) if isinstance(field.dataType, TimestampType)
        else f.col(field.name)
        for field in frame.schema.fields
    ]  # fmt: skip
    line = f.to_json(f.struct(*columns), {"ignoreNullFields": "false"}).alias("line")
    for row in frame.select(line).toLocalIterator(prefetchPartitions=True):
        document: dict[str, Any] = json.loads(row.line)
        yield document
