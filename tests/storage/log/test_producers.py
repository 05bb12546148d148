"""Producers' state: Kafka's rules one by one."""

from __future__ import annotations

import pytest

from seglog.core.errors import (
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidTransactionStateError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from seglog.core.types import MAX_INT32
from seglog.records.record import ControlRecord, ControlType
from seglog.storage.log.producers import (
    BatchMetadata,
    CompletedTxn,
    OpenTxn,
    Origin,
    ProducerEntry,
    Producers,
)
from tests.storage.log.producer_log import PID, Tracked, batch, control, marker

# Sequences


def test_a_batch_continues_the_sequence() -> None:
    log = Tracked()
    log.data(batch(0, 3), batch(3, 2, at=3), batch(5, at=5))
    assert log.entry.last_sequence == 5
    assert log.entry.batches == (BatchMetadata(2, 2, 2, 50), BatchMetadata(4, 4, 1, 50), BatchMetadata(5, 5, 0, 50))
    assert [(one.first_sequence, one.first_offset) for one in log.entry.batches] == [(0, 0), (3, 3), (5, 5)]
    for wrong in (4, 7, 0, 5):
        with pytest.raises(OutOfOrderSequenceError, match=f"continues with sequence {wrong} after 5 at offset 6"):
            log.data(batch(wrong, at=6))
    log.data(batch(6, at=6))


def test_a_log_without_any_records_takes_only_first_sequence_0() -> None:
    log = Tracked()
    with pytest.raises(OutOfOrderSequenceError, match="producer 7 begins with sequence 158, not 0, in a log without"):
        log.data(batch(158))
    copied = Tracked()
    for origin in (Origin.REPLICATION, Origin.BULK):  # a leader, or a tool that copies, continues another log
        copied.data(batch(158, pid=origin is Origin.BULK), origin=origin)
    log.data(batch(0, 158))
    log.data(batch(158, at=158))


def test_an_unknown_producer_may_begin_anywhere_else_and_a_new_epoch_at_0() -> None:
    log = Tracked()
    log.data(batch(1000, at=5))  # five records were deleted: its own may have been among them
    with pytest.raises(OutOfOrderSequenceError, match="begins epoch 1 after 0 with sequence 1001, not 0"):
        log.data(batch(1001, at=6, epoch=1))
    log.data(batch(0, at=6, epoch=5))
    assert log.entry.epoch == 5
    assert len(log.entry.batches) == 1


def test_the_sequence_wraps_to_0() -> None:
    log = Tracked()
    log.data(batch(MAX_INT32 - 1, 2, at=8))
    log.data(batch(0, at=10))
    again = Tracked()
    again.data(batch(MAX_INT32 - 1, 4, at=8), batch(2, at=12))
    first = again.entry.batches[0]
    assert (first.first_sequence, first.last_sequence) == (MAX_INT32 - 1, 1)
    assert again.producers.find_duplicate(batch(MAX_INT32 - 1, 4, at=8)) == first


def test_an_older_epoch_is_fenced() -> None:
    log = Tracked()
    log.data(batch(0, epoch=3))
    with pytest.raises(InvalidProducerEpochError, match="epoch 2 of producer 7 at offset 1 is below the last seen, 3"):
        log.data(batch(1, at=1, epoch=2))
    log.data(batch(8, at=1, epoch=2), origin=Origin.REPLICATION)  # the leader has taken it, for better or worse
    assert log.entry.epoch == 2


def test_coordinators_have_no_sequences() -> None:
    log = Tracked()
    log.data(batch(0), batch(0, at=1), origin=Origin.COORDINATOR)
    with pytest.raises(InvalidProducerEpochError):
        log.data(batch(0, at=2, epoch=-1), origin=Origin.COORDINATOR)


def test_the_last_five_batches_are_recognised() -> None:
    log = Tracked()
    for at in range(7):
        log.data(batch(at, at=at))
    found = [log.producers.find_duplicate(batch(at)) for at in range(8)]
    assert [one and one.last_offset for one in found] == [None, None, 2, 3, 4, 5, 6, None]
    assert log.producers.find_duplicate(batch(5, 2)) is None
    assert log.producers.find_duplicate(batch(6, epoch=1)) is None
    assert log.producers.find_duplicate(batch(6, pid=8)) is None


def test_several_batches_in_one_append() -> None:
    producers = Producers()
    updates = producers.prepare((batch(0), batch(1, at=1), batch(0, at=2, pid=9), batch(0, at=3, pid=-1)), Origin.BULK)
    assert updates is not None
    assert producers.entries == {}  # nothing happens before apply
    producers.apply(updates)
    assert (producers.entries[PID].last_sequence, producers.entries[9].last_sequence) == (1, 0)
    with pytest.raises(OutOfOrderSequenceError):
        producers.prepare((batch(2, at=4), batch(4, at=5)), Origin.BULK)
    assert producers.entries[PID].last_sequence == 1
    assert producers.prepare((batch(0, pid=-1),), Origin.CLIENT) is None


# Transactions


def test_a_transaction_is_open_from_its_first_batch_to_its_marker() -> None:
    log = Tracked()
    log.data(batch(0, 2, at=5, txn=True), batch(2, at=7, txn=True))
    assert log.producers.ongoing == {5: PID}
    assert log.producers.first_unstable_offset() == 5
    with pytest.raises(
        InvalidTransactionStateError, match=r"outside of a transaction at offset 8 .* open since offset 5"
    ):
        log.data(batch(3, at=8))
    log.mark(marker(8), control(commit=False))
    assert log.completed == [CompletedTxn(PID, 5, 8, is_aborted=True)]
    assert log.producers.ongoing == {}
    log.data(batch(3, at=9))
    assert log.entry.coordinator_epoch == 0


def test_a_decided_transaction_is_unstable_until_its_marker_is_replicated() -> None:
    log = Tracked()
    producers = log.producers
    log.data(batch(0, txn=True), batch(0, at=1, pid=8, txn=True), batch(0, at=2, pid=9, txn=True))
    log.mark(marker(3, pid=8))
    log.mark(marker(4))
    assert producers.first_unstable_offset() == 0
    producers.on_high_watermark(4)  # covers the marker at 3
    assert producers.first_unstable_offset() == 0
    producers.on_high_watermark(5)
    assert producers.first_unstable_offset() == 2
    log.mark(marker(5, pid=9))
    producers.on_log_start(6)
    assert producers.first_unstable_offset() is None
    assert producers.map_end_offset == 6


def test_the_last_stable_offset_of_an_aborted_transaction() -> None:
    """Another producer's open transaction counts even if it began before."""
    log = Tracked()
    log.data(batch(0, txn=True), batch(0, at=1, pid=8, txn=True))
    assert log.producers.last_stable_offset(CompletedTxn(PID, 0, 2, is_aborted=True)) == 1
    assert log.producers.last_stable_offset(CompletedTxn(8, 1, 2, is_aborted=True)) == 0
    log.mark(marker(2, pid=8))
    assert log.producers.last_stable_offset(CompletedTxn(PID, 0, 3, is_aborted=True)) == 4


def test_a_transaction_that_begins_after_the_marker_does_not_hold_the_stable_offset_up() -> None:
    """A follower appends several transactions at once; Kafka's then writes 4 for the first one, and misses the second
    one in a read of its records."""
    log = Tracked()
    updates = log.producers.prepare(
        (
            batch(0, txn=True),
            marker(1),
            batch(1, at=2, txn=True),
            marker(3),
            batch(0, at=4, pid=8, txn=True),
        ),
        Origin.REPLICATION,
        controls=(None, control(commit=False), None, control(commit=False), None),
    )
    assert updates is not None
    stable = []
    for completed in log.producers.apply(updates):
        stable.append(log.producers.last_stable_offset(completed))
        log.producers.complete(completed)
    assert stable == [2, 4]


def test_a_marker_without_a_transaction_leaves_an_entry_without_batches() -> None:
    log = Tracked()
    log.mark(marker(0, epoch=2), control(coordinator_epoch=4))
    assert log.completed == []
    assert log.entry == ProducerEntry(2, (), 4, None, 60)
    with pytest.raises(OutOfOrderSequenceError, match="continues with sequence 1 after -1"):
        log.data(batch(1, at=1, epoch=2))
    log.data(batch(0, at=1, epoch=2))


def test_a_marker_of_the_same_epoch_keeps_the_batches_one_of_a_later_drops_them() -> None:
    log = Tracked()
    log.data(batch(0, txn=True))
    log.mark(marker(1))
    assert log.entry.last_sequence == 0
    log.data(batch(1, at=2, txn=True))
    log.mark(marker(3, epoch=1), version=2)
    assert (log.entry.epoch, log.entry.batches) == (1, ())


def test_markers_are_fenced_by_both_epochs() -> None:
    log = Tracked()
    log.data(batch(0, epoch=3, txn=True))
    log.mark(marker(1, epoch=3), control(coordinator_epoch=5))
    with pytest.raises(InvalidProducerEpochError, match="marker of epoch 2"):
        log.mark(marker(2, epoch=2), control(coordinator_epoch=5))
    with pytest.raises(TransactionCoordinatorFencedError, match=r"coordinator epoch 4 .* has seen 5"):
        log.mark(marker(2, epoch=3), control(coordinator_epoch=4))
    log.mark(marker(2, epoch=2), control(coordinator_epoch=4), origin=Origin.REPLICATION)
    assert (log.entry.epoch, log.entry.coordinator_epoch) == (2, 4)


def test_from_transaction_version_2_on_a_marker_needs_a_higher_epoch() -> None:
    log = Tracked()
    log.data(batch(0, epoch=3, txn=True))
    with pytest.raises(InvalidProducerEpochError, match="transaction version 2"):
        log.mark(marker(1, epoch=3), version=2)
    log.mark(marker(1, epoch=4), version=2)
    log.mark(marker(2, epoch=4), version=2)  # a retry: there is nothing left to end
    with pytest.raises(InvalidProducerEpochError):
        log.mark(marker(3, epoch=3), version=2)
    last = Tracked()
    last.data(batch(0, epoch=32767, txn=True))
    last.mark(marker(1, epoch=32767), version=2)  # there is none higher
    assert len(last.completed) == 1


def test_control_records_that_are_not_transaction_markers() -> None:
    with pytest.raises(InvalidRecordError, match="a control record of type 2 at 0 has a producer id"):
        Tracked().mark(marker(0), ControlRecord(0, ControlType.LEADER_CHANGE, None))
    producers = Producers()
    # all that compaction leaves of a marker's batch is its header
    assert producers.prepare((marker(0),), Origin.REPLICATION, controls=(None,)) is None
    assert producers.prepare((marker(0),), Origin.REPLICATION) is None


def test_transactions_begin_and_end_in_one_append() -> None:
    producers = Producers()
    headers = (batch(0, txn=True), marker(1), batch(1, at=2, txn=True), batch(0, at=3, pid=8, txn=True))
    updates = producers.prepare(headers, Origin.REPLICATION, controls=(None, control(), None, None))
    assert updates is not None
    assert updates.started == (OpenTxn(0, PID), OpenTxn(2, PID), OpenTxn(3, 8))
    assert updates.completed == (CompletedTxn(PID, 0, 1, is_aborted=False),)
    for completed in producers.apply(updates):
        producers.complete(completed)
    assert producers.ongoing == {2: PID, 3: 8}


# Forgetting


def test_producers_expire_but_not_with_an_open_transaction() -> None:
    log = Tracked()
    log.data(
        batch(0, timestamp=100), batch(0, pid=8, at=1, timestamp=101), batch(0, pid=9, at=2, timestamp=5, txn=True)
    )
    assert log.producers.expire(149, 50) == 0
    assert log.producers.expire(150, 50) == 1
    assert list(log.producers.entries) == [8, 9]
    log.producers.clear()
    assert (log.producers.entries, log.producers.ongoing, log.producers.first_unstable_offset()) == ({}, {}, None)
