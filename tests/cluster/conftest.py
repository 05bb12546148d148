"""One ZooKeeper for all tests of a process; each test has its own cluster in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.secured_zookeeper import SecuredZooKeeper, secured_zookeeper
from tests.kafka.zookeeper import ZooKeeperNode
from tests.kit.memory import directory_in_memory


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A directory in memory: these tests have sessions of a second or less, and none tests a disk."""
    with directory_in_memory() as path:
        yield path


@pytest.fixture(scope="session")
def server() -> Iterator[ZooKeeperNode]:
    with directory_in_memory() as path, ZooKeeperNode(path / "zookeeper") as node:
        yield node


@pytest.fixture(scope="session")
def secured() -> Iterator[SecuredZooKeeper]:
    with directory_in_memory() as path, secured_zookeeper(path) as zookeeper:
        yield zookeeper
