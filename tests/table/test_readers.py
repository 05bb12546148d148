"""Other readers see the same rows in a table as `seglog.scan` in its log, after appends and after rewriting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from seglog.records.columns import SCHEMA
from seglog.table.building import update_table
from seglog.table.iceberg.log_table import LogTable
from tests.table.tables import append, flights, scanned


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("readers")
    log, table = root / "log", root / "warehouse" / "flights"
    for number in range(18):
        append(log, flights(number * 10, 10), partition=number % 2)
        update_table(log, table, topic="flights")
    return log, table


def _same(found: pa.Table, log: Path) -> bool:
    rows = found.select(list(SCHEMA.names)).cast(SCHEMA)
    return rows.sort_by([("partition", "ascending"), ("offset", "ascending")]).equals(scanned(log))


def test_pyiceberg_finds_it_in_the_catalog(made: tuple[Path, Path]) -> None:
    log, table = made
    with SqlCatalog("seglog", uri=f"sqlite:///{table.parent}/catalog.db") as catalog:
        flights_table = catalog.load_table("logs.flights")
        found = flights_table.scan().to_arrow()
        assert _same(_without_empty_lists(found), log)
        behind = flights_table.scan(row_filter="offset >= 80 and partition = 1", selected_fields=("offset",)).to_arrow()
    assert sorted(row["offset"] for row in behind.to_pylist()) == list(range(80, 90))


def _without_empty_lists(found: pa.Table) -> pa.Table:
    """pyiceberg 0.12 returns an empty list where a list is null."""
    rows = [{**row, "headers": row["headers"] or None} for row in found.to_pylist()]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def test_polars_reads_its_metadata(made: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    log, table = made
    with LogTable.open(table) as opened:
        found: Any = pl.scan_iceberg(opened.iceberg.metadata_location).collect()
    assert _same(found.to_arrow(compat_level=pl.CompatLevel.oldest()), log)


def test_duckdb_reads_a_snapshots_files(made: tuple[Path, Path]) -> None:
    log, table = made
    with LogTable.open(table) as opened, duckdb.connect() as connection:
        snapshot = opened.snapshot()
        assert snapshot is not None
        connection.execute("set timezone = 'UTC'")
        found = connection.read_parquet(list(snapshot.files)).to_arrow_table()
    assert _same(found, log)
