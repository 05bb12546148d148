"""Verifications of producers: which request may append, and which batch may be the first of a transaction."""

from __future__ import annotations

import pytest

from seglog.core.errors import InvalidProducerEpochError, InvalidTransactionStateError, OutOfOrderSequenceError
from seglog.core.types import ProducerIdAndEpoch
from tests.storage.log.producer_log import PID, Tracked, batch, control, marker

PRODUCER = ProducerIdAndEpoch(PID, 0)
NEXT = ProducerIdAndEpoch(PID, 1)


def begin(log: Tracked, sequence: int = 0, *, epoch: int = 0, bumps_epoch: bool = False, now_ms: int = 0) -> int:
    producer = ProducerIdAndEpoch(PID, epoch)
    guard = log.producers.verify(producer, sequence, bumps_epoch=bumps_epoch, now_ms=now_ms)
    assert guard is not None
    return guard


def test_an_open_transaction_needs_no_verification() -> None:
    log = Tracked()
    log.data(batch(0, txn=True))
    assert log.producers.verify(PRODUCER, 1, bumps_epoch=False, now_ms=0) is None
    log.producers.check_verified(PRODUCER, None)


def test_requests_of_one_producer_join_its_verification() -> None:
    log = Tracked()
    assert begin(log, 0) == begin(log, 1)


def test_the_next_batch_ends_the_verification() -> None:
    log = Tracked()
    first = begin(log)
    log.data(batch(0, txn=True))
    assert not log.producers.verifications
    log.mark(marker(1))
    with pytest.raises(InvalidTransactionStateError):
        log.producers.check_verified(PRODUCER, first)
    assert begin(log, 1) != first


def test_a_marker_ends_the_verification() -> None:
    """KAFKA-14402: what the coordinator said is about the transaction that the marker ended."""
    log = Tracked()
    guard = begin(log)
    log.mark(marker(0), control(commit=False))
    with pytest.raises(InvalidTransactionStateError):
        log.producers.check_verified(PRODUCER, guard)


def test_a_marker_of_the_transaction_before_leaves_the_verification_of_version_2() -> None:
    """KAFKA-18575: the first batch of the next transaction, in the marker's epoch, was waiting already."""
    log = Tracked()
    log.data(batch(0, txn=True))
    guard = begin(log, 0, epoch=1, bumps_epoch=True)
    log.mark(marker(1, epoch=1), version=2)
    log.producers.check_verified(NEXT, guard)
    log.data(batch(0, at=2, epoch=1, txn=True))
    assert not log.producers.verifications


def test_a_marker_ends_the_verification_that_a_fenced_producer_of_version_2_began() -> None:
    """Its requests were refused; the one that fenced it speaks version 1, and its marker has its own epoch."""
    log = Tracked()
    begin(log, 0, epoch=0, bumps_epoch=True)
    guard = begin(log, 0, epoch=1)
    log.mark(marker(0, epoch=1), control(commit=False))
    with pytest.raises(InvalidTransactionStateError):
        log.producers.check_verified(NEXT, guard)


def test_a_batch_outside_of_transactions_leaves_the_verification() -> None:
    log = Tracked()
    guard = begin(log)
    log.data(batch(0))
    log.producers.check_verified(PRODUCER, guard)


def test_a_request_without_a_guard_opens_no_transaction() -> None:
    log = Tracked()
    begin(log)
    with pytest.raises(InvalidTransactionStateError):
        log.producers.check_verified(PRODUCER, None)


def test_an_older_epoch_begins_no_verification_and_does_not_append() -> None:
    log = Tracked()
    guard = begin(log)
    log.data(batch(0, epoch=1))
    with pytest.raises(InvalidProducerEpochError):
        begin(log)
    with pytest.raises(InvalidProducerEpochError):
        log.producers.check_verified(PRODUCER, guard)


def test_a_later_sequence_does_not_overtake_the_lowest_that_was_seen() -> None:
    log = Tracked()
    begin(log, 1)
    begin(log, 0)
    begin(log, 2)
    with pytest.raises(OutOfOrderSequenceError, match="begins with sequence 1 at offset 5, after 0 was seen"):
        log.data(batch(1, at=5, txn=True))
    log.data(batch(0, at=5, txn=True), batch(1, at=6, txn=True))


def test_a_later_epoch_has_a_lowest_sequence_of_its_own() -> None:
    log = Tracked()
    begin(log, 0)
    begin(log, 3, epoch=1)
    begin(log, 2)
    assert log.producers.verifications[PID].lowest_sequence == 3
    log.data(batch(3, at=5, epoch=1, txn=True))


def test_a_producer_of_version_2_that_the_log_does_not_know_begins_with_sequence_0() -> None:
    """An older one may: its first batches may have been deleted."""
    log = Tracked()
    begin(log, 4, bumps_epoch=True)
    with pytest.raises(OutOfOrderSequenceError, match="transaction version 2"):
        log.data(batch(4, at=9, txn=True))
    old = Tracked()
    begin(old, 4)
    old.data(batch(4, at=9, txn=True))


def test_verifications_expire_as_producers_do() -> None:
    log = Tracked()
    begin(log, now_ms=100)
    log.producers.expire(149, 50)
    assert log.producers.verifications
    log.producers.expire(150, 50)
    assert not log.producers.verifications
