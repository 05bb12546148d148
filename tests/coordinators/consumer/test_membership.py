from collections.abc import Callable

import pytest

from seglog.coordinators.consumer.group import ConsumerGroupState
from seglog.coordinators.consumer.member import LEAVES_FOR_NOW
from seglog.coordinators.consumer.settings import ConsumerRules
from seglog.coordinators.consumer_records import MemberState
from seglog.coordinators.coordinator_error import CoordinatorError
from seglog.core.error_codes import ErrorCode
from tests.coordinators.consumer.consumer_driver import GROUP, REBALANCE, SESSION, ConsumerDriver, kinds, owned


def code_of(act: Callable[[], object]) -> ErrorCode:
    with pytest.raises(CoordinatorError) as refused:
        act()
    return refused.value.code


def state_of(driver: ConsumerDriver) -> ConsumerGroupState:
    return driver.group.state


@pytest.fixture
def driver() -> ConsumerDriver:
    return ConsumerDriver({"t": 4})


def test_first_member_gets_everything(driver: ConsumerDriver) -> None:
    answered = driver.join("a", "t")
    assert (answered.member_id, answered.epoch, answered.interval) == ("a", 2, 5000)
    assert owned(answered.assigned) == {driver.topics.id_of("t"): frozenset(range(4))}
    assert kinds(driver.log) == [
        "MemberKey",
        "ConsumerGroupKey",
        "MemberTargetKey",
        "TargetKey",
        "CurrentAssignmentKey",
    ]
    assert driver.group.state is ConsumerGroupState.STABLE


def test_heartbeat_without_changes_writes_nothing(driver: ConsumerDriver) -> None:
    driver.join("a", "t")
    written = len(driver.log)
    answered = driver.heartbeat("a", 2)
    assert (answered.epoch, answered.assigned) == (2, None)
    assert len(driver.log) == written


def test_partition_moves_only_after_its_owner_gave_it_up(driver: ConsumerDriver) -> None:
    topic_id = driver.topics.id_of("t")
    driver.join("a", "t")
    b = driver.join("b", "t")
    assert (b.epoch, owned(b.assigned)) == (3, {})
    assert driver.member("b").state is MemberState.UNRELEASED_PARTITIONS
    a = driver.heartbeat("a", 2, {topic_id: frozenset(range(4))})
    assert a.epoch == 2
    kept = owned(a.assigned)
    assert len(kept[topic_id]) == 2
    assert driver.group.state is ConsumerGroupState.RECONCILING
    assert driver.heartbeat("b", 3).assigned is None
    assert driver.heartbeat("a", 2).assigned is None  # it has not said that it gave them up
    assert driver.heartbeat("b", 3).assigned is None
    assert driver.heartbeat("a", 2, kept).epoch == 3
    assert owned(driver.heartbeat("b", 3).assigned)[topic_id] == frozenset(range(4)) - kept[topic_id]
    assert state_of(driver) is ConsumerGroupState.STABLE


def test_member_that_gives_nothing_up_is_removed(driver: ConsumerDriver) -> None:
    topic_id = driver.topics.id_of("t")
    driver.join("a", "t")
    driver.join("b", "t")
    driver.heartbeat("a", 2, {topic_id: frozenset(range(4))})
    for _ in range(REBALANCE // 10_000 - 1):
        driver.advance(10_000)
        driver.heartbeat("a", 2, {topic_id: frozenset(range(4))})
        driver.heartbeat("b", 3)
    driver.advance(10_000)
    assert list(driver.group.members) == ["b"]
    assert owned(driver.heartbeat("b", 3).assigned) == {topic_id: frozenset(range(4))}
    assert code_of(lambda: driver.heartbeat("a", 2)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_silent_member_is_removed(driver: ConsumerDriver) -> None:
    driver.join("a", "t")
    driver.advance(SESSION - 1)
    assert list(driver.group.members) == ["a"]
    driver.heartbeat("a", 2)
    driver.advance(SESSION)
    assert driver.group.state is ConsumerGroupState.EMPTY
    assert driver.group.epoch == 3


def test_lost_answer_is_repeated(driver: ConsumerDriver) -> None:
    topic_id = driver.topics.id_of("t")
    driver.join("a", "t")
    driver.join("b", "t")
    a = driver.heartbeat("a", 2, {topic_id: frozenset(range(4))})
    kept = owned(a.assigned)
    assert driver.heartbeat("a", 2, kept).epoch == 3
    again = driver.heartbeat("a", 2, kept, topics=["t"], timeout=REBALANCE)  # the answer was lost
    assert (again.epoch, owned(again.assigned)) == (3, kept)


@pytest.mark.parametrize("epoch", [1, 4])
def test_other_epochs_are_fenced(driver: ConsumerDriver, epoch: int) -> None:
    driver.join("a", "t")
    driver.join("b", "t")
    assert code_of(lambda: driver.heartbeat("b", epoch, {})) is ErrorCode.FENCED_MEMBER_EPOCH


def test_previous_epoch_with_partitions_that_it_does_not_have_is_fenced(driver: ConsumerDriver) -> None:
    topic_id = driver.topics.id_of("t")
    driver.join("a", "t")
    driver.join("b", "t")
    kept = owned(driver.heartbeat("a", 2, {topic_id: frozenset(range(4))}).assigned)
    driver.heartbeat("a", 2, kept)
    everything = {topic_id: frozenset(range(4))}
    assert code_of(lambda: driver.heartbeat("a", 2, everything)) is ErrorCode.FENCED_MEMBER_EPOCH
    assert code_of(lambda: driver.heartbeat("a", 2)) is ErrorCode.FENCED_MEMBER_EPOCH


def test_member_leaves(driver: ConsumerDriver) -> None:
    topic_id = driver.topics.id_of("t")
    driver.join("a", "t")
    driver.join("b", "t")
    driver.heartbeat("a", 2, {topic_id: frozenset(range(4))})
    assert driver.leave("a").epoch == -1
    assert kinds(driver.batches[-1]) == ["-CurrentAssignmentKey", "-MemberTargetKey", "-MemberKey", "ConsumerGroupKey"]
    assert owned(driver.heartbeat("b", 3).assigned) == {topic_id: frozenset(range(4))}
    assert code_of(lambda: driver.leave("a")) is ErrorCode.UNKNOWN_MEMBER_ID


def test_static_member_comes_back_to_its_partitions(driver: ConsumerDriver) -> None:
    topic_id = driver.topics.id_of("t")
    first = driver.join("a", "t", instance="i")
    assert code_of(lambda: driver.join("x", "t", instance="i")) is ErrorCode.UNRELEASED_INSTANCE_ID
    assert driver.leave("a", LEAVES_FOR_NOW, "i").epoch == LEAVES_FOR_NOW
    other = driver.join("b", "t")
    assert not owned(other.assigned)
    back = driver.join("x", "t", instance="i")
    assert owned(back.assigned).keys() <= {topic_id}
    assert owned(back.assigned)[topic_id] <= owned(first.assigned)[topic_id]
    assert driver.group.static == {"i": "x"}
    assert list(driver.group.members) == ["b", "x"]
    assert code_of(lambda: driver.heartbeat("a", 3, instance="i")) is ErrorCode.FENCED_INSTANCE_ID
    assert code_of(lambda: driver.heartbeat("a", 3, instance="j")) is ErrorCode.UNKNOWN_MEMBER_ID


def test_static_member_that_stays_away_is_removed(driver: ConsumerDriver) -> None:
    driver.join("a", "t", instance="i")
    driver.leave("a", LEAVES_FOR_NOW, "i")
    driver.advance(SESSION)
    assert driver.group.is_empty
    assert not driver.group.static


def test_full_group_refuses_members() -> None:
    driver = ConsumerDriver({"t": 1}, ConsumerRules(max_size=1))
    driver.join("a", "t")
    assert code_of(lambda: driver.join("b", "t")) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert driver.join("a", "t").epoch == 2


def test_static_member_is_back_in_a_full_group() -> None:
    driver = ConsumerDriver({"t": 1}, ConsumerRules(max_size=1))
    driver.join("a", "t", instance="i")
    driver.leave("a", LEAVES_FOR_NOW, "i")
    driver.join("b", "t", instance="i")
    assert set(driver.group.members) == {"b"}
    assert code_of(lambda: driver.join("c", "t", instance="j")) is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_the_target_of_an_empty_group_delays_no_other_one(driver: ConsumerDriver) -> None:
    """As in Kafka 4.4: its time is 0, so the next member gets its partitions at once (KIP-1263)."""
    driver.join("a", "t")
    driver.leave("a")
    assert (driver.group.target.epoch, driver.group.target.timestamp) == (driver.group.epoch, 0)


def test_unknown_group_and_member(driver: ConsumerDriver) -> None:
    assert code_of(lambda: driver.heartbeat("a", 1)) is ErrorCode.GROUP_ID_NOT_FOUND
    driver.join("a", "t")
    assert code_of(lambda: driver.heartbeat("b", 1)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_new_topic_of_the_subscription_is_assigned(driver: ConsumerDriver) -> None:
    driver.join("a", "t", "later")
    topic_id = driver.topics.create("later", 2)
    assert owned(driver.heartbeat("a", 2).assigned)[topic_id] == frozenset({0, 1})
    driver.topics.grow("later", 3)
    assert owned(driver.heartbeat("a", 3).assigned)[topic_id] == frozenset({0, 1, 2})
    driver.topics.delete("later")
    assert driver.heartbeat("a", 4).assigned is not None
    assert driver.group.epoch == 5


def test_two_targets_are_an_interval_apart() -> None:
    driver = ConsumerDriver({"t": 2}, ConsumerRules(assignment_interval=1000))
    driver.join("a", "t")
    assert driver.join("b", "t").epoch == 2
    assert driver.group.state is ConsumerGroupState.ASSIGNING
    driver.advance(1000)
    assert driver.heartbeat("b", 2).epoch == 3
    assert driver.group.target.epoch == driver.group.epoch == 3


def test_a_clock_that_is_set_back_does_not_put_targets_off() -> None:
    """The last coordinator's clock was an hour ahead; with Kafka the group would wait for as long."""
    driver = ConsumerDriver({"t": 2}, ConsumerRules(assignment_interval=1000))
    driver.join("a", "t")
    driver.advance(-3_600_000)
    assert driver.join("b", "t").epoch == 3
    assert driver.group.target.epoch == 3


def test_other_topics_take_partitions_away_before_the_next_target() -> None:
    driver = ConsumerDriver({"t": 2, "u": 2}, ConsumerRules(assignment_interval=1000))
    driver.join("a", "t")
    t, u = driver.topics.id_of("t"), driver.topics.id_of("u")
    has = {t: frozenset({0, 1})}
    answered = driver.heartbeat("a", 2, has, topics=["u"])
    assert (answered.epoch, owned(answered.assigned)) == (2, {})
    assert driver.member("a").state is MemberState.UNREVOKED_PARTITIONS
    driver.advance(1000)
    driver.heartbeat("a", 2, {})
    assert owned(driver.heartbeat("a", 3, {}, topics=["u"], timeout=REBALANCE).assigned) == {u: frozenset({0, 1})}


def test_the_majority_chooses_the_assignor(driver: ConsumerDriver) -> None:
    driver.join("a", "t", assignor="range")
    assert driver.group.assignor(driver.group.members.values(), "uniform") == "range"
    driver.join("b", "t", assignor="uniform")
    assert driver.group.assignor(driver.group.members.values(), "range") == "uniform"  # as Kafka decides a tie


def test_another_assignor_computes_another_target(driver: ConsumerDriver) -> None:
    """As in Kafka 4.4: a new target needs a new epoch, and the same votes need none."""
    driver.join("a", "t", assignor="uniform")
    epoch = driver.group.epoch
    driver.heartbeat("a", epoch, topics=["t"], assignor="uniform")
    assert driver.group.epoch == epoch
    driver.heartbeat("a", epoch, topics=["t"], assignor="range")
    assert driver.group.epoch == epoch + 1


def test_replayed_group_is_the_same(driver: ConsumerDriver) -> None:
    topic_id = driver.topics.id_of("t")
    driver.join("a", "t", instance="i")
    driver.join("b", expression="t.*")
    driver.heartbeat("a", 2, {topic_id: frozenset(range(4))}, instance="i")
    before = driver.group
    driver.restart()
    after = driver.group
    for name in ("epoch", "metadata_hash", "target", "members", "targets", "expressions", "static"):
        assert getattr(after, name) == getattr(before, name), name
    driver.advance(SESSION)
    assert driver.group.is_empty


def test_deleted_group_leaves_nothing(driver: ConsumerDriver) -> None:
    driver.join("a", expression="t")
    assert driver.shard.delete_groups([GROUP]).codes == [ErrorCode.NON_EMPTY_GROUP]
    driver.leave("a")
    driver.append(driver.shard.delete_groups([GROUP]).records)
    assert GROUP not in driver.shard.groups
    assert GROUP not in driver.replayed().groups
