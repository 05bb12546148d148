"""Faults as stock clients meet them, with a broker in a thread and one in a process."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import dropwhile
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource

from seglog.faults.fault import Fault, FaultError, Request
from seglog.testing import Broker, BrokerError
from tests.broker.python_clients import kafka
from tests.kit.waiting import wait_until

_QUICK = {"log_level": 0, "retry.backoff.ms": 5, "retry.backoff.max.ms": 5, "reconnect.backoff.ms": 5}
_TOPIC = ConfigResource("topic", "t")
_QUICK |= {"reconnect.backoff.max.ms": 5}


@pytest.fixture(scope="module")
def running() -> Iterator[Broker]:
    with Broker({"t": 2}) as broker:
        yield broker


@pytest.fixture
def broker(running: Broker) -> Broker:
    running.reset()
    return running


def produce(broker: Broker, *values: bytes, partition: int = 0, **config: Any) -> list[tuple[bytes, str | None]]:
    """The values in the order in which they were acknowledged, each with the name of its error."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, **_QUICK, **config})
    told: list[tuple[bytes, str | None]] = []

    def tell(error: KafkaError | None, message: Any) -> None:
        told.append((message.value(), None if error is None else error.name()))

    for value in values:
        producer.produce("t", value, partition=partition, callback=tell)
        producer.poll(0)
    assert producer.flush(30) == 0
    return told


def stored(broker: Broker, partition: int = 0) -> list[bytes | None]:
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "-", "enable.partition.eof": True, **_QUICK}
    )
    consumer.assign([TopicPartition("t", partition, 0)])
    found: list[bytes | None] = []
    while True:
        (message,) = consumer.consume(1, 30)
        if (error := message.error()) is not None:
            assert error.code() == KafkaError._PARTITION_EOF
            break
        found.append(message.value())
    consumer.close()
    return found


@pytest.mark.parametrize("process", [False, True], ids=["thread", "process"])
def test_a_retried_error_loses_nothing(*, process: bool) -> None:
    with Broker({"t": 2}, process=process) as broker:
        fault = broker.fail("Produce", nth=1, partition=0, error="NOT_LEADER_OR_FOLLOWER")
        with pytest.raises(AssertionError, match="was met by 0 requests; 0 matched"):
            fault.assert_fired()
        assert produce(broker, b"1", partition=1) == [(b"1", None)]
        assert fault.seen == 0
        assert produce(broker, b"0") == [(b"0", None)]
        fault.assert_fired(1)
        assert [one.api for one in fault.report.met] == ["Produce"]
        assert stored(broker) == [b"0"]
        broker.faults.remove(fault)
        with pytest.raises(BrokerError, match="no longer has"):
            _ = fault.fired
        if process:
            with pytest.raises(FaultError, match="in a thread"):
                broker.lose("Produce", where=lambda _: True)
        with pytest.raises(FaultError, match="no error for a topic"):
            broker.fail("Heartbeat", partition=0, error="UNKNOWN_MEMBER_ID")


def test_a_permanent_error_reaches_the_program(broker: Broker) -> None:
    broker.fail("Produce", error="TOPIC_AUTHORIZATION_FAILED")
    assert produce(broker, b"1") == [(b"1", "TOPIC_AUTHORIZATION_FAILED")]
    assert stored(broker) == []


def describe(broker: Broker, times: int) -> list[bool]:
    """For each of ``times`` DescribeConfigs requests, whether it failed; a client sends one each."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, **_QUICK})
    return [admin.describe_configs([_TOPIC])[_TOPIC].exception(30) is not None for _ in range(times)]


def test_the_nth_request_so_many_times(broker: Broker) -> None:
    fault = broker.fail("DescribeConfigs", topic="t", error="TOPIC_AUTHORIZATION_FAILED", nth=2, times=2)
    assert describe(broker, 5) == [False, True, True, False, False]
    assert (fault.seen, fault.fired) == (3, 2)


def test_a_lost_answer_duplicates_without_idempotence_only(broker: Broker) -> None:
    for idempotent, expected in ((False, [b"1", b"1"]), (True, [b"1", b"1", b"1"])):
        fault = broker.lose("Produce")
        assert produce(broker, b"1", **{"enable.idempotence": idempotent}) == [(b"1", None)]
        fault.assert_fired()
        assert stored(broker) == expected


def test_a_lost_request_is_not_applied(broker: Broker) -> None:
    broker.lose("Produce", applied=False, then="reset")
    assert produce(broker, b"1") == [(b"1", None)]
    assert stored(broker) == [b"1"]


@pytest.mark.parametrize("size", [0, 1, 4, 7, 8, 30])
def test_a_cut_answer_is_no_answer(broker: Broker, size: int) -> None:
    fault = broker.cut("Produce", size=size)
    assert produce(broker, b"1", **{"enable.idempotence": True}) == [(b"1", None)]
    fault.assert_fired(1)
    assert stored(broker) == [b"1"]


def test_a_cut_answer_has_so_many_bytes(broker: Broker) -> None:
    """By hand: ApiVersions version 0, whose answer begins with its size and correlation id."""
    request = bytes.fromhex("0000000a 0012 0000 00000009 0000".replace(" ", ""))
    host, _, port = broker.bootstrap.rpartition(":")
    for then in ("close", "reset"):
        broker.cut("ApiVersions", size=8 if then == "close" else 0, then=then)
        with socket.create_connection((host, int(port)), timeout=30) as raw:
            raw.sendall(request * 2)
            if then == "close":
                answer = b"".join(iter(partial(raw.recv, 100), b""))
                assert answer[4:] == bytes((0, 0, 0, 9))
            else:
                with pytest.raises(ConnectionResetError):
                    raw.recv(100)


def test_a_connection_that_hangs_answers_nothing_more(broker: Broker) -> None:
    broker.lose("Produce", then="hang")
    assert produce(broker, b"1", **{"socket.timeout.ms": 200, "enable.idempotence": True}) == [(b"1", None)]
    assert stored(broker) == [b"1"]


def test_a_delayed_answer_comes_when_the_clock_is_moved(broker: Broker) -> None:
    fault = broker.delay("Produce", seconds=1000)
    producer = Producer({"bootstrap.servers": broker.bootstrap, **_QUICK})
    producer.produce("t", b"1", partition=0)
    while not fault.fired:
        assert producer.flush(0.01) == 1
    assert stored(broker) == [b"1"]
    broker.clock.advance(1000)
    assert producer.flush(30) == 0


def test_a_delayed_request_is_applied_later(broker: Broker) -> None:
    fault = broker.delay("Produce", seconds=1000, applied=False)
    producer = Producer({"bootstrap.servers": broker.bootstrap, **_QUICK})
    producer.produce("t", b"1", partition=0)
    while not fault.fired:
        assert producer.flush(0.01) == 1
    assert stored(broker) == []
    broker.clock.advance(1000)
    assert producer.flush(30) == 0


def test_throttled_client_gets_the_throttle_time(broker: Broker) -> None:
    told: list[Any] = []
    fault = broker.throttle("Produce", seconds=0.25)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "throttle_cb": told.append, **_QUICK})
    producer.produce("t", b"1", partition=0)
    assert producer.flush(30) == 0
    while not told:
        producer.poll(0.1)
    fault.assert_fired()
    assert told[0].throttle_time == 0.25


def test_held_requests_are_applied_in_another_order(broker: Broker) -> None:
    fault = broker.reorder("Produce", count=2)
    producers = [Producer({"bootstrap.servers": broker.bootstrap, **_QUICK}) for _ in range(2)]
    for number, producer in enumerate(producers):
        producer.produce("t", b"%d" % number, partition=0)
        while fault.fired <= number:
            producer.poll(0.01)
    for producer in producers:
        assert producer.flush(30) == 0
    assert stored(broker) == [b"1", b"0"]


def test_pipelined_requests_of_one_connection_are_reordered(broker: Broker) -> None:
    """Without idempotence the broker stores what comes first; each request still gets its own answer."""
    broker.reorder("Produce", count=2, seconds=60)
    config = {"linger.ms": 0, "batch.num.messages": 1, "max.in.flight": 5}
    assert produce(broker, b"1", b"2", **config) == [(b"1", None), (b"2", None)]
    assert stored(broker) == [b"2", b"1"]


def test_a_held_request_does_not_wait_for_ever(broker: Broker) -> None:
    fault = broker.reorder("Produce", seconds=1000)
    producer = Producer({"bootstrap.servers": broker.bootstrap, **_QUICK})
    producer.produce("t", b"1", partition=0)
    while not fault.fired:
        assert producer.flush(0.01) == 1
    broker.clock.advance(1000)
    assert producer.flush(30) == 0


def test_refused_connections_are_tried_again(broker: Broker) -> None:
    fault = broker.refuse_connections(times=3)
    assert produce(broker, b"1") == [(b"1", None)]
    fault.assert_fired(3)


def test_a_script_fires_in_order(broker: Broker) -> None:
    faults = broker.inject(
        Fault(effect="error", api="Produce", error=6),
        Fault(effect="lose", api="Produce", applied=False),
        Fault(effect="error", api="Produce", error=7),
        in_order=True,
    )
    producer = Producer({"bootstrap.servers": broker.bootstrap, **_QUICK})
    fired = set()
    producer.produce("t", b"1", partition=0)
    while producer.flush(0.001):
        fired.add(tuple(fault.fired for fault in faults))
    broker.faults.assert_all_fired()
    assert fired <= {(0, 0, 0), (1, 0, 0), (1, 1, 0), (1, 1, 1)}
    assert stored(broker) == [b"1"]


def test_a_seed_gives_one_sequence(broker: Broker) -> None:
    def fired() -> list[bool]:
        fault = broker.fail("DescribeConfigs", topic="t", error=29, times=None, probability=0.5, seed=11)
        found = describe(broker, 12)
        assert fault.fired == sum(found)
        broker.faults.clear()
        return found

    first = fired()
    assert 0 < sum(first) < 12
    assert fired() == first


def test_a_function_decides_in_a_thread(broker: Broker) -> None:
    asked: list[Request] = []

    def is_large(request: Request) -> bool:
        asked.append(request)
        return len(request.body.topic_data[0].partition_data[0].records) > 200

    fault = broker.fail("Produce", error="MESSAGE_TOO_LARGE", where=is_large)
    assert produce(broker, b"1") == [(b"1", None)]
    assert produce(broker, b"2" * 200) == [(b"2" * 200, "MSG_SIZE_TOO_LARGE")]
    fault.assert_fired(1)
    assert [one.topics for one in asked] == [frozenset({("t", 0)})] * 2


def test_groups_and_transactional_ids_are_found(broker: Broker) -> None:
    other = broker.fail("InitProducerId", transactional_id="other", error=53)
    mine = broker.fail("InitProducerId", transactional_id="mine", error="TRANSACTIONAL_ID_AUTHORIZATION_FAILED")
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "mine", **_QUICK})
    with pytest.raises(KafkaException, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
        producer.init_transactions(30)
    assert (other.seen, mine.fired) == (0, 1)
    group = broker.fail("FindCoordinator", group="g", error="GROUP_AUTHORIZATION_FAILED", times=None)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", **_QUICK})
    consumer.subscribe(["t"])
    message = consumer.poll(30)
    assert message is not None
    error = message.error()
    assert error is not None
    assert error.name() == "GROUP_AUTHORIZATION_FAILED"
    group.assert_fired()
    consumer.close()


def test_a_fetch_of_one_partition_fails(broker: Broker) -> None:
    produce(broker, b"0")
    produce(broker, b"1", partition=1)
    fault = broker.fail("Fetch", partition=1, error="KAFKA_STORAGE_ERROR", times=2)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "-", **_QUICK})
    consumer.assign([TopicPartition("t", 0, 0), TopicPartition("t", 1, 0)])
    found = [message.value() for message in consumer.consume(2, 30)]
    assert sorted(map(bytes, filter(None, found))) == [b"0", b"1"]
    fault.assert_fired(2)
    consumer.close()


@contextmanager
def in_session(broker: Broker) -> Iterator[Any]:
    """A consumer of both partitions that reads in a fetch session. librdkafka has none; kafka-python has."""
    consumer = kafka.KafkaConsumer(bootstrap_servers=broker.bootstrap, fetch_max_wait_ms=20, retry_backoff_ms=5)
    consumer.assign([kafka.TopicPartition("t", number) for number in (0, 1)])
    consumer.seek_to_beginning()
    try:
        yield consumer
    finally:
        consumer.close()


def fetches(path: Path) -> list[tuple[dict[str, Any], dict[str, Any] | None]]:
    """All recorded Fetch requests with their answers."""
    whole, _, _ = path.read_text().rpartition("\n")  # the last line may be half written
    events = [json.loads(line) for line in whole.splitlines()]
    answers = {one["answer"]: one.get("decoded") for one in events if "answer" in one}
    return [(one["decoded"], answers.get(one["request"])) for one in events if one.get("api") == "Fetch"]


def names_nothing(path: Path) -> bool:
    """Whether the last recorded Fetch is one in a session without news, so that it names no partition."""
    found = fetches(path)
    return bool(found) and found[-1][0]["session_epoch"] > 0 and not found[-1][0]["topics"]


def answered(path: Path) -> list[dict[str, Any]]:
    return [answer for _, answer in fetches(path) if answer is not None]


def errors(answer: dict[str, Any]) -> dict[int, int]:
    """The error of each partition in an answer to Fetch."""
    return {one["partition_index"]: one["error_code"] for topic in answer["responses"] for one in topic["partitions"]}


def poll(consumer: Any, *wanted: bytes) -> None:
    found: list[bytes] = []

    def has_all() -> bool:
        found.extend(one.value for records in consumer.poll(20).values() for one in records)
        return len(found) >= len(wanted)

    wait_until(has_all, "the records")
    assert sorted(found) == sorted(wanted)


def test_a_fault_finds_the_partition_of_a_fetch_in_a_session(broker: Broker, tmp_path: Path) -> None:
    storage_error = KafkaError(KafkaError.KAFKA_STORAGE_ERROR).code()
    with in_session(broker) as consumer:
        before, during, after = (tmp_path / name for name in ("before", "during", "after"))
        with broker.record(before):
            produce(broker, b"0")
            poll(consumer, b"0")
            wait_until(lambda: not consumer.poll(20) and names_nothing(before), "a session")

        def met() -> list[dict[str, Any]]:
            """The answer that ends the session, and those after it."""
            return list(dropwhile(lambda answer: not answer["error_code"], answered(during)))

        with broker.record(during):
            fault = broker.fail("Fetch", partition=1, error="KAFKA_STORAGE_ERROR", times=2)
            wait_until(lambda: not consumer.poll(20) and len(met()) >= 3, "the answers")
        ended, *full = met()[:3]
        assert fault.fired == 2
        assert (ended["error_code"], ended["responses"]) == (70, [])
        assert [errors(answer)[1] for answer in full] == [storage_error] * 2
        assert {(answer["session_id"], errors(answer).get(0, 0)) for answer in full} == {(0, 0)}

        with broker.record(after):
            produce(broker, b"1", partition=1)
            poll(consumer, b"1")
            wait_until(lambda: not consumer.poll(20) and names_nothing(after), "a session again")
        assert {answer["error_code"] for answer in answered(after)} == {0}


@pytest.mark.parametrize(
    "other",
    [
        {"api": "Produce"},
        {"api": "Fetch", "client_id": "another"},
        {"group": "g"},
    ],
    ids=["another API", "another client", "a group"],
)
def test_sessions_stay_while_no_fault_can_meet_the_fetch(broker: Broker, tmp_path: Path, other: dict[str, Any]) -> None:
    path = tmp_path / "session"
    with in_session(broker) as consumer, broker.record(path):
        broker.inject(Fault(effect="lose", times=None, **other))
        wait_until(lambda: not consumer.poll(20) and len(fetches(path)) > 5, "some requests")
    epochs = [asked["session_epoch"] for asked, _ in fetches(path)]
    assert epochs == list(range(epochs[0], epochs[0] + len(epochs)))


def test_a_stop_ends_all_faults(broker: Broker) -> None:
    broker.fail("Produce", error=6, times=None)
    broker.restart()
    assert len(broker.faults) == 0
    assert produce(broker, b"1") == [(b"1", None)]
