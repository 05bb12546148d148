"""The demo's tests share Spark's session with those of the data source."""

from tests.spark.conftest import spark

__all__ = ["spark"]
