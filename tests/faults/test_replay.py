"""A session of stock clients in a file, and played to another broker."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from seglog.testing import Broker, FaultError, replay
from tests.broker.broker_thread import Wire
from tests.broker.python_clients import kafka
from tests.kit.transaction_states import create_internal_topics
from tests.kit.waiting import wait_until


def session(broker: Broker) -> None:
    """An idempotent producer, a transaction, and a member of a group that commits."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "x", "compression.type": "lz4"})
    producer.init_transactions(30)
    producer.begin_transaction()
    for number in range(10):
        producer.produce("t", b"%d" % number, key=b"k", headers=[("h", b"v")])
    producer.commit_transaction(30)
    config = {"bootstrap.servers": broker.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    consumer = Consumer({**config, "enable.auto.commit": False})
    consumer.subscribe(["t"])
    assert [one.value() for one in consumer.consume(10, 30)] == [b"%d" % number for number in range(10)]
    consumer.commit(asynchronous=False)
    consumer.close()


@contextmanager
def ready(*, process: bool = False) -> Iterator[Broker]:
    """A broker with coordinators: a busy one tells the first client of each kind to come again."""
    with Broker({"t": 1}, process=process) as broker:
        with Wire(broker.bootstrap) as wire:
            create_internal_topics(wire)
        yield broker


@pytest.mark.parametrize("process", [False, True], ids=["thread", "process"])
def test_a_session_has_the_same_answers_at_another_broker(tmp_path: Path, *, process: bool) -> None:
    path = tmp_path / "session.jsonl"
    with ready(process=process) as broker, broker.record(path):
        session(broker)
    first, *events = map(json.loads, path.read_text().splitlines())
    assert (first["format"], first["version"]) == ("seglog recording", 1)
    apis = {one["api"] for one in events if "request" in one}
    assert {"ApiVersions", "Metadata", "InitProducerId", "Produce", "EndTxn", "JoinGroup", "Fetch"} <= apis
    (produced, *_) = [one for one in events if one.get("api") == "Produce"]
    assert produced["decoded"]["transactional_id"] == "x"
    assert next(one["decoded"] for one in events if one.get("answer") == produced["request"])["responses"]
    with ready() as other:
        assert [one for one in replay(str(path), other.bootstrap) if one.api != "Fetch"] == []


def test_fetch_sessions_go_on_at_another_broker(tmp_path: Path) -> None:
    path = tmp_path / "session.jsonl"

    def in_session() -> set[int]:
        """The answered requests that belong to a session."""
        whole, _, _ = path.read_text().rpartition("\n")
        events = [json.loads(line) for line in whole.splitlines()]
        asked = {one["request"] for one in events if one.get("api") == "Fetch" and one["decoded"]["session_epoch"] > 0}
        return asked & {one["answer"] for one in events if "answer" in one}

    with Broker({"t": ["a"]}) as broker, broker.record(path):
        consumer = kafka.KafkaConsumer(
            "t", bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest", fetch_max_wait_ms=20
        )
        assert next(consumer).value == b"a"
        wait_until(lambda: not consumer.poll(20) and len(in_session()) > 1, "a session")
        consumer.close()
    with Broker({"t": ["a"]}) as other:
        assert [one for one in replay(str(path), other.bootstrap) if one.path == "error_code"] == []


def test_differences_are_named(tmp_path: Path) -> None:
    path = tmp_path / "session.jsonl"
    with Broker({"t": 1}) as broker:
        with broker.record(path):
            producer = Producer({"bootstrap.servers": broker.bootstrap})
            producer.produce("t", b"1", partition=0)
            assert producer.flush(30) == 0
        again = tmp_path / "again.jsonl"
        with pytest.raises(FaultError, match="under way"), broker.record(again), broker.record(again):
            pass
        with broker.record(again):  # the first one has ended all the same
            pass
    with Broker({"t": ["before"]}) as other:
        found = replay(str(path), other.bootstrap)
        assert [(one.api, one.recorded, one.replayed) for one in found if one.path.endswith("base_offset")] == [
            ("Produce", 0, 1)
        ]
        assert {one.api for one in found} == {"Produce"}
        other.fail("Produce", error="NOT_LEADER_OR_FOLLOWER")
        found = replay(str(path), other.bootstrap)
        assert ("Produce", 0, 6) in [(one.api, one.recorded, one.replayed) for one in found]
        other.lose("Produce")
        (found_one,) = [one for one in replay(str(path), other.bootstrap) if one.api == "Produce"]
        assert (found_one.path, found_one.replayed) == ("", "no answer")


def test_faults_are_part_of_a_recording(tmp_path: Path) -> None:
    path = tmp_path / "session.jsonl"
    with Broker({"t": 1}) as broker, broker.record(path):
        broker.cut("Produce", size=5, then="reset")
        producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
        producer.produce("t", b"1", partition=0)
        assert producer.flush(30) == 0
    endings = [one for one in map(json.loads, path.read_text().splitlines()) if one.get("ending")]
    assert [(one["ending"], len(base64.b64decode(one["raw"]))) for one in endings] == [("reset", 5)]
    with Broker({"t": 1}) as other:
        assert {one.api for one in replay(str(path), other.bootstrap)} <= {"Produce"}


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"format": "other", "version": 1}', '{"format": "seglog recording", "version": 1}\n{"x": 1}'],
)
def test_rejects_a_file_that_is_not_a_recording(tmp_path: Path, text: str) -> None:
    path = tmp_path / "wrong"
    path.write_text(text)
    with pytest.raises(FaultError, match="not a recording"):
        _: Any = replay(str(path), "127.0.0.1:1")
