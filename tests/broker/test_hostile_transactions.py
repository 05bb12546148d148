"""Requests of transactions that no honest client sends: each is answered or ends its connection, costs little memory,
and changes no other client's transaction."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from seglog.protocol.apis import ApiKey
from seglog.records.record import NewRecord, encode_batch
from tests.broker.broker_thread import Wire
from tests.broker.served_broker import MEGABYTE, ServedBroker
from tests.broker.transactional_producer import (
    FENCED,
    INVALID_STATE,
    NO_SUCH_PRODUCER,
    UNKNOWN_TOPIC,
    TransactionalProducer,
    stable_end,
)
from tests.kit.waiting import wait_until

INVALID_REQUEST: Final = 42
INVALID_TIMEOUT: Final = 50
INVALID_RECORD: Final = 87
UNKNOWN_SERVER_ERROR: Final = -1
LONG_ID: Final = "x" * 65_536
MOST_MEMORY: Final = 200 * MEGABYTE


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBroker]:
    path: Path = tmp_path_factory.mktemp("hostile")
    with ServedBroker(path, {"transaction.state.log.num.partitions": "1"}, log_level="error") as running:
        with Wire(running.bootstrap) as wire:
            wire.create_topic("t")
        yield running


@pytest.fixture
def victim(served: ServedBroker, request: pytest.FixtureRequest) -> Iterator[TransactionalProducer]:
    """A producer with an open transaction, which it commits in the end."""
    with Wire(served.bootstrap) as wire:
        topic = wire.create_topic(f"victim-{abs(hash(request.node.name))}")
        producer = TransactionalProducer(wire, topic)
        assert producer.send(topic, b"mine") == 0
        yield producer
        assert producer.end().error_code == 0
        wait_until(lambda: stable_end(wire, topic) == 2, "the commit")
    served.check_quiet()


@pytest.mark.parametrize("count", [262_144, 1_000_000])
def test_too_many_partitions_in_one_request_end_the_connection(
    served: ServedBroker, victim: TransactionalProducer, count: int
) -> None:
    before = served.memory
    with Wire(served.bootstrap) as wire, pytest.raises(ConnectionError):
        _add(wire, victim, range(count))
    assert served.memory - before < MOST_MEMORY


def test_as_many_partitions_as_a_request_may_have(served: ServedBroker, victim: TransactionalProducer) -> None:
    """None of them is there, so none is added."""
    before = served.memory
    with Wire(served.bootstrap) as wire:
        codes = {one.partition_error_code for one in _add(wire, victim, range(1, 250_001))}
    assert codes == {UNKNOWN_TOPIC}
    assert served.memory - before < MOST_MEMORY


def _add(wire: Wire, producer: TransactionalProducer, numbers: range) -> Any:
    named = {f"v3_and_below_{name}": value for name, value in producer.named.items()}
    topics = [{"name": "t", "partitions": list(numbers)}]
    answer = wire.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 3, **named, v3_and_below_topics=topics)
    return answer.results_by_topic_v3_and_below[0].results_by_partition


def test_a_transactional_id_that_fits_into_no_record(served: ServedBroker, victim: TransactionalProducer) -> None:
    """Of 64 KiB; the ids of records have a length of 15 bits."""
    with Wire(served.bootstrap) as wire:
        for _ in range(2):  # the first one must leave nothing behind
            answer = wire.ask(ApiKey.INIT_PRODUCER_ID, transactional_id=LONG_ID, transaction_timeout=1000)
            assert answer.error_code == INVALID_REQUEST
        listed = wire.ask(ApiKey.LIST_TRANSACTIONS, state_filters=[], producer_id_filters=[])
        assert all(len(one.transactional_id) < 1000 for one in listed.transaction_states)
        named = {"transactional_id": LONG_ID, "producer_id": victim.producer_id, "producer_epoch": victim.epoch}
        assert wire.ask(ApiKey.END_TXN, **named, committed=True).error_code == NO_SUCH_PRODUCER
        found = wire.ask(ApiKey.FIND_COORDINATOR, key_type=1, coordinator_keys=[LONG_ID]).coordinators
        assert len(found) == 1


@pytest.mark.parametrize("timeout", [0, -1, -(2**31), 900_001, 2**31 - 1])
def test_timeouts_beyond_what_is_allowed(served: ServedBroker, timeout: int) -> None:
    with Wire(served.bootstrap) as wire:
        answer = wire.ask(ApiKey.INIT_PRODUCER_ID, transactional_id="late", transaction_timeout=timeout)
        assert answer.error_code == INVALID_TIMEOUT


@pytest.mark.parametrize(
    ("producer_id", "epoch", "code"),
    [(-1, 0, INVALID_REQUEST), (5, -1, INVALID_REQUEST), (-7, -7, FENCED), (2**63 - 1, -(2**15), FENCED)],
)
def test_producers_with_negative_ids_and_epochs(
    served: ServedBroker, victim: TransactionalProducer, producer_id: int, epoch: int, code: int
) -> None:
    identity: dict[str, Any] = {"transactional_id": victim.id, "producer_id": producer_id, "producer_epoch": epoch}
    with Wire(served.bootstrap) as wire:
        assert wire.ask(ApiKey.INIT_PRODUCER_ID, **identity, transaction_timeout=1000).error_code == code
        assert wire.ask(ApiKey.END_TXN, 4, **identity, committed=True).error_code == NO_SUCH_PRODUCER
        assert wire.ask(ApiKey.ADD_OFFSETS_TO_TXN, **identity, group_id="g").error_code == NO_SUCH_PRODUCER


def test_the_producer_of_another_id_ends_nothing(served: ServedBroker, victim: TransactionalProducer) -> None:
    with Wire(served.bootstrap) as wire:
        thief = TransactionalProducer(wire, f"thief-of-{victim.id}")
        stolen = {**thief.named, "transactional_id": victim.id}
        for version in (4, 5):
            assert wire.ask(ApiKey.END_TXN, version, **stolen, committed=False).error_code == NO_SUCH_PRODUCER
        guessed = {**victim.named, "producer_epoch": victim.epoch + 1}
        assert wire.ask(ApiKey.END_TXN, 5, **guessed, committed=False).error_code == FENCED
        assert wire.ask(ApiKey.END_TXN, 4, **thief.named, committed=True).error_code == INVALID_STATE


def test_a_request_with_an_empty_id_or_a_null_adds_nothing(served: ServedBroker) -> None:
    with Wire(served.bootstrap) as wire:
        asked: dict[str, Any] = {"producer_id": 0, "producer_epoch": 0, "transactional_id": ""}
        assert wire.ask(ApiKey.END_TXN, **asked, committed=True).error_code == INVALID_REQUEST
        assert wire.ask(ApiKey.ADD_OFFSETS_TO_TXN, **asked, group_id="g").error_code == INVALID_REQUEST
        (described,) = wire.ask(ApiKey.DESCRIBE_TRANSACTIONS, transactional_ids=[""]).transaction_states
        assert described.error_code == INVALID_REQUEST


@pytest.mark.usefixtures("victim")
def test_a_pattern_that_would_take_for_ever_does_not(served: ServedBroker) -> None:
    with Wire(served.bootstrap) as wire:
        TransactionalProducer(wire, "a" * 40 + "b")
        answer = wire.ask(
            ApiKey.LIST_TRANSACTIONS, state_filters=[], producer_id_filters=[], transactional_id_pattern="(a+)+$"
        )
        assert answer.transaction_states == ()


@pytest.mark.parametrize("transactional_id", [None, "x"])
@pytest.mark.parametrize("version", [3, 9, 12])
def test_a_transactional_batch_that_is_not_whole_is_refused(
    served: ServedBroker, version: int, transactional_id: str | None
) -> None:
    batch = encode_batch([NewRecord(b"v")], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    data = [{"index": 0, "records": bytes(batch[:-1])}]
    topics = [{"name": "t", "partition_data": data}]
    with Wire(served.bootstrap) as wire:
        settings = {"acks": 1, "timeout": 1000, "transactional_id": transactional_id}
        (found,) = wire.ask(ApiKey.PRODUCE, version, **settings, topic_data=topics).responses
    assert [one.error_code for one in found.partition_responses] == [INVALID_RECORD]
    served.check_quiet()
