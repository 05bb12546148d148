"""Partitions that this broker cannot open, for a while or until the next start."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from seglog.cluster.model import Member, offline_name
from seglog.core import descriptors
from seglog.core.errors import SeglogError
from seglog.storage.directory.catalog import ReplicaSpec
from seglog.storage.directory.log_dirs import LogDirs
from seglog.storage.log.log import Log
from tests.replication.brokers import Node, cluster

NONE_LEFT = descriptors.KEPT_BACK + descriptors.most_sealed_files()
OTHER = 2


def run(path: Path, act: Callable[[Node, list[tuple[str, ...]]], Awaitable[None]]) -> None:
    """``act`` gets the partitions that were reported as not served."""

    async def within() -> None:
        told: list[tuple[str, ...]] = []
        async with cluster(path, 1, {"replica.lag.time.max.ms": "200"}) as (node,):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(node.membership, "report_offline", lambda partitions, _: told.append(partitions))
                await act(node, told)

    asyncio.run(within())


def test_a_partition_without_files_is_made_when_there_are_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory stays in use, and another broker may lead the partition in the meantime."""

    async def act(node: Node, told: list[tuple[str, ...]]) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(descriptors, "free_descriptors", lambda: NONE_LEFT + 1 - len(node.directories.logs))
            topic_id = await node.create("t", [[1], [1], [1]])
            await node.until(lambda: bool(told))
            await node.until(lambda: told[-1] == tuple(offline_name(topic_id, number) for number in (1, 2)))
            assert node.directories.offline == {}
            await node.until(lambda: node.replica(topic_id, 0).leads)
        await node.until(lambda: len(node.replicas.by_key) == 3)
        await node.until(lambda: all(node.replica(topic_id, number).leads for number in range(3)))
        assert told[-1] == ()

    run(tmp_path, act)


def test_offline_replicas_are_unreported_once_moved_or_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(node: Node, told: list[tuple[str, ...]]) -> None:
        monkeypatch.setattr(descriptors, "free_descriptors", lambda: NONE_LEFT)
        topic_id = await node.create("t", [[1], [1]])
        await node.until(lambda: bool(told))
        await node.put(topic_id, lambda state: replace(state, replicas=(OTHER,), leader=OTHER, isr=(Member(OTHER, 9),)))
        await node.until(lambda: told[-1] == (offline_name(topic_id, 1),))
        await node.delete("t")
        await node.until(lambda: told[-1] == ())

    run(tmp_path, act)


def test_a_disk_that_fails_when_a_partition_was_just_made_takes_it_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failure is reported before the partition is registered; otherwise no other broker would lead it."""
    real = LogDirs.hold_many

    def hold_many(self: LogDirs, wanted: Iterable[ReplicaSpec]) -> list[Log | SeglogError]:
        made = real(self, wanted)
        self.dirs[0].health.failed(OSError(errno.EIO, "Input/output error"))
        return made

    async def act(node: Node, told: list[tuple[str, ...]]) -> None:
        monkeypatch.setattr(LogDirs, "hold_many", hold_many)
        topic_id = await node.create("t", [[1]])
        await node.until(lambda: bool(told) and told[-1] == (offline_name(topic_id, 0),))

    run(tmp_path, act)
