"""The contents of a log after compaction."""

from __future__ import annotations

import random
from cProfile import Profile
from typing import Final

import pytest

from seglog.core.errors import InvalidConfigError
from seglog.records.batch import DELETE_HORIZON_BIT
from seglog.records.record import NewRecord, encode_batch
from seglog.storage.compaction.log_cleaner import cleanable, compact
from seglog.storage.compaction.round import COMPILED, PLAIN
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.formats.paths import segment_paths
from tests.kit.memory import directory_in_memory
from tests.storage.compaction.compacted import START_MS, batches, config
from tests.storage.compaction.keyed_log import DAY, Disk
from tests.storage.disk import PATH, load


@pytest.mark.parametrize("engine", [PLAIN, COMPILED])
def test_of_each_key_the_last_record_stays(engine: str) -> None:
    disk = Disk()
    disk.put((b"a", b"1"), (b"b", b"1"), (b"", b"1"))
    disk.put((b"a", b"2"), (b"c", b"1"))
    disk.log.roll()
    disk.put((b"a", b"3"))
    disk.log.roll()
    disk.put((b"b", b"9"))
    stats = disk.clean(engine=engine)
    assert disk.left == [(1, b"b", b"1"), (2, b"", b"1"), (4, b"c", b"1"), (5, b"a", b"3"), (6, b"b", b"9")]
    assert (stats.end_offset, stats.map_entries, stats.engine) == (6, 4, engine)
    assert (stats.messages_read, stats.messages_written, stats.mapped_messages) == (6, 4, 6)
    assert (stats.segments_before, stats.segments_after) == (2, 1)
    assert [segment.base_offset for segment in disk.log.segments] == [0, 6]
    headers = [batch.header for batch in batches(disk.log)]
    assert [(header.base_offset, header.last_offset) for header in headers] == [(0, 2), (3, 4), (5, 5), (6, 6)]


def test_batches_of_which_all_stays_are_not_touched() -> None:
    disk = Disk()
    disk.put((b"a", b"1"), (b"b", b"1"))
    disk.put((b"c", b"1"), codec=1)
    disk.log.roll()
    before = [batch.data for batch in batches(disk.log)]
    disk.clean()
    assert [batch.data for batch in batches(disk.log)] == before


def test_a_map_that_is_full_is_no_end() -> None:
    """Keys in the middle of a batch and of a segment: what did not fit is for the next round."""
    disk = Disk()
    for value in (b"1", b"2"):
        disk.put(*((b"key-%d" % at, value) for at in range(10)))
        disk.log.roll()
    first = disk.clean(map_keys=8)  # of which 7 may be used
    assert (first.end_offset, first.map_entries, first.first_uncleanable) == (7, 7, 20)
    assert len(disk.left) == 20
    ends = [first.end_offset]
    while ends[-1] < 20:
        ends.append(disk.clean(ends[-1], map_keys=8).end_offset)
        assert ends[-1] > ends[-2]
    assert [offset for offset, _, _ in disk.left] == list(range(10, 20))


def test_a_map_without_room_for_a_key_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match=r"log\.cleaner\.dedupe\.buffer\.size"):
        Disk().clean(map_keys=1)


@pytest.mark.parametrize("engine", [PLAIN, COMPILED])
@pytest.mark.parametrize("codec", [0, 4])
def test_a_tombstone_goes_when_its_time_has_come(engine: str, codec: int) -> None:
    disk = Disk()
    disk.put((b"a", b"1"), (b"b", b"1"))
    disk.put((b"a", None), (b"c", b"1"), codec=codec)
    disk.log.roll()
    end = disk.clean(engine=engine).end_offset
    assert disk.left == [(1, b"b", b"1"), (2, b"a", None), (3, b"c", b"1")]
    header = batches(disk.log)[1].header
    assert header.delete_horizon_ms == START_MS + DAY
    assert header.max_timestamp == START_MS
    assert [record.timestamp for record in batches(disk.log)[1].records] == [START_MS, START_MS]
    disk.clock.advance(DAY - 1)
    disk.put((b"d", b"1"))
    disk.log.roll()
    end = disk.clean(end, engine=engine).end_offset
    assert (2, b"a", None) in disk.left
    disk.clock.advance(1)
    disk.put((b"e", b"1"))
    disk.log.roll()
    disk.clean(end, engine=engine)
    assert [key for _, key, _ in disk.left] == [b"b", b"c", b"d", b"e"]
    header = batches(disk.log)[1].header
    assert header.attributes & DELETE_HORIZON_BIT, "once set, it stays"
    assert header.delete_horizon_ms == START_MS + DAY


def test_records_of_aborted_transactions_go_and_take_no_other_with_them() -> None:
    disk = Disk()
    disk.put((b"a", b"good"))
    disk.produce((b"a", b"bad"), sequence=0, transactional=True)
    disk.end(commit=False)
    disk.produce((b"b", b"good"), sequence=1, transactional=True)
    disk.end(commit=True)
    disk.log.roll()
    disk.put((b"c", b"1"))
    end = disk.clean().end_offset
    assert [(key, value) for _, key, value in disk.left] == [(b"a", b"good"), (b"b", b"good"), (b"c", b"1")]
    assert [batch.header.last_offset for batch in batches(disk.log)] == [0, 2, 3, 4, 5], "markers stay for now"
    assert [txn.last_offset for txn in disk.log.segments[0].txn_index.entries] == [2]
    for _ in range(2):  # the first of these marks what has no records any more, the second lets it go
        disk.put((b"d", b"1"))
        disk.log.roll()
        end = disk.clean(end).end_offset
        disk.clock.advance(DAY)
    assert [batch.header.last_offset for batch in batches(disk.log)] == [0, 3, 4, 5, 7]
    assert not disk.log.segments[0].txn_index.entries


def test_an_open_transaction_ends_the_part_that_is_cleaned() -> None:
    disk = Disk()
    disk.put((b"a", b"1"))
    disk.log.roll()
    disk.put((b"a", b"2"))
    disk.log.roll()
    disk.produce((b"a", b"3"), sequence=0, transactional=True)
    disk.log.roll()
    disk.put((b"a", b"4"))
    disk.log.roll()
    assert cleanable(disk.log, None).first_uncleanable == 2
    assert disk.clean().end_offset == 2
    assert [value for _, _, value in disk.left] == [b"2", b"3", b"4"]


def test_a_producers_last_batch_stays_if_only_as_a_header() -> None:
    disk = Disk()
    disk.produce((b"a", b"1"), sequence=0, epoch=2)
    disk.produce((b"a", b"2"), (b"b", b"1"), sequence=1, epoch=2)
    disk.log.roll()
    disk.put((b"a", b"3"), (b"b", b"2"))
    disk.log.roll()
    disk.clean()
    empty, data = batches(disk.log)
    assert (empty.records, empty.header.last_offset, empty.header.last_sequence) == ([], 2, 2)
    assert len(data.records) == 2
    again = load(disk.fs.after_crash(random.Random(0)), config=disk.log.config).log
    assert again.producers.entries[7].last_sequence == 2


def test_the_last_offset_of_a_round_stays_known() -> None:
    """Also where the last batch loses all of its records: here they have no key."""
    disk = Disk(cleanup_policy="delete", retention_ms=-1)
    disk.put((b"a", b"1"))
    disk.log.append(encode_batch([NewRecord(b"no key", None, START_MS)] * 3))
    disk.log.roll()
    stats = disk.clean()
    assert stats.keyless == 3
    assert [(batch.header.last_offset, len(batch.records)) for batch in batches(disk.log)] == [(0, 1), (3, 0)]
    assert disk.log.segments[0].next_offset() == 4


def test_snapshots_of_segments_that_are_left_stay() -> None:
    disk = Disk()
    for at in range(4):
        disk.put((b"key-%d" % at, b"1"))
        disk.log.roll()
    disk.clean()
    assert [segment.base_offset for segment in disk.log.segments] == [0, 4]
    assert disk.fs.exists(segment_paths(PATH, 4).snapshot)
    before = disk.fs.read(segment_paths(PATH, 4).snapshot)
    disk.put((b"key-0", b"2"))
    disk.log.roll()
    disk.log.reconfigure(config(internal_segment_bytes=100))
    disk.clean(4)
    assert [segment.base_offset for segment in disk.log.segments] == [0, 4, 5]
    assert disk.fs.read(segment_paths(PATH, 4).snapshot) == before


def test_the_time_of_a_segment_is_that_of_the_last_one_it_was_made_of() -> None:
    disk = Disk()
    for at in range(3):
        disk.put((b"key-%d" % at, b"1"))
        disk.log.roll()
        disk.fs.set_mtime(segment_paths(PATH, at).log, 1_000 + at)
    disk.clean()
    for path in segment_paths(PATH, 0)[1:4]:
        assert disk.fs.stat(path).mtime_ms == 1_002


_FULL_SEGMENTS: Final = {"internal.segment.bytes": 80, "cleanup.policy": "compact", "file.delete.delay.ms": 0}


def test_the_work_for_a_segment_does_not_grow_with_their_number() -> None:
    """5,000 full segments took 90 s: each replacement rewrote the manifest and read all other segments."""

    def calls(count: int) -> int:
        profile = Profile()
        with directory_in_memory() as path, LogDir.open(path) as directory:
            directory.create_topic("t", 1, _FULL_SEGMENTS)
            log = directory.log("t")
            for number in range(count):
                log.append_records([NewRecord(b"v", key=b"%d" % (number % 10))])
            with profile:
                stats = compact(log, first_dirty=0, in_child=False)
            assert stats.segments_after == count - 1
        profile.create_stats()
        return sum(calls for _, calls, *_ in profile.stats.values())

    assert calls(240) < 10 * calls(30)
