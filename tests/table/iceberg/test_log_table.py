"""A commit: what is on the disk before it, and what becomes of tables that others changed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy import Engine, event

from seglog.core.errors import CorruptCheckpointError, InvalidConfigError
from seglog.table.iceberg.layout import local_path, table_path
from seglog.table.iceberg.log_table import LogTable
from tests.table.disk_recorder import DiskRecorder
from tests.table.test_maintenance import add


def test_all_that_a_snapshot_names_is_on_the_disk_before_the_catalog_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = DiskRecorder(tmp_path / "warehouse")
    lost: list[frozenset[str]] = []

    def at_commit(_connection: object) -> None:
        lost.append(disk.at_risk)

    disk.watch(monkeypatch)
    event.listen(Engine, "commit", at_commit)
    try:
        with LogTable.open_or_create(tmp_path / "warehouse" / "t") as table:
            add(table, 0)
            add(table, 1)
            named = table.named_files()
    finally:
        event.remove(Engine, "commit", at_commit)
    assert len(lost) >= 3
    assert not any(lost)
    assert all(os.path.exists(path) for path in named)


def test_the_catalog_syncs_its_directory(tmp_path: Path) -> None:
    with LogTable.open_or_create(tmp_path / "warehouse" / "t") as table:
        add(table, 0)
        assert isinstance(table._catalog, SqlCatalog)
        with table._catalog.engine.connect() as connection:
            assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 3


def test_a_deletion_by_another_program_keeps_the_positions(tmp_path: Path) -> None:
    with LogTable.open_or_create(tmp_path / "warehouse" / "t") as table:
        add(table, 0)
        table.iceberg.delete("partition = 0")
        table.refresh()
        found = table.snapshot()
        assert found is not None
        assert (found.records, found.positions.partitions[0].upto) == (3, 3)


def test_a_rollback_takes_the_positions_with_it(tmp_path: Path) -> None:
    with LogTable.open_or_create(tmp_path / "warehouse" / "t") as table:
        add(table, 0)
        first = table.snapshot()
        assert first is not None
        add(table, 1)
        table.iceberg.manage_snapshots().rollback_to_snapshot(first.id).commit()
        table.refresh()
        found = table.snapshot()
        assert found is not None
        assert (found.records, found.positions) == (6, first.positions)


def test_a_table_of_another_program_is_refused(tmp_path: Path) -> None:
    with LogTable.open_or_create(tmp_path / "warehouse" / "t") as table:
        table.iceberg.append(table.iceberg.scan().to_arrow())
        table.refresh()
        with pytest.raises(CorruptCheckpointError, match="was not made by seglog"):
            table.positions()


def test_paths_of_tables(tmp_path: Path) -> None:
    found = table_path(f"file://{tmp_path}/warehouse/a.b")
    assert (found.warehouse, found.name) == (f"{tmp_path}/warehouse", "a.b")
    assert local_path(found.location) == f"{tmp_path}/warehouse/a.b"
    found = table_path("s3://bucket/warehouse/flights/")
    assert (found.warehouse, found.name, found.is_local) == ("s3://bucket/warehouse", "flights", False)
    assert local_path(found.location) == found.root == "s3://bucket/warehouse/flights"
    assert table_path("abfs://container@account.dfs.core.windows.net/w/t").name == "t"
    for wrong in ("s3://flights", "ftp://host/w/t", "s3://me:hunter2@host/w/t", "/a#b/t", "/a*/t"):
        with pytest.raises(InvalidConfigError) as raised:
            table_path(wrong)
        assert "hunter2" not in str(raised.value)
