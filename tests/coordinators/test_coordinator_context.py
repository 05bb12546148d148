"""Coordinators move with their partition: the next one keeps the promises of the last."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, TypeVar

import pytest

from seglog.coordinators import group_context, group_coordinator
from seglog.coordinators.classic.messages import (
    Answer,
    JoinGroupRequest,
    JoinGroupResult,
    LeavingMember,
    SyncGroupRequest,
)
from seglog.coordinators.classic.state import GroupLimits, GroupResult
from seglog.coordinators.consumer.messages import ConsumerHeartbeat
from seglog.coordinators.coordinator_error import CoordinatorError
from seglog.coordinators.group_context import GroupContext
from seglog.coordinators.settings import GroupSettings
from seglog.core.error_codes import ErrorCode
from tests.cases import case, is_long
from tests.coordinators.coordinators import DOUBT_SECONDS, NODES, TOPIC, Coordinators, groups, offsets_of
from tests.coordinators.group_clients import GroupClient, GroupMemberClient, Promises
from tests.coordinators.running_coordinator import commit, refused
from tests.coordinators.shard_driver import RANGE
from tests.kit.manual_clock import ManualClock
from tests.kit.virtual_cluster import VirtualBroker

T = TypeVar("T")
SECONDS = 10.0
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


async def disturb(cluster: Coordinators, rng: Random, until: float) -> None:
    """Elections that brokers see late, brokers that are cut off, sessions in doubt."""
    while cluster.world.now < until:
        await asyncio.sleep(rng.uniform(0.0, 1.5))
        what = rng.random()
        if what < 0.6:
            cluster.lead(rng.choice(cluster.isr), latest=rng.choice([0.0, 0.01, 0.5, 3.0]))
        elif what < 0.8:
            share = rng.choice([0.0, 0.3, 0.6])
            cluster.cut(*(node for node in NODES if rng.random() < share))
        else:
            with cluster.unaware(cluster.coordinator.node_id):
                await asyncio.sleep(rng.uniform(0.0, DOUBT_SECONDS + 1.0))
    cluster.cut()


def story(seed: int) -> Promises:
    rng = Random(seed)
    promises = Promises()
    with Coordinators(seed=seed, min_insync=rng.choice([1, 2])) as cluster:
        cluster.lead(rng.choice(NODES))
        clients = [GroupClient(cluster, promises, f"alone-{number}") for number in range(2)]
        clients += [
            GroupMemberClient(cluster, promises, f"mate-{number}", f"i-{number}" if number == 0 else None)
            for number in range(3)
        ]
        tasks = [cluster.loop.create_task(one.run()) for one in clients]
        cluster.wait(cluster.loop.create_task(disturb(cluster, rng, cluster.world.now + SECONDS)))
        cluster.run(3.0)
        for one in clients:
            one.has_time = False
        for task in tasks:
            cluster.wait(task)
        cluster.run(5.0)  # by then all have everything
        for one in clients:
            cluster.wait(cluster.loop.create_task(one.fetch(cluster.coordinator)))
            if one.group == one.name:
                cluster.wait(cluster.loop.create_task(one.commit(cluster.coordinator)))
        cluster.run(1.0)
        check_logs(cluster)
    return promises


def check_logs(cluster: Coordinators) -> None:
    """All replicas have the same log, and the leader has applied it."""
    brokers = cluster.brokers.values()
    assert cluster.ends_at(brokers) == {offsets_of(cluster.coordinator).log.high_watermark}
    known = groups(cluster.coordinator).shard("any")
    for broker in brokers:
        context = GroupContext(offsets_of(broker), GroupLimits(), GroupSettings(), ManualClock())
        for _ in context.replay():
            pass
        told = context.shard
        assert set(told.groups) == set(known.groups)
        for group in told.groups:
            assert told.offsets.of(group) == known.offsets.of(group)


@pytest.mark.parametrize("block", range(2))
def test_promises_hold_in_random_stories(block: int) -> None:
    count = 400 if is_long() else 4
    moved = 0
    for seed in range(block * count, (block + 1) * count):
        case()
        codes = story(seed).codes
        assert codes["committed"] > 20
        moved += codes["NOT_COORDINATOR"] > 0
    assert moved >= count / 2


# One thing at a time


@pytest.fixture
def cluster() -> Iterator[Coordinators]:
    """Broker 1 leads, and all replicas have everything."""
    with Coordinators(min_insync=2) as made:
        made.lead(1)
        made.run(1.0)
        yield made


def offset_of(broker: VirtualBroker, group: str = "g") -> int | None:
    shard = broker.call(lambda: groups(broker).shard(group))
    found = shard.fetch(group, ("t", 0), TOPIC, require_stable=False).value
    return None if found is None else found.offset


def joining(instance: str = "i", group: str = "g") -> JoinGroupRequest:
    return JoinGroupRequest(group, "", instance, "c", "/h", *TIMES, "consumer", RANGE, 9)


async def stable(node: VirtualBroker) -> JoinGroupResult:
    """Join as the only, static member of a group."""
    joined = await groups(node).join(joining())
    request = SyncGroupRequest("g", joined.member_id, "i", joined.generation, None, None, {joined.member_id: b"A"})
    assert (await groups(node).sync(request)).code is ErrorCode.NONE
    return joined


def test_only_the_leader_of_the_partition_coordinates(cluster: Coordinators) -> None:
    cluster.wait(cluster.begin(cluster[1], groups(cluster[1]).commit(commit())))
    for number in (2, 3):
        other = groups(cluster[number])
        assert list(other.shards()) == []
        with refused(ErrorCode.NOT_COORDINATOR):
            cluster.wait(cluster.begin(cluster[number], other.heartbeat("g", "m", None, 1)))
        with refused(ErrorCode.NOT_COORDINATOR):
            other.shard("g")
        other.topics_deleted([("t", TOPIC)])  # who leads does what is to be done
        other.expire_offsets()
    assert cluster.wait(cluster.begin(cluster[3], groups(cluster[3]).locate("g"))) == 1
    assert offset_of(cluster[1]) == 1
    cluster[1].call(lambda: groups(cluster[1]).topics_deleted([("t", TOPIC)]))
    cluster.run(1.0)
    assert offset_of(cluster[1]) is None
    assert len(cluster.ends_at(cluster.brokers.values())) == 1


def test_uncommitted_offsets_are_never_returned_and_may_be_lost(cluster: Coordinators) -> None:
    old, new = cluster[1], cluster[2]
    cluster.wait(cluster.begin(old, groups(old).commit(commit(offset=5))))
    cluster.cut(2, 3)
    commits = [cluster.begin(old, groups(old).commit(commit(offset=offset))) for offset in (6, 7)]
    first = cluster.begin(old, groups(old).commit(commit("h")))
    deletion = cluster.begin(old, groups(old).delete_group("g"))
    assert offset_of(old) == 5
    assert groups(old).shard("g").places("g") == [("t", 0)]
    assert offset_of(old, "h") is None
    cluster.lead(2)
    for task in (*commits, first, deletion):
        with refused(ErrorCode.NOT_COORDINATOR):
            cluster.wait(task)
    with refused(ErrorCode.NOT_COORDINATOR):
        groups(old).shard("g")
    cluster.run(0.1)  # by then the next leader takes nothing more from the last one
    cluster.cut()
    cluster.run(1.0)
    assert offset_of(new) == 5
    assert "h" not in groups(new).shard("h").groups
    cluster.lead(1)  # whose own decisions are gone as well
    cluster.run(1.0)
    assert offset_of(old) == 5
    assert "h" not in groups(old).shard("h").groups


def test_returned_offsets_follow_the_high_watermark(cluster: Coordinators) -> None:
    node = cluster[1]
    cluster.wait(cluster.begin(node, groups(node).commit(commit(offset=5))))
    cluster.cut(2, 3)
    commits = [cluster.begin(node, groups(node).commit(commit(offset=offset))) for offset in (6, 7)]
    cluster.cut()
    for task in commits:
        cluster.wait(task)
    assert offset_of(node) == 7
    cluster.wait(cluster.begin(node, groups(node).delete_group("g")))
    assert offset_of(node) is None
    assert groups(node).shard("g").places("g") == []


def test_in_doubt_offsets_are_returned_only_while_the_whole_isr_follows(cluster: Coordinators) -> None:
    """Another coordinator that one of them had elected might have committed later ones."""
    one = cluster[1]
    cluster.wait(cluster.begin(one, groups(one).commit(commit("g", 5))))
    with cluster.unaware(1):
        cluster.run(DOUBT_SECONDS)
        assert offsets_of(one).in_doubt
        assert groups(one).is_in_doubt("g")
        cluster.wait(cluster.begin(one, groups(one).newest("g")), 1.0)
        cluster.wait(cluster.begin(one, groups(one).commit(commit("g", 6))))
        assert offset_of(one) == 6
        cluster.cut(2)
        cluster.run(0.1)
        waiting = cluster.begin(one, groups(one).newest("g"))
        with refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):
            cluster.wait(waiting, 10.0)
    cluster.until(lambda: not offsets_of(one).in_doubt)
    cluster.wait(cluster.begin(one, groups(one).newest("g")), 1.0)


def test_after_a_pause_the_session_is_checked_before_offsets_are_returned(cluster: Coordinators) -> None:
    """Another coordinator may have committed during the pause, and requests are handled before the timer that detects
    it."""
    one = cluster[1]
    cluster.wait(cluster.begin(one, groups(one).commit(commit("g", 5))))
    cluster.cut(2)
    cluster.run(0.1)

    async def ask() -> None:
        assert not offsets_of(one).in_doubt, "the timer was first"
        assert groups(one).is_in_doubt("g")
        await groups(one).newest("g")

    with cluster.unaware(1):
        one.process.pause(DOUBT_SECONDS)
        asked = cluster.begin(one, ask())
        with refused(ErrorCode.NOT_COORDINATOR):  # nobody has followed it meanwhile
            cluster.wait(asked)


def test_a_pause_while_offsets_are_awaited_is_noticed(cluster: Coordinators) -> None:
    """The session is confirmed while the fetches are awaited, and in doubt again when the broker continues."""
    one = cluster[1]
    with cluster.unaware(1):
        cluster.run(DOUBT_SECONDS)
        cluster.cut(2)
        waiting = cluster.begin(one, groups(one).newest("g"))
    session = one.running.membership.session
    assert session is not None
    cluster.until(lambda: session.is_certain)
    one.call(one.running.membership.check)
    assert not offsets_of(one).in_doubt
    with cluster.unaware(1):
        one.process.pause(DOUBT_SECONDS)
        assert not waiting.done()
        with pytest.raises(CoordinatorError):
            cluster.wait(waiting)


def test_new_coordinator_waits_until_its_records_are_committed(cluster: Coordinators) -> None:
    committed = cluster[1].process.create_task(groups(cluster[1]).commit(commit(offset=5)))
    cluster.wait(committed)
    log = offsets_of(cluster[2]).log
    assert log.high_watermark < log.log_end_offset  # it has not heard yet that all have it
    cluster.cut(1, 3)
    cluster.lead(2)
    cluster.run(0.5)
    new = groups(cluster[2])

    def heartbeat() -> None:
        cluster.wait(cluster.begin(cluster[2], new.heartbeat("g", "m", None, 1)))

    for ask in (lambda: new.shard("g"), lambda: list(new.shards()), heartbeat):
        with refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):
            ask()
    cluster.lead(3)  # nobody loads any more what is led elsewhere
    cluster.run(0.5)
    with refused(ErrorCode.NOT_COORDINATOR):
        new.shard("g")
    cluster.lead(2)
    cluster.cut()
    cluster.run(0.5)
    assert offset_of(cluster[2]) == 5


def test_too_few_replicas_refuse_before_anything_is_written(cluster: Coordinators) -> None:
    node = cluster[1]
    cluster.cut(2, 3)
    late = cluster.begin(node, groups(node).commit(commit()))
    with refused(ErrorCode.COORDINATOR_NOT_AVAILABLE):
        cluster.wait(late)  # in time
    cluster.run(3.0)
    assert cluster.isr == (1,)
    end = offsets_of(node).log.log_end_offset
    with refused(ErrorCode.COORDINATOR_NOT_AVAILABLE):
        cluster.wait(cluster.begin(node, groups(node).commit(commit())))
    joined = cluster.begin(node, groups(node).join(joining(group="h")))
    cluster.wait(joined)
    assert joined.result().code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert offsets_of(node).log.log_end_offset == end


def test_waiting_members_get_not_coordinator_when_leadership_moves(cluster: Coordinators) -> None:
    node = cluster[1]
    task = cluster.begin(node, stable(node))
    cluster.wait(task)
    cluster.cut(2, 3)
    waiting: list[asyncio.Task[Any]] = [cluster.begin(node, groups(node).join(joining()))]  # it was started anew
    waiting.append(cluster.begin(node, groups(node).join(joining("j"))))
    assert not any(one.done() for one in waiting)
    cluster.run(0.1)
    assert groups(node)._contexts[0].timers
    cluster.lead(2)
    for one in waiting:
        cluster.wait(one, 0.5)
        answer: Answer = one.result()
        assert answer.code is ErrorCode.NOT_COORDINATOR
    cluster.cut()
    cluster.run(1.0)
    group = groups(cluster[2]).shard("g").classic("g")
    assert group is not None
    assert [member.member_id for member in group.members] == [task.result().member_id]
    left = cluster.begin(cluster[2], groups(cluster[2]).leave("g", [LeavingMember("", "i")]))
    cluster.wait(left)
    assert left.result() == [ErrorCode.NONE]


def test_new_epoch_of_the_same_leader_reloads_groups_from_the_log(cluster: Coordinators) -> None:
    node = cluster[1]
    member_id = cluster.wait(cluster.begin(node, groups(node).join(joining()))).member_id
    cluster.cut(2, 3)
    request = SyncGroupRequest("g", member_id, "i", 1, None, None, {member_id: b"A"})
    synced = cluster.begin(node, groups(node).sync(request))
    cluster.lead(1)
    cluster.wait(synced, 0.5)
    assert synced.result().code is ErrorCode.NOT_COORDINATOR
    cluster.cut()
    cluster.run(0.5)
    synced = cluster.begin(node, groups(node).sync(request._replace(assignments={member_id: b"B"})))
    cluster.wait(synced)
    assert synced.result().assignment == b"A"  # it was written, and is committed by now
    cluster.wait(cluster.begin(node, groups(node).commit(commit("h"))))


def test_a_load_that_is_overtaken_is_given_up(cluster: Coordinators, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leadership goes and comes back while a long log is replayed."""
    for offset in range(600):
        cluster[1].process.create_task(groups(cluster[1]).commit(commit(offset=offset)))
    cluster.run(2.0)
    node = cluster[2]
    steps = []
    replay = GroupContext.replay

    def counted(context: GroupContext) -> Iterator[None]:
        for step in replay(context):
            steps.append(context.leader_epoch)
            if len(steps) == 10:
                cluster.lead(3)
                node.note(TOPIC)
            yield step

    monkeypatch.setattr(GroupContext, "replay", counted)
    with cluster.unaware(1, 3):
        cluster.lead(2)
        cluster.run(0.1)
        assert len(steps) == 10
        with refused(ErrorCode.NOT_COORDINATOR):
            groups(node).shard("g")
    cluster.lead(2)
    cluster.run(1.0)
    assert len(steps) > 600
    assert offset_of(node) == 599


def test_a_wait_for_a_commit_goes_on_after_a_session_in_doubt(cluster: Coordinators) -> None:
    """No other broker has become leader, so completing a transaction or loading a partition must not be given up."""
    one = cluster[1]
    replica = offsets_of(one)
    cluster.wait(cluster.begin(one, groups(one).commit(commit("g", 5))))
    context = groups(one)._context_of("g")
    cluster.cut(2, 3)
    cluster.run(0.1)
    asking = cluster.begin(one, groups(one).commit(commit("g", 6)))
    waiting = cluster.begin(one, context.committed(replica.log.log_end_offset))
    one.call(replica.doubt)
    assert one.call(lambda: replica.weigh(one.running.replicas.now_ms, unclean=True, silence_ms=0))
    with refused(ErrorCode.NOT_COORDINATOR):
        cluster.wait(asking)
    assert not waiting.done()
    one.call(replica.trust)
    cluster.cut()
    cluster.wait(waiting)
    assert waiting.result()


def joining_consumer(member_id: str) -> ConsumerHeartbeat:
    return ConsumerHeartbeat("g", member_id, 0, None, None, 60_000, frozenset({"t"}), None, None, {}, "c", "/h")


def test_heartbeat_without_changes_waits_until_its_state_is_committed(cluster: Coordinators) -> None:
    """The next coordinator may not have it: then the member would be ahead of its group."""
    one = cluster[1]
    cluster.wait(cluster.begin(one, groups(one).consumer_heartbeat(joining_consumer("one"))))
    cluster.cut(2, 3)
    cluster.run(0.1)
    joining_too = cluster.begin(one, groups(one).consumer_heartbeat(joining_consumer("other")))
    repeated = cluster.begin(one, groups(one).consumer_heartbeat(joining_consumer("other")))
    assert not joining_too.done()
    assert not repeated.done()
    cluster.cut()
    cluster.wait(joining_too)
    cluster.wait(repeated)
    assert repeated.result().epoch == joining_too.result().epoch
