"""Writers as Spark makes them: in the planner, and again in the process of the commit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from pyspark_seglog import DefaultSource
from seglog.client.cluster_connections import ClusterConnections
from seglog.client.connection import BrokerConnection
from seglog.client.kept_connections import close_all
from seglog.client.produce.transaction import Transaction, TransactionHandle, open_transactions
from seglog.core.errors import BrokerUnavailableError, InvalidConfigError, UnknownTopicError
from seglog.core.types import TopicPartition
from seglog.protocol.apis import ApiKey
from seglog.spark.write.brokers import commit
from seglog.spark.write.brokers.sink import BrokerStreamWriter, BrokerWriter
from seglog.testing import Broker
from tests.client.produce.written import config

SCHEMA = StructType([StructField("value", BinaryType())])


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"t": 1}) as broker:
        yield broker
    close_all()


def source(broker: Broker, **options: str) -> DefaultSource:
    return DefaultSource({"kafka.bootstrap.servers": broker.bootstrap, "topic": "t", **options})


def test_creating_a_writer_fences_no_producer(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit of a stream makes another one while the transactions of its tasks are open."""
    asked = set()
    send = BrokerConnection.send

    def counted(self: BrokerConnection, key: ApiKey, contents: Mapping[str, Any], *, most: int | None = None) -> None:
        asked.add(key)
        send(self, key, contents, most=most)

    monkeypatch.setattr(BrokerConnection, "send", counted)
    assert isinstance(source(broker).streamWriter(SCHEMA, overwrite=False), BrokerStreamWriter)
    assert isinstance(source(broker).writer(SCHEMA, overwrite=False), BrokerWriter)
    assert asked == {ApiKey.METADATA}


def test_a_stream_waits_for_a_broker_that_starts_again(broker: Broker) -> None:
    """Its writer is made for each micro-batch. A batch job fails at once."""
    broker.lose("Metadata", times=4)
    assert isinstance(source(broker).streamWriter(SCHEMA, overwrite=False), BrokerStreamWriter)
    broker.faults.assert_all_fired()
    broker.lose("Metadata", times=4)
    with pytest.raises(BrokerUnavailableError, match="the broker has closed the connection"):
        source(broker).writer(SCHEMA, overwrite=False)
    broker.faults.clear()


def test_a_writer_can_be_sent_to_workers(broker: Broker) -> None:
    writer = source(broker).writer(SCHEMA, overwrite=False)
    pickling: Any = cloudpickle
    assert isinstance(pickling.loads(pickling.dumps(writer)), BrokerWriter)


@pytest.mark.parametrize("tasks", [1, 2])
def test_transaction_that_a_cancelled_task_opens_late_is_aborted(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, tasks: int
) -> None:
    """Spark calls abort() while other tasks still run. If only one failed, nothing is awaited."""
    writer = source(broker).writer(SCHEMA, overwrite=False)
    assert isinstance(writer, BrokerWriter)
    settings = config(broker.bootstrap)
    listings = []

    def listed(cluster: ClusterConnections, prefix: str) -> list[TransactionHandle]:
        found = open_transactions(cluster, prefix)
        listings.append(found)
        if len(listings) == 1:
            with ClusterConnections(settings) as late:
                transaction = Transaction(late, f"{prefix}0-late-0")
                transaction.begin()
                transaction.commit_offset("g", TopicPartition("t", 0), 0, "")
        return found

    monkeypatch.setattr(commit, "open_transactions", listed)
    monkeypatch.setattr(commit, "_LAST_OPENED_SECONDS", 1.0)
    writer.abort([None] * tasks)
    assert [bool(found) for found in listings][:2] == [False, True][: (tasks - 1) * 2]
    with ClusterConnections(settings) as cluster:
        assert open_transactions(cluster, "") == []


def test_a_topic_that_does_not_exist_is_refused_before_a_task_starts(broker: Broker) -> None:
    with pytest.raises(UnknownTopicError, match=f"{broker.bootstrap}: there is no topic 'none': create it first"):
        source(broker, topic="none").writer(SCHEMA, overwrite=False)
    with pytest.raises(UnknownTopicError, match="there is no topic 'none'"):
        source(broker, markTopic="none").writer(SCHEMA, overwrite=False)
    broker.create_topic("flights", 1)
    with pytest.raises(UnknownTopicError, match=r"'flihgts': create it first; did you mean flights\?"):
        source(broker, topic="flihgts").writer(SCHEMA, overwrite=False)


def test_a_sink_without_a_topic_is_told_which_option_or_column_is_missing(broker: Broker) -> None:
    servers = {"kafka.bootstrap.servers": broker.bootstrap}
    for options in ({}, {"delivery": "at-least-once"}, {"markTopic": "t"}):
        with pytest.raises(InvalidConfigError, match="no column topic: add it, or set the option topic"):
            DefaultSource({**servers, **options}).writer(SCHEMA, overwrite=False)
    named = StructType([*SCHEMA.fields, StructField("topic", StringType())])
    with pytest.raises(InvalidConfigError, match="option markTopic is missing: with the column topic"):
        DefaultSource(servers).streamWriter(named, overwrite=False)


@pytest.mark.parametrize("place", ["brokers", "directory"])
def test_messages_of_a_continuous_trigger_are_refused(broker: Broker, tmp_path: Path, place: str) -> None:
    made = source(broker) if place == "brokers" else DefaultSource({"path": str(tmp_path), "topic": "t"})
    writer = made.streamWriter(SCHEMA, overwrite=False)
    with pytest.raises(
        InvalidConfigError, match=r"2 of 2 tasks did not write .* a continuous trigger is not supported"
    ):
        writer.commit([WriterCommitMessage(), None], 0)
    writer.abort([None, None], 0)


def test_a_stream_names_its_batches_itself(broker: Broker) -> None:
    with pytest.raises(InvalidConfigError, match="the sink of a stream sets them"):
        source(broker, txnAppId="a", txnVersion="1").streamWriter(SCHEMA, overwrite=False)
