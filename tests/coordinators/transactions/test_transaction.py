"""The rules of one transactional id: each named for what it protects."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from seglog.coordinators.coordinator_error import CoordinatorError
from seglog.coordinators.transactions.shard import TransactionShard
from seglog.coordinators.transactions.transaction import MAX_EPOCH, Transaction, TransactionState
from seglog.core.error_codes import ErrorCode
from seglog.core.types import ProducerIdAndEpoch, TopicPartition

ID = "payments"
PLACE = TopicPartition("t", 0)
OTHER = TopicPartition("t", 1)
TIMEOUT_MS = 60_000


class Coordinator:
    """A shard whose proposals are committed at once, with a clock and producer ids. ``version`` is the cluster's
    transaction version, and that of its client."""

    def __init__(self, version: int = 2) -> None:
        self.shard = TransactionShard()
        self.version = version
        self.now_ms = 1_000
        self._next_id = 100

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id

    def _settled(self, proposed: Transaction | None) -> Transaction:
        if proposed is not None:
            self.shard.settle(ID)
        return self.shard.transactions[ID]

    def init(self, expected: ProducerIdAndEpoch | None = None) -> Transaction:
        new_id = self._new_id() if self.shard.needs_producer_id(ID, expected, self.version) else None
        return self._settled(
            self.shard.initialize(
                ID, TIMEOUT_MS, expected, version=self.version, new_producer_id=new_id, now_ms=self.now_ms
            )
        )

    def add(self, producer: ProducerIdAndEpoch, *places: TopicPartition) -> Transaction:
        return self._settled(
            self.shard.add_partitions(
                ID, producer, frozenset(places or (PLACE,)), version=self.version, now_ms=self.now_ms
            )
        )

    def end(self, producer: ProducerIdAndEpoch, *, commit: bool = True) -> Transaction:
        new_id = self._new_id() if self.shard.get(ID).needs_producer_id_to_end(self.version) else None
        return self._settled(
            self.shard.end(
                ID, producer, commit=commit, version=self.version, new_producer_id=new_id, now_ms=self.now_ms
            )
        )

    def complete(self) -> Transaction:
        return self._settled(self.shard.complete(ID, self.now_ms))

    def at_epoch(self, epoch: int) -> ProducerIdAndEpoch:
        """The id as if its producer had come to this epoch."""
        self.shard.transactions[ID] = self.shard.transactions[ID]._replace(epoch=epoch)
        return self.shard.transactions[ID].producer


@pytest.fixture(params=[0, 2], ids=["version0", "version2"])
def coordinator(request: pytest.FixtureRequest) -> Coordinator:
    return Coordinator(request.param)


@pytest.fixture
def v2() -> Coordinator:
    return Coordinator(2)


@pytest.fixture
def v0() -> Coordinator:
    return Coordinator(0)


def refused(code: ErrorCode, act: Callable[[], object]) -> None:
    with pytest.raises(CoordinatorError) as caught:
        act()
    assert caught.value.code is code


def test_first_initialization_begins_at_epoch_0(coordinator: Coordinator) -> None:
    found = coordinator.init()
    assert found.state is TransactionState.EMPTY
    assert found.epoch == 0
    assert found.start_ms == -1


def test_another_initialization_fences_the_former_producer(coordinator: Coordinator) -> None:
    old = coordinator.init().producer
    new = coordinator.init().producer
    assert new == (old.producer_id, old.epoch + 1)
    refused(ErrorCode.PRODUCER_FENCED, lambda: coordinator.add(old))


def test_repeated_initialization_gets_the_same_epoch(coordinator: Coordinator) -> None:
    """KIP-360: the answer to the first was lost."""
    before = coordinator.init().producer
    first = coordinator.init(before).producer
    assert coordinator.init(before).producer == first


def test_initialization_with_a_stale_epoch_is_fenced(coordinator: Coordinator) -> None:
    old = coordinator.init().producer
    coordinator.init()
    coordinator.init()
    refused(ErrorCode.PRODUCER_FENCED, lambda: coordinator.init(old))


def test_initialization_with_another_producer_id_is_fenced(coordinator: Coordinator) -> None:
    coordinator.init()
    refused(ErrorCode.PRODUCER_FENCED, lambda: coordinator.init(ProducerIdAndEpoch(9_999, 0)))


def test_initialization_aborts_an_open_transaction_and_fences_once(coordinator: Coordinator) -> None:
    """KAFKA-19367: version 2 raised the epoch twice."""
    producer = coordinator.init().producer
    coordinator.add(producer)
    aborted = coordinator.init()
    assert aborted.state is TransactionState.PREPARE_ABORT
    assert aborted.epoch == producer.epoch + 1
    refused(ErrorCode.CONCURRENT_TRANSACTIONS, coordinator.init)
    coordinator.complete()
    assert coordinator.init().epoch == producer.epoch + 2


def test_epochs_run_out_into_a_new_producer_id_at_initialization(coordinator: Coordinator) -> None:
    coordinator.init()
    producer = coordinator.at_epoch(MAX_EPOCH - 1)
    rotated = coordinator.init(producer)
    assert rotated.producer_id != producer.producer_id
    assert (rotated.epoch, rotated.previous_producer_id) == (0, producer.producer_id)
    assert coordinator.init(producer).producer == (rotated.producer_id, 0), "repeated with the former producer id"


def test_epochs_run_out_into_a_new_producer_id_at_the_end(v2: Coordinator) -> None:
    v2.init()
    producer = v2.at_epoch(MAX_EPOCH - 1)
    v2.add(producer)
    prepared = v2.end(producer)
    assert prepared.producer == (producer.producer_id, MAX_EPOCH), "the marker has the last epoch"
    complete = v2.complete()
    assert complete.producer == (prepared.next_producer_id, 0)
    assert v2.end(producer).producer == complete.producer, "the answer to a repeated EndTxn"


def test_fencing_at_the_last_epoch_keeps_it(coordinator: Coordinator) -> None:
    coordinator.init()
    coordinator.add(coordinator.at_epoch(MAX_EPOCH))
    assert coordinator.init().epoch == MAX_EPOCH


def test_a_transaction_begins_with_its_first_partition(coordinator: Coordinator) -> None:
    producer = coordinator.init().producer
    coordinator.now_ms += 5
    begun = coordinator.add(producer)
    coordinator.now_ms += 5
    more = coordinator.add(producer, OTHER)
    assert (begun.state, begun.start_ms) == (TransactionState.ONGOING, 1_005)
    assert more.partitions == {PLACE, OTHER}
    assert more.start_ms == 1_005


def test_a_partition_that_is_there_is_not_written_again(coordinator: Coordinator) -> None:
    producer = coordinator.init().producer
    added = coordinator.add(producer)
    coordinator.now_ms += 5
    assert coordinator.add(producer) is added


@pytest.mark.parametrize("commit", [True, False])
def test_version_2_raises_the_epoch_with_each_end(v2: Coordinator, commit: bool) -> None:
    producer = v2.init().producer
    v2.add(producer)
    prepared = v2.end(producer, commit=commit)
    assert (prepared.epoch, prepared.last_epoch, prepared.version) == (1, 0, 2)
    assert v2.complete().producer == (producer.producer_id, 1)


@pytest.mark.parametrize("commit", [True, False])
def test_version_0_keeps_the_epoch(v0: Coordinator, commit: bool) -> None:
    producer = v0.init().producer
    v0.add(producer)
    v0.end(producer, commit=commit)
    assert v0.complete().producer == producer


def test_requests_are_refused_until_the_transaction_is_complete(coordinator: Coordinator) -> None:
    producer = coordinator.init().producer
    coordinator.add(producer)
    now = coordinator.end(producer).producer
    refused(ErrorCode.CONCURRENT_TRANSACTIONS, lambda: coordinator.add(now))
    refused(ErrorCode.CONCURRENT_TRANSACTIONS, lambda: coordinator.end(producer))
    coordinator.complete()
    assert coordinator.add(now).state is TransactionState.ONGOING


@pytest.mark.parametrize("commit", [True, False])
def test_repeated_end_gets_the_same_answer(coordinator: Coordinator, commit: bool) -> None:
    producer = coordinator.init().producer
    coordinator.add(producer)
    coordinator.end(producer, commit=commit)
    complete = coordinator.complete()
    assert coordinator.end(producer, commit=commit) is complete
    refused(ErrorCode.INVALID_TXN_STATE, lambda: coordinator.end(producer, commit=not commit))


def test_fenced_producer_is_not_taken_for_one_that_repeats_an_end_of_version_0(coordinator: Coordinator) -> None:
    """The fenced one speaks version 2, and is one epoch behind; the end of the other one kept its epoch."""
    fenced = coordinator.init().producer
    coordinator.add(fenced)
    coordinator.end(fenced, commit=False)
    fenced = coordinator.complete().producer
    coordinator.version = 0
    producer = coordinator.init().producer
    assert producer.epoch == fenced.epoch + 1
    coordinator.add(producer)
    coordinator.end(producer, commit=False)
    coordinator.version = 2
    refused(ErrorCode.PRODUCER_FENCED, lambda: coordinator.end(fenced, commit=False))
    coordinator.complete()
    refused(ErrorCode.PRODUCER_FENCED, lambda: coordinator.end(fenced, commit=False))


def test_commit_of_nothing_is_refused(coordinator: Coordinator) -> None:
    producer = coordinator.init().producer
    refused(ErrorCode.INVALID_TXN_STATE, lambda: coordinator.end(producer))


def test_abort_of_nothing_raises_the_epoch_in_version_2(v2: Coordinator) -> None:
    """KIP-890: the client does not know whether a partition was added."""
    producer = v2.init().producer
    aborted = v2.end(producer, commit=False)
    assert (aborted.state, aborted.epoch, aborted.start_ms) == (TransactionState.PREPARE_ABORT, 1, v2.now_ms)
    assert aborted.partitions == frozenset()


def test_abort_of_nothing_is_refused_in_version_0(v0: Coordinator) -> None:
    producer = v0.init().producer
    refused(ErrorCode.INVALID_TXN_STATE, lambda: v0.end(producer, commit=False))


def test_end_by_a_fenced_producer_changes_nothing(coordinator: Coordinator) -> None:
    old = coordinator.init().producer
    new = coordinator.init().producer
    coordinator.add(new)
    refused(ErrorCode.PRODUCER_FENCED, lambda: coordinator.end(old))
    assert coordinator.shard.get(ID).state is TransactionState.ONGOING


def test_unknown_ids_and_producers_are_told_apart(coordinator: Coordinator) -> None:
    refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING, lambda: coordinator.shard.get(ID))
    producer = coordinator.init().producer
    stranger = ProducerIdAndEpoch(producer.producer_id + 1, producer.epoch)
    refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING, lambda: coordinator.add(stranger))
    refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING, lambda: coordinator.end(stranger))


def test_an_open_proposal_holds_everyone_else_back(coordinator: Coordinator) -> None:
    producer = coordinator.init().producer
    shard = coordinator.shard
    shard.add_partitions(ID, producer, frozenset({PLACE}), version=2, now_ms=0)
    refused(ErrorCode.CONCURRENT_TRANSACTIONS, lambda: coordinator.add(producer, OTHER))
    refused(ErrorCode.CONCURRENT_TRANSACTIONS, lambda: coordinator.end(producer))
    refused(ErrorCode.CONCURRENT_TRANSACTIONS, coordinator.init)
    shard.withdraw(ID)
    assert shard.get(ID).state is TransactionState.EMPTY
    assert coordinator.add(producer).partitions == {PLACE}


def test_verification_knows_the_partitions_of_the_open_transaction(coordinator: Coordinator) -> None:
    producer = coordinator.init().producer
    coordinator.add(producer)
    both = frozenset({PLACE, OTHER})
    assert coordinator.shard.verify(ID, producer, both) == {PLACE}
    coordinator.end(producer)
    now = coordinator.shard.get(ID).producer
    refused(ErrorCode.CONCURRENT_TRANSACTIONS, lambda: coordinator.shard.verify(ID, now, both))


def test_a_timed_out_transaction_is_aborted_and_its_producer_fenced(coordinator: Coordinator) -> None:
    producer = coordinator.init().producer
    coordinator.add(producer)
    at = coordinator.now_ms + TIMEOUT_MS
    assert coordinator.shard.timed_out(at) == []
    assert coordinator.shard.timed_out(at + 1) == [ID]
    aborted = coordinator.shard.abort_timed_out(ID, version=coordinator.version, new_producer_id=None, now_ms=at + 1)
    assert aborted is not None
    coordinator.shard.settle(ID)
    coordinator.complete()
    refused(ErrorCode.PRODUCER_FENCED, lambda: coordinator.add(producer))


def test_ids_expire_only_at_rest(coordinator: Coordinator) -> None:
    producer = coordinator.init().producer
    coordinator.add(producer)
    assert not coordinator.shard.expire(ID, coordinator.now_ms + 1_000, 1_000)
    coordinator.end(producer)
    assert not coordinator.shard.expire(ID, coordinator.now_ms + 1_000, 1_000)
    coordinator.complete()
    assert not coordinator.shard.expire(ID, coordinator.now_ms + 999, 1_000)
    assert coordinator.shard.expire(ID, coordinator.now_ms + 1_000, 1_000)
    coordinator.shard.settle(ID)
    assert coordinator.shard.transactions == {}
