"""The contract of a cluster on a real ZooKeeper, with connections that are cut."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import ClassVar

import pytest

from seglog.cluster.model import Member
from tests.cluster.cluster_member import ClusterMember, make_topic, stores
from tests.cluster.contract import SOON
from tests.cluster.contract_controller import ControllerContract, seen
from tests.cluster.faulty import Faulty
from tests.cluster.proxy import Proxy
from tests.kafka.zookeeper import ZooKeeperNode

pytestmark = pytest.mark.interop


class TestControllerOnZooKeeper(ControllerContract):
    servers: ClassVar[str]

    @pytest.fixture(autouse=True)
    def _running(self, server: ZooKeeperNode) -> None:
        type(self).servers = server.address

    def address(self, path: Path) -> str:
        return f"zookeeper://{self.servers}/{path.name}"

    def test_a_broker_without_a_connection_resigns_and_joins_again(self, server: ZooKeeperNode, tmp_path: Path) -> None:
        """It survives a short cut in its epoch; a long one ends its session, and another broker becomes the
        controller."""

        async def work(cut_off: Faulty, made: list[Faulty], proxy: Proxy) -> None:
            first, second = ClusterMember(cut_off, 1, timeout_ms=4000), ClusterMember(made[0], 2)
            for party in (first, second):
                await party.join()
                party.run(controller=True)
                await first.controls(1)
            await make_topic(made[0].store, "t", [[1, 2]] * 5)
            await seen(second, lambda party: party.is_settled(5, 1))
            proxy.is_closed = True
            proxy.cut()
            await first.hears("confirmed", "doubted")
            assert first.member() == Member(1, 1)
            assert first.epoch() is None
            proxy.is_closed = False
            await first.hears("confirmed", "doubted", "confirmed")
            assert first.member() == Member(1, 1)
            await first.controls(1)
            first.heard.clear()
            proxy.is_closed = True
            proxy.cut()
            await second.controls(2)
            await seen(second, lambda party: party.is_settled(5, 2))
            assert first.epoch() is None
            proxy.is_closed = False
            await first.hears("doubted", "resigned", "confirmed")
            assert first.member() == Member(1, 3)
            await seen(first, lambda party: party.is_settled(5, 2) and party.view.brokers.keys() == {1, 2})

        async def behind() -> None:
            async with Proxy(server.port) as proxy:
                through = f"zookeeper://127.0.0.1:{proxy.port}/{tmp_path.name}"
                async with stores(self.address(tmp_path), 1) as made, stores(through, 1) as cut_off:
                    await asyncio.wait_for(work(cut_off[0], made, proxy), 2 * SOON)

        asyncio.run(behind())
