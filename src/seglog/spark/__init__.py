"""Kafka's log files as a Spark data source: ``spark.read.format("seglog").option("path", …).load()``.

Planning is pure (`planning`); the data source, the session helper and Java are at its edge. Nothing here is imported
until it is asked for, so that ``import seglog.spark`` works without PySpark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from seglog.spark.lag import LagListener as LagListener
    from seglog.spark.session import get_spark as get_spark
    from seglog.spark.writing import batch_writer as batch_writer
    from seglog.spark.writing import by_partition as by_partition
    from seglog.spark.writing import log_columns as log_columns
    from seglog.spark.writing import to_log as to_log

__all__ = ["LagListener", "batch_writer", "by_partition", "get_spark", "log_columns", "to_log"]

_HOMES: Final = {
    "LagListener": "seglog.spark.lag",
    "batch_writer": "seglog.spark.writing",
    "by_partition": "seglog.spark.writing",
    "get_spark": "seglog.spark.session",
    "log_columns": "seglog.spark.writing",
    "to_log": "seglog.spark.writing",
}
"""Where each name is; but `get_spark`, which says itself what is missing, they begin with an import of PySpark."""


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name != "get_spark":
        from seglog.core.extras import require

        require("pyspark.sql", "spark", purpose=f"seglog.spark.{name}")
    return getattr(import_module(home), name)
