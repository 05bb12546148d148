"""A store that is put back from any older copy, again and again, while topics are created and deleted: under every seed
nothing is deleted whose deletion the store did not name. Brokers refuse such a store. Here an operator accepts it, or
the broker cannot notice, because its directory has no generation yet."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import AsyncExitStack, closing
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from seglog.cluster.backup import accepted
from seglog.cluster.sqlite_store import SqliteStore
from seglog.core.clock import SystemClock
from seglog.core.fs import OsFs
from seglog.storage.directory.cluster_mark import read_mark, write_mark
from seglog.storage.directory.strays import STRAY
from seglog.storage.formats.checkpoints import read_partition_metadata
from tests.cases import case
from tests.replication.brokers import Node, controlling, is_whole
from tests.replication.logs import batch

NAMES = ("a", "b", "c")
STEPS = 14


def copy(source: Path, target: Path) -> None:
    with closing(sqlite3.connect(source)) as here, closing(sqlite3.connect(target)) as there:
        here.backup(there)


def kept(directory: Path) -> dict[UUID, list[bytes]]:
    """The logs of each topic id, of replicas and of strays."""
    found: dict[UUID, list[bytes]] = {}
    for path in sorted(directory.glob("*-0*")):
        if not path.suffix or path.name.endswith(STRAY):
            topic_id = read_partition_metadata(OsFs(), str(path))
            if topic_id is not None:
                found.setdefault(topic_id, []).append(b"".join(one.read_bytes() for one in sorted(path.glob("*.log"))))
    return found


async def accept(path: Path, seconds: int) -> None:
    """As `seglog cluster accept-store` does, some seconds from now: it tells two acceptances apart by their second."""
    store = await SqliteStore.open(path)
    await store.commit(list(accepted(await store.load(""), SystemClock().now_ms() + 1000 * seconds)))
    await store.close()


def forget(directory: Path) -> None:
    """Let the directory's mark say nothing of the store that it was used with."""
    mark = read_mark(OsFs(), str(directory))
    assert mark is not None
    write_mark(OsFs(), str(directory), mark._replace(generation=-1, broker_epoch=0))


class Story:
    """One broker, its store, and copies of it; ``expected`` are the records of topics whose deletion nobody named."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        self.rng = Random(seed)
        self.store = path / "store.db"
        self.copies: list[Path] = []
        self.expected: dict[UUID, bytes] = {}
        self.control = AsyncExitStack()

    async def run(self) -> None:
        node = await self.start()
        try:
            for step in range(STEPS):
                case()
                act = self.rng.choice((self.create, self.create, self.delete, self.copy, self.put_back))
                node = await act(node, step)
                self.check()
        finally:
            await self.stop(node)

    async def start(self) -> Node:
        await self.control.enter_async_context(controlling(self.path))
        return await Node(self.path, 1).started()

    async def stop(self, node: Node) -> None:
        await node.stop()
        await self.control.aclose()

    def check(self) -> None:
        found = kept(self.path / "1")
        for topic_id, records in self.expected.items():
            assert records in found.get(topic_id, []), f"records of {topic_id} are gone"

    async def create(self, node: Node, step: int) -> Node:
        free = [name for name in NAMES if name not in node.view.topics]
        if free:
            topic_id = await node.create(self.rng.choice(free), [[1]], life=step)
            await node.until(lambda: (topic_id, 0) in node.replicas.by_key and node.replica(topic_id).leads)
            node.replica(topic_id).append(batch(self.rng.randrange(1, 200)))
            await node.until(lambda: is_whole([node], topic_id))
            (self.expected[topic_id],) = kept(self.path / "1")[topic_id]
        return node

    async def delete(self, node: Node, _: int) -> Node:
        there = sorted(node.view.topics)
        if there:
            name = self.rng.choice(there)
            topic_id = node.view.topics[name].topic_id
            self.expected.pop(topic_id, None)
            await node.delete(name, tombstones=(1,))
            await node.until(lambda: topic_id not in kept(self.path / "1") and not node.view.deletions)
        return node

    async def copy(self, node: Node, step: int) -> Node:
        self.copies.append(self.path / f"copy-{step}")
        copy(self.store, self.copies[-1])
        return node

    async def put_back(self, node: Node, step: int) -> Node:
        if not self.copies:
            return node
        await self.stop(node)
        for file in self.path.glob("store.db*"):
            file.unlink()
        copy(self.rng.choice(self.copies), self.store)
        if self.rng.random() < 0.5:
            await accept(self.store, step)
        else:
            forget(self.path / "1")
        return await self.start()


@pytest.mark.parametrize("seed", range(30))
def test_restoring_an_older_store_deletes_only_named_replicas(tmp_path: Path, seed: int) -> None:
    asyncio.run(Story(tmp_path, seed).run())
