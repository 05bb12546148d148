"""Kafka's log files as a Spark data source: ``spark.read.format("seglog").option("path", …).load()``.

Planning is pure (`planning`); the data source, the session helper and Java are at its edge. Nothing here is imported
until it is asked for, so that ``import seglog.spark`` works without PySpark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from seglog.spark.lag import LagListener as LagListener
    from seglog.spark.session import get_spark as get_spark

__all__ = ["LagListener", "get_spark"]


def __getattr__(name: str) -> object:
    if name == "get_spark":
        from seglog.spark.session import get_spark

        return get_spark
    if name == "LagListener":
        from seglog.core.extras import require

        require("pyspark.sql", "spark", purpose="seglog.spark.LagListener")
        from seglog.spark.lag import LagListener

        return LagListener
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
