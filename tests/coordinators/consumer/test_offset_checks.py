import pytest

from seglog.coordinators.coordinator_error import CoordinatorError
from seglog.core.error_codes import ErrorCode
from tests.coordinators.consumer.consumer_driver import GROUP, ConsumerDriver, owned

NUMBERS = frozenset(range(4))


@pytest.fixture
def driver() -> ConsumerDriver:
    """Member a in epoch 3 with two partitions that it got in epoch 2; b in epoch 3 with the others."""
    driver = ConsumerDriver({"t": 4, "u": 1})
    topic_id = driver.topics.id_of("t")
    driver.join("a", "t")
    driver.join("b", "t")
    kept = owned(driver.heartbeat("a", 2, {topic_id: NUMBERS}).assigned)
    driver.heartbeat("a", 2, kept)
    driver.heartbeat("b", 3)
    return driver


def has(driver: ConsumerDriver, member_id: str) -> int:
    return min(driver.member(member_id).assigned[driver.topics.id_of("t")])


def test_commits_by_member_epoch(driver: ConsumerDriver) -> None:
    first, other = has(driver, "a"), has(driver, "b")
    assert driver.commit("a", 3, "t", first) is ErrorCode.NONE
    assert driver.commit("a", 2, "t", first) is ErrorCode.NONE  # it has had the partition since then
    assert driver.commit("a", 1, "t", first) is ErrorCode.STALE_MEMBER_EPOCH
    assert driver.commit("a", 4, "t", first) is ErrorCode.STALE_MEMBER_EPOCH
    assert driver.commit("a", 2, "t", other) is ErrorCode.STALE_MEMBER_EPOCH
    assert driver.commit("b", 2, "t", other) is ErrorCode.STALE_MEMBER_EPOCH
    assert driver.commit("x", 3, "t", first) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.commit("", -1, "t", first) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.commit("a", 3, "t", first, version=8) is ErrorCode.UNSUPPORTED_VERSION


def test_anyone_may_commit_for_an_empty_group(driver: ConsumerDriver) -> None:
    driver.leave("a")
    driver.leave("b")
    assert driver.commit("", -1, "t", 0) is ErrorCode.NONE


def test_fetches_by_member_epoch(driver: ConsumerDriver) -> None:
    driver.shard.check_fetch(GROUP, None, -1)
    driver.shard.check_fetch(GROUP, "a", 3)
    for member_id, epoch, code in (
        ("a", 2, ErrorCode.STALE_MEMBER_EPOCH),
        ("x", 3, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", 0, ErrorCode.UNKNOWN_MEMBER_ID),
    ):
        with pytest.raises(CoordinatorError) as refused:
            driver.shard.check_fetch(GROUP, member_id, epoch)
        assert refused.value.code is code


def test_offsets_of_subscribed_topics_stay(driver: ConsumerDriver) -> None:
    driver.commit("a", 3, "t", has(driver, "a"))
    assert driver.shard.delete_offsets(GROUP, [("t", has(driver, "a")), ("u", 0)]).codes == [
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ErrorCode.NONE,
    ]
    driver.advance(1_000)
    assert not driver.shard.expire(driver.now, 0)
    driver.leave("a")
    driver.leave("b")
    driver.append(driver.shard.expire(driver.now, 0))
    assert GROUP not in driver.shard.groups
