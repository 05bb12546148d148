"""Other readers see the newest values in a keyed table, and find a key in one file."""

from __future__ import annotations

import json
from typing import Any

import duckdb
import polars as pl
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import EqualTo

from seglog.table.iceberg.layout import DELTA_LOG
from seglog.table.iceberg.log_table import LogTable
from tests.table.keyed.keyed_log import KeyedLog, newest_in


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> KeyedLog:
    """A table after three runs."""
    log = KeyedLog(tmp_path_factory.mktemp("readers"))
    log.write((b"key %d" % number, b"old") for number in range(40))
    log.update(delta=True, buckets=8)
    log.write([(b"key 3", b"other partition")], partition=1)
    log.write([(b"key 1", None), (b"key 2", b"new")])
    log.update()
    log.write([(b"key 2", b"newer")])
    log.update()
    return log


def test_pyiceberg_finds_a_key_in_one_file(made: KeyedLog) -> None:
    with SqlCatalog("seglog", uri=f"sqlite:///{made.table.parent}/catalog.db") as catalog:
        table = catalog.load_table("logs.t")
        assert newest_in(table.scan().to_arrow()) == made.newest
        equal: Any = EqualTo  # its signature is for pydantic
        scan = table.scan(row_filter=equal("key", b"key 3"))
        assert len(list(scan.plan_files())) == 1
        assert newest_in(scan.to_arrow()) == {place: at for place, at in made.newest.items() if place[1] == b"key 3"}


def test_polars_reads_its_metadata(made: KeyedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    with LogTable.open(made.table) as opened:
        found: Any = pl.scan_iceberg(opened.iceberg.metadata_location).collect()
    assert newest_in(found.to_arrow(compat_level=pl.CompatLevel.oldest())) == made.newest


def test_duckdb_reads_a_snapshots_files(made: KeyedLog) -> None:
    with LogTable.open(made.table) as opened, duckdb.connect() as connection:
        snapshot = opened.snapshot()
        assert snapshot is not None
        found = connection.read_parquet(list(snapshot.files)).to_arrow_table()
    assert newest_in(found) == made.newest


def test_delta_says_that_each_exchange_changes_records(made: KeyedLog) -> None:
    assert newest_in(DeltaTable(made.table / "data").to_pyarrow_table()) == made.newest
    for version in (1, 2, 3):  # the third one exchanges files of as many records, too
        lines = (made.table / "data" / DELTA_LOG / f"{version:020d}.json").read_text().splitlines()
        actions = [found for line in lines if (found := json.loads(line).get("add") or json.loads(line).get("remove"))]
        assert {action["dataChange"] for action in actions} == {True}, version
