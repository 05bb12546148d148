"""A mark with a topic outlives the group offset that brokers delete."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from seglog.client.cluster_connections import ClusterConnections
from seglog.client.produce.group_mark import GroupMark
from seglog.client.produce.mark_topic import MarkTopic
from seglog.client.produce.mark_value import MarkValue
from seglog.client.produce.transaction import Transaction
from seglog.client.topics import topic_config
from seglog.core.errors import InvalidConfigError, RequestFailedError
from seglog.core.types import TopicPartition
from seglog.testing import Broker
from tests.client.produce.written import config
from tests.kit.waiting import wait_until

VERSIONS = "versions"
PLACE = TopicPartition("t", 0)


@pytest.fixture
def cluster(broker: Broker) -> Iterator[ClusterConnections]:
    with ClusterConnections(config(broker.bootstrap, delivery_timeout_ms="1500", request_timeout_ms="1000")) as opened:
        yield opened


@pytest.fixture
def topic(cluster: ClusterConnections) -> MarkTopic:
    made = MarkTopic(cluster, VERSIONS)
    made.prepare()
    return made


def mark(cluster: ClusterConnections, topic: MarkTopic, group: str = "g") -> GroupMark:
    return GroupMark(cluster, group, f"{group}-register", PLACE, topic=topic)


def _choose(value: MarkValue, _: MarkValue | None) -> MarkValue:
    return value


def forget_offsets(broker: Broker, *groups: str) -> None:
    """As brokers do after ``offsets.retention.minutes``."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for deleted in admin.delete_consumer_groups(list(groups)).values():
        deleted.result(30)


@pytest.mark.parametrize("size", [0, 1, 9000, 300_000])
def test_a_mark_is_read_when_its_offset_is_gone(
    broker: Broker, cluster: ClusterConnections, topic: MarkTopic, size: int
) -> None:
    register = mark(cluster, topic)
    assert register.read() is None
    value = MarkValue(7, "".join(chr(97 + at % 26) for at in range(size)))
    register.change(lambda _: MarkValue(6, "before"))
    register.change(lambda _: value)
    forget_offsets(broker, "g")
    assert register.read() == register.read_fenced() == value
    after = MarkValue(8, "after")
    assert register.change(lambda current: after if current == value else None) == register.read() == after


def test_marks_of_several_groups_lie_in_one_topic(
    broker: Broker, cluster: ClusterConnections, topic: MarkTopic
) -> None:
    for number, group in itertools.product(range(1, 4), ("g", "h")):
        value = MarkValue(number, group)
        assert mark(cluster, topic, group).change(partial(_choose, value)) == value
    forget_offsets(broker, "g", "h")
    for group in ("g", "h"):
        assert mark(cluster, topic, group).read() == MarkValue(3, group)
    assert mark(cluster, topic, "other").read() is None


def test_a_change_that_was_not_committed_is_not_remembered(
    broker: Broker, cluster: ClusterConnections, topic: MarkTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    register = mark(cluster, topic)
    register.change(lambda _: MarkValue(1, "one"))

    def die(_: Transaction) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Transaction, "commit", die)
        with pytest.raises(KeyboardInterrupt):
            register.change(lambda _: MarkValue(2, "two"))
    assert register.read_fenced() == MarkValue(1, "one")
    forget_offsets(broker, "g")
    assert register.read() == MarkValue(1, "one")


def test_an_open_transaction_of_another_is_waited_for(
    broker: Broker, cluster: ClusterConnections, topic: MarkTopic
) -> None:
    register = mark(cluster, topic)
    register.change(lambda _: MarkValue(1, "one"))
    other = Transaction(cluster, "other")
    other.begin()
    topic.write(other, "h", MarkValue(5, "five"))
    register.change(lambda _: MarkValue(2, "two"))
    forget_offsets(broker, "g")
    with pytest.raises(RequestFailedError, match="versions-0: the transaction at offset 2 stays open"):
        register.read()
    other.abort()
    assert register.read() == MarkValue(2, "two")


def test_the_topic_is_created_once_and_compacted(cluster: ClusterConnections, topic: MarkTopic) -> None:
    topic.prepare()
    found = topic_config(cluster, [VERSIONS], "cleanup.policy")
    assert found == {VERSIONS: "compact"}


def test_marks_are_read_while_their_topic_is_compacted(tmp_path: Path) -> None:
    small = {"cleanup.policy": "compact", "internal.segment.bytes": "2000", "min.cleanable.dirty.ratio": "0"}
    groups = ("g", "h", "once")
    with Broker({"t": 1}, settings={"log.cleaner.backoff.ms": 100}, data_dir=tmp_path / "log") as broker:
        broker.create_topic(VERSIONS, 1, config=small)

        def first_segment() -> int:
            return (tmp_path / "log" / f"{VERSIONS}-0" / f"{0:020d}.log").stat().st_size

        with ClusterConnections(config(broker.bootstrap)) as cluster:
            topic = MarkTopic(cluster, VERSIONS)
            for number, group in [(0, "once"), *itertools.product(range(1, 30), ("g", "h"))]:
                value = MarkValue(number, "".join(f"{number * at % 997}" for at in range(80)))
                mark(cluster, topic, group).change(partial(_choose, value))
            forget_offsets(broker, *groups)
            assert first_segment() > 1000

            def compacted_and_read() -> bool:
                found = [mark(cluster, topic, group).read() for group in groups]
                assert [value and value.number for value in found] == [29, 29, 0]
                return first_segment() < 1000  # the segment has the one record of "once", of seven

            wait_until(compacted_and_read, "a compaction")


@pytest.mark.parametrize("policy", ["delete", "compact,delete", "delete,compact"])
def test_a_topic_that_deletes_is_refused(broker: Broker, cluster: ClusterConnections, policy: str) -> None:
    broker.create_topic("forgets", 1, config={"cleanup.policy": policy})
    with pytest.raises(InvalidConfigError, match=rf"topic forgets has cleanup\.policy={policy}, .* must be compact$"):
        MarkTopic(cluster, "forgets").prepare()


@pytest.mark.parametrize(
    "error",
    ["TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED", "POLICY_VIOLATION", "INVALID_REPLICATION_FACTOR"],
)
def test_a_cluster_that_creates_no_topics_says_which_one_to_create(
    broker: Broker, cluster: ClusterConnections, error: str
) -> None:
    broker.fail("CreateTopics", error=error)
    with pytest.raises(RequestFailedError, match=rf"{error}.*Create {VERSIONS} with cleanup\.policy=compact, or name"):
        MarkTopic(cluster, VERSIONS).prepare()


def test_a_topic_that_may_not_be_described_names_the_rights(broker: Broker, cluster: ClusterConnections) -> None:
    broker.fail("Metadata", error="TOPIC_AUTHORIZATION_FAILED")
    with pytest.raises(RequestFailedError, match=f"topic {VERSIONS}: TOPIC_AUTHORIZATION_FAILED.* READ, WRITE and"):
        MarkTopic(cluster, VERSIONS).prepare()


@pytest.mark.parametrize("error", ["NOT_CONTROLLER", "REQUEST_TIMED_OUT", "THROTTLING_QUOTA_EXCEEDED"])
def test_a_controller_that_asks_for_patience_is_asked_again(
    broker: Broker, cluster: ClusterConnections, error: str
) -> None:
    broker.fail("CreateTopics", error=error)
    MarkTopic(cluster, VERSIONS).prepare()
    assert mark(cluster, MarkTopic(cluster, VERSIONS)).read() is None


@pytest.mark.parametrize("api", ["CreateTopics", "Metadata", "DescribeConfigs", "ListOffsets", "Produce", "Fetch"])
def test_lost_answers_are_asked_for_again(broker: Broker, cluster: ClusterConnections, api: str) -> None:
    broker.lose(api)
    topic = MarkTopic(cluster, VERSIONS)
    topic.prepare()
    register = mark(cluster, topic)
    register.change(lambda _: MarkValue(3, "text"))
    forget_offsets(broker, "g")
    assert register.read() == MarkValue(3, "text")


def test_a_record_of_another_program_is_named(cluster: ClusterConnections, topic: MarkTopic) -> None:
    transaction = Transaction(cluster, "other")
    transaction.begin()
    topic.write(transaction, "g", MarkValue(-5, ""))
    transaction.commit()
    with pytest.raises(RequestFailedError, match="'-5 ' is not a mark"):
        mark(cluster, topic).read()
