"""What is in log directories as a table: records, batches, segments, or committed offsets of groups.

The data source's views with paths and options in one call; a table of Spark's is what a job of yours goes on with.
"""

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
    """A table of ``view`` over ``paths`` (log directories, partitions, globs), of ``topics`` or of all.

    ``options`` are those of ``spark.read.format("seglog")``, by which ranges and columns are chosen; records have their
    headers unless ``includeHeaders`` says no.
    """
    reader = spark.read.format("seglog").option("view", view)
    if view == "records":
        reader = reader.option("includeHeaders", "true")
    if topics:
        reader = reader.option("subscribe", ",".join(topics))
    return reader.options(**dict(options or {})).load(listed(paths))


def documents(frame: DataFrame) -> Iterator[dict[str, Any]]:
    """Its rows one by one, as what JSON has: bytes in base64, timestamps in milliseconds; null where null is."""
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
