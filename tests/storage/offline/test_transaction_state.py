"""Transactions of directories without segments: a replica that has not begun, or whose segments were removed."""

from __future__ import annotations

from pathlib import Path

from seglog.core.fs import OsFs
from seglog.sources.directories.scan_start import offset_at_time
from seglog.storage.offline.transaction_state import ReadCommittedState, read_transactions


def test_a_partition_without_segments_has_no_transactions(tmp_path: Path) -> None:
    assert read_transactions(OsFs(), str(tmp_path)) == ReadCommittedState((), None)


def test_a_partition_without_segments_has_no_record_of_any_time() -> None:
    assert offset_at_time(OsFs(), [], 0, 0) is None
