"""The store in ZooKeeper: the contract on a real server, and what is its own: connections cut, servers killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from tests.cluster.contract_watches import WatchContract
from tests.kafka.zookeeper import ZooKeeperNode

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperNode]:
    with ZooKeeperNode(tmp_path_factory.mktemp("zookeeper")) as node:
        yield node


class TestZooKeeperStore(WatchContract):
    servers: ClassVar[str]

    @pytest.fixture(autouse=True)
    def _running(self, server: ZooKeeperNode) -> None:
        type(self).servers = server.address

    def address(self, path: Path) -> str:
        return f"zookeeper://{self.servers}/{path.name}"
