"""The newest value of each key by Spark's own shuffle, for partitions that are too large for one task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from seglog.core.errors import InvalidConfigError
from seglog.sources.options.read_options import parse_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_IDENTITY: Final = ("topic", "partition", "key")
_TOMBSTONE: Final = "isTombstone"


def latest(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """The rows of the view ``latest``, made by all cores also of a single partition.

    ``options`` are those of ``spark.read.format("seglog")``, without ``view``. Each task finds the newest records of a
    range of offsets, as the view ``latest-parts``. Then Spark sorts and merges them by topic, partition and key, and
    spills where it does so. Keys stay bytes: ``keyFormat`` is refused.

    Through brokers a compacted partition is still one task.
    """
    if "view" in {name.lower() for name in options}:
        raise InvalidConfigError("option view: latest() sets its own view")
    parsed = parse_options({**options, "view": "latest-parts"})
    reader = spark.read.format("seglog").options(**options)
    wanted = parsed.columns
    if wanted is None:
        wanted = tuple(reader.load().columns)
    needed = dict.fromkeys([*_IDENTITY, "offset", _TOMBSTONE, *wanted])
    parts = reader.option("view", "latest-parts").option("columns", ",".join(needed)).load()
    return newest_of_parts(parts).select(*wanted)


def newest_of_parts(parts: DataFrame) -> DataFrame:
    """The newest of rows that have, for each topic, partition and key, one or more; without tombstones."""
    return newest_or_tombstones(parts).where(f"not {_TOMBSTONE}")


def newest_or_tombstones(parts: DataFrame) -> DataFrame:
    """The same with tombstones, which another frame's older rows need."""
    from pyspark.sql import functions as f

    carried = [name for name in parts.columns if name not in _IDENTITY]
    newest = parts.groupBy(*_IDENTITY).agg(f.max_by(f.struct(*carried), "offset").alias("newest"))
    return newest.select(*_IDENTITY, "newest.*").select(*parts.columns)


def split_keys(frame: DataFrame) -> DataFrame:
    """The keys that several partitions of a topic have, each with its partitions: topic, key, partitions.

    A key that is produced with another partitioner, or after partitions were added, has a newest value in each
    partition; Kafka does not know which is newer. ``frame`` has the newest values of a view.
    """
    from pyspark.sql import functions as f

    partitions = frame.groupBy("topic", "key").agg(f.sort_array(f.collect_set("partition")).alias("partitions"))
    return partitions.where(f.size("partitions") > 1)
