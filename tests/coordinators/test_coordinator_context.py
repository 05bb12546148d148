"""Coordinators move with their partition: the next one keeps the promises of the last."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from random import Random
from typing import Any, TypeVar

import pytest

from seglog.cluster.model import VersionedState
from seglog.coordinators import group_context, group_coordinator
from seglog.coordinators.coordinator_error import CoordinatorError
from seglog.coordinators.group_context import GroupContext
from seglog.coordinators.group_messages import (
    Answer,
    JoinGroupRequest,
    JoinGroupResult,
    LeavingMember,
    SyncGroupRequest,
)
from seglog.coordinators.group_state import GroupLimits, GroupResult
from seglog.coordinators.settings import GroupSettings
from seglog.core.error_codes import ErrorCode
from seglog.testing.clock import ManualClock
from tests.cases import case, is_long
from tests.coordinators.cluster import LAG_MS, NODES, TOPIC, Cluster, Node
from tests.coordinators.group_clients import GroupClient, GroupMemberClient, Promises
from tests.coordinators.running_coordinator import commit, refused
from tests.coordinators.shard_driver import RANGE

T = TypeVar("T")
SECONDS = 12.0
TIMES = 4_000, 6_000


@pytest.fixture(autouse=True)
def _nobody_is_answered_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    def strict(step: GroupResult) -> None:
        for ticket, _ in step.replies:
            assert isinstance(ticket, asyncio.Future)
            assert ticket.cancelled() or not ticket.done(), "answered twice"
        answer(step)

    answer: Callable[[GroupResult], None] = group_context.answer
    monkeypatch.setattr(group_context, "answer", strict)
    monkeypatch.setattr(group_coordinator, "answer", strict)


async def disturb(cluster: Cluster, rng: Random, until: float) -> None:
    """Elections that brokers see late, followers that are cut off, sessions in doubt."""
    while cluster.world.now < until:
        await asyncio.sleep(rng.uniform(0.0, 1.5))
        what = rng.random()
        if what < 0.6:
            cluster.elect(rng.choice(cluster.state.state.isr_nodes), latest=rng.choice([0.0, 0.01, 0.5, 3.0]))
        elif what < 0.8:
            share = rng.choice([0.0, 0.3, 0.6])
            for node in cluster.nodes.values():
                node.is_cut = rng.random() < share
        else:
            await cluster.leader.doubt(rng.uniform(0.0, 0.5))
    for node in cluster.nodes.values():
        node.is_cut = False


def story(seed: int) -> Promises:
    rng = Random(seed)
    cluster = Cluster(seed, min_insync=rng.choice([1, 2]))
    promises = Promises()
    cluster.elect(rng.choice(NODES))
    clients = [GroupClient(cluster, promises, f"alone-{number}") for number in range(2)]
    clients += [
        GroupMemberClient(cluster, promises, f"mate-{number}", f"i-{number}" if number == 0 else None)
        for number in range(3)
    ]
    tasks = [cluster.loop.create_task(one.run()) for one in clients]
    cluster.wait(cluster.loop.create_task(disturb(cluster, rng, SECONDS)))
    cluster.run(5.0)
    for one in clients:
        one.has_time = False
    for task in tasks:
        cluster.wait(task)
    cluster.run(10.0)  # by then all have everything
    for one in clients:
        one.fetch(cluster.leader)
        if one.group == one.name:
            cluster.wait(cluster.loop.create_task(one.commit(cluster.leader)))
    check_logs(cluster)
    cluster.close()
    return promises


def check_logs(cluster: Cluster) -> None:
    """All replicas have the same log, and the leader has applied it."""
    leader = cluster.leader
    ends = {node.replica.log.log_end_offset for node in cluster.nodes.values()}
    assert ends == {leader.replica.log.high_watermark}
    known = leader.coordinator.shard("any")
    for node in cluster.nodes.values():
        context = GroupContext(node.replica, GroupLimits(), GroupSettings(), ManualClock())
        for _ in context.replay():
            pass
        told = context.shard
        assert set(told.groups) == set(known.groups)
        for group in told.groups:
            assert told.offsets.of(group) == known.offsets.of(group)


@pytest.mark.parametrize("block", range(2))
def test_what_is_promised_is_kept(block: int) -> None:
    count = 400 if is_long() else 4
    for seed in range(block * count, (block + 1) * count):
        case()
        promises = story(seed)
        assert promises.codes["committed"] > 20
        assert promises.codes["NOT_COORDINATOR"]


# One thing at a time


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Broker 1 leads, and all replicas have everything."""
    made = Cluster(1, min_insync=2)
    made.elect(1)
    made.run(1.0)
    yield made
    made.close()


def offset_of(node: Node, group: str = "g") -> int | None:
    found = node.coordinator.shard(group).fetch(group, ("t", 0), TOPIC, require_stable=False).value
    return None if found is None else found.offset


def begin(cluster: Cluster, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start the task and let it run until it waits."""
    task = cluster.loop.create_task(work)
    cluster.run(0.1)
    return task


def cut(cluster: Cluster, *numbers: int) -> None:
    for number, node in cluster.nodes.items():
        node.is_cut = number in numbers


def joining(instance: str = "i", group: str = "g") -> JoinGroupRequest:
    return JoinGroupRequest(group, "", instance, "c", "/h", *TIMES, "consumer", RANGE, 9)


async def stable(node: Node) -> JoinGroupResult:
    """Join as the only, static member of a group."""
    joined = await node.coordinator.join(joining())
    request = SyncGroupRequest("g", joined.member_id, "i", joined.generation, None, None, {joined.member_id: b"A"})
    assert (await node.coordinator.sync(request)).code is ErrorCode.NONE
    return joined


def test_who_does_not_lead_coordinates_nothing(cluster: Cluster) -> None:
    cluster.wait(begin(cluster, cluster.nodes[1].coordinator.commit(commit())))
    for number in (2, 3):
        other = cluster.nodes[number].coordinator
        assert list(other.shards()) == []
        with refused(ErrorCode.NOT_COORDINATOR):
            other.heartbeat("g", "m", None, 1)
        with refused(ErrorCode.NOT_COORDINATOR):
            other.shard("g")
        other.topics_deleted([("t", TOPIC)])  # who leads does what is to be done
        other.expire_offsets()
    found = cluster.loop.create_task(cluster.nodes[3].coordinator.locate("g"))
    cluster.wait(found)
    assert found.result() == 1
    assert offset_of(cluster.nodes[1]) == 1
    cluster.nodes[1].coordinator.topics_deleted([("t", TOPIC)])
    cluster.run(1.0)
    assert offset_of(cluster.nodes[1]) is None
    assert len({node.replica.log.log_end_offset for node in cluster.nodes.values()}) == 1


def test_what_is_not_committed_is_told_to_nobody_and_may_be_gone(cluster: Cluster) -> None:
    old, new = cluster.nodes[1], cluster.nodes[2]
    cluster.wait(begin(cluster, old.coordinator.commit(commit(offset=5))))
    cut(cluster, 2, 3)
    commits = [begin(cluster, old.coordinator.commit(commit(offset=offset))) for offset in (6, 7)]
    first = begin(cluster, old.coordinator.commit(commit("h")))
    deletion = begin(cluster, old.coordinator.delete_group("g"))
    assert offset_of(old) == 5
    assert old.coordinator.shard("g").places("g") == [("t", 0)]
    assert offset_of(old, "h") is None
    cluster.elect(2)
    for task in (*commits, first, deletion):
        with refused(ErrorCode.NOT_COORDINATOR):
            cluster.wait(task)
    with refused(ErrorCode.NOT_COORDINATOR):
        old.coordinator.shard("g")
    cut(cluster)
    cluster.run(1.0)
    assert offset_of(new) == 5
    assert "h" not in new.coordinator.shard("h").groups
    cluster.elect(1)  # whose own decisions are gone as well
    cluster.run(1.0)
    assert offset_of(old) == 5
    assert "h" not in old.coordinator.shard("h").groups


def test_what_is_told_follows_the_high_watermark(cluster: Cluster) -> None:
    node = cluster.nodes[1]
    cluster.wait(begin(cluster, node.coordinator.commit(commit(offset=5))))
    cut(cluster, 2, 3)
    commits = [begin(cluster, node.coordinator.commit(commit(offset=offset))) for offset in (6, 7)]
    cut(cluster)
    for task in commits:
        cluster.wait(task)
    assert offset_of(node) == 7
    cluster.wait(begin(cluster, node.coordinator.delete_group("g")))
    assert offset_of(node) is None
    assert node.coordinator.shard("g").places("g") == []


def test_in_doubt_offsets_are_told_only_while_all_members_of_the_isr_follow(cluster: Cluster) -> None:
    """Another coordinator that one of them had elected might have committed later ones."""
    one = cluster.nodes[1]
    cluster.wait(begin(cluster, one.coordinator.commit(commit("g", 5))))
    one.replica.doubt()
    assert not one.replica.weigh(cluster.now_ms, unclean=False, silence_ms=LAG_MS)
    assert one.coordinator.is_in_doubt("g")
    cluster.wait(begin(cluster, one.coordinator.newest("g")), 1.0)
    cluster.wait(begin(cluster, one.coordinator.commit(commit("g", 6))))
    assert offset_of(one) == 6
    cluster.nodes[2].is_cut = True
    cluster.run(0.1)
    waiting = begin(cluster, one.coordinator.newest("g"))
    with pytest.raises(CoordinatorError) as caught:
        cluster.wait(waiting, 10.0)
    assert caught.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    one.replica.trust()
    cluster.wait(begin(cluster, one.coordinator.newest("g")), 1.0)


def test_after_a_pause_no_offset_is_told_before_the_session_is_checked(cluster: Cluster) -> None:
    """Another coordinator may have committed meanwhile, and requests are handled before the timer that notices."""
    one = cluster.nodes[1]
    cluster.wait(begin(cluster, one.coordinator.commit(commit("g", 5))))
    cut(cluster, 2)
    cluster.run(0.1)
    one.was_paused = True
    assert one.coordinator.is_in_doubt("g")
    with pytest.raises(CoordinatorError) as caught:
        cluster.wait(begin(cluster, one.coordinator.newest("g")), 10.0)
    assert caught.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_a_pause_while_offsets_are_awaited_is_noticed(cluster: Cluster) -> None:
    one = cluster.nodes[1]
    cut(cluster, 2)
    cluster.run(0.1)
    one.replica.doubt()
    waiting = begin(cluster, one.coordinator.newest("g"))
    cluster.run(0.001)
    one.replica.trust()
    one.was_paused = True
    with pytest.raises(CoordinatorError):
        cluster.wait(waiting, 10.0)


def test_a_new_coordinator_waits_until_it_knows_what_is_committed(cluster: Cluster) -> None:
    cluster.wait(cluster.loop.create_task(cluster.nodes[1].coordinator.commit(commit(offset=5))))
    log = cluster.nodes[2].replica.log
    assert log.high_watermark < log.log_end_offset  # it has not heard yet that all have it
    cut(cluster, 1, 3)
    cluster.elect(2)
    cluster.run(0.5)
    new = cluster.nodes[2].coordinator
    for ask in (lambda: new.shard("g"), lambda: list(new.shards()), lambda: new.heartbeat("g", "m", None, 1)):
        with refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):
            ask()
    cluster.elect(3)  # nobody loads any more what is led elsewhere
    cluster.run(0.5)
    with refused(ErrorCode.NOT_COORDINATOR):
        new.shard("g")
    cluster.elect(2)
    cut(cluster)
    cluster.run(0.5)
    assert offset_of(cluster.nodes[2]) == 5


def test_too_few_replicas_refuse_before_anything_is_written(cluster: Cluster) -> None:
    node = cluster.nodes[1]
    cut(cluster, 2, 3)
    late = begin(cluster, node.coordinator.commit(commit()))
    with refused(ErrorCode.COORDINATOR_NOT_AVAILABLE):
        cluster.wait(late)  # in time
    cluster.run(3.0)
    assert cluster.state.state.isr_nodes == (1,)
    end = node.replica.log.log_end_offset
    with refused(ErrorCode.COORDINATOR_NOT_AVAILABLE):
        cluster.wait(begin(cluster, node.coordinator.commit(commit())))
    joined = begin(cluster, node.coordinator.join(joining(group="h")))
    cluster.wait(joined)
    assert joined.result().code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert node.replica.log.log_end_offset == end


def test_all_who_wait_are_sent_elsewhere(cluster: Cluster) -> None:
    node = cluster.nodes[1]
    task = begin(cluster, stable(node))
    cluster.wait(task)
    cut(cluster, 2, 3)
    waiting: list[asyncio.Task[Any]] = [begin(cluster, node.coordinator.join(joining()))]  # it was started anew
    waiting.append(begin(cluster, node.coordinator.join(joining("j"))))
    assert not any(one.done() for one in waiting)
    cluster.run(0.1)
    assert node.coordinator._contexts[0].timers
    cluster.elect(2)
    for one in waiting:
        cluster.wait(one, 0.5)
        answer: Answer = one.result()
        assert answer.code is ErrorCode.NOT_COORDINATOR
    cut(cluster)
    cluster.run(1.0)
    group = cluster.nodes[2].coordinator.shard("g").classic("g")
    assert group is not None
    assert [member.member_id for member in group.members] == [task.result().member_id]
    left = begin(cluster, cluster.nodes[2].coordinator.leave("g", [LeavingMember("", "i")]))
    cluster.wait(left)
    assert left.result() == [ErrorCode.NONE]


def test_a_new_epoch_of_the_same_leader_begins_with_what_the_log_says(cluster: Cluster) -> None:
    node = cluster.nodes[1]
    joined = cluster.loop.create_task(node.coordinator.join(joining()))
    cluster.wait(joined)
    member_id = joined.result().member_id
    cut(cluster, 2, 3)
    request = SyncGroupRequest("g", member_id, "i", 1, None, None, {member_id: b"A"})
    synced = begin(cluster, node.coordinator.sync(request))
    cluster.elect(1)
    cluster.wait(synced, 0.5)
    assert synced.result().code is ErrorCode.NOT_COORDINATOR
    cut(cluster)
    cluster.run(0.5)
    synced = begin(cluster, node.coordinator.sync(request._replace(assignments={member_id: b"B"})))
    cluster.wait(synced)
    assert synced.result().assignment == b"A"  # it was written, and is committed by now
    cluster.wait(begin(cluster, node.coordinator.commit(commit("h"))))


def test_a_load_that_is_overtaken_is_given_up(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leadership goes and comes back while a long log is replayed."""
    for offset in range(600):
        cluster.loop.create_task(cluster.nodes[1].coordinator.commit(commit(offset=offset)))
    cluster.run(2.0)
    node = cluster.nodes[2]
    steps = []
    replay = GroupContext.replay

    def counted(context: GroupContext) -> Iterator[None]:
        for step in replay(context):
            steps.append(context.leader_epoch)
            if len(steps) == 10:
                node.see(replace_leader(cluster, 3))
            yield step

    monkeypatch.setattr(GroupContext, "replay", counted)
    node.see(replace_leader(cluster, 2))
    cluster.run(0.1)
    assert len(steps) == 10
    with refused(ErrorCode.NOT_COORDINATOR):
        node.coordinator.shard("g")
    cluster.elect(2)
    cluster.run(1.0)
    assert len(steps) > 600
    assert offset_of(node) == 599


def replace_leader(cluster: Cluster, leader: int) -> VersionedState:
    """The store has another leader, and no broker has seen it."""
    state = replace(cluster.state.state, leader=leader, leader_epoch=cluster.state.state.leader_epoch + 1)
    cluster.state = VersionedState(state, cluster.state.version + 1)
    return cluster.state
