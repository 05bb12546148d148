"""Builders that die at random moments beside a growing log, and long reads, lose and repeat nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

from seglog.core.fs import OsFs
from seglog.spark import table as read_table
from seglog.table import small_files
from seglog.table.building import update_table
from seglog.table.iceberg import log_table
from seglog.table.iceberg.log_table import LogTable
from seglog.table.maintenance import DATA_GRACE_MS, sweep
from tests.kit.manual_clock import ManualClock
from tests.table import killed_builders
from tests.table.tables import append, digests, flights, scanned

pytestmark = pytest.mark.xdist_group("spark")

_KILLS = 4


def _kill(tmp_path: Path, kills: int, seed: int) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", killed_builders.__name__, str(tmp_path / "log"), str(tmp_path / "w/flights")]
    done = subprocess.run(
        [*command, str(kills), str(seed)], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _read_by_all(spark: SparkSession, table: Path) -> dict[str, pa.Table]:
    with LogTable.open(table) as opened, duckdb.connect() as connection:
        snapshot = opened.snapshot()
        assert snapshot is not None
        connection.execute("set timezone = 'UTC'")
        by_duckdb = connection.read_parquet(list(snapshot.files)).to_arrow_table()
    with SqlCatalog("seglog", uri=f"sqlite:///{table.parent}/catalog.db") as catalog:
        by_pyiceberg = catalog.load_table("logs.flights").scan().to_arrow()
    return {
        "spark": read_table(spark, table).toArrow(),
        "pyiceberg": by_pyiceberg,
        "duckdb": by_duckdb,
        "deltalake": pa.table(DeltaTable(str(table / "data")).to_pyarrow_table()),
    }


def test_killed_at_random_moments_each_record_is_there_once(spark: SparkSession, tmp_path: Path) -> None:
    done = _kill(tmp_path, _KILLS, seed=os.getpid())
    log = digests(scanned(tmp_path / "log"))
    assert len(log) == killed_builders.PARTITIONS
    assert done["records"] == scanned(tmp_path / "log").num_rows
    for reader, rows in _read_by_all(spark, tmp_path / "w" / "flights").items():
        assert digests(rows) == log, reader


@pytest.mark.everything
@pytest.mark.timeout(3000)
def test_killed_a_hundred_times(spark: SparkSession, tmp_path: Path) -> None:
    done = _kill(tmp_path, 100, seed=1)
    assert done["lives_with_commits"] > 10
    log = digests(scanned(tmp_path / "log"))
    for reader, rows in _read_by_all(spark, tmp_path / "w" / "flights").items():
        assert digests(rows) == log, reader


@pytest.fixture
def keeping_one_snapshot(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patched:
        patched.setattr(log_table, "KEPT_SNAPSHOTS", 1)
        patched.setattr(small_files, "FAN_IN", 3)
        yield


@pytest.mark.usefixtures("keeping_one_snapshot")
def test_a_long_read_during_compaction_and_expiry_has_all_rows_or_fails(spark: SparkSession, tmp_path: Path) -> None:
    log, path, clock = tmp_path / "log", tmp_path / "warehouse" / "flights", ManualClock()
    append(log, flights(0, 20))
    update_table(log, path, topic="flights")
    append(log, flights(20, 20))
    update_table(log, path, topic="flights")
    frame = read_table(spark, path)
    reading = frame.toLocalIterator()
    read = [next(reading).offset]
    append(log, flights(40, 20))
    assert update_table(log, path, topic="flights").rewritten_files == 3
    append(log, flights(60, 1))
    update_table(log, path, topic="flights")
    with LogTable.open(path) as opened, opened.locked():
        sweep(OsFs(), opened, clock)
        clock.advance(DATA_GRACE_MS - 1)
        sweep(OsFs(), opened, clock)
        read += [row.offset for row in reading]
        assert sorted(read) == list(range(40))
        assert frame.count() == 40
        clock.advance(1)
        assert sweep(OsFs(), opened, clock) >= 3
    with pytest.raises(Exception, match=r"does not exist|FAILED_READ_FILE"):
        frame.collect()
    assert read_table(spark, path).count() == 61
