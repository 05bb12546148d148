"""Compaction beside readers and writers, with faults, and of several logs."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Final

import pytest

from seglog.core.config import LogDirConfig
from seglog.core.errors import CorruptBatchError, LogDirOfflineError
from seglog.core.types import TopicPartition
from seglog.storage.compaction import log_cleaner
from seglog.storage.compaction.log_cleaner import CompactionStats, compact, pick, run
from seglog.storage.compaction.round import COMPILED, PLAIN
from seglog.storage.formats.paths import segment_paths
from seglog.storage.log.log import Log
from tests.kit.memory_fs import MemoryFs
from tests.storage.compaction.compacted import START_MS, config, facts
from tests.storage.compaction.keyed_log import Disk
from tests.storage.disk import PARTITION, PATH, load, overwrite

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


def _grown(segments: int, **keys: object) -> Disk:
    disk = Disk(internal_segment_bytes=100, **keys)
    for at in range(segments):
        disk.put((b"key", b"%d" % at))
    return disk


def _reload(disk: Disk, **keys: object) -> None:
    """Close the log and load it again: no segment is open, and none has been read."""
    disk.log.close()
    disk.log = load(disk.fs, config=config(internal_segment_bytes=100, **keys), clock=disk.clock).log


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
def test_round_is_aborted_when_the_log_changes(act: str, asked: int) -> None:
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
    other.log.reconfigure(config(cleanup_policy="delete"))
    logs = _logs(clean, dirty, other)
    offsets = {TopicPartition("t", 0): 4}
    first = pick(logs, offsets)
    assert first is not None
    assert first.log is dirty.log
    second = pick(logs, offsets, without=[TopicPartition("t", 1)])
    assert second is None, "half of it is not more than half"
    clean.log.reconfigure(config(internal_segment_bytes=100, min_cleanable_dirty_ratio=0.1))
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


def _no_magic(fs: MemoryFs, path: str) -> None:
    overwrite(fs, path, 16, b"\x09")


def _cut(fs: MemoryFs, path: str, size: int) -> None:
    with closing(fs.open(path)) as file:
        file.truncate(size)


_UNREADABLE: Final[dict[str, Callable[[MemoryFs, str], object]]] = {
    "no batch": _no_magic,
    "emptied": lambda fs, path: _cut(fs, path, 0),
    "cut in a length": lambda fs, path: _cut(fs, path, 5),
    "cut in a batch": lambda fs, path: _cut(fs, path, 40),
    "removed": MemoryFs.unlink,
}


@pytest.mark.parametrize("keys", [{}, {"max_compaction_lag_ms": 1}], ids=["by ratio", "by age"])
@pytest.mark.parametrize("how", _UNREADABLE)
@pytest.mark.parametrize("engine", [PLAIN, COMPILED])
def test_a_log_that_cannot_be_read_does_not_keep_the_others_waiting(
    how: str, keys: dict[str, object], engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_cleaner, "COMPILED_FROM", 0 if engine == COMPILED else 1 << 40)
    damaged, sound = _grown(9, **keys), _grown(9, **keys)
    _reload(damaged, **keys)
    damaged.clock.advance(1000)
    _UNREADABLE[how](damaged.fs, segment_paths(PATH, 3).log)
    logs = _logs(damaged, sound)
    uncleanable: dict[TopicPartition, Exception] = {}
    done = _run(logs, {}, uncleanable)
    assert [stats.topic_partition.partition for stats in done] == [1]
    assert list(uncleanable) == [TopicPartition("t", 0)]
    assert segment_paths(PATH, 3).log in str(uncleanable[TopicPartition("t", 0)])


def test_a_log_for_which_there_are_no_descriptors_is_cleaned_by_a_later_run() -> None:
    starved, sound = _grown(9), _grown(9)
    _reload(starved)
    logs = _logs(starved, sound)
    uncleanable: dict[TopicPartition, Exception] = {}
    offsets: dict[TopicPartition, int] = {}
    starved.fs.fail_at("open", 1, error=errno.EMFILE, path=".log", times=1 << 40)
    assert [stats.topic_partition.partition for stats in _run(logs, offsets, uncleanable)] == [1]
    starved.fs.heal()
    assert [stats.topic_partition.partition for stats in _run(logs, offsets, uncleanable)] == [0]
    assert uncleanable == {}


def test_appends_and_reads_go_on_during_rounds() -> None:
    """A thread appends, this one compacts and reads what it knows to be there."""
    disk = Disk(internal_segment_bytes=1_000)
    total = 600
    begun, done = threading.Event(), threading.Event()

    def append() -> None:
        for at in range(total):
            disk.put((b"key-%d" % (at % 7), b"%d" % at))
            if at == total // 2:
                begun.wait(60)  # however late the other thread comes to its first round
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
        begun.set()
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
