"""What compaction does to a log, and what it does not do to those who use the log meanwhile."""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Sequence

import pytest

from seglog.core.config import LogDirConfig
from seglog.core.errors import CorruptBatchError, InvalidConfigError, LogDirOfflineError
from seglog.core.types import TopicPartition
from seglog.records.batch import DELETE_HORIZON_BIT
from seglog.records.record import NewRecord, encode_batch, end_txn_marker
from seglog.storage.admit import Origin
from seglog.storage.compaction import CompactionStats, cleanable, compact, pick, run
from seglog.storage.compaction.rounds import COMPILED, PLAIN
from seglog.storage.layout import segment_paths
from seglog.storage.log import Log
from seglog.testing import ManualClock, MemoryFs
from tests.storage.compacted import START_MS, batches, config, facts
from tests.storage.disk import PARTITION, PATH, load, new_disk, overwrite

DAY = 24 * 60 * 60 * 1000


class Disk:
    """A log on a disk in memory; every `put` is a batch, every `roll` ends a segment."""

    def __init__(self, **keys: object) -> None:
        self.clock = ManualClock(START_MS)
        self.fs: MemoryFs = new_disk()
        defaults = {"internal_segment_bytes": 100_000, "delete_retention_ms": DAY}
        self.log: Log = load(self.fs, config=config(**defaults | keys), clock=self.clock).log

    def put(self, *items: tuple[bytes, bytes | None], codec: int = 0) -> None:
        self.log.append(encode_batch(self._records(items), codec=codec), origin=Origin.CLIENT)

    def _records(self, items: Sequence[tuple[bytes, bytes | None]]) -> list[NewRecord]:
        return [NewRecord(value, key, self.clock.now_ms()) for key, value in items]

    def produce(
        self, *items: tuple[bytes, bytes | None], sequence: int, epoch: int = 0, transactional: bool = False
    ) -> None:
        """A batch of producer 7."""
        data = encode_batch(
            self._records(items),
            producer_id=7,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
        self.log.append(data, origin=Origin.CLIENT)

    def end(self, *, commit: bool) -> None:
        """The transaction of producer 7."""
        marker = end_txn_marker(
            commit=commit, coordinator_epoch=0, producer_id=7, producer_epoch=0, timestamp=self.clock.now_ms()
        )
        self.log.append(marker, origin=Origin.COORDINATOR)

    def clean(self, first_dirty: int = 0, *, map_keys: int = 1000, engine: str = PLAIN) -> CompactionStats:
        return compact(self.log, first_dirty=first_dirty, map_bytes=map_keys * 24, engine=engine)

    @property
    def left(self) -> list[tuple[int, bytes | None, bytes | None]]:
        return [(fact.record.offset, fact.record.key, fact.record.value) for fact in facts(self.log)]


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
    disk.produce((b"a", b"1"), sequence=4, epoch=2)
    disk.produce((b"a", b"2"), (b"b", b"1"), sequence=5, epoch=2)
    disk.log.roll()
    disk.put((b"a", b"3"), (b"b", b"2"))
    disk.log.roll()
    disk.clean()
    empty, data = batches(disk.log)
    assert (empty.records, empty.header.last_offset, empty.header.last_sequence) == ([], 2, 6)
    assert len(data.records) == 2
    again = load(disk.fs.after_crash(random.Random(0)), config=disk.log.config).log
    assert again.producers.entries[7].last_sequence == 6


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
    disk.log.config = config(internal_segment_bytes=100)
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


# Others at work


def test_a_reader_goes_on_with_what_it_has() -> None:
    disk = Disk()
    disk.put((b"a", b"1"), (b"b", b"1"))
    disk.log.roll()
    disk.put((b"a", b"2"))
    disk.log.roll()
    fetched = disk.log.read(0)
    disk.clean()
    assert [record.value for record in fetched.records()] == [b"1", b"1"]
    assert next(disk.log.read(0).records())[:4] == (1, START_MS, b"b", b"1")


def _grown(segments: int) -> Disk:
    disk = Disk(internal_segment_bytes=100)
    for at in range(segments):
        disk.put((b"key", b"%d" % at))
    return disk


class _AfterAsking:
    """Does something to the log the n-th time that the round asks whether to stop, in the middle of its work."""

    def __init__(self, disk: Disk, asked: int, act: str) -> None:
        self.disk = disk
        self.left = asked
        self.act = act

    def __call__(self) -> bool:
        self.left -= 1
        if self.left == 0:
            log = self.disk.log
            if self.act == "truncate":
                log.truncate_to(4)
                self.disk.put((b"key", b"new"))
                self.disk.put((b"key", b"newer"))
            elif self.act == "start anew":
                log.truncate_fully_and_start_at(2)
            elif self.act == "retention":
                log.delete_records(5)
                log.delete_old_segments()
            elif self.act == "close":
                log.close()
            elif self.act == "stop":
                return True
        return False


@pytest.mark.parametrize("act", ["truncate", "start anew", "retention", "stop"])
@pytest.mark.parametrize("asked", [1, 4, 9, 12])
def test_what_was_cleaned_is_given_up_when_the_log_changes(act: str, asked: int) -> None:
    disk = _grown(9)
    stats = compact(disk.log, first_dirty=0, engine=PLAIN, should_stop=_AfterAsking(disk, asked, act))
    assert stats.aborted
    assert stats.end_offset == 0
    assert not [name for name in disk.fs.listdir(PATH) if name.endswith((".cleaned", ".swap"))]
    disk.log.check()
    newest = [value for _, _, value in disk.left][-1:]
    expected = {"truncate": [b"newer"], "start anew": []}.get(act, [b"8"])
    assert newest == expected
    before = disk.left
    assert not disk.clean().aborted
    assert [value for _, _, value in disk.left][-1:] == expected
    assert disk.left[-1:] == before[-1:]


@pytest.mark.parametrize("asked", [1, 12])
def test_a_log_that_is_closed_meanwhile_is_left_as_it_is(asked: int) -> None:
    disk = _grown(9)
    stats = compact(disk.log, first_dirty=0, engine=PLAIN, should_stop=_AfterAsking(disk, asked, "close"))
    assert stats.aborted
    again = load(disk.fs, config=disk.log.config).log
    assert [fact.record.value for fact in facts(again)][-1] == b"8"
    assert not [name for name in disk.fs.listdir(PATH) if name.endswith(".cleaned")]


def test_what_an_earlier_round_left_is_removed_first() -> None:
    disk = _grown(4)
    stale = [path + ".cleaned" for path in segment_paths(PATH, 0)[1:4]]
    for path in stale:
        disk.fs.write(path, b"half a segment")
    disk.clean()
    assert not any(disk.fs.exists(path) for path in stale)
    assert len(disk.left) == 2


# Faults


@pytest.mark.parametrize("engine", [PLAIN, COMPILED])
def test_a_batch_with_a_wrong_crc_is_not_given_a_right_one(engine: str) -> None:
    disk = Disk()
    disk.put((b"a", b"1"), (b"b", b"1"))
    disk.log.roll()
    disk.put((b"b", b"2"))
    disk.log.roll()
    overwrite(disk.fs, segment_paths(PATH, 0).log, 70, b"\xff")
    before = disk.fs.files()
    with pytest.raises(CorruptBatchError, match="CRC") as caught:
        disk.clean(engine=engine)
    assert caught.value.file == segment_paths(PATH, 0).log
    assert disk.fs.files() == before


@pytest.mark.parametrize("engine", [PLAIN, COMPILED])
def test_a_batch_that_is_cut_off_is_an_error(engine: str) -> None:
    disk = Disk()
    disk.put((b"a", b"1"))
    disk.put((b"b", b"1"))
    disk.log.roll()
    segment = disk.log.segments[0]
    file = disk.fs.open(segment.paths.log)
    file.truncate(segment.size - 3)
    segment.size -= 3
    with pytest.raises(CorruptBatchError):
        disk.clean(engine=engine)


def test_no_room_for_the_cleaned_files_is_no_harm() -> None:
    disk = _grown(5)
    disk.fs.fail_at("pwrite", 1, error=errno.ENOSPC, path=".cleaned")
    with pytest.raises(OSError, match="No space"):
        disk.clean()
    assert [value for _, _, value in disk.left] == [b"3", b"4"], "segments of which nothing stays need no room"
    assert not [name for name in disk.fs.listdir(PATH) if name.endswith(".cleaned")]
    disk.put((b"key", b"5"))
    disk.clean()
    assert [value for _, _, value in disk.left] == [b"4", b"5"]


def test_a_rename_that_fails_takes_the_directory_out_of_use() -> None:
    disk = _grown(5)
    disk.fs.fail_at("rename", 1, path=".cleaned")
    with pytest.raises(LogDirOfflineError):
        disk.clean()
    with pytest.raises(LogDirOfflineError):
        disk.put((b"key", b"1"))


# Several logs


def _logs(*disks: Disk) -> dict[TopicPartition, Log]:
    for number, disk in enumerate(disks):
        disk.log.topic_partition = TopicPartition("t", number)
    return {disk.log.topic_partition: disk.log for disk in disks}


def _run(
    logs: dict[TopicPartition, Log],
    offsets: dict[TopicPartition, int],
    uncleanable: dict[TopicPartition, Exception] | None = None,
) -> list[CompactionStats]:
    def note(log: Log, end_offset: int) -> None:
        offsets[log.topic_partition] = end_offset

    return run(logs, offsets, LogDirConfig(), note=note, uncleanable=uncleanable)


def test_the_dirtiest_log_comes_first() -> None:
    clean, dirty, other = _grown(9), _grown(9), _grown(9)
    other.log.config = config(cleanup_policy="delete")
    logs = _logs(clean, dirty, other)
    offsets = {TopicPartition("t", 0): 4}
    first = pick(logs, offsets)
    assert first is not None
    assert first.log is dirty.log
    second = pick(logs, offsets, without=[TopicPartition("t", 1)])
    assert second is None, "half of it is not more than half"
    clean.log.config = config(internal_segment_bytes=100, min_cleanable_dirty_ratio=0.1)
    assert [stats.topic_partition.partition for stats in _run(logs, offsets)] == [1, 0]
    assert offsets == {TopicPartition("t", 0): 8, TopicPartition("t", 1): 8}
    assert _run(logs, offsets) == []


def test_a_log_is_cleaned_in_as_many_rounds_as_its_map_needs() -> None:
    disk = Disk(min_cleanable_dirty_ratio=0)
    for start in (0, 30_000, 0):
        disk.put(*((b"%d" % at, b"") for at in range(start, start + 4_000)))
        disk.log.roll()
    offsets: dict[TopicPartition, int] = {}
    small = LogDirConfig(log_cleaner_dedupe_buffer_size=1024**2 + 1, log_cleaner_io_buffer_load_factor=0.11)
    done = run(_logs(disk), offsets, small, note=lambda log, end: offsets.__setitem__(log.topic_partition, end))
    assert [stats.end_offset for stats in done] == [4805, 9610, 12_000]
    assert len(disk.left) == 8_000


def test_a_damaged_log_is_left_alone_and_the_others_are_cleaned() -> None:
    damaged, sound = _grown(9), _grown(9)
    overwrite(damaged.fs, segment_paths(PATH, 3).log, 70, b"\xff")
    logs = _logs(damaged, sound)
    uncleanable: dict[TopicPartition, Exception] = {}
    done = _run(logs, {}, uncleanable)
    assert [stats.topic_partition.partition for stats in done] == [1]
    assert isinstance(uncleanable[TopicPartition("t", 0)], CorruptBatchError)
    assert [name.topic for name in uncleanable] == [PARTITION.topic]
    assert _run(logs, {TopicPartition("t", 1): 8}, uncleanable) == []


def test_appends_and_reads_go_on_during_rounds() -> None:
    """A thread appends, this one compacts and reads what it knows to be there."""
    disk = Disk(internal_segment_bytes=1_000)
    total = 600
    done = threading.Event()

    def append() -> None:
        for at in range(total):
            disk.put((b"key-%d" % (at % 7), b"%d" % at))
        done.set()

    writer = threading.Thread(target=append)
    writer.start()
    end = rounds = 0
    while True:
        last = done.is_set()
        stats = compact(disk.log, first_dirty=end, engine=PLAIN)
        assert not stats.aborted
        end = stats.end_offset
        rounds += 1
        offset = 0
        while (fetched := disk.log.read(offset)).size:
            offset = [header.next_offset for header, _ in fetched.batches()][-1]
        if last:
            break
    writer.join()
    disk.log.check()
    assert rounds > 1
    assert {key: value for _, key, value in disk.left} == {
        b"key-%d" % (at % 7): b"%d" % at for at in range(total - 7, total)
    }
    assert len(disk.left) < 7 + 2 * 12
