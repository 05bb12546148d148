"""Fixtures that these tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.memory import directory_in_memory
from tests.replication.pair import Pair


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Requests wait for some milliseconds, in the same loop in which directories are made."""
    with directory_in_memory() as path:
        yield path


@pytest.fixture
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """A leader and a follower. ``indirect`` parameters are settings of both."""
    with Pair(getattr(request, "param", None)) as made:
        yield made
