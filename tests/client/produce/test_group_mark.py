"""A mark is changed by one process at a time, and read as a whole."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from seglog.client.cluster_connections import ClusterConnections
from seglog.client.produce.group_mark import GroupMark
from seglog.client.produce.mark_value import MarkValue
from seglog.client.produce.transaction import Transaction
from seglog.core.errors import ProducerFencedError, RequestFailedError
from seglog.core.types import TopicPartition
from seglog.testing import Broker
from tests.client.produce.written import config


@pytest.fixture
def mark(broker: Broker) -> Iterator[GroupMark]:
    with ClusterConnections(config(broker.bootstrap)) as cluster:
        yield GroupMark(cluster, "g", "register", TopicPartition("t", 0))


@pytest.mark.parametrize("size", [0, 1, 3999, 4000, 4001, 9000])
def test_a_text_of_any_length_is_read_as_it_was_set(mark: GroupMark, size: int) -> None:
    assert mark.read() is None
    value = MarkValue(7, "".join(chr(97 + at % 26) for at in range(size)))
    assert mark.change(lambda _: value) == mark.read() == value
    shorter = MarkValue(8, "short")
    assert mark.change(lambda current: shorter if current == value else None) == mark.read() == shorter


def test_none_leaves_it(mark: GroupMark) -> None:
    mark.change(lambda _: MarkValue(1, "one"))
    assert mark.change(lambda _: None) == mark.read() == MarkValue(1, "one")


def test_overtaken_change_is_fenced(mark: GroupMark) -> None:
    def overtaken(_: MarkValue | None) -> MarkValue:
        mark.change(lambda _: MarkValue(2, "other"))
        return MarkValue(1, "mine")

    with pytest.raises(ProducerFencedError):
        mark.change(overtaken)
    assert mark.read() == MarkValue(2, "other")


def test_a_change_that_its_process_does_not_end_is_fenced_by_the_next_reader(
    mark: GroupMark, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark.change(lambda _: MarkValue(1, "one"))

    def die(_: Transaction) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Transaction, "commit", die)
        with pytest.raises(KeyboardInterrupt):
            mark.change(lambda _: MarkValue(2, "two"))
    assert mark.read() == MarkValue(1, "one")
    assert mark.change(lambda _: MarkValue(3, "three")) == mark.read() == MarkValue(3, "three")


@pytest.mark.parametrize("api", ["InitProducerId", "TxnOffsetCommit", "EndTxn", "OffsetFetch", "FindCoordinator"])
def test_lost_answers_are_asked_for_again(broker: Broker, mark: GroupMark, api: str) -> None:
    broker.lose(api)
    value = MarkValue(3, "text")
    assert mark.change(lambda _: value) == mark.read() == value


def test_a_cluster_that_has_no_coordinators_yet_is_asked_again(broker: Broker, mark: GroupMark) -> None:
    """As a new Kafka, which makes their topics when it is first asked."""
    broker.fail("FindCoordinator", error="COORDINATOR_NOT_AVAILABLE", times=2)
    assert mark.read() is None
    broker.fail("FindCoordinator", error="COORDINATOR_NOT_AVAILABLE", times=4)
    value = MarkValue(3, "text")
    assert mark.change(lambda _: value) == mark.read() == value


def test_a_place_that_does_not_exist_is_named(broker: Broker) -> None:
    with ClusterConnections(config(broker.bootstrap)) as cluster:
        mark = GroupMark(cluster, "g", "register", TopicPartition("none", 0))
        with pytest.raises(RequestFailedError, match="none-0: UNKNOWN_TOPIC_OR_PARTITION"):
            mark.change(lambda _: MarkValue(1, ""))
