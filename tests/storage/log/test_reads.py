"""The records that a reader of a log gets, and those that are withheld."""

from __future__ import annotations

import pytest

from seglog.core.errors import OffsetOutOfRangeError
from seglog.records.record import NewRecord, encode_batch, end_txn_marker
from seglog.storage.log.log import Log
from seglog.storage.log.producers import Origin
from seglog.storage.log.reads import UpTo
from tests.storage.disk import SMALL, fill, load, new_disk


def _write(log: Log, value: bytes, sequence: int, *, producer_id: int = 7) -> None:
    log.append(
        encode_batch(
            [NewRecord(value)], producer_id=producer_id, producer_epoch=0, base_sequence=sequence, transactional=True
        )
    )


def _end(log: Log, *, commit: bool, producer_id: int = 7) -> None:
    marker = end_txn_marker(
        commit=commit, coordinator_epoch=0, producer_id=producer_id, producer_epoch=0, timestamp=1_000
    )
    log.append(marker, origin=Origin.COORDINATOR)


def test_aborted_records_are_skipped_from_the_first_to_the_marker() -> None:
    log = load(new_disk()).log
    fill(log, 1)
    _write(log, b"aborted", 0)
    _write(log, b"of another", 0, producer_id=8)
    _write(log, b"aborted", 1)
    _end(log, commit=False)
    _write(log, b"committed", 2)
    _end(log, commit=True)
    _end(log, commit=True, producer_id=8)
    read = log.read(0, up_to=UpTo.LAST_STABLE)
    assert [record.value for record in read.records()][1:] == [b"of another", b"committed"]
    everything = log.read(0, up_to=UpTo.HIGH_WATERMARK)
    assert [record.value for record in everything.records()].count(b"aborted") == 2


def test_a_slice_lists_the_aborted_transactions_that_it_may_touch_and_not_all_of_the_segment() -> None:
    """``OffsetIndex.fetchUpperBoundOffset``."""
    log = load(new_disk(), config=SMALL.with_overrides({"internal.segment.bytes": 100_000})).log
    for sequence in range(100):
        _write(log, b"aborted", sequence)
        _end(log, commit=False)
    index = log.active.offset_index
    assert 20 < index.count < 100
    for size in (100, 1_000, 5_000, log.size):
        read = log.read(0, size, up_to=UpTo.LAST_STABLE, min_one=False)
        behind = next((batch for batch in map(index.entry, range(index.count)) if batch.position >= read.size), None)
        end = log.log_end_offset if behind is None else behind.offset + 1
        assert [txn.first_offset for txn in read.aborted] == list(range(0, end, 2))
        assert list(read.records()) == []


def test_records_are_deleted_up_to_the_high_watermark() -> None:
    log = load(new_disk(), hw_follows_end=False).log
    fill(log, 5)
    log.update_high_watermark(3)
    with pytest.raises(OffsetOutOfRangeError, match="to the high watermark 3, not 4"):
        log.delete_records(4)
    assert log.log_start_offset == 0
    assert log.delete_records(-1) == 3
    assert log.log_start_offset == 3


def test_what_is_committed_meanwhile_is_not_in_a_read_that_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """KAFKA-9807: if a read uses the high watermark twice, the second value may be ahead."""
    log = load(new_disk(), hw_follows_end=False).log
    fill(log, 5)
    log.update_high_watermark(2)
    stable: property = Log.__dict__["last_stable_offset"]

    def commit_first(self: Log) -> int:
        self.update_high_watermark(5)
        return int(stable.__get__(self))

    monkeypatch.setattr(Log, "last_stable_offset", property(commit_first))
    found = log.read(0, up_to=UpTo.LAST_STABLE)
    assert (found.high_watermark, found.last_stable_offset) == (2, 2)
    assert [record.offset for record in found.records()] == [0, 1]
