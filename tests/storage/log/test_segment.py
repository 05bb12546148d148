"""A segment's indexes entry by entry, when it is written, rolled and cut."""

from __future__ import annotations

from seglog.records.record import NewRecord, encode_batch
from seglog.storage.log.index import OffsetPosition, TimestampOffset, count_offset_entries, count_time_entries
from seglog.storage.log.log import Log
from seglog.storage.log.producers import decode_snapshot
from seglog.storage.log.segment import Segment
from tests.storage.disk import SMALL, fill, load, name, new_disk

_RECORDS = [NewRecord(b"v" * 50)] * 2
_SIZE = len(encode_batch(_RECORDS))


def entries(segment: Segment) -> tuple[list[OffsetPosition], list[TimestampOffset]]:
    offsets, times = segment.offset_index, segment.time_index
    return [offsets.entry(slot) for slot in range(offsets.count)], [times.entry(slot) for slot in range(times.count)]


def open_log(*, segment_bytes: int = 100_000, interval: int = 2 * _SIZE, **others: str) -> Log:
    log = load(new_disk()).log
    sizes = {"internal.segment.bytes": str(segment_bytes), "index.interval.bytes": str(interval)}
    log.reconfigure(log.config.with_overrides({**sizes, **others}))
    log.truncate_fully_and_start_at(0)
    return log


def test_index_entries_as_kafka_writes_them() -> None:
    """One for the batch before which *more* than ``index.interval.bytes`` lie without one: its last offset, its start.

    With it goes one of the time index, if time went on: the largest timestamp, and the batch that had it first.
    """
    log = open_log()
    for timestamp in (5, 5, 5, 5, 5, 5, 5, 9, 9, 9, 7, 7, 7):
        log.append(encode_batch([record._replace(timestamp=timestamp) for record in _RECORDS]))
    offsets, times = entries(log.active)
    assert offsets == [(2 * batch + 1, batch * _SIZE) for batch in (3, 6, 9, 12)]
    assert times == [(5, 1), (9, 15)]


def test_lookups_between_appends_find_every_entry() -> None:
    """Also those that were not in the file, or in memory, at the last lookup: entries are written 256 at a time."""
    log = open_log(segment_bytes=1_000_000, interval=0, **{"segment.index.bytes": "10000"})
    active = log.active
    for batch in range(600):
        log.append(encode_batch([record._replace(timestamp=batch) for record in _RECORDS]))
        if batch % 7 == 0 and batch:
            assert active.offset_index.lookup(2 * batch + 1) == (2 * batch + 1, batch * _SIZE)
            assert active.time_index.lookup(batch) == (batch, 2 * batch + 1)
    offsets, _ = entries(active)
    assert offsets == [(2 * batch + 1, batch * _SIZE) for batch in range(1, 600)]


def test_zeros_behind_the_entries_are_none() -> None:
    """KAFKA-10207: as an entry they are time 0, and a fresh segment looks older than any retention."""
    log = open_log()
    fill(log, 9)
    offsets, times = log.active.offset_index, log.active.time_index
    assert offsets.count == times.count == 2
    log.flush()
    last_offsets = [0, *(offsets.entry(slot).offset for slot in range(2))]
    data, time_data = (log.fs.read(name(0, kind)) for kind in (".index", ".timeindex"))
    assert (len(data), len(time_data)) == (1200, 1200)
    for entries in range(3):
        assert count_offset_entries(data[: 8 * entries] + bytes(80)) == entries
        assert count_time_entries(time_data[: 12 * entries] + bytes(120)) == entries
        log.fs.write(name(0, ".index"), data[: 8 * entries] + bytes(80))
        log.fs.write(name(0, ".timeindex"), time_data[: 12 * entries] + bytes(120))
        opened = Segment(log.fs, log.path, 0, log.segment_config, now_ms=0, active=False)
        assert (opened.offset_index.count, opened.time_index.count) == (entries, entries)
        assert opened.offset_index.last_offset == last_offsets[entries]


def test_a_rolled_segment_ends_with_its_largest_timestamp() -> None:
    log = open_log(interval=100_000)
    fill(log, 3)
    log.append(encode_batch([NewRecord(b"v", timestamp=7)]))
    log.roll()
    assert entries(log.segments[0]) == ([], [(1002, 2)])


def test_a_segment_is_as_old_as_its_records() -> None:
    """KAFKA-3802: a file that was copied or restored today is not new."""
    log = open_log()
    log.append(encode_batch([NewRecord(b"v")]))
    written_ms = log.clock.now_ms()
    assert log.active.largest_timestamp() == written_ms
    fill(log, 5)
    assert log.active.largest_timestamp() == 1005


def test_truncation_at_every_offset() -> None:
    """The indexes are those of a log that never had more."""
    for offset in range(12):
        log, shorter = open_log(interval=200), open_log(interval=200)
        fill(log, 12)
        fill(shorter, offset)
        log.truncate_to(offset)
        assert entries(log.active) == entries(shorter.active)
        assert log.active.size == shorter.active.size
        assert (log.active.max_timestamp, log.active.max_timestamp_offset) == (
            shorter.active.max_timestamp,
            shorter.active.max_timestamp_offset,
        )


def test_a_truncated_log_goes_on_in_its_segment() -> None:
    """KAFKA-6492: an index that truncation left without room would roll with each append."""
    log = open_log(segment_bytes=1200)
    fill(log, 20)
    bases = [segment.base_offset for segment in log.segments]
    assert len(bases) == 3
    log.truncate_to(bases[1])
    fill(log, 20 - bases[1])
    assert [segment.base_offset for segment in log.segments] == bases
    assert log.active.offset_index.file_size == log.config.segment_index_bytes


def test_an_empty_segment_is_not_rolled() -> None:
    """KAFKA-6388: two segments would have one name."""
    log = open_log()
    log.roll()
    assert len(log.segments) == 1
    fill(log, 1)
    log.roll()
    log.roll()
    assert [segment.base_offset for segment in log.segments] == [0, 1]
    log.check()


def test_a_roll_leaves_a_snapshot_of_the_producers() -> None:
    log = open_log()
    log.append(encode_batch(_RECORDS, producer_id=7, producer_epoch=3, base_sequence=40))
    log.roll()
    kept = decode_snapshot(log.fs.read(name(2, ".snapshot"))).entries[7]
    assert (kept.epoch, kept.last_sequence, kept.batches[-1].last_offset) == (3, 41, 1)


def test_the_first_segment_is_preallocated_as_the_others_are() -> None:
    log = load(new_disk(), config=SMALL.with_overrides({"preallocate": "true"})).log
    sizes = []
    for _ in range(30):
        fill(log, 1)
        sizes.append(log.fs.stat(log.active.paths.log).size)
    assert set(sizes) == {2_000}
    assert len(log.segments) > 1
    assert all(segment.size == log.fs.stat(segment.paths.log).size for segment in log.segments[:-1])
    log.close()
    assert log.active.size == log.fs.stat(log.active.paths.log).size
