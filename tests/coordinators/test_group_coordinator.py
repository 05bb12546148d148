"""The coordinator on a real log: what it writes, when it answers, and what it finds after a restart."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import Any
from uuid import UUID

import pytest

from seglog.coordinators.classic.messages import LeavingMember, SyncGroupRequest
from seglog.coordinators.classic.state import GroupState
from seglog.coordinators.consumer.messages import ConsumerHeartbeat
from seglog.coordinators.coordinator_error import CoordinatorError
from seglog.coordinators.coordinator_shard import OffsetCommit, OffsetCommitRequest
from seglog.coordinators.group_coordinator import GroupCoordinator
from seglog.coordinators.group_records import OffsetAndMetadata, OffsetCommitKey, encode
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import TopicExistsError
from seglog.core.ground import Ground
from seglog.core.topic_names import OFFSETS_TOPIC
from seglog.records.record import NewRecord, encode_batch, end_txn_marker
from seglog.storage.log.admit import Origin
from tests.coordinators.running_coordinator import (
    NODE,
    SETTINGS,
    TOPIC,
    RunningCoordinator,
    commit,
    join,
    others,
    refused,
    stable,
)
from tests.kit.manual_clock import ManualClock


def test_the_topic_is_made_once_with_kafkas_configuration() -> None:
    coordinated = RunningCoordinator()

    async def act(coordinator: GroupCoordinator) -> None:
        with refused(ErrorCode.NOT_COORDINATOR):
            await coordinator.heartbeat("g", "m", None, 1)
        assert list(coordinator.shards()) == []
        waiting = [asyncio.create_task(coordinator.locate(f"g{number}")) for number in range(5)]
        await asyncio.sleep(0)
        waiting[0].cancel()  # the others do not mind
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert [one == NODE for one in found] == [False, True, True, True, True]
        assert coordinated.topic.made == 1

    coordinated.run(act)
    info = coordinated.directory.topics()[OFFSETS_TOPIC]
    assert info.config == {
        "cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": "104857600"
    }  # fmt: skip


def test_a_topic_that_cannot_be_made() -> None:
    coordinated = RunningCoordinator()
    coordinated.topic.refuses = TopicExistsError("a file is in the way")

    async def act(coordinator: GroupCoordinator) -> None:
        assert await coordinator.locate("g") == -1
        coordinated.topic.refuses = None
        assert await coordinator.locate("g") == NODE

    coordinated.run(act)


def test_a_partition_that_was_refused() -> None:
    coordinated = RunningCoordinator()

    async def act(coordinator: GroupCoordinator) -> None:
        await coordinator.locate("g")
        coordinated.topic.lose(coordinator.partition_of("g"))
        assert await coordinator.locate("g") == -1
        with refused(ErrorCode.NOT_COORDINATOR):
            await coordinator.commit(commit())
        assert len(list(coordinator.shards())) == 1

    coordinated.run(act)


def test_batches_as_kafka_writes_them() -> None:
    coordinated = RunningCoordinator()

    async def act(coordinator: GroupCoordinator) -> None:
        await stable(coordinator)
        await coordinator.leave("g", [LeavingMember("", "i")])
        await coordinator.commit(commit(count=3))

    coordinated.run(act)
    number = coordinated.coordinator.partition_of("g")
    batches = list(coordinated.directory.log(OFFSETS_TOPIC, number).read(0).batches())
    assert [header.records_count for header, _ in batches] == [1, 1, 1, 3]
    assert {(header.producer_id, header.producer_epoch, header.base_sequence) for header, _ in batches} == {(-1, -1, 0)}
    assert {header.attributes for header, _ in batches} == {0}
    keys = [key for key, _ in coordinated.written()]
    assert keys == ['{"type":"2","data":{"group":"g"}}'] * 3 + [
        f'{{"type":"1","data":{{"group":"g","topic":"t","partition":{number}}}}}' for number in range(3)
    ]


def test_a_commit_that_does_not_fit_into_one_batch() -> None:
    coordinated = RunningCoordinator()

    async def act(coordinator: GroupCoordinator) -> None:
        await coordinator.locate("g")
        commits = [OffsetCommit(("t", number), TOPIC, number, -1, "m" * 4096) for number in range(400)]
        codes = await coordinator.commit(OffsetCommitRequest("g", -1, "", None, commits, 9))
        assert set(codes) == {ErrorCode.NONE}
        assert len(coordinator.shard("g").places("g")) == 400

    coordinated.run(act)


def test_a_start_finds_groups_members_and_offsets() -> None:
    coordinated = RunningCoordinator()
    members: list[str] = []

    async def before(coordinator: GroupCoordinator) -> None:
        for group in ("a", "b", "c", "d"):
            members.append(await stable(coordinator, group))
            await coordinator.commit(commit(group, 7, generation=1, member=members[-1]))
        await coordinator.leave("d", [LeavingMember("", "i")])
        assert await coordinator.delete_group("d") is ErrorCode.NONE
        assert await coordinator.delete_group("a") is ErrorCode.NON_EMPTY_GROUP
        assert await coordinator.delete_group("e") is ErrorCode.GROUP_ID_NOT_FOUND

    async def after(coordinator: GroupCoordinator) -> None:
        # Until everything is read nobody is told anything that may be wrong.
        with refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):
            coordinator.shard("a")
        with refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):
            list(coordinator.shards())
        coordinator.topics_deleted([("u", None)])
        while True:
            try:
                shards = list(coordinator.shards())
                break
            except CoordinatorError:
                await asyncio.sleep(0)
        assert sorted(group for shard in shards for group in shard.groups) == ["a", "b", "c"]
        assert await coordinator.heartbeat("a", members[0], "i", 1) is ErrorCode.NONE
        found = coordinator.shard("b").fetch("b", ("t", 0), TOPIC, require_stable=True)
        assert found.value is not None
        assert found.value.offset == 7
        assert coordinator.shard("c").groups["c"].state is GroupState.STABLE

    coordinated.run(before)
    coordinated.restart()
    coordinated.run(after)


def test_records_of_unknown_types_are_passed_over_on_load() -> None:
    coordinated = RunningCoordinator()

    async def before(coordinator: GroupCoordinator) -> None:
        await coordinator.locate("g")
        await coordinator.commit(commit(offset=1))
        partition = coordinated.topic.partitions()[coordinator.partition_of("g")]
        assert partition is not None
        partition.append(encode_batch([NewRecord(b"v", b"\0\x0c\0\1g")]), Origin.COORDINATOR)

    async def after(coordinator: GroupCoordinator) -> None:
        while True:
            with suppress(CoordinatorError):
                coordinator.shard("g")
                break
            await asyncio.sleep(0)
        assert len(coordinator.shard("g").offsets) == 1

    coordinated.run(before)
    coordinated.restart()
    coordinated.run(after)


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (NewRecord(b"v", b"\0\1\0\1"), "cannot be read"),
        (NewRecord(b"\0\x63", b"\0\2\0\1g"), "version 99"),
        (NewRecord(b"\0\1\0", b"\0\1\0\1g\0\1t\0\0\0\0"), "cannot be read"),
    ],
)
def test_groups_of_a_partition_with_an_unreadable_record_are_refused(record: NewRecord, why: str) -> None:
    """An offset that was committed before it would be returned otherwise. Groups of other partitions are served."""
    coordinated = RunningCoordinator()
    groups = {0: "", 1: ""}

    async def before(coordinator: GroupCoordinator) -> None:
        groups.update({coordinator.partition_of(f"g{number}"): f"g{number}" for number in range(9)})
        for group in groups.values():
            await coordinator.locate(group)
            await coordinator.commit(commit(group, offset=1))
        partition = coordinated.topic.partitions()[0]
        assert partition is not None
        partition.append(encode_batch([record]), Origin.COORDINATOR)

    async def after(coordinator: GroupCoordinator) -> None:
        while True:
            with suppress(CoordinatorError):
                assert len(coordinator.shard(groups[1]).offsets) == 1
                break
            await asyncio.sleep(0)
        with pytest.raises(CoordinatorError, match=why) as refused:
            coordinator.shard(groups[0])
        assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert f"/logs/{OFFSETS_TOPIC}-0, offset 1: " in str(refused.value)

    coordinated.run(before)
    coordinated.restart()
    coordinated.run(after)


@pytest.mark.parametrize(("commits", "expected"), [(True, 9), (False, 1)])
def test_transactions_of_a_kafka_are_replayed(commits: bool, expected: int) -> None:
    coordinated = RunningCoordinator()

    async def before(coordinator: GroupCoordinator) -> None:
        await coordinator.locate("g")
        await coordinator.commit(commit(offset=1))
        log = coordinated.directory.log(OFFSETS_TOPIC, coordinator.partition_of("g"))
        key, value = encode((OffsetCommitKey("g", "t", 0), OffsetAndMetadata(9, -1, "", 0)))
        log.append(
            encode_batch([NewRecord(value, key)], producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
        )
        marker = end_txn_marker(commit=commits, coordinator_epoch=0, producer_id=5, producer_epoch=0, timestamp=0)
        log.append(marker, origin=Origin.COORDINATOR)

    async def after(coordinator: GroupCoordinator) -> None:
        while True:
            with suppress(CoordinatorError):
                found = coordinator.shard("g").fetch("g", ("t", 0), None, require_stable=True)
                break
            await asyncio.sleep(0)
        assert found.value is not None
        assert found.value.offset == expected

    coordinated.run(before)
    coordinated.restart()
    coordinated.run(after)


def test_a_marker_that_comes_while_the_log_is_replayed_decides_offsets() -> None:
    """The replay ends where the log ended when it began."""
    coordinated = RunningCoordinator()

    async def work(coordinator: GroupCoordinator) -> None:
        await coordinator.locate("g")
        partition = coordinated.topic.partitions()[coordinator.partition_of("g")]
        assert partition is not None
        log = partition.log
        for number in range(2):
            key, value = encode((OffsetCommitKey("g", "t", number), OffsetAndMetadata(9, -1, "", 0)))
            data = [NewRecord(value, key)]
            log.append(encode_batch(data, producer_id=5, producer_epoch=0, base_sequence=number, transactional=True))
        context = coordinator.make_context(partition)
        replay = coordinator.replay(context)
        next(replay)
        marker = end_txn_marker(commit=True, coordinator_epoch=0, producer_id=5, producer_epoch=0, timestamp=0)
        appended = log.append(marker, origin=Origin.COORDINATOR)
        context.end_transaction(5, appended.last_offset, commit=True)
        assert [*replay] == [None]
        context.replayed()
        found = [context.shard.fetch("g", ("t", number), None, require_stable=True) for number in range(2)]
        assert [None if one.value is None else one.value.offset for one in found] == [9, 9]

    coordinated.run(work)


def test_answers_wait_for_the_high_watermark() -> None:
    coordinated = RunningCoordinator(hw_follows_end=False, settings=SETTINGS._replace(offsets_commit_timeout_ms=60_000))

    async def act(coordinator: GroupCoordinator) -> None:
        await coordinator.locate("g")
        partition = coordinated.topic.partitions()[coordinator.partition_of("g")]
        assert partition is not None

        def rise() -> None:
            partition.log.update_high_watermark(partition.log.log_end_offset)
            partition.wake()

        committing = asyncio.create_task(coordinator.commit(commit("g")))
        await others()
        assert not committing.done()
        rise()
        assert await committing == [ErrorCode.NONE]
        joined = await coordinator.join(join())
        sync = SyncGroupRequest("g", joined.member_id, "i", 1, None, None, {joined.member_id: b"A"})
        syncing = asyncio.create_task(coordinator.sync(sync))
        await others()
        assert not syncing.done()
        assert coordinator.shard("g").groups["g"].state is GroupState.COMPLETING
        rise()
        assert (await syncing).assignment == b"A"

    coordinated.run(act)


@pytest.mark.parametrize("leads", [True, False])
def test_refusals_wait_for_what_they_rest_on(leads: bool) -> None:
    """A broker that has lost the partition has removed a member: no other broker knows that, and no client may."""
    coordinated = RunningCoordinator(hw_follows_end=False, settings=SETTINGS._replace(offsets_commit_timeout_ms=60_000))
    heartbeat = ConsumerHeartbeat("g", "m", 0, None, None, 60_000, frozenset({"t"}), None, None, {}, "c", "/h")

    async def act(coordinator: GroupCoordinator) -> None:
        await coordinator.locate("g")
        number = coordinator.partition_of("g")
        partition = coordinated.topic.partitions()[number]
        assert partition is not None
        changes = [
            asyncio.create_task(coordinator.consumer_heartbeat(heartbeat._replace(epoch=epoch))) for epoch in (0, -1)
        ]
        await others()
        refusals: list[asyncio.Task[Any]] = [
            asyncio.create_task(coordinator.consumer_heartbeat(heartbeat._replace(epoch=1))),
            asyncio.create_task(coordinator.commit(commit("g", generation=1, member="m"))),
            asyncio.create_task(coordinator.sync(SyncGroupRequest("g", "m", None, 1, None, None, {}))),
            asyncio.create_task(coordinator.heartbeat("g", "m", None, 1)),
        ]
        await others()
        assert not any(one.done() for one in (*changes, *refusals))
        if leads:
            partition.log.update_high_watermark(partition.log.log_end_offset)
            partition.wake()
        else:
            coordinated.topic.lose(number)
            coordinator.moved()
        code = ErrorCode.UNKNOWN_MEMBER_ID if leads else ErrorCode.NOT_COORDINATOR
        for refusal in refusals:
            with refused(code):
                await refusal
        await asyncio.gather(*changes, return_exceptions=True)

    coordinated.run(act)


def test_commit_that_is_not_replicated_in_time_is_refused() -> None:
    coordinated = RunningCoordinator(hw_follows_end=False)

    async def act(coordinator: GroupCoordinator) -> None:
        await coordinator.locate("g")
        with refused(ErrorCode.COORDINATOR_NOT_AVAILABLE):
            await coordinator.commit(commit("g"))

    coordinated.run(act)


def test_a_disk_that_fails() -> None:
    coordinated = RunningCoordinator()

    async def act(coordinator: GroupCoordinator) -> None:
        member = await stable(coordinator)
        coordinated.directory.health.failed(OSError("broken"))
        with refused(ErrorCode.NOT_COORDINATOR):
            await coordinator.commit(commit(generation=1, member=member))
        assert coordinator.shard("g").places("g") == []
        answer = await coordinator.join(join("h"))
        assert answer.code is ErrorCode.NOT_COORDINATOR
        assert "h" not in coordinator.shard("h").groups
        assert (await coordinator.join(join())).code is ErrorCode.NOT_COORDINATOR
        assert await coordinator.heartbeat("g", member, "i", 1) is ErrorCode.NONE
        coordinator.topics_deleted([("t", None)])
        coordinator.expire_offsets()

    coordinated.run(act)


def test_sessions_end_by_the_clock() -> None:
    coordinated = RunningCoordinator()

    async def act(coordinator: GroupCoordinator) -> None:
        member = await stable(coordinator, session=500)
        group = coordinator.shard("g").groups["g"]
        deadline = asyncio.get_running_loop().time() + 60
        while group.state is not GroupState.EMPTY:
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.01)
        assert await coordinator.heartbeat("g", member, "i", 1) is ErrorCode.UNKNOWN_MEMBER_ID

    coordinated.run(act)


def test_expired_offsets_are_removed_in_the_background() -> None:
    settings = SETTINGS._replace(offsets_retention_minutes=0, offsets_retention_check_interval_ms=10)
    coordinated = RunningCoordinator(settings=settings)

    async def act(coordinator: GroupCoordinator) -> None:
        await coordinator.locate("g")
        await coordinator.commit(commit())
        while coordinator.shard("g").groups:
            await asyncio.sleep(0.01)

    coordinated.run(act)
    assert [value for _, value in coordinated.written()][1:] == ["<DELETE>", "<DELETE>"]


def test_stopping_coordinator_sends_waiting_members_elsewhere() -> None:
    coordinated = RunningCoordinator(settings=SETTINGS._replace(group_initial_rebalance_delay_ms=60_000))
    joining: list[asyncio.Task[Any]] = []

    async def act(coordinator: GroupCoordinator) -> None:
        await coordinator.locate("g")
        joining.append(asyncio.create_task(coordinator.join(join())))
        gone = asyncio.create_task(coordinator.join(join(instance="j")))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)

    async def main() -> None:
        assert await coordinated.coordinator.locate("g") == -1
        running = asyncio.create_task(coordinated.coordinator.run())
        await asyncio.sleep(0)
        await act(coordinated.coordinator)
        running.cancel()
        assert (await joining[0]).code is ErrorCode.NOT_COORDINATOR
        with suppress(asyncio.CancelledError):
            await running
        with refused(ErrorCode.COORDINATOR_NOT_AVAILABLE):
            await coordinated.coordinator.join(join())

    asyncio.run(main())


def test_member_ids_are_kafkas() -> None:
    coordinated = RunningCoordinator()
    clock = ManualClock()
    coordinated.coordinator = GroupCoordinator(
        coordinated.topic, SETTINGS, coordinated.topics, ground=Ground(clock=clock, rng=random.Random(3))
    )

    async def act(coordinator: GroupCoordinator) -> None:
        await coordinator.locate("g")
        given = await coordinator.join(join(instance=None))
        assert given.code is ErrorCode.MEMBER_ID_REQUIRED
        prefix, _, number = given.member_id.partition("-")
        assert prefix == "c"
        assert UUID(number).version == 4

    coordinated.run(act)
