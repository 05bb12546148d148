"""Verification and append are one step against a marker that comes while the coordinator is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import Random
from types import MappingProxyType, SimpleNamespace
from typing import Any, Final, cast

import pytest
from kio.serial import entity_reader

from seglog.broker.produce.produce import Produce
from seglog.broker.produce.transaction_verification import TransactionVerifier
from seglog.broker.requests import RequestContext
from seglog.coordinators.transactions.coordinator import TransactionCoordinator
from seglog.core.error_codes import ErrorCode
from seglog.core.ground import Ground
from seglog.core.types import ProducerIdAndEpoch, TopicPartition
from seglog.protocol.apis import ApiKey
from seglog.protocol.message_writer import write_message
from seglog.protocol.schema import request_class, response_class
from seglog.records.record import NewRecord, encode_batch, end_txn_marker
from seglog.replication.replica import Replica
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.log.admit import Origin
from tests.kit.manual_clock import ManualClock
from tests.kit.memory_fs import MemoryFs
from tests.lone import LoneTopics

PRODUCER: Final = ProducerIdAndEpoch(5, 0)
NOW: Final = 1_790_000_000_000
OTHER_BROKER: Final = 2


class Broker:
    """Topic ``t`` of two partitions here; the transactions' coordinator is another broker, which says that all is in
    the transaction, or ``code``, after ``meanwhile``."""

    def __init__(self, meanwhile: Callable[[Broker], None] = lambda _: None, code: ErrorCode = ErrorCode.NONE) -> None:
        clock = ManualClock(NOW)
        directory = LogDir.open("/log", ground=Ground(fs=MemoryFs(clock=clock), clock=clock, rng=Random(1)))
        directory.create_topic("t", partitions=2)
        self.topics = LoneTopics(directory)
        self.asked: list[list[TopicPartition]] = []
        self.meanwhile = meanwhile
        self.code = code
        where = cast(TransactionCoordinator, SimpleNamespace(locate=self._locate))
        self._produce = Produce(self.topics, verifier=TransactionVerifier(where, 1, self._ask, is_enabled=lambda: True))

    async def _locate(self, _: str) -> int:
        return OTHER_BROKER

    async def _ask(
        self, broker: int, _: str, producer: ProducerIdAndEpoch, partitions: Sequence[TopicPartition], __: bool
    ) -> dict[TopicPartition, ErrorCode]:
        assert (broker, producer) == (OTHER_BROKER, PRODUCER)
        self.asked.append(list(partitions))
        self.meanwhile(self)
        return dict.fromkeys(partitions, self.code)

    def partition(self, number: int) -> Replica:
        found = self.topics.by_name["t"].partitions[number]
        assert found is not None
        return found

    def mark(self, number: int, *, epoch: int = 0, commit: bool = False, version: int = 0) -> None:
        marker = end_txn_marker(commit=commit, coordinator_epoch=0, producer_id=5, producer_epoch=epoch, timestamp=NOW)
        self.partition(number).append(marker, Origin.COORDINATOR, transaction_version=version)

    def produce(
        self, *numbers: int, version: int = 11, sequence: Mapping[int, int] = MappingProxyType({})
    ) -> list[int]:
        """A batch to each of the partitions; their error codes."""
        batches = {
            number: encode_batch(
                [NewRecord(b"x", timestamp=NOW)],
                transactional=True,
                producer_id=PRODUCER.producer_id,
                producer_epoch=PRODUCER.epoch,
                base_sequence=sequence.get(number, 0),
            )
            for number in numbers
        }
        partitions = [{"index": number, "records": bytes(batch)} for number, batch in batches.items()]
        topic = {"name": "t", "partition_data": partitions}
        contents: dict[str, Any] = {"transactional_id": "x", "acks": -1, "timeout": 1000, "topic_data": [topic]}
        body = write_message(request_class(ApiKey.PRODUCE, version), contents)
        context = RequestContext(ApiKey.PRODUCE, version, "", "127.0.0.1", "PLAINTEXT")

        async def answered() -> bytes:
            found = self._produce(memoryview(body), 0, context)
            answer = await found if isinstance(found, Awaitable) else found
            assert isinstance(answer, bytes)
            return answer

        entity, _ = entity_reader(response_class(ApiKey.PRODUCE, version))(asyncio.run(answered()), 0)
        return [one.error_code for one in entity.responses[0].partition_responses]

    def is_open(self, number: int) -> bool:
        return self.partition(number).log.producers.first_unstable_offset() is not None


@pytest.mark.parametrize(
    ("version", "epoch", "code"),
    [
        (11, 0, ErrorCode.INVALID_TXN_STATE),
        (11, 1, ErrorCode.INVALID_PRODUCER_EPOCH),
        (12, 1, ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
)
def test_a_marker_between_verification_and_append_refuses_the_batch(version: int, epoch: int, code: ErrorCode) -> None:
    """KAFKA-14402: the transaction that the coordinator spoke of is over, and the batch would hang."""
    broker = Broker(lambda one: one.mark(0, epoch=epoch))
    assert broker.produce(0, version=version) == [code]
    assert not broker.is_open(0)


def test_the_marker_of_the_transaction_before_refuses_nothing_in_version_2() -> None:
    """KAFKA-18575: its epoch is that of the transaction that begins."""
    broker = Broker(lambda one: one.mark(0, version=2))
    assert broker.produce(0, version=12) == [ErrorCode.NONE]


def test_a_partition_that_needed_no_question_is_refused_if_its_transaction_ends_meanwhile() -> None:
    broker = Broker()
    assert broker.produce(0) == [ErrorCode.NONE]
    broker.meanwhile = lambda one: one.mark(0)
    assert broker.produce(0, 1, sequence={0: 1}) == [ErrorCode.INVALID_TXN_STATE, ErrorCode.NONE]
    assert broker.asked == [[TopicPartition("t", 0)], [TopicPartition("t", 1)]]
    assert not broker.is_open(0)


@pytest.mark.parametrize(
    ("version", "found", "answered"),
    [
        (10, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE),
        (11, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
        (12, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
        (11, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_ENOUGH_REPLICAS),
        (12, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.CONCURRENT_TRANSACTIONS),
        (11, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH),
        (11, ErrorCode.NETWORK_EXCEPTION, ErrorCode.NOT_ENOUGH_REPLICAS),
        (12, ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_ENOUGH_REPLICAS),
        (12, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_ENOUGH_REPLICAS),
        (12, ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ],
)
def test_the_coordinators_code_becomes_one_that_the_producer_knows(
    version: int, found: ErrorCode, answered: ErrorCode
) -> None:
    """As Kafka's ``AddPartitionsToTxnManager`` and ``ReplicaManager.handleProduceAppend``."""
    assert Broker(code=found).produce(0, version=version) == [answered]


def test_the_broker_asks_again_while_the_last_transaction_completes() -> None:
    def complete(broker: Broker) -> None:
        if len(broker.asked) == 2:
            broker.code = ErrorCode.NONE

    broker = Broker(complete, ErrorCode.CONCURRENT_TRANSACTIONS)
    assert broker.produce(0, version=12) == [ErrorCode.NONE]
    assert len(broker.asked) == 2
