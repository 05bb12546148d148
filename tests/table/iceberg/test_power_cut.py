"""A power cut at any moment of a job leaves the old table or the new one, whatever it takes of files without a sync."""

from __future__ import annotations

from pathlib import Path

import pytest

from seglog.core.clock import SystemClock
from seglog.core.errors import UnknownTableError
from seglog.core.fs import OsFs
from seglog.table import small_files
from seglog.table.iceberg import log_table
from seglog.table.iceberg.log_table import LogTable
from seglog.table.maintenance import maintain
from tests.table.disk_recorder import DiskRecorder
from tests.table.test_maintenance import add, offsets

_COMMITS = 4


def _rows(commits: int) -> list[tuple[int, int]]:
    return [(partition, at) for partition in (0, 1) for at in range(3 * commits)]


def _commits_in(path: Path) -> int:
    """The number of commits whose records a table has, each once, and up to which it says that it is."""
    try:
        with LogTable.open(path) as table:
            positions = table.positions()
            commits = 0 if positions is None else positions.partitions[0].upto // 3
            assert (sorted(offsets(table)) if commits else []) == _rows(commits)
            return commits
    except UnknownTableError:
        return 0


@pytest.mark.parametrize("leaves_empty_files", [False, True])
def test_a_power_cut_at_any_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leaves_empty_files: bool) -> None:
    monkeypatch.setattr(small_files, "FAN_IN", 3)
    monkeypatch.setattr(log_table, "KEPT_SNAPSHOTS", 2)
    path = tmp_path / "warehouse" / "t"
    disk = DiskRecorder(path.parent)
    done: list[int] = []  # cuts before the end of each commit
    with monkeypatch.context() as patched:
        disk.watch(patched)
        with LogTable.open_or_create(path) as table:
            for number in range(_COMMITS):
                add(table, number)
                done.append(len(disk.cuts))
                with table.locked():
                    maintain(OsFs(), table, SystemClock())
    assert len(disk.cuts) >= 6 * _COMMITS
    for number, cut in enumerate(disk.cuts):
        disk.replay(cut, leaves_empty_files=leaves_empty_files)
        found = _commits_in(path)
        assert found >= sum(number >= one for one in done)
    for cut in disk.cuts[:: len(disk.cuts) // 5]:
        disk.replay(cut, leaves_empty_files=leaves_empty_files)
        with LogTable.open_or_create(path) as table:
            found = _commits_in(path)
            add(table, found)
        assert _commits_in(path) == found + 1
