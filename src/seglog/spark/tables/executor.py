"""Spark's executors as workers of `seglog.table.update_table`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from seglog.spark.jobs.driver import plain_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")


class SparkExecutor:
    """`seglog.table.files.file_task.Executor` in which each call is a task of Spark's.

    All machines must see the log and the warehouse under the same paths. It needs a classic session, not Connect.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    @property
    def cores(self) -> int:
        """How many tasks run at once."""
        return self._spark.sparkContext.defaultParallelism

    def map(self, call: Callable[[Any], T], arguments: Iterable[Any], /) -> list[T]:
        """Raises a seglog error of a task as it is, and `JobFailedError` for what else made the job fail."""
        given = list(arguments)
        if not given:
            return []
        with plain_errors():
            return self._spark.sparkContext.parallelize(given, len(given)).map(call).collect()
