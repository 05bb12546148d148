"""Kafka's log files as a Spark data source: ``spark.read.format("seglog").option("path", …).load()``.

Planning is pure (`planning`); the data source, the session helper and Java are at its edge. Nothing here is imported
before it is used, so that ``import seglog.spark`` works without PySpark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from seglog.spark.read.lag_listener import LagListener as LagListener
    from seglog.spark.runtime.session import get_spark as get_spark
    from seglog.spark.tables.frame import table as table
    from seglog.spark.views.latest_frames import latest as latest
    from seglog.spark.views.latest_frames import split_keys as split_keys
    from seglog.spark.write.frames import batch_writer as batch_writer
    from seglog.spark.write.frames import by_partition as by_partition
    from seglog.spark.write.frames import log_columns as log_columns
    from seglog.spark.write.frames import to_log as to_log

__all__ = [
    "LagListener",
    "batch_writer",
    "by_partition",
    "get_spark",
    "latest",
    "log_columns",
    "split_keys",
    "table",
    "to_log",
]

_HOMES: Final = {
    "LagListener": "seglog.spark.read.lag_listener",
    "batch_writer": "seglog.spark.write.frames",
    "by_partition": "seglog.spark.write.frames",
    "get_spark": "seglog.spark.runtime.session",
    "latest": "seglog.spark.views.latest_frames",
    "log_columns": "seglog.spark.write.frames",
    "split_keys": "seglog.spark.views.latest_frames",
    "table": "seglog.spark.tables.frame",
    "to_log": "seglog.spark.write.frames",
}
"""The module of each name. All but that of `get_spark`, which checks this itself, need PySpark to be imported."""


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name != "get_spark":
        from seglog.core.extras import require

        require("pyspark.sql", "spark", purpose=f"seglog.spark.{name}")
    return getattr(import_module(home), name)
