"""A Delta log shows the table's rows, follows after any failure, and can be made anew."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from seglog.core.clock import SystemClock
from seglog.core.fs import OsFs
from seglog.table import small_files
from seglog.table.delta_log import follow
from seglog.table.iceberg.layout import DELTA_LOG
from seglog.table.iceberg.log_table import LogTable
from seglog.table.maintenance import rewrite_small_files
from tests.kit.manual_clock import ManualClock
from tests.table.test_maintenance import add

FS, CLOCK = OsFs(), ManualClock()


@pytest.fixture
def table(tmp_path: Path) -> Iterator[LogTable]:
    with LogTable.open_or_create(tmp_path / "warehouse" / "t") as opened:
        yield opened


def _same(table: LogTable) -> bool:
    snapshot = table.snapshot()
    delta = DeltaTable(table.path.data)
    assert snapshot is not None
    rows = delta.to_pyarrow_table()
    offsets = sorted(zip(rows.column("partition").to_pylist(), rows.column("offset").to_pylist(), strict=True))
    assert len(set(offsets)) == len(offsets) == snapshot.records
    return {Path(uri).name for uri in delta.file_uris()} == {Path(file).name for file in snapshot.files}


def test_follows_commit_by_commit_and_does_nothing_twice(table: LogTable) -> None:
    assert not follow(FS, table, CLOCK)  # there is no snapshot yet
    for number in range(3):
        add(table, number)
        assert follow(FS, table, CLOCK)
        assert not follow(FS, table, CLOCK)
        assert _same(table)
    assert DeltaTable(table.path.data).version() == 3


def test_catches_up_after_runs_that_died_before_it(table: LogTable) -> None:
    add(table, 0)
    follow(FS, table, CLOCK)
    for number in range(1, small_files.FAN_IN + 2):
        add(table, number)
    with table.locked():
        assert rewrite_small_files(FS, table)
    assert follow(FS, table, CLOCK)
    assert _same(table)
    shutil.rmtree(Path(table.path.data, DELTA_LOG))
    assert follow(FS, table, CLOCK)
    assert _same(table)


def test_says_that_rewriting_changes_no_records(table: LogTable) -> None:
    for number in range(small_files.FAN_IN):
        add(table, number)
    follow(FS, table, CLOCK)
    with table.locked():
        rewrite_small_files(FS, table)
    follow(FS, table, CLOCK)
    assert _same(table)
    for version, changes in ((1, {True}), (2, {False})):
        lines = Path(table.path.data, DELTA_LOG, f"{version:020d}.json").read_text().splitlines()
        actions = [found for line in lines if (found := json.loads(line).get("add") or json.loads(line).get("remove"))]
        assert {action["dataChange"] for action in actions} == changes


def test_vacuum_leaves_what_iceberg_names(table: LogTable) -> None:
    for number in range(small_files.FAN_IN):
        add(table, number)
    follow(FS, table, CLOCK)
    before = table.snapshot()
    with table.locked():
        rewrite_small_files(FS, table)
    follow(FS, table, SystemClock())  # vacuum compares with the time of the machine
    DeltaTable(table.path.data).vacuum(dry_run=False)
    assert before is not None
    assert all(Path(file).exists() for file in before.files)
    assert _same(table)
