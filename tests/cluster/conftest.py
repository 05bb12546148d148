"""One ZooKeeper for all tests of a process; each has a cluster of its own in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kafka.zookeeper import ZooKeeperNode


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperNode]:
    with ZooKeeperNode(tmp_path_factory.mktemp("zookeeper")) as node:
        yield node
