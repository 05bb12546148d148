"""Committed offsets: who may commit, what is kept and for how long, and what a restart finds."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.coordinators.classic.group import ClassicGroup
from seglog.coordinators.classic.state import GroupLimits, GroupState
from seglog.coordinators.committed_offsets import CommittedOffsets
from seglog.coordinators.coordinator_error import CoordinatorError
from seglog.coordinators.coordinator_shard import CoordinatorShard
from seglog.coordinators.group_records import GroupMetadataKey, OffsetAndMetadata, OffsetCommitKey
from seglog.core.error_codes import ErrorCode
from tests.cases import case
from tests.coordinators.shard_driver import DELAY, GROUP, RANGE, RETENTION, SESSION, WALL, ShardDriver

OLD, NEW = UUID(int=1), UUID(int=2)


@pytest.fixture
def driver() -> ShardDriver:
    return ShardDriver(max_metadata=10)


def expire(driver: ShardDriver) -> list[object]:
    """Return the keys that expire."""
    records = driver.shard.expire(driver.now, RETENTION)
    driver.append(records)
    assert all(value is None for _, value in records)
    return [key for key, _ in records]


# Committing


def test_a_client_without_a_group_commits(driver: ShardDriver) -> None:
    assert driver.commit(offset=7) is ErrorCode.NONE
    assert driver.committed() == 7
    group = driver.group
    assert (group.state, group.protocol_type, group.members.pending) == (GroupState.EMPTY, None, {})
    assert driver.log == [(OffsetCommitKey(GROUP, "t", 0), OffsetAndMetadata(7, -1, "", WALL))]


@pytest.mark.parametrize(("version", "code"), [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)])
def test_a_member_of_no_group(driver: ShardDriver, version: int, code: ErrorCode) -> None:
    assert driver.commit("m", 1, version=version) is code
    assert driver.shard.groups == {}


def test_members_commit(driver: ShardDriver) -> None:
    leader, static = driver.stable(1, instances=["i"])
    assert driver.commit(leader, 1, offset=1) is ErrorCode.NONE
    assert driver.commit(static, 1, offset=2, instance="i") is ErrorCode.NONE
    assert driver.commit(leader, 0) is ErrorCode.ILLEGAL_GENERATION
    assert driver.commit(leader, 2) is ErrorCode.ILLEGAL_GENERATION
    assert driver.commit(leader, -1) is ErrorCode.ILLEGAL_GENERATION
    assert driver.commit("nobody", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.commit() is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.commit(static, 1, instance="j") is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.commit(leader, 1, instance="i") is ErrorCode.FENCED_INSTANCE_ID
    assert driver.committed() == 2


def test_commits_during_a_rebalance(driver: ShardDriver) -> None:
    (member,) = driver.stable()
    driver.start_join(version=3)
    assert driver.group.state is GroupState.PREPARING
    assert driver.commit(member, 1, offset=5) is ErrorCode.NONE
    driver.start_join(member)
    assert driver.heartbeat(member, 2) is ErrorCode.NONE
    assert driver.commit(member, 1) is ErrorCode.ILLEGAL_GENERATION
    assert driver.commit(member, 2) is ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.committed() == 5


def test_a_commit_is_a_heartbeat(driver: ShardDriver) -> None:
    (member,) = driver.stable()
    for _ in range(5):
        driver.advance(SESSION - 1)
        assert driver.commit(member, 1) is ErrorCode.NONE
    driver.advance(SESSION)
    assert driver.commit(member, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_an_empty_group_takes_commits_of_anyone_again(driver: ShardDriver) -> None:
    (member,) = driver.stable()
    driver.leave(member)
    assert driver.commit(offset=3) is ErrorCode.NONE
    assert driver.commit(member, 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.commit(member, -1, offset=4) is ErrorCode.NONE
    assert driver.committed() == 4


@pytest.mark.parametrize(
    ("metadata", "code"),
    [
        (None, ErrorCode.NONE),
        ("x" * 10, ErrorCode.NONE),
        ("x" * 11, ErrorCode.OFFSET_METADATA_TOO_LARGE),
        ("ä" * 10, ErrorCode.NONE),
        ("\N{GRINNING FACE}" * 5, ErrorCode.NONE),
        ("\N{GRINNING FACE}" * 6, ErrorCode.OFFSET_METADATA_TOO_LARGE),
    ],
)
def test_metadata_is_counted_in_javas_characters(driver: ShardDriver, metadata: str | None, code: ErrorCode) -> None:
    assert driver.commit(metadata=metadata) is code
    assert (driver.committed() is None) == (code is not ErrorCode.NONE)


# Fetching


def test_nothing_is_committed(driver: ShardDriver) -> None:
    assert driver.committed() is None
    driver.commit()
    assert driver.committed(partition=1) is None
    assert driver.committed(topic="u") is None
    assert driver.committed(group="h") is None
    assert driver.shard.places(GROUP) == [("t", 0)]
    assert driver.shard.places("h") == []


@pytest.mark.parametrize(("known", "asked", "found"), [(OLD, NEW, False), (OLD, OLD, True), (None, NEW, True)])
def test_recreated_topic_has_no_committed_offsets(known: UUID | None, asked: UUID, found: bool) -> None:
    offsets = CommittedOffsets()
    offsets.put(OffsetCommitKey(GROUP, "t", 0), OffsetAndMetadata(5, 0, "", WALL, topic_id=known), 0)
    assert (offsets.fetch(GROUP, ("t", 0), asked, require_stable=False).value is not None) == found
    assert offsets.fetch(GROUP, ("t", 0), None, require_stable=False).value is not None


# Transactions, in the directories of a Kafka


def place_of(offsets: CommittedOffsets, *, require_stable: bool) -> tuple[int | None, bool]:
    found = offsets.fetch(GROUP, ("t", 0), None, require_stable=require_stable)
    return None if found.value is None else found.value.offset, found.is_unstable


def test_commits_of_transactions_count_when_they_end() -> None:
    offsets = CommittedOffsets()
    key = OffsetCommitKey(GROUP, "t", 0)
    offsets.put(key, OffsetAndMetadata(1, 0, "", WALL), 0)
    offsets.put(key, OffsetAndMetadata(2, 0, "", WALL), 1, producer_id=7)
    assert place_of(offsets, require_stable=False) == (1, False)
    assert place_of(offsets, require_stable=True) == (None, True)
    assert offsets.has_open_transactions(GROUP)
    offsets.end_transaction(7, 2, commit=False)
    assert place_of(offsets, require_stable=True) == (1, False)
    offsets.put(key, OffsetAndMetadata(3, 0, "", WALL), 3, producer_id=7)
    offsets.end_transaction(7, 4, commit=True)
    assert place_of(offsets, require_stable=True) == (3, False)
    assert not offsets.has_open_transactions(GROUP)


def test_a_younger_commit_stands_before_that_of_a_transaction() -> None:
    offsets = CommittedOffsets()
    key = OffsetCommitKey(GROUP, "t", 0)
    offsets.put(key, OffsetAndMetadata(2, 0, "", WALL), 1, producer_id=7)
    offsets.put(key, OffsetAndMetadata(9, 0, "", WALL), 2)
    offsets.end_transaction(7, 3, commit=True)
    assert place_of(offsets, require_stable=True) == (9, False)
    offsets.put(key, OffsetAndMetadata(2, 0, "", WALL), 4, producer_id=7)
    offsets.put(key, None, 5)
    offsets.end_transaction(7, 6, commit=True)
    assert place_of(offsets, require_stable=True) == (None, False)


def test_a_marker_decides_nothing_that_was_written_behind_it() -> None:
    """A leader may learn late that a marker is committed: the producer is in its next transaction then."""
    offsets = CommittedOffsets()
    offsets.put(OffsetCommitKey(GROUP, "t", 0), OffsetAndMetadata(2, 0, "", WALL), 1, producer_id=7)
    offsets.put(OffsetCommitKey(GROUP, "t", 1), OffsetAndMetadata(3, 0, "", WALL), 3, producer_id=7)
    offsets.end_transaction(7, 2, commit=True)
    assert place_of(offsets, require_stable=True) == (2, False)
    assert offsets.fetch(GROUP, ("t", 1), None, require_stable=True).is_unstable
    offsets.end_transaction(7, 4, commit=False)
    assert offsets.fetch(GROUP, ("t", 1), None, require_stable=True) == (None, False)


# Deleting


def test_offsets_are_deleted(driver: ShardDriver) -> None:
    with pytest.raises(CoordinatorError) as refused:
        driver.shard.delete_offsets(GROUP, [("t", 0)])
    assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND
    driver.commit(partition=0)
    driver.commit(partition=1)
    changed = driver.shard.delete_offsets(GROUP, [("t", 0), ("u", 0)])
    assert changed.codes == [ErrorCode.NONE] * 2
    assert [key for key, _ in changed.records] == [OffsetCommitKey(GROUP, "t", 0)]
    driver.append(changed.records)
    assert (driver.committed(0), driver.committed(1)) == (None, 1)


def test_offsets_that_members_read_are_not_deleted(driver: ShardDriver) -> None:
    (member,) = driver.stable()
    driver.commit(member, 1)
    driver.commit(member, 1, topic="u")
    changed = driver.shard.delete_offsets(GROUP, [("t", 0), ("u", 0)])
    assert changed == ([ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE], [(OffsetCommitKey(GROUP, "u", 0), None)])


def test_offsets_of_a_group_without_subscriptions_cannot_be_deleted(driver: ShardDriver) -> None:
    driver.start_join(version=3, protocol_type="connect", protocols=(("x", b""),))
    with pytest.raises(CoordinatorError) as refused:
        driver.shard.delete_offsets(GROUP, [("t", 0)])
    assert refused.value.code is ErrorCode.NON_EMPTY_GROUP


def test_unreadable_member_metadata_counts_as_subscribed_to_every_topic(driver: ShardDriver) -> None:
    driver.stable(protocols=(("range", b"?"),))
    changed = driver.shard.delete_offsets(GROUP, [("t", 0)])
    assert changed.codes == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC]


def test_groups_are_deleted(driver: ShardDriver) -> None:
    (member,) = driver.stable()
    driver.commit(member, 1)
    assert driver.shard.delete_groups([GROUP, "h"]) == ([ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_ID_NOT_FOUND], [])
    driver.leave(member)
    changed = driver.shard.delete_groups([GROUP])
    assert changed.records == [(OffsetCommitKey(GROUP, "t", 0), None), (GroupMetadataKey(GROUP), None)]
    driver.append(changed.records)
    assert driver.shard.groups == {}
    assert len(driver.shard.offsets) == 0
    assert driver.joined(driver.start_join(member)).code is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_topics_end_is_the_end_of_its_commits(driver: ShardDriver) -> None:
    for group in (GROUP, "h"):
        for topic in ("t", "u"):
            driver.commit(group=group, topic=topic)
    records = driver.shard.topics_deleted([("t", OLD)])
    assert [key for key, _ in records] == [OffsetCommitKey(GROUP, "t", 0), OffsetCommitKey("h", "t", 0)]
    driver.append([(OffsetCommitKey(GROUP, "t", 0), OffsetAndMetadata(1, 0, "", WALL, topic_id=NEW))])
    assert [key for key, _ in driver.shard.topics_deleted([("t", OLD)])] == [OffsetCommitKey("h", "t", 0)]


# Expiring


def test_a_simple_clients_offsets_expire_one_by_one(driver: ShardDriver) -> None:
    driver.commit(partition=0)
    driver.advance(1000)
    driver.commit(partition=1)
    driver.advance(RETENTION - 1001)
    assert expire(driver) == []
    driver.advance(1)
    assert expire(driver) == [OffsetCommitKey(GROUP, "t", 0)]
    driver.advance(1000)
    assert expire(driver) == [OffsetCommitKey(GROUP, "t", 1), GroupMetadataKey(GROUP)]
    assert driver.shard.groups == {}


def test_a_groups_offsets_expire_after_it_is_empty(driver: ShardDriver) -> None:
    (member,) = driver.stable()
    driver.commit(member, 1)
    for _ in range(RETENTION // 5000 + 10):
        driver.advance(5000)
        driver.heartbeat(member, 1)
    assert expire(driver) == []
    driver.leave(member)
    driver.advance(RETENTION - 1)
    assert expire(driver) == []
    driver.advance(1)
    assert expire(driver) == [OffsetCommitKey(GROUP, "t", 0), GroupMetadataKey(GROUP)]


def test_offsets_that_members_do_not_read_any_more_expire(driver: ShardDriver) -> None:
    (member,) = driver.stable()
    driver.commit(member, 1, topic="u")
    for _ in range(RETENTION // 5000):
        driver.advance(5000)
        driver.heartbeat(member, 1)
    driver.commit(member, 1, topic="t")
    assert expire(driver) == [OffsetCommitKey(GROUP, "u", 0)]
    assert driver.group.state is GroupState.STABLE


def test_nothing_expires_during_a_rebalance_or_in_a_group_of_another_kind(driver: ShardDriver) -> None:
    driver.commit()
    ticket = driver.start_join(version=3, protocol_type="connect", session=RETENTION * 2, rebalance=RETENTION * 2)
    driver.advance(DELAY)
    assert expire(driver) == []
    driver.start_sync(driver.joined(ticket).member_id, 1)
    driver.advance(RETENTION)
    assert expire(driver) == []


def test_an_expiry_of_its_own_counts(driver: ShardDriver) -> None:
    driver.commit(retention_ms=500)
    assert driver.log[-1][1] == OffsetAndMetadata(1, -1, "", WALL, WALL + 500)
    driver.advance(499)
    assert expire(driver) == []
    driver.advance(1)
    assert expire(driver) == [OffsetCommitKey(GROUP, "t", 0), GroupMetadataKey(GROUP)]


def test_pending_transactional_offsets_do_not_expire(driver: ShardDriver) -> None:
    driver.commit()
    driver.shard.offsets.put(OffsetCommitKey(GROUP, "t", 0), OffsetAndMetadata(2, 0, "", WALL), 1, producer_id=7)
    driver.advance(RETENTION)
    assert expire(driver) == []


def test_empty_group_without_offsets_expires_unless_a_member_is_joining(driver: ShardDriver) -> None:
    driver.start_join()
    assert expire(driver) == []
    driver.advance(SESSION)
    assert expire(driver) == [GroupMetadataKey(GROUP)]


# After a start


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["g", "h"]),
            st.integers(0, 2),
            st.integers(0, 99),
            st.sampled_from(["commit", "del", "end"]),
        )
    )
)
def test_offsets_are_the_same_after_a_restart(actions: list[tuple[str, int, int, str]]) -> None:
    case()
    driver = ShardDriver()
    model: dict[tuple[str, int], int] = {}
    for group, partition, offset, what in actions:
        if what == "commit":
            assert driver.commit(group=group, partition=partition, offset=offset) is ErrorCode.NONE
            model[group, partition] = offset
        elif what == "del" and group in driver.shard.groups:
            driver.append(driver.shard.delete_offsets(group, [("t", partition)]).records)
            model.pop((group, partition), None)
        elif what == "end":
            driver.append(driver.shard.delete_groups([group]).records)
            model = {key: value for key, value in model.items() if key[0] != group}
    for shard in (driver.shard, driver.replayed()):
        found = {
            (group, number): fetched.value.offset
            for group in ("g", "h")
            for topic, number in shard.places(group)
            if (fetched := shard.fetch(group, (topic, number), None, require_stable=True)).value is not None
        }
        assert found == model


def test_members_have_a_session_to_show_up_after_a_start(driver: ShardDriver) -> None:
    leader, static = driver.stable(1, instances=["i"])
    restarted = ShardDriver()
    restarted.shard = driver.replayed()
    for _, step in restarted.shard.loaded(restarted.now):
        assert not step.records
    group = restarted.group
    assert (group.state, group.generation, group.protocol) == (GroupState.STABLE, 1, "range")
    assert restarted.synced(restarted.start_sync(static, 1, instance="i")).assignment == static.encode()
    restarted.advance(SESSION - 1)
    assert restarted.heartbeat(leader, 1) is ErrorCode.NONE
    restarted.advance(1)
    assert static not in restarted.group.members
    assert restarted.joined(restarted.start_join(leader, protocols=RANGE)).generation == 2


def test_a_leader_that_is_no_member_is_not_believed() -> None:
    driver = ShardDriver()
    driver.stable()
    value = driver.group.value()._replace(leader="nobody")
    group = ClassicGroup.restored(GROUP, value, GroupLimits())
    group.check()
    shard = CoordinatorShard(GroupLimits(), 10)
    shard.replay((GroupMetadataKey(GROUP), value), 0)
    shard.replay((GroupMetadataKey(GROUP), None), 1)
    assert shard.groups == {}
