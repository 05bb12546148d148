"""`seglog transactions` against our broker, with transactions that librdkafka leaves open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.broker.broker_thread import RunningNode, Wire
from tests.broker.transactional_producer import TransactionalProducer, stable_end
from tests.cli.run import Run, run_here

SECONDS = 60


@pytest.fixture
def opened(broker: RunningNode, topic_name: str) -> Iterator[Any]:
    """A producer with an open transaction that has one record, in partition 0; the topic is its transactional id."""
    producer: Any = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic_name})
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    producer.produce(topic_name, b"a", partition=0)
    producer.flush(SECONDS)
    yield producer
    producer.purge()


@pytest.mark.usefixtures("opened")
def test_lists_by_state_and_pattern(wire: Run, topic_name: str) -> None:
    def listed(*options: str) -> list[str]:
        done = wire("transactions", "list", "--json", *options)
        assert (done.code, done.err) == (0, "")
        return [one["transactionalId"] for one in done.objects]

    assert topic_name in listed("--state", "Ongoing")
    assert topic_name not in listed("--state", "CompleteCommit")
    assert listed("--transactional-id-pattern", f"{topic_name}") == [topic_name]
    assert topic_name not in listed("--duration-filter", "3600000")
    unknown = wire("transactions", "list", "--state", "Done")
    assert (unknown.code, unknown.err) == (2, "seglog: Done: no such state of a transaction\n")


@pytest.mark.usefixtures("opened")
def test_describes_a_transaction(wire: Run, topic_name: str) -> None:
    (found,) = wire("transactions", "describe", topic_name, "--json").objects
    assert (found["state"], found["timeoutMs"], found["producerEpoch"]) == ("Ongoing", 60_000, 0)
    assert found["partitions"] == [{"topic": topic_name, "partition": 0}]
    assert found["durationMs"] >= 0
    assert "state             Ongoing" in wire("transactions", "describe", topic_name).text
    unknown = wire("transactions", "describe", f"{topic_name}-2")
    assert (unknown.code, unknown.err) == (2, f"seglog: transactional id {topic_name}-2: TRANSACTIONAL_ID_NOT_FOUND\n")


def test_a_transaction_of_a_coordinator_does_not_hang(wire: Run, topic_name: str, opened: Any) -> None:
    hanging = ("transactions", "find-hanging", "--topic", topic_name, "--max-transaction-timeout", "0", "--json")
    assert wire(*hanging).lines == []
    opened.commit_transaction(SECONDS)
    assert wire(*hanging).lines == []


@pytest.mark.usefixtures("opened")
def test_an_open_transaction_is_ended_everywhere_or_not_at_all(wire: Run, topic_name: str) -> None:
    place = ("--topic", topic_name, "--partition", "0")
    refused = wire("transactions", "abort", *place, "--start-offset", "7")
    assert refused.code == 2
    assert refused.err == f"seglog: topic {topic_name}, partition 0: no open transaction begins at offset 7\n"
    refused = wire("transactions", "abort", *place, "--start-offset", "0")
    assert refused.code == 2
    assert f"seglog transactions force-terminate {topic_name}" in refused.err
    (found,) = wire("transactions", "describe-producers", *place, "--json").objects
    assert found["transactionStartOffset"] == 0
    dry = wire("transactions", "force-terminate", topic_name, "--dry-run")
    would = f"the transaction of {topic_name} would be ended in {topic_name}-0; its producer would be fenced\n"
    assert (dry.code, dry.text) == (0, would)
    assert wire("transactions", "describe", topic_name, "--json").objects[0]["state"] == "Ongoing"
    ended = wire("transactions", "force-terminate", topic_name)
    assert ended.text == f"the transaction of {topic_name} is ended in {topic_name}-0, and its producer is fenced\n"
    (found,) = wire("transactions", "describe-producers", *place, "--json").objects
    assert found["transactionStartOffset"] is None
    again = wire("transactions", "force-terminate", topic_name)
    assert again.text == f"{topic_name} had no open transaction; its producer is fenced\n"
    unknown = wire("transactions", "force-terminate", f"{topic_name}-2")
    assert unknown.err == f"seglog: transactional id {topic_name}-2: TRANSACTIONAL_ID_NOT_FOUND\n"


def test_a_hanging_transaction_is_aborted(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    run = run_here(capfdbinary)
    settings = {"transaction.partition.verification.enable": "false"}
    with RunningNode(tmp_path, settings) as broker, Wire(broker.bootstrap) as asking:
        asking.create_topic("t")
        producer = TransactionalProducer(asking, "hangs", 0)
        assert producer.produce("t", b"late") == 0
        place = ("--topic", "t", "--partition", "0", "--start-offset", "0", "-b", broker.bootstrap)
        dry = run("transactions", "abort", *place, "--dry-run")
        assert f"producer {producer.producer_id} from offset 0 on would be aborted" in dry.text
        assert stable_end(asking, "t") == 0
        ended = run("transactions", "abort", *place)
        assert (ended.code, ended.err) == (0, "")
        assert f"producer {producer.producer_id} from offset 0 on are aborted" in ended.text
        assert stable_end(asking, "t") == 2


def test_names_a_partition_that_is_not_there(wire: Run, topic_name: str) -> None:
    wire("topics", "create", topic_name)
    missing = wire("transactions", "describe-producers", "--topic", topic_name, "--partition", "9")
    assert (missing.code, missing.err) == (2, f"seglog: there is no partition 9 of topic {topic_name}\n")
