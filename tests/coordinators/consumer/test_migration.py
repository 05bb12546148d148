from uuid import UUID

import pytest

from seglog.coordinators.classic.group import ClassicGroup
from seglog.coordinators.classic.messages import JoinGroupRequest, JoinGroupResult, LeavingMember, SyncGroupRequest
from seglog.coordinators.classic.state import GroupState
from seglog.coordinators.consumer.member import LEAVES_FOR_NOW
from seglog.coordinators.consumer.settings import ConsumerRules, MigrationPolicy
from seglog.coordinators.consumer_protocol import decode_assignment, encode_assignment
from seglog.coordinators.coordinator_error import CoordinatorError
from seglog.coordinators.group_records import GroupMetadataKey, GroupMetadataValue, MemberMetadata
from seglog.core.error_codes import ErrorCode
from tests.coordinators.consumer.consumer_driver import GROUP, SESSION, WALL, ConsumerDriver, kinds, owned
from tests.coordinators.shard_driver import subscription

NUMBERS = frozenset(range(4))


def classic_group(driver: ConsumerDriver, *, user_data: bool = False, protocol_type: str = "consumer") -> None:
    """A stable classic group, as its record has it: member "old" reads all of "t"."""
    assignment = encode_assignment({"t": NUMBERS}, 0)
    if user_data:
        assignment = assignment[:-4] + b"\x00\x00\x00\x01x"
    member = MemberMetadata("old", None, "c", "/h", 60_000, SESSION, subscription("t"), assignment)
    value = GroupMetadataValue(protocol_type, 7, "range", "old", WALL, (member,))
    driver.log.append((GroupMetadataKey(GROUP), value))
    driver.restart()


@pytest.fixture
def driver() -> ConsumerDriver:
    return ConsumerDriver({"t": 4})


def join(member_id: str, instance: str | None = None, version: int = 9) -> JoinGroupRequest:
    protocols = (("range", subscription("t")),)
    return JoinGroupRequest(GROUP, member_id, instance, "c", "/h", 60_000, SESSION, "consumer", protocols, version)


def sync(driver: ConsumerDriver, joined: JoinGroupResult) -> frozenset[int]:
    request = SyncGroupRequest(GROUP, joined.member_id, None, joined.generation, "consumer", "range", {})
    return decode_assignment(driver.classic_sync(request).assignment).partitions.get("t", frozenset())


def test_classic_group_becomes_a_consumer_group_and_goes_back(driver: ConsumerDriver) -> None:
    topic_id = driver.topics.id_of("t")
    classic_group(driver)
    new = driver.join("new", "t")
    assert not owned(new.assigned)
    assert kinds(driver.batches[-1])[:6] == [
        "-GroupMetadataKey",
        "MemberKey",
        "ConsumerGroupKey",
        "MemberTargetKey",
        "TargetKey",
        "CurrentAssignmentKey",
    ]
    assert driver.member("old").is_classic
    assert driver.group.epoch == 8
    # The classic member learns by its heartbeat that it must join again, and gives up what is not its own.
    assert driver.classic_heartbeat("old", 7) is ErrorCode.REBALANCE_IN_PROGRESS
    again = driver.classic_join(join("old"))
    assert (again.code, again.generation, again.protocol) == (ErrorCode.NONE, 8, "range")
    kept = sync(driver, again)
    assert len(kept) == 2
    assert owned(driver.heartbeat("new", 8).assigned) == {topic_id: NUMBERS - kept}
    assert driver.classic_heartbeat("old", 8) is ErrorCode.NONE
    # The last consumer member leaves.
    driver.leave("new")
    group = driver.shard.groups[GROUP]
    assert isinstance(group, ClassicGroup)
    assert (group.state, group.generation) == (GroupState.STABLE, 8)
    assert decode_assignment(group.members["old"].assignment).partitions == {"t": kept}
    replayed = driver.replayed().groups[GROUP]
    assert isinstance(replayed, ClassicGroup)
    assert replayed.value() == group.value()


def test_classic_member_that_does_not_join_again_is_removed(driver: ConsumerDriver) -> None:
    classic_group(driver)
    driver.join("new", "t")
    for _ in range(6):
        assert driver.classic_heartbeat("old", 7) is ErrorCode.REBALANCE_IN_PROGRESS
        driver.heartbeat("new", 8)
        driver.advance(10_000)
    assert list(driver.group.members) == ["new"]


@pytest.mark.parametrize(
    ("policy", "user_data", "protocol_type"),
    [
        (MigrationPolicy.DISABLED, False, "consumer"),
        (MigrationPolicy.DOWNGRADE, False, "consumer"),
        (MigrationPolicy.BIDIRECTIONAL, True, "consumer"),
        (MigrationPolicy.BIDIRECTIONAL, False, "connect"),
    ],
)
def test_groups_that_stay_classic(policy: MigrationPolicy, user_data: bool, protocol_type: str) -> None:
    driver = ConsumerDriver({"t": 4}, ConsumerRules(migration=policy))
    classic_group(driver, user_data=user_data, protocol_type=protocol_type)
    with pytest.raises(CoordinatorError) as refused:
        driver.join("new", "t")
    assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND
    assert isinstance(driver.shard.groups[GROUP], ClassicGroup)


def test_group_stays_a_consumer_group_if_the_policy_says_so() -> None:
    driver = ConsumerDriver({"t": 4}, ConsumerRules(migration=MigrationPolicy.UPGRADE))
    classic_group(driver)
    driver.join("new", "t")
    driver.leave("new")
    assert list(driver.group.members) == ["old"]


def test_empty_classic_group_becomes_a_consumer_group() -> None:
    driver = ConsumerDriver({"t": 4}, ConsumerRules(migration=MigrationPolicy.DISABLED))
    driver.log.append((GroupMetadataKey(GROUP), GroupMetadataValue("consumer", 3, None, None, WALL, ())))
    driver.restart()
    assert driver.join("new", "t").epoch == 2
    assert kinds(driver.batches[-1])[0] == "-GroupMetadataKey"


def test_classic_member_is_refused_if_migration_is_disabled() -> None:
    driver = ConsumerDriver({"t": 4}, ConsumerRules(migration=MigrationPolicy.DISABLED))
    driver.join("new", "t")
    with pytest.raises(CoordinatorError, match="because the group migration is disabled") as refused:
        driver.classic_join(join(""))
    assert refused.value.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert list(driver.group.members) == ["new"]


def test_new_classic_member_joins_a_consumer_group(driver: ConsumerDriver) -> None:
    topic_id: UUID = driver.topics.id_of("t")
    driver.join("new", "t")
    wanted = driver.classic_join(join(""))
    assert wanted.code is ErrorCode.MEMBER_ID_REQUIRED
    joined = driver.classic_join(join(wanted.member_id))
    assert sync(driver, joined) == frozenset()
    kept = owned(driver.heartbeat("new", 2, {topic_id: NUMBERS}).assigned)
    driver.heartbeat("new", 2, kept)
    assert driver.classic_heartbeat(joined.member_id, joined.generation) is ErrorCode.REBALANCE_IN_PROGRESS
    again = driver.classic_join(join(joined.member_id))
    assert sync(driver, again) == NUMBERS - kept[topic_id]
    assert driver.classic_leave(LeavingMember(joined.member_id), LeavingMember("x")) == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]


def test_static_member_comes_back_as_a_classic_one(driver: ConsumerDriver) -> None:
    driver.join("new", "t", instance="i")
    driver.leave("new", LEAVES_FOR_NOW, "i")
    joined = driver.classic_join(join("", "i"))
    assert joined.code is ErrorCode.NONE
    group = driver.shard.groups[GROUP]
    assert isinstance(group, ClassicGroup)
    assert decode_assignment(group.members[joined.member_id].assignment).partitions == {"t": NUMBERS}
    assert isinstance(driver.replayed().groups[GROUP], ClassicGroup)


def test_group_that_goes_back_knows_what_its_members_still_have(driver: ConsumerDriver) -> None:
    """Its member was told to give up two partitions and still has them: the next consumer member waits for them."""
    topic_id = driver.topics.id_of("t")
    classic_group(driver)
    driver.join("new", "t")
    driver.leave("new")
    group = driver.shard.groups[GROUP]
    assert isinstance(group, ClassicGroup)
    assert decode_assignment(group.members["old"].assignment).partitions == {"t": NUMBERS}
    joined = driver.join("newer", "t")
    assert not owned(joined.assigned)
    assert driver.heartbeat("newer", joined.epoch, {}).assigned is None
    assert {*driver.member("old").partitions()[topic_id]} == NUMBERS


def test_static_member_that_comes_back_rebalances_a_group_that_is_not_settled(driver: ConsumerDriver) -> None:
    classic_group(driver)
    driver.join("new", "t", instance="i")
    driver.leave("new", LEAVES_FOR_NOW, "i")
    driver.classic_join(join("", "i"))
    group = driver.shard.groups[GROUP]
    assert isinstance(group, ClassicGroup)
    assert decode_assignment(group.members["old"].assignment).partitions == {"t": NUMBERS}


def test_consumer_member_is_unknown_to_classic_requests(driver: ConsumerDriver) -> None:
    driver.join("new", "t")
    with pytest.raises(CoordinatorError) as refused:
        driver.classic_heartbeat("new", 2)
    assert refused.value.code is ErrorCode.UNKNOWN_MEMBER_ID
