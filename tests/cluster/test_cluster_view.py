"""A broker's view of its cluster: everything, decoded, and never older than before."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from seglog.cluster.cluster_view import Changes, ClusterView, ControllerRegistration, NamedValue, encode_controller
from seglog.cluster.model import (
    BrokerRegistration,
    Member,
    PartitionState,
    TopicRules,
    TopicState,
    VersionedState,
    broker_name,
    encode,
    partition_name,
    topic_name,
)
from seglog.cluster.sqlite_store import SqliteStore
from seglog.cluster.store import MISSING, Change
from tests.cases import case
from tests.cluster.contract import SOON
from tests.cluster.faulty import Faulty

ID = UUID(int=7)


def state(epoch: int) -> PartitionState:
    return PartitionState(replicas=(1,), leader=1, leader_epoch=epoch, isr=(Member(1, 1),))


def topic(number: int, partitions: int = 1) -> TopicState:
    return TopicState(name="t", topic_id=UUID(int=number), assignment=((1,),) * partitions)


def broker(epoch: int) -> BrokerRegistration:
    return BrokerRegistration(node_id=1, epoch=epoch, kept_since=1)


def view_of(store: Faulty) -> ClusterView:
    return ClusterView(store, lambda _: TopicRules())


Work = Callable[[Faulty, SqliteStore, ClusterView], Coroutine[Any, Any, None]]


def run(path: Path, work: Work) -> None:
    """Run with a view of one store, and another store on the same file."""

    async def with_two() -> None:
        store = Faulty(await SqliteStore.open(path / "store"))
        other = await SqliteStore.open(path / "store")
        view = view_of(store)
        await view.start()
        try:
            await asyncio.wait_for(work(store, other, view), SOON)
        finally:
            await view.stop()
            await other.close()
            await store.close()

    asyncio.run(with_two())


async def seen(view: ClusterView, condition: Callable[[], bool]) -> None:
    assert await view.until(condition, SOON)


def test_all_changes_reach_the_view_and_its_listeners(tmp_path: Path) -> None:
    async def work(store: Faulty, other: SqliteStore, view: ClusterView) -> None:
        told: list[Changes] = []
        view.listeners.append(told.append)
        await other.commit(
            [
                Change("cluster", b"c", MISSING),
                Change(broker_name(1), encode(broker(5)), MISSING),
                Change(topic_name("t"), encode(topic(7, 2)), MISSING),
                Change(partition_name(ID, 0), encode(state(0)), MISSING),
                Change("config/brokers/1", b"{}", MISSING),
                Change("controller", encode_controller(ControllerRegistration(1, 5, 2)), MISSING),
            ]
        )
        await seen(view, lambda: view.controller is not None)
        assert told == [
            Changes(
                frozenset([1]),
                frozenset(["t"]),
                frozenset([(ID, 0)]),
                frozenset(["config/brokers/1"]),
                controller=True,
                topic_ids=frozenset([ID]),
            )
        ]
        assert view.brokers == {1: broker(5)}
        assert view.topics == {"t": topic(7, 2)}
        assert view.topics_by_id == {ID: topic(7, 2)}
        assert view.partitions == {(ID, 0): VersionedState(state(0), 0)}
        assert view.controller == ControllerRegistration(1, 5, 2)
        assert view.configs == {"config/brokers/1": b"{}"}
        assert view.versions[topic_name("t")] == view.versions[broker_name(1)] == 0
        assert view.view()[:3] == (view.brokers, view.topics_by_id, view.partitions)
        late = view_of(store)
        await late.start()
        assert late.view()[:3] == view.view()[:3]

        await other.commit([Change(topic_name("t"), None, 0), Change(topic_name("t"), encode(topic(8)), MISSING)])
        await other.commit([Change(name, None, -1) for name in ("controller", broker_name(1), partition_name(ID, 0))])
        await seen(view, lambda: not view.partitions and not view.brokers)
        await seen(view, lambda: view.topics_by_id == {UUID(int=8): topic(8)})
        assert view.view()[:3] == ({}, {topic(8).topic_id: topic(8)}, {})
        await seen(view, lambda: view.controller is None)

    run(tmp_path, work)


def test_unreadable_values_are_logged_once_and_do_not_change_the_view(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(_: Faulty, other: SqliteStore, view: ClusterView) -> None:
        name = partition_name(ID, 0)
        await other.create(name, encode(state(3)))
        await seen(view, lambda: bool(view.partitions))
        later = encode(state(4)).replace(b'"form":1', b'"form":2')
        with caplog.at_level(logging.ERROR):
            await other.cas(name, later, 0)
            for bad in ("partitions/x/y", "brokers/one", "brokers/2", "topics/t", "controller"):
                await other.create(bad, b"{}" if bad != "brokers/2" else encode(broker(1)))
            await other.create("config/last", b"")
            await seen(view, lambda: "config/last" in view.configs)
            view.note(name, later, 1)
        assert view.partitions == {(ID, 0): VersionedState(state(3), 0)}
        assert view.versions == {name: 0, "config/last": 0}
        assert sorted(record.getMessage().split()[0] for record in caplog.records) == sorted(
            [name, "partitions/x/y", "brokers/one", "brokers/2", "topics/t", "controller"]
        )
        await other.cas(name, encode(state(5)), 1)
        await seen(view, lambda: view.partitions[ID, 0] == VersionedState(state(5), 2))

    run(tmp_path, work)


def test_a_noted_value_is_visible_at_once_if_the_mirror_has_just_read_it(tmp_path: Path) -> None:
    async def work(store: Faulty, _: SqliteStore, view: ClusterView) -> None:
        for number in range(20):
            name = f"config/x{number}"
            version = await store.create(name, b"1")
            while name not in view._mirror.values:
                await asyncio.sleep(0)
            view.note(name, b"1", version)
            assert view.configs[name] == b"1"
            await store.delete(name, version)
            while name in view._mirror.values:
                await asyncio.sleep(0)
            view.note_all([NamedValue(name, None)])
            assert name not in view.configs

    run(tmp_path, work)


def test_noted_state_is_visible_at_once_and_older_reads_are_ignored(tmp_path: Path) -> None:
    """The answer to an earlier read arrives later."""

    async def work(store: Faulty, other: SqliteStore, view: ClusterView) -> None:
        name = partition_name(ID, 0)
        seen_epochs: list[int] = []
        view.listeners.append(lambda _: seen_epochs.append(view.partitions[ID, 0].state.leader_epoch))
        await other.create(name, encode(state(0)))
        await seen(view, lambda: bool(view.partitions))
        store.hold_answers()
        await other.cas(name, encode(state(1)), 0)
        await store.held.wait()  # the mirror has read version 1, and has not heard it
        version = await other.cas(name, encode(state(2)), 1)
        view.note(name, encode(state(2)), version)
        assert view.partitions[ID, 0] == VersionedState(state(2), 2)
        view.note(name, encode(state(1)), 1)
        store.release()
        await other.cas(name, encode(state(3)), 2)
        await seen(view, lambda: view.partitions[ID, 0].version == 3)
        assert seen_epochs == [0, 2, 3]

    run(tmp_path, work)


def test_recreated_name_does_not_count_as_older(tmp_path: Path) -> None:
    async def work(_: Faulty, other: SqliteStore, view: ClusterView) -> None:
        await other.commit([Change(broker_name(1), encode(broker(5)), MISSING), Change("a", b"", MISSING)])
        await other.create(topic_name("t"), encode(topic(1)))
        await seen(view, lambda: bool(view.topics and view.brokers))
        for version in range(3):
            await other.cas(broker_name(1), encode(broker(5)), version)
            await other.cas(topic_name("t"), encode(topic(1, version + 2)), version)
        await seen(view, lambda: view.versions[topic_name("t")] == view.versions[broker_name(1)] == 3)
        await other.commit([Change(broker_name(1), None, 3), Change(broker_name(1), encode(broker(6)), MISSING)])
        view.note(broker_name(1), encode(broker(6)), 0)
        assert view.brokers[1].epoch == 6
        view.note(broker_name(1), encode(broker(5)), 9)
        assert view.brokers[1].epoch == 6
        await other.commit([Change(topic_name("t"), None, 3), Change(topic_name("t"), encode(topic(2)), MISSING)])
        await seen(view, lambda: view.topics["t"].topic_id == UUID(int=2))
        view.note(topic_name("t"), encode(topic(1, 9)), 4)  # the late answer to a change of the first
        assert view.topics["t"] == topic(2)
        await other.delete(broker_name(1))
        await seen(view, lambda: not view.brokers)
        view.note(broker_name(1), encode(broker(6)), 0)  # noted when it had gone again
        await seen(view, lambda: not view.brokers)

    run(tmp_path, work)


def test_listeners_are_called_in_order_and_survive_errors_of_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(_: Faulty, __: SqliteStore, view: ClusterView) -> None:
        told: list[str] = []

        def first(changes: Changes) -> None:
            told.extend(f"first {name}" for name in changes.configs)
            if "config/a" in changes.configs:
                view.note("config/b", b"", 0)
                assert "config/b" in view.configs
            raise ValueError("a bug")

        view.listeners += [first, lambda changes: told.extend(f"second {name}" for name in changes.configs)]
        view.note("config/a", b"", 0)
        assert told == ["first config/a", "second config/a", "first config/b", "second config/b"]

    run(tmp_path, work)
    assert "a bug" in caplog.text


def test_waiting_ends_when_it_holds_or_the_time_is_over(tmp_path: Path) -> None:
    async def work(_: Faulty, other: SqliteStore, view: ClusterView) -> None:
        assert await view.until(lambda: True, 0)
        assert not await view.until(lambda: False, 0.01)

        async def counts(number: int) -> None:
            await seen(view, lambda: len(view.configs) >= number)

        waiting = [asyncio.create_task(counts(number)) for number in range(1, 4)]
        for number in range(3):
            await other.create(f"config/{number}", b"")
        await asyncio.gather(*waiting)

    run(tmp_path, work)


def test_a_view_that_is_noted_to_never_goes_back(tmp_path: Path) -> None:
    """Some writers note their writes, some of them late, others do not: versions only grow, and all views end equal."""

    async def work(store: Faulty, other: SqliteStore, view: ClusterView) -> None:
        rng = random.Random(3)
        names = [partition_name(ID, number) for number in range(3)]
        await other.commit([Change(name, encode(state(0)), MISSING) for name in names])
        await seen(view, lambda: len(view.partitions) == 3)
        last = dict.fromkeys(range(3), 0)

        def look(changes: Changes) -> None:
            for _, number in changes.partitions:
                version = view.partitions[ID, number].version
                assert version >= last[number]
                assert view.partitions[ID, number].state.leader_epoch == version
                last[number] = version

        view.listeners.append(look)

        async def write(number: int, through: Faulty | SqliteStore) -> None:
            for _ in range(40):
                case()
                found = await through.get(names[number])
                assert found is not None
                value = encode(state(found.version + 1))
                version = await through.cas(names[number], value, found.version)
                if rng.random() < 0.7:
                    for _ in range(rng.choice((0, 0, 5, 20))):
                        await asyncio.sleep(0)
                    view.note(names[number], value, version)

        await asyncio.gather(write(0, other), write(1, store), write(2, other))
        await seen(view, lambda: [one.version for one in view.partitions.values()] == [40, 40, 40])
        assert last == dict.fromkeys(range(3), 40)

    run(tmp_path, work)
