"""`Replicas`: states of the metadata store become logs, leaders and followers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from seglog.cluster.backup import undecided
from seglog.cluster.model import (
    DELETED,
    NO_LEADER,
    PartitionState,
    decode_partition,
    encode,
    offline_name,
    partition_name,
    tombstone_name,
    topic_name,
)
from seglog.cluster.sqlite_store import SqliteStore
from seglog.cluster.store import ANY_VERSION, VersionedValue
from seglog.core.errors import NotLeaderError
from seglog.core.types import TopicPartition
from tests.cluster.faulty import AFTER, BEFORE
from tests.replication.brokers import Node, cluster, is_whole
from tests.replication.logs import batch, content


def run(path: Path, act: Callable[..., Awaitable[None]], nodes: int = 1, *, min_insync: int = 1) -> None:
    async def within() -> None:
        async with cluster(path, nodes, {"min.insync.replicas": str(min_insync)}) as started:
            await act(*started)

    asyncio.run(within())


async def led(node: Node, topic_id: UUID, number: int = 0) -> None:
    """Wait until it leads."""
    await node.until(lambda: (topic_id, number) in node.replicas.by_key and node.replica(topic_id, number).leads)


def moved(leader: int) -> Callable[[PartitionState], PartitionState]:
    return lambda state: replace(state, leader=leader, leader_epoch=state.leader_epoch + 1)


def test_three_brokers_have_the_same(tmp_path: Path) -> None:
    async def act(one: Node, two: Node, three: Node) -> None:
        nodes = [one, two, three]
        topic_id = await one.create("t", [[1, 2, 3], [2, 3, 1]])
        rng = Random(1)
        for leader in (1, 2, 3, 1):
            for number in (0, 1):
                await one.put(topic_id, moved(leader), number)
                node = nodes[leader - 1]
                await led(node, topic_id, number)
                for _ in range(rng.randrange(1, 5)):
                    node.replica(topic_id, number).append(batch(rng.randrange(10, 5_000)), needs_all=True)
        for number in (0, 1):
            await one.until(partial(is_whole, nodes, topic_id, number))
            assert len({content(node.replica(topic_id, number)) for node in nodes}) == 1

    run(tmp_path, act, 3, min_insync=2)


def isr_writes(node: Node) -> int:
    """How often it has tried to write states of partitions."""
    return sum(any(step.name.startswith("partitions/") for step in steps) for steps in node.faulty.commits)


def test_deposed_leader_refuses_appends_while_replicas_are_being_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partition moves to another broker. Removing its log takes time, and it may even come back before."""

    async def act(one: Node) -> None:
        topic_id = await one.create("t", [[1]])
        await led(one, topic_id)
        replica = one.replica(topic_id)
        replica.append(batch())
        may_change = asyncio.Event()
        monkeypatch.setattr(one.seen, "note", may_change.wait)  # which comes before logs are made and removed
        await one.put(topic_id, lambda state: replace(moved(2)(state), replicas=(2,), isr=()))
        with pytest.raises(NotLeaderError):
            replica.append(batch())
        assert one.told[-1] == ("t", 0, False)
        await one.put(topic_id, lambda state: replace(moved(1)(state), replicas=(1,), isr=(one.me,)))
        may_change.set()
        await led(one, topic_id)
        assert one.replica(topic_id) is replica  # with what it had
        assert replica.append(batch()).first_offset == 1

    run(tmp_path, act)


def test_a_topic_that_is_made_again_meanwhile_is_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(one: Node) -> None:
        first = await one.create("t", [[1]])
        await led(one, first)
        old = one.replica(first)
        old.append(batch())
        may_change = asyncio.Event()
        monkeypatch.setattr(one.seen, "note", may_change.wait)  # which comes before logs are made and removed
        await one.delete("t")
        second = await one.create("t", [[1]], life=1)
        assert second != first
        with pytest.raises(NotLeaderError):
            old.append(batch())
        may_change.set()
        await led(one, second)
        assert (first, 0) not in one.replicas.by_key
        assert one.replica(second).append(batch()).first_offset == 0

    run(tmp_path, act)


def test_a_named_removal_is_made_at_the_start_and_what_is_not_named_is_kept(tmp_path: Path) -> None:
    async def act(one: Node, two: Node) -> None:
        names = ("kept", "given", "given to nobody", "deleted", "forgotten")
        topics = {name: await two.create(name.replace(" ", "-"), [[1]]) for name in names}
        for topic_id in topics.values():
            await led(one, topic_id)
            one.replica(topic_id).append(batch())
        await one.stop()
        await two.put(topics["given"], lambda state: replace(moved(2)(state), replicas=(2,), isr=(two.me,)))
        await two.put(topics["given to nobody"], lambda state: replace(moved(2)(state), replicas=(2,), isr=()))
        await two.delete("deleted", tombstones=(1,))
        await two.delete("forgotten")
        again = await Node(tmp_path, 1).started()
        try:
            assert set(again.directories.found()) == {TopicPartition("kept", 0)}
            assert again.replica(topics["kept"]).log.log_end_offset == 1
            strays = {found.stray.topic_id for found in again.directories.strays()}
            assert strays == {topics["given to nobody"], topics["forgotten"]}
            assert await again.store.load(DELETED) == {}, "it is done with"
        finally:
            await again.stop()

    run(tmp_path, act, 2)


def test_a_replica_that_an_accepted_older_store_does_not_name_is_kept(tmp_path: Path) -> None:
    """The partition was moved to broker 1 after the copy was taken, and broker 2, which has deleted its replica, leads
    it with an empty log once the copy is accepted: the only log with records is that of broker 1."""

    async def act(one: Node, two: Node) -> None:
        topic_id = await two.create("t", [[1]])
        await led(one, topic_id)
        one.replica(topic_id).append(batch())
        await one.stop()
        accepted = undecided(PartitionState(replicas=(2,), leader=2, leader_epoch=0, isr=(two.me,)), 1 << 20)
        await two.put(
            topic_id, lambda _: replace(accepted, leader=2, leader_epoch=(1 << 20) + 1, isr=(two.me,), last_known=())
        )
        again = await Node(tmp_path, 1).started()
        try:
            (stray,) = again.directories.strays()
            await again.until(lambda: again.topics.strays[0] == 1)
            assert (stray.stray.topic_id, stray.stray.log_end) == (topic_id, 1)
        finally:
            await again.stop()

    run(tmp_path, act, 2)


@pytest.mark.parametrize("restarts", [False, True])
def test_stray_is_kept_and_restored_when_the_store_names_it_again(tmp_path: Path, restarts: bool) -> None:
    """An older copy of the store knows fewer topics: the others must not be deleted, at a start or later."""

    async def act(first: Node) -> None:
        topic_id = await first.create("t", [[1]])
        await led(first, topic_id)
        for _ in range(3):
            first.replica(topic_id).append(batch())
        before = content(first.replica(topic_id))
        names = (topic_name("t"), partition_name(topic_id, 0))
        values = await first.store.get_many(names)
        if restarts:
            await first.stop()
        other = await SqliteStore.open(tmp_path / "store.db")
        for name in names:
            await other.delete(name)
        one = await Node(tmp_path, 1).started() if restarts else first
        try:
            await one.until(lambda: bool(one.directories.strays()))
            assert not one.directories.found()
            for name in names:
                await other.create(name, values[name].value)
            await one.until(lambda: (topic_id, 0) in one.replicas.by_key)
            assert content(one.replica(topic_id)) == before
            assert not one.directories.strays()
        finally:
            await other.close()
            await one.stop()

    run(tmp_path, act)


def test_a_topic_that_is_deleted_while_its_broker_runs_leaves_nothing(tmp_path: Path) -> None:
    async def act(one: Node) -> None:
        topic_id = await one.create("t", [[1]])
        await led(one, topic_id)
        one.replica(topic_id).append(batch())
        await one.delete("t")
        await one.until(lambda: bool(one.directories.strays()))
        await one.store.create(tombstone_name(topic_id, 1), b"t")  # in ZooKeeper it may be seen later
        await one.until(lambda: not one.view.deletions and not one.directories.strays())
        assert await one.store.load(DELETED) == {}

    run(tmp_path, act)


@pytest.mark.parametrize("what", ["topic", "partition", "damaged"])
def test_unreadable_state_or_damaged_log_does_not_delete_the_replica(tmp_path: Path, what: str) -> None:
    """A later seglog wrote the value; or the log is damaged, and may be the only one."""

    async def act(one: Node, two: Node) -> None:
        topic_id = await two.create("t", [[1]])
        await led(one, topic_id)
        for _ in range(3):
            one.replica(topic_id).append(batch())
        await one.stop()
        if what == "damaged":
            (tmp_path / "1" / "t-0" / f"{0:020}.log").write_bytes(b"")
        else:
            name = topic_name("t") if what == "topic" else partition_name(topic_id, 0)
            await two.store.cas(name, b'{"form":99}', ANY_VERSION)
        again = await Node(tmp_path, 1).started()
        try:
            assert set(again.directories.found()) == {TopicPartition("t", 0)}
            assert (tmp_path / "1" / "t-0").is_dir()
        finally:
            await again.stop()

    run(tmp_path, act, 2)


def test_a_partition_that_cannot_be_led_stops_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(one: Node) -> None:
        topic_id = await one.create("t", [[1], [1], [1]])
        for number in range(3):
            await led(one, topic_id, number)
        one.replicas.resign()
        assert one.told[-3:] == [("t", number, False) for number in range(3)]

        def fails(_: int) -> None:
            raise ValueError("what nobody has foreseen")

        bad = one.replica(topic_id, 0)
        monkeypatch.setattr(bad, "log", type("Bad", (), {"has_epoch": fails, "hw_follows_end": False})())
        one.replicas.confirmed()
        assert [one.replica(topic_id, number).leads for number in range(3)] == [False, True, True]

    run(tmp_path, act)


def test_another_isr_is_not_proposed_again_and_again_to_a_store_that_fails(tmp_path: Path) -> None:
    async def act(one: Node, two: Node) -> None:
        topic_id = await one.create("t", [[1, 2]])
        await one.until(partial(is_whole, [one, two], topic_id))
        await one.put(topic_id, lambda state: replace(state, isr=(one.me,)))
        one.faulty.fail(*[BEFORE] * 3, at="partitions/")
        begun, loop = isr_writes(one), asyncio.get_running_loop()
        since = loop.time()
        for _ in range(20):
            one.replica(topic_id).append(batch())  # the follower asks each time
            await asyncio.sleep(0.005)
        assert isr_writes(one) - begun <= 2 + (loop.time() - since) * 5  # once in 0.2 s
        await one.until(partial(is_whole, [one, two], topic_id))

    run(tmp_path, act, 2)


def test_an_isr_of_which_nobody_knows_whether_it_is_written_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KAFKA-2729. Its members must have everything committed until the store has returned its state."""

    async def act(one: Node, two: Node) -> None:
        topic_id = await one.create("t", [[1, 2]])
        await one.until(partial(is_whole, [one, two], topic_id))
        name, real = partition_name(topic_id, 0), one.faulty.store
        there, asked, go_on = await real.get(name), asyncio.Event(), asyncio.Event()
        assert there is not None

        async def get(which: str) -> VersionedValue | None:
            if which == name:
                asked.set()
                await go_on.wait()
            return await real.get(which)

        monkeypatch.setattr(one.faulty, "get", get)
        one.faulty.fail(AFTER, at=name)
        begun = isr_writes(one)
        state = decode_partition(name, there.value)
        await real.cas(name, encode(replace(state, isr=(one.me,))), there.version)
        async with asyncio.timeout(60):
            await asked.wait()
        progress = one.replica(topic_id).progress
        assert progress is not None
        assert progress.proposed is not None
        assert progress.proposed.isr == (one.me, two.me)
        go_on.set()
        await one.until(partial(is_whole, [one, two], topic_id))
        assert isr_writes(one) - begun == 1

    run(tmp_path, act, 2)


def test_leader_does_not_readmit_replica_on_a_failed_disk(tmp_path: Path) -> None:
    """Although it has everything and fetches: the controller would remove it again and again."""

    async def act(one: Node, two: Node) -> None:
        topic_id = await one.create("t", [[1, 2]])
        await one.until(partial(is_whole, [one, two], topic_id))
        await two.membership.update(offline=(offline_name(topic_id, 0),))
        await one.until(lambda: bool(one.view.brokers[two.me.node_id].offline))
        await one.decide()
        replica = one.replica(topic_id)
        await one.until(lambda: replica.progress is not None and replica.progress.state.isr == (one.me,))
        begun = isr_writes(one)
        for _ in range(20):
            replica.append(batch())
            await asyncio.sleep(0.005)
        assert isr_writes(one) == begun
        assert replica.log.high_watermark == replica.log.log_end_offset

    run(tmp_path, act, 2)


def test_a_leader_that_is_elected_after_a_lost_session_is_in_doubt_no_more(tmp_path: Path) -> None:
    """The session was in doubt, and then lost, while the partition had no leader."""

    async def act(node: Node) -> None:
        topic_id = await node.create("t", [[1]])
        await led(node, topic_id)
        replica = node.replica(topic_id)
        await node.put(topic_id, moved(NO_LEADER))
        await node.until(lambda: bool(node.view.partitions[topic_id, 0].state.evidence))
        assert replica.leader == NO_LEADER
        node.replicas.doubted()
        node.replicas.resign()
        node.replicas.confirmed()
        await node.put(topic_id, moved(1))
        await node.until(lambda: replica.progress is not None)
        assert not replica.in_doubt
        assert replica.leads

    run(tmp_path, act)
