"""The topics of a broker that is alone are what its directory has: at each start, and before each answer."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar
from uuid import UUID

import pytest

from seglog.broker.app import Node
from seglog.broker.topics.directory_topics import DirectoryTopics
from seglog.cli.main import main
from seglog.cluster.embedded_store import EmbeddedStore
from seglog.cluster.features import FEATURES
from seglog.cluster.model import TopicState, encode, topic_name
from seglog.core.broker_config import BrokerConfig
from seglog.core.errors import InvalidConfigError, SeglogError
from seglog.core.ground import Ground
from seglog.records.record import NewRecord, encode_batch
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.formats.paths import STORE
from tests.cases import case
from tests.kit.crash_fs import CrashFs, SimulatedCrash
from tests.kit.memory_fs import MemoryFs

T = TypeVar("T")
NODE: Final = 1
SOON: Final = 60.0


def serve(path: Path | str, work: Callable[[Node], Coroutine[Any, Any, T]], **more: str) -> T:
    settings = {"log.dirs": str(path), "listeners": "PLAINTEXT://127.0.0.1:0", **more}

    async def main() -> T:
        async with Node(BrokerConfig.from_mapping(settings)) as node:
            return await work(node)

    return asyncio.run(main())


async def create(node: Node, name: str, partitions: int = 2) -> None:
    await node.changes.create(name, node.changes.place(partitions, 1), {})


async def append(node: Node, name: str) -> list[int]:
    """A record to each partition that is led here; the leader epochs in which that was."""
    led = [replica for replica in node.topics.by_name[name].partitions if replica is not None and replica.leads]
    for replica in led:
        replica.append(encode_batch([NewRecord(b"v")]), needs_all=True)
        assert replica.log.high_watermark == replica.log.log_end_offset
    return [replica.leader_epoch for replica in led]


async def topics(node: Node) -> dict[str, int]:
    """How many partitions of each topic are led here."""
    return {
        topic.name: sum(replica is not None and replica.leads for replica in topic.partitions) for topic in node.topics
    }


def test_a_start_takes_over_what_was_created_removed_and_grown_meanwhile(tmp_path: Path) -> None:
    async def first(node: Node) -> None:
        for name in ("kept", "removed", "grown"):
            await create(node, name)

    serve(tmp_path, first)
    with LogDir.open(str(tmp_path)) as directory:
        directory.delete_topic("removed")
        directory.add_partitions("grown", 3)
        directory.create_topic("added", 4)
    assert serve(tmp_path, topics) == {"kept": 2, "grown": 3, "added": 4}
    names = {entry.name for entry in tmp_path.iterdir()}
    assert not [name for name in names if name.endswith("-stray")]
    kept = json.loads((tmp_path / STORE).read_bytes())["values"].keys()
    assert kept == {FEATURES}, "of a topic, nothing but its configuration has to outlive the process"


def test_a_partition_whose_records_are_missing_has_no_leader(tmp_path: Path) -> None:
    async def fill(node: Node) -> list[int]:
        await create(node, "t")
        return await append(node, "t")

    async def error(node: Node) -> tuple[str, ...]:
        topic = node.topics.by_name["t"]
        assert await node.view.until(lambda: node.topics.metadata(topic, 1).leader < 0, SOON)
        missing: list[tuple[str | UUID, int]] = [("t", 1), (topic.topic_id, 1), ("t", 2), ("u", 0), (UUID(int=9), 0)]
        return node.topics.metadata(topic, 1).error.name, *[node.topics.why_not(*one).name for one in missing]

    serve(tmp_path, fill)
    shutil.rmtree(tmp_path / "t-1")
    assert serve(tmp_path, topics) == {"t": 1}
    assert serve(tmp_path, error) == (
        "LEADER_NOT_AVAILABLE",
        "KAFKA_STORAGE_ERROR",
        "KAFKA_STORAGE_ERROR",
        "UNKNOWN_TOPIC_OR_PARTITION",
        "UNKNOWN_TOPIC_OR_PARTITION",
        "UNKNOWN_TOPIC_ID",
    )


def test_a_start_leads_in_an_epoch_that_no_record_has(tmp_path: Path) -> None:
    async def first(node: Node) -> list[int]:
        await create(node, "t", 1)
        return await append(node, "t")

    assert serve(tmp_path, first) == [0]
    assert serve(tmp_path, partial(append, name="t")) == [1]
    assert serve(tmp_path, topics) == {"t": 1}, "an epoch without records leaves nothing behind"
    assert serve(tmp_path, partial(append, name="t")) == [2]


def test_a_topic_is_created_whole_or_not_at_all_wherever_the_power_is_cut() -> None:
    """A topic whose creation was acknowledged survives."""

    def directory(fs: MemoryFs | CrashFs) -> LogDir:
        # Indexes are allocated whole: 10 MB each would take most of the time.
        return LogDir.open("/logs", config={"log.index.size.max.bytes": 1200}, ground=Ground(fs=fs, rng=Random(1)))

    async def create_one(fs: CrashFs, at: int, answered: list[str]) -> None:
        topic = TopicState(name="t", topic_id=UUID(int=7), assignment=((NODE,),) * 3)
        backing = DirectoryTopics(directory(fs), NODE)
        store = await EmbeddedStore.open(f"/logs/{STORE}", Ground(fs=fs), lasting=(), backing=backing)
        fs.crash_at = fs.changes + at
        await store.create(topic_name("t"), encode(topic))
        answered.append("t")

    for at in range(1, 1000):
        case()
        disk = MemoryFs()
        directory(disk).close()
        fs, answered = CrashFs(disk), list[str]()
        with suppress(SimulatedCrash, SeglogError):
            asyncio.run(create_one(fs, at, answered))
        disk.locked.clear()
        disk.crash(Random(at))
        with directory(disk) as after:
            counts = {name: topic.partitions for name, topic in after.topics().items()}
        assert counts in ({}, {"t": 3})
        assert counts or not answered
        if not fs.crashed:
            assert answered
            return
    raise AssertionError("it never came to its end")


def test_the_directory_of_a_lone_broker_begins_a_cluster(tmp_path: Path) -> None:
    """The broker says how, and then leads what it led alone."""
    path, store = tmp_path / "logs", f"sqlite:{tmp_path / 'store'}"

    async def fill(node: Node) -> list[int]:
        await create(node, "t")
        return await append(node, "t")

    async def ends(node: Node) -> list[int]:
        topic = node.topics.by_name["t"]
        assert await node.changes.settled([topic], SOON)
        return [-1 if replica is None else replica.log.high_watermark for replica in topic.partitions]

    serve(path, fill)
    in_cluster = {"cluster.store": store, "node.id": str(NODE)}
    with pytest.raises(InvalidConfigError, match=f"seglog cluster rebuild --store {store} {path}"):
        serve(path, topics, **in_cluster)
    assert main(["cluster", "rebuild", "--store", store, str(path)]) == 0
    assert serve(path, ends, **in_cluster) == [1, 1]
    with pytest.raises(SeglogError, match="seglog cluster leave"):
        serve(path, topics)
    assert not [entry.name for entry in path.iterdir() if entry.name.endswith("-stray")]
