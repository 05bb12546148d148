"""Spark looks for a ``DefaultSource`` in every top-level package named ``pyspark_…``: here is the format "seglog"."""

from seglog.spark.source import SeglogDataSource as DefaultSource

__all__ = ["DefaultSource"]
