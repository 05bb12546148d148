"""A store that is put back from any older copy, again and again, while topics are created and deleted: under every seed
nothing is deleted whose deletion the store did not name. Brokers refuse such a store; this is what is left if one does
not notice, or an operator accepts it."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from seglog.core.fs import OsFs
from seglog.storage.directory.strays import STRAY
from seglog.storage.formats.checkpoints import read_partition_metadata
from tests.cases import case
from tests.replication.brokers import Node, is_whole
from tests.replication.leading import batch

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


class Story:
    """One broker, its store, and copies of it; ``expected`` are the records of topics whose deletion nobody named."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        self.rng = Random(seed)
        self.store = path / "store.db"
        self.copies: list[Path] = []
        self.expected: dict[UUID, bytes] = {}

    async def run(self) -> None:
        node = await (await Node(self.path, 1).open()).start()
        try:
            for step in range(STEPS):
                case()
                act = self.rng.choice((self.create, self.create, self.delete, self.copy, self.put_back))
                node = await act(node, step)
                self.check()
        finally:
            await node.stop()

    def check(self) -> None:
        found = kept(self.path / "1")
        for topic_id, records in self.expected.items():
            assert records in found.get(topic_id, []), f"records of {topic_id} are gone"

    async def create(self, node: Node, step: int) -> Node:
        free = [name for name in NAMES if name not in node.view.topics]
        if free:
            node.told.extend([("", 0, False)] * (step + 1))  # each topic has another id
            topic_id = await node.create(self.rng.choice(free), [[1]])
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

    async def put_back(self, node: Node, _: int) -> Node:
        if not self.copies:
            return node
        await node.stop()
        for file in self.path.glob("store.db*"):
            file.unlink()
        copy(self.rng.choice(self.copies), self.store)
        return await (await Node(self.path, 1).open()).start()


@pytest.mark.parametrize("seed", range(30))
def test_whatever_copy_is_put_back_nothing_is_deleted_that_was_not_named(tmp_path: Path, seed: int) -> None:
    asyncio.run(Story(tmp_path, seed).run())
