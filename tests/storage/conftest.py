"""Fixtures that tests of several files have."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.storage.directories import Disk
from tests.storage.offline.written_segments import numbered, write_segment


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    return tmp_path / "logs"


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    """Offsets 0 to 29 in three segments."""
    directory = tmp_path / "data" / "web-0"
    for base in (0, 12, 24):
        write_segment(directory, base, numbered(base, 12 if base < 24 else 6))
    return directory
