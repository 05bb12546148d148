"""One ZooKeeper for all tests of a process; each has a cluster of its own in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kafka.zookeeper import ZooKeeperNode
from tests.kit.memory import directory_in_memory


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Sessions of a second or less are in it, and no test of a disk."""
    with directory_in_memory() as path:
        yield path


@pytest.fixture(scope="session")
def server() -> Iterator[ZooKeeperNode]:
    with directory_in_memory() as path, ZooKeeperNode(path / "zookeeper") as node:
        yield node
