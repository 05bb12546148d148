"""Clients that use more than their quota, over the wire: what they are told, and that they are held."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from seglog.broker.quotas.client_quotas import FETCH, MUTATION, PRODUCE, REQUEST, Limits, Other
from seglog.broker.quotas.request_quotas import RequestQuotas
from seglog.core.rates import Window
from seglog.protocol.apis import APIS, ApiKey
from seglog.protocol.message_writer import write_message
from seglog.protocol.messages import read_answer
from seglog.protocol.schema import response_class
from seglog.protocol.throttle import has_throttle, throttled
from tests.broker.broker_thread import RunningNode, Wire
from tests.broker.quotas.quota_requests import (
    fetch_request,
    is_silent,
    produce_request,
    quotas_of,
    set_quotas,
)
from tests.broker.request_steps import REQUESTS


@contextmanager
def limited(broker: RunningNode, client: str, **quotas: float) -> Iterator[Wire]:
    """A connection of a client with these quotas."""
    set_quotas(broker, {"client-id": client}, quotas)
    try:
        with Wire(broker.bootstrap, client_id=client) as wire:
            yield wire
    finally:
        set_quotas(broker, {"client-id": client}, dict.fromkeys(quotas))


@pytest.fixture
def topic(wire: Wire, topic_name: str) -> str:
    return wire.create_topic(topic_name)


@pytest.mark.parametrize("acks", [1, -1, 0])
@pytest.mark.parametrize("version", [3, 8, 9, 12])
def test_a_producer_beyond_its_quota_is_held(broker: RunningNode, topic: str, version: int, acks: int) -> None:
    with limited(broker, f"{topic}-slow", producer_byte_rate=1.0) as slow:
        if acks:
            answer = slow.ask(ApiKey.PRODUCE, version, **produce_request(topic, acks=acks))
            assert answer.throttle_time > 10_000
            assert answer.responses[0].partition_responses[0].error_code == 0
            assert answer.responses[0].partition_responses[0].base_offset == 0
        else:
            slow.send(ApiKey.PRODUCE, version, **produce_request(topic, acks=0))
        assert is_silent(slow, broker)
    with Wire(broker.bootstrap) as other:
        assert not other.ask(ApiKey.PRODUCE, version, **produce_request(topic)).throttle_time


def test_a_client_is_answered_again_after_its_time(broker: RunningNode, topic: str) -> None:
    with limited(broker, f"{topic}-slow", producer_byte_rate=10_000.0) as slow:
        for _ in range(100):
            if slow.ask(ApiKey.PRODUCE, 9, **produce_request(topic, 60_000)).throttle_time:
                break
        assert slow.ask(ApiKey.METADATA, topics=[]).brokers


def test_requests_that_came_together_wait_for_each_other(broker: RunningNode, topic: str) -> None:
    """A client that does not wait for answers is held too."""
    with limited(broker, f"{topic}-slow", producer_byte_rate=1.0) as slow:
        for _ in range(5):
            slow.send(ApiKey.PRODUCE, 9, **produce_request(topic, acks=-1))
        assert slow.answer(ApiKey.PRODUCE, 9).throttle_time
        assert is_silent(slow, broker)
    with Wire(broker.bootstrap) as other:
        answer = other.ask(ApiKey.PRODUCE, 9, **produce_request(topic))
    assert answer.responses[0].partition_responses[0].base_offset == 1


def test_a_consumer_beyond_its_quota_gets_nothing(broker: RunningNode, wire: Wire, topic: str) -> None:
    wire.ask(ApiKey.PRODUCE, 9, **produce_request(topic, 5_000))
    asked = fetch_request(topic)
    with limited(broker, f"{topic}-slow", consumer_byte_rate=100.0) as slow:
        for epoch in (-1, 0):
            with Wire(broker.bootstrap, client_id=f"{topic}-slow") as one:
                answer = one.ask(ApiKey.FETCH, 11, **{**asked, "session_epoch": epoch})
                assert (answer.throttle_time > 1_000, answer.session_id, len(answer.responses)) == (True, 0, 0)
                assert is_silent(one, broker)
        assert slow.ask(ApiKey.METADATA, topics=[]).throttle_time == 0  # it is another quota
    assert wire.ask(ApiKey.FETCH, 11, **asked).responses[0].partitions[0].records


def test_a_session_goes_on_after_an_empty_answer(broker: RunningNode, wire: Wire, topic: str) -> None:
    with limited(broker, f"{topic}-slow", consumer_byte_rate=100.0) as slow:
        session = slow.ask(ApiKey.FETCH, 11, **{**fetch_request(topic), "session_epoch": 0}).session_id
        assert session
        wire.ask(ApiKey.PRODUCE, 9, **produce_request(topic, 5_000))
        again = fetch_request(topic, session_id=session, topics=[])
        answer = slow.ask(ApiKey.FETCH, 11, **{**again, "session_epoch": 1})
        assert (answer.throttle_time > 1_000, answer.session_id, len(answer.responses)) == (True, session, 0)
    with Wire(broker.bootstrap) as other:
        answer = other.ask(ApiKey.FETCH, 11, **{**again, "session_epoch": 2})
        assert answer.responses[0].partitions[0].records
        assert (answer.throttle_time, answer.session_id) == (0, session)


def test_a_fetch_that_waits_is_counted_when_it_is_answered(broker: RunningNode, wire: Wire, topic: str) -> None:
    with limited(broker, f"{topic}-slow", consumer_byte_rate=100.0) as slow:
        slow.send(ApiKey.FETCH, 11, **fetch_request(topic, max_wait=60_000, min_bytes=100))
        wire.ask(ApiKey.PRODUCE, 9, **produce_request(topic, 5_000))
        answer = slow.answer(ApiKey.FETCH, 11)
        assert (answer.throttle_time > 1_000, len(answer.responses)) == (True, 0)
        assert is_silent(slow, broker)


def test_a_fetch_asks_for_no_more_than_its_quota_allows_at_once(broker: RunningNode, wire: Wire, topic: str) -> None:
    """Otherwise it would wait for bytes that it can never get."""
    wire.ask(ApiKey.PRODUCE, 9, **produce_request(topic, 500))
    with limited(broker, f"{topic}-slow", consumer_byte_rate=100.0) as slow:
        asked = fetch_request(topic, max_wait=2_000_000_000, min_bytes=1 << 20)
        slow.send(ApiKey.FETCH, 11, **asked)
        wire.ask(ApiKey.PRODUCE, 9, **produce_request(topic, 500))
        assert slow.answer(ApiKey.FETCH, 11).error_code == 0


@pytest.mark.parametrize("name", REQUESTS)
def test_every_request_costs_its_time_and_is_told_so(broker: RunningNode, name: str) -> None:
    key, version, contents = REQUESTS[name](1)
    with limited(broker, f"slow-{name}", request_percentage=1e-9) as slow:
        slow.send(key, version, **contents)
        answer = slow.answer(key, version)
        assert 0 < getattr(answer, "throttle_time", 1) <= 1_000


def test_every_version_has_its_throttle_time_in_place() -> None:
    for key, api in APIS.items():
        for version in range(api.served, api.high + 1):
            message = response_class(key, version)
            body = write_message(message, {})
            found = throttled(key, version, body, 1_234)
            answer = read_answer(key, version, found)
            if not has_throttle(message):
                assert found == body
                continue
            assert answer.throttle_time == 1_234
            answer.throttle_time = 0
            assert answer == read_answer(key, version, body)


def test_two_topics_too_many_are_refused_or_held(broker: RunningNode, topic: str) -> None:
    rest = {"num_partitions": 20, "replication_factor": 1, "assignments": [], "configs": []}

    def made(wire: Wire, name: str, version: int) -> Any:
        wanted = [{"name": f"{topic}-{name}", **rest}]
        answer = wire.ask(ApiKey.CREATE_TOPICS, version, topics=wanted, timeout=30_000, validate_only=False)
        return answer.topics[0].error_code, answer.throttle_time > 0

    client = f"{topic}-maker"
    with limited(broker, client, controller_mutation_rate=0.5) as wire:
        assert made(wire, "first", 6) == (0, False)
        assert made(wire, "second", 6) == (89, True)
        assert is_silent(wire, broker)
        with Wire(broker.bootstrap, client_id=client) as other:
            assert made(other, "third", 5) == (0, True)
            assert is_silent(other, broker)


def test_a_topic_beyond_the_quota_is_not_made_by_metadata(start: Callable[..., RunningNode]) -> None:
    broker = start({"num.partitions": "20"})
    with limited(broker, "maker", controller_mutation_rate=0.5) as wire:
        assert wire.ask(ApiKey.METADATA, 8, topics=[{"name": "first"}]).topics[0].error_code == 0
        answer = wire.ask(ApiKey.METADATA, 8, topics=[{"name": "second"}])
        assert answer.topics[0].error_code == 3
        assert answer.throttle_time > 0
    with Wire(broker.bootstrap) as wire:
        assert wire.ask(ApiKey.METADATA, 8, topics=[{"name": "second"}]).topics[0].error_code == 0


def test_a_broker_with_metrics_holds_clients_too(start: Callable[..., RunningNode], topic_name: str) -> None:
    broker = start({"metrics.listener": "127.0.0.1:0"})
    with Wire(broker.bootstrap) as wire:
        wire.create_topic(topic_name)
    with limited(broker, "slow", producer_byte_rate=1.0) as slow:
        assert slow.ask(ApiKey.PRODUCE, 9, **produce_request(topic_name)).throttle_time
        assert is_silent(slow, broker)


def is_let_in(broker: RunningNode) -> bool:
    try:
        with Wire(broker.bootstrap) as wire:
            return bool(wire.ask(ApiKey.METADATA, topics=[]).brokers)
    except ConnectionError:
        return False


def test_connections_of_an_address_are_limited_and_free_again(start: Callable[..., RunningNode]) -> None:
    broker = start()
    set_quotas(broker, {"ip": "localhost"}, {"connection_creation_rate": 1000.0})
    set_quotas(broker, {"ip": "127.0.0.1"}, {"connection_creation_rate": 1.0})
    assert not all(is_let_in(broker) for _ in range(100))


def test_librdkafka_is_told_its_throttle_time(broker: RunningNode, topic: str) -> None:
    set_quotas(broker, {"client-id": f"{topic}-slow"}, {PRODUCE: 20_000.0, FETCH: 20_000.0})
    told: list[float] = []
    config = {
        "bootstrap.servers": broker.bootstrap,
        "client.id": f"{topic}-slow",
        "throttle_cb": lambda event: told.append(event.throttle_time),
    }
    producer = Producer({**config, "linger.ms": 0, "batch.num.messages": 1})
    sent = 0
    while not any(told):
        producer.produce(topic, b"v" * 40_000)
        producer.flush(60)
        sent += 1
    consumer = Consumer({**config, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    for _ in range(sent):
        message = consumer.poll(60)
        assert message is not None
        assert message.error() is None
    consumer.close()
    set_quotas(broker, {"client-id": f"{topic}-slow"}, {PRODUCE: None, FETCH: None})
    assert not quotas_of(broker)


def test_clients_that_are_gone_take_no_memory() -> None:
    now = [0.0]
    limits: dict[str, Limits] = {
        name: {(Other.ABSENT, Other.DEFAULT): 1e9} for name in (PRODUCE, FETCH, REQUEST, MUTATION)
    }
    quotas = RequestQuotas(limits, lambda: now[0], Window(), Window())
    for number in range(50_000):
        now[0] += 0.01
        quotas.produce.record("ann", f"made-up-{number}" * 50, 100, quotas.now_ms())
        quotas.mutations.of("ann", f"made-up-{number}", quotas.now_ms())
    assert len(quotas.produce) <= 4_096
    assert len(quotas.mutations) <= 4_096
