"""``isolationLevel=read_committed`` over interleaved transactions. All other ways to the records are in
`tests/broker/test_read_committed.py`."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.kit import interleaved_transactions as interleaved
from tests.kit.interleaved_transactions import CHANGES, TOPIC, Change

pytestmark = pytest.mark.xdist_group("spark")


@pytest.mark.parametrize("change", CHANGES)
def test_reads_what_is_committed(spark: SparkSession, tmp_path: Path, change: Change) -> None:
    written = interleaved.write(tmp_path / "log", change)
    options = {"path": str(tmp_path / "log"), "subscribe": TOPIC, "isolationLevel": "read_committed"}
    rows = spark.read.format("seglog").options(**options).load().select("offset", "value").collect()
    assert {row.offset: bytes(row.value) for row in rows} == written.committed
