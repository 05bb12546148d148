"""Where clusters are whose sessions last a second or two."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.memory import directory_in_memory


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A disk that is busy for longer than a session would be one more fault. What brokers have said is kept in
    ``tmp_path``."""
    with directory_in_memory() as path:
        yield path
        for log in path.rglob("*.log"):
            if log.parent.name in ("cluster", path.name):
                shutil.copy(log, tmp_path)
