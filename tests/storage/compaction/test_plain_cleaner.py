"""Rules of compaction one by one, on logs so small that one sees what must come out."""

from __future__ import annotations

from seglog.records.batch import BatchHeader
from seglog.records.record import NewRecord, encode_batch, end_txn_marker
from seglog.storage.compaction.log_cleaner import CompactionStats, cleanable, compact
from seglog.storage.compaction.round import PLAIN
from seglog.storage.log.log import Log
from seglog.storage.log.producers import Origin
from tests.kit.manual_clock import ManualClock
from tests.storage.compaction.compacted import START_MS, batches, config
from tests.storage.disk import load, new_disk

_RETENTION_MS = 10_000
_LARGE_MAP = 24 * 1000


def _open() -> Log:
    return load(new_disk(), config=config(delete_retention_ms=_RETENTION_MS), clock=ManualClock(START_MS)).log


def _put(log: Log, key: bytes, value: bytes | None, producer: tuple[int, int] | None = None) -> None:
    """A batch of one record; of a producer's transaction, if there is ``producer``: its id and sequence."""
    record = NewRecord(value, key=key, timestamp=START_MS)
    if producer is None:
        log.append(encode_batch([record]))
    else:
        producer_id, sequence = producer
        log.append(
            encode_batch(
                [record], producer_id=producer_id, producer_epoch=0, base_sequence=sequence, transactional=True
            )
        )


def _end(log: Log, producer_id: int, *, commit: bool) -> None:
    marker = end_txn_marker(
        commit=commit, coordinator_epoch=0, producer_id=producer_id, producer_epoch=0, timestamp=START_MS
    )
    log.append(marker, origin=Origin.COORDINATOR)


def _clean(log: Log, *, first_dirty: int = 0, map_bytes: int = _LARGE_MAP) -> CompactionStats:
    log.roll()
    return compact(log, first_dirty=first_dirty, map_bytes=map_bytes, engine=PLAIN)


def _left(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    """Offset, key and value of every data record in the files."""
    return [
        (record.offset, record.key, record.value)
        for header, records, _ in batches(log)
        for record in records
        if not header.is_control
    ]


def _headers(log: Log) -> list[BatchHeader]:
    return [batch.header for batch in batches(log)]


def test_the_last_record_of_a_key_stays() -> None:
    log = _open()
    for key, value in ((b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"c", b"1"), (b"a", b"3"), (b"c", b"2")):
        _put(log, key, value)
    _clean(log)
    assert _left(log) == [(1, b"b", b"1"), (4, b"a", b"3"), (5, b"c", b"2")]


def test_a_tombstone_stays_until_its_horizon() -> None:
    """``delete.retention.ms`` from the first round on that saw it, whatever rounds there are in between (KIP-534)."""
    log = _open()
    clock = log.clock
    assert isinstance(clock, ManualClock)
    _put(log, b"a", b"1")
    _put(log, b"a", None)
    _put(log, b"b", b"1")
    for _ in range(3):
        _clean(log)
        assert _left(log) == [(1, b"a", None), (2, b"b", b"1")]
        clock.advance(_RETENTION_MS // 3)
    _clean(log)
    assert _left(log) == [(1, b"a", None), (2, b"b", b"1")]
    clock.advance(_RETENTION_MS - 3 * (_RETENTION_MS // 3))
    _clean(log)
    assert _left(log) == [(2, b"b", b"1")]


def test_a_full_map_ends_the_round_and_loses_no_key() -> None:
    """Keys for which the map has no room are left to the next round."""
    log = _open()
    keys = [b"k%d" % at for at in range(6)]
    for value in (b"old", b"new"):
        for key in keys:
            _put(log, key, value)
    first = _clean(log, map_bytes=24 * 5)  # four keys
    assert (first.map_entries, first.end_offset) == (4, 4)
    assert len(_left(log)) == 12
    end = first.end_offset
    while end < 12:
        stats = compact(log, first_dirty=end, map_bytes=24 * 5, engine=PLAIN)
        assert stats.end_offset > end
        end = stats.end_offset
    found = _left(log)
    assert {key: value for _, key, value in found} == dict.fromkeys(keys, b"new")
    assert [offset for offset, _, value in found if value == b"new"] == list(range(6, 12))


def test_markers_stay_while_records_of_theirs_are_seen() -> None:
    """An ABORT goes with the records it is for: one round drops these, and only a later one the marker."""
    log = _open()
    clock = log.clock
    assert isinstance(clock, ManualClock)
    _put(log, b"a", b"aborted", (7, 0))
    _end(log, 7, commit=False)
    _put(log, b"b", b"committed", (7, 1))
    _end(log, 7, commit=True)
    _put(log, b"z", b"1")
    _clean(log)
    assert [header.base_offset for header in _headers(log) if header.is_control] == [1, 3]
    assert [(txn.first_offset, txn.last_offset) for txn in log.segments[0].txn_index.entries] == [(0, 1)]
    clock.advance(_RETENTION_MS)
    _clean(log)
    clock.advance(_RETENTION_MS)
    _clean(log)
    assert [header.base_offset for header in _headers(log) if header.is_control] == [3]
    assert log.segments[0].txn_index.entries == []
    assert _left(log) == [(2, b"b", b"committed"), (4, b"z", b"1")]


def test_the_last_sequence_of_a_producer_stays() -> None:
    """In a batch without records, if need be: without it the producer's next batch would be refused."""
    log = _open()
    _put(log, b"a", b"1", (7, 40))
    _put(log, b"a", b"2", (7, 41))
    _end(log, 7, commit=True)
    _put(log, b"a", b"3")
    _clean(log)
    assert _left(log) == [(3, b"a", b"3")]
    assert [(header.last_sequence, header.records_count) for header in _headers(log) if header.base_sequence >= 0] == [
        (41, 0)
    ]


def test_nothing_undecided_is_cleaned() -> None:
    """Up to the last stable offset only: a transaction that is open may be aborted, and take no other value's place."""
    log = _open()
    _put(log, b"a", b"committed")
    log.roll()
    _put(log, b"a", b"undecided", (7, 0))
    log.roll()
    assert cleanable(log, 0).first_uncleanable == 1
    _clean(log)
    assert _left(log) == [(0, b"a", b"committed"), (1, b"a", b"undecided")]
