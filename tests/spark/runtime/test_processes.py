"""Collections after each task leave out what a worker has loaded."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator

import pytest
from pyspark.sql import SparkSession

from seglog.spark.runtime.processes import freeze_imports


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    gc.unfreeze()
    freeze_imports.cache_clear()
    yield
    gc.unfreeze()
    freeze_imports.cache_clear()


def _freeze(numbers: Iterable[int]) -> Iterable[int]:
    list(numbers)
    freeze_imports()
    yield gc.get_freeze_count()
    gc.unfreeze()


@pytest.mark.xdist_group("spark")
def test_sparks_workers_are_frozen(spark: SparkSession) -> None:
    (frozen,) = spark.sparkContext.parallelize(range(1), 1).mapPartitions(_freeze).collect()
    assert frozen > 10_000


def test_another_process_is_not_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_REUSE_WORKER", raising=False)
    freeze_imports()
    assert gc.get_freeze_count() == 0
