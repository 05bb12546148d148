import pytest

from seglog.coordinators.coordinator_error import CoordinatorError
from seglog.core.error_codes import ErrorCode
from tests.coordinators.consumer.consumer_driver import ConsumerDriver, kinds, owned


@pytest.fixture
def driver() -> ConsumerDriver:
    return ConsumerDriver({"a1": 1, "a2": 1, "b": 1})


def test_topics_come_with_the_heartbeat_after_the_resolution(driver: ConsumerDriver) -> None:
    assert not owned(driver.join("m", expression="a.").assigned)
    assert kinds(driver.batches[-1]) == ["RegularExpressionKey", "ConsumerGroupKey"]
    assert owned(driver.heartbeat("m", 1).assigned).keys() == {driver.topics.id_of("a1"), driver.topics.id_of("a2")}


def test_another_member_finds_it_resolved(driver: ConsumerDriver) -> None:
    driver.join("m", expression="a.")
    written = len(driver.batches)
    driver.join("n", expression="a.")
    assert len(driver.batches) == written + 1


def test_new_topics_are_found_after_ten_seconds(driver: ConsumerDriver) -> None:
    driver.join("m", expression="a.")
    driver.heartbeat("m", 1)
    topic_id = driver.topics.create("a3", 1)
    driver.heartbeat("m", 2)
    assert topic_id not in driver.member("m").assigned
    driver.advance(10_001)
    driver.heartbeat("m", 2)
    assert topic_id in owned(driver.heartbeat("m", 2).assigned)


def test_unused_expression_is_forgotten(driver: ConsumerDriver) -> None:
    driver.join("m", expression="a.")
    driver.join("n", expression="b")
    driver.leave("m")
    assert driver.group.expressions.keys() <= {"b"}
    driver.heartbeat("n", driver.member("n").epoch, {}, expression="")
    assert not driver.group.expressions
    assert not driver.group.is_subscribed("b")


def test_expression_that_re2_refuses(driver: ConsumerDriver) -> None:
    with pytest.raises(CoordinatorError) as refused:
        driver.join("m", expression="(")
    assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert not driver.log
