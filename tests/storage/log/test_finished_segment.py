"""Finished files of a transactional producer that a log takes over whole, compared with the same batches appended."""

from __future__ import annotations

import os.path
import random
from collections.abc import Sequence
from typing import Final

import pytest

from seglog.core.errors import AdoptError, CorruptBatchError, InvalidRecordError, LogDirOfflineError
from seglog.core.fs import Fs
from seglog.core.types import ProducerIdAndEpoch
from seglog.records.record import end_txn_marker
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.log.finished_segment import FinishedSegment, read_finished, stamp
from seglog.storage.log.log import Log
from seglog.storage.log.producers import Origin
from seglog.storage.log.reads import UpTo
from tests.cases import case
from tests.kit.crash_fs import Call, CrashFs
from tests.kit.memory_fs import MemoryFs
from tests.storage.adopt.adopting import DIR, SMALL, T, batches_of, damage, found, open_dir, stage, texts

PRODUCER: Final = ProducerIdAndEpoch(7, 3)
OLD: Final = texts("old", 5)
NEW: Final = texts("new", 70)
EPOCH: Final = 4


def staged(directory: LogDir, payloads: Sequence[bytes], *, sequence: int = 0, task: str = "0") -> list[str]:
    """Absolute paths of the stamped segments, in order."""
    part = stage(directory, payloads, job="job", task=task, partition=T)
    paths = [os.path.join(directory.path, part.directory, segment.name) for segment in part.segments]
    for path in paths:
        sequence = stamp(directory.fs, path, PRODUCER, sequence)
    return paths


def take(log: Log, path: str) -> FinishedSegment:
    segment = read_finished(log.fs, path)
    log.append_segment(segment, EPOCH)
    return segment


def commit(log: Log) -> None:
    producer_id, epoch = PRODUCER
    marker = end_txn_marker(
        commit=True, coordinator_epoch=0, producer_id=producer_id, producer_epoch=epoch, timestamp=1_000
    )
    log.append(marker, leader_epoch=EPOCH, origin=Origin.COORDINATOR)


def create(fs: Fs, payloads: Sequence[bytes] = OLD) -> None:
    with open_dir(fs) as directory:
        directory.create_topic("t", 1, SMALL)
        for batch in batches_of(payloads):
            directory.log(*T).append(batch)


def all_bytes(log: Log) -> bytes:
    return bytes(log.read(log.log_start_offset, 1 << 20, up_to=UpTo.LOG_END).read())


def test_a_log_is_the_same_whether_batches_are_appended_or_taken_over() -> None:
    disk = MemoryFs()
    create(disk)
    with open_dir(disk) as directory:
        log = directory.log(*T)
        paths = staged(directory, NEW)
        assert len(paths) > 1
        batches = [disk.read(path) for path in paths]
        for path in paths:
            take(log, path)
            assert not disk.exists(path)
        assert found(log) == [*OLD, *NEW]
        assert log.last_stable_offset == len(OLD)
        commit(log)
        assert log.last_stable_offset == log.log_end_offset == len(OLD) + len(NEW) + 1
        taken, entries, epochs = all_bytes(log), dict(log.producers.entries), log.epochs.entries
    assert damage(disk) == []
    other = MemoryFs()
    create(other)
    with open_dir(other) as directory:
        log = directory.log(*T)
        for segment in batches:
            log.append(segment, leader_epoch=EPOCH, origin=Origin.BULK)
        commit(log)
        assert (all_bytes(log), log.epochs.entries) == (taken, epochs)
        assert log.producers.entries == entries


def test_a_segment_is_taken_over_once() -> None:
    disk = MemoryFs()
    create(disk)
    with open_dir(disk) as directory:
        log = directory.log(*T)
        (path,) = staged(directory, NEW[:9])
        segment = take(log, path)
        end = log.log_end_offset
        repeated = log.append_segment(segment, EPOCH)
        assert repeated.duplicate
        assert (repeated.last_offset, log.log_end_offset) == (end - 1, end)


@pytest.mark.parametrize(
    ("producer", "sequence"),
    [(ProducerIdAndEpoch(7, 2), 9), (PRODUCER, 10), (ProducerIdAndEpoch(7, 4), 9)],
    ids=["fenced", "gap", "new epoch, no beginning"],
)
def test_a_refused_segment_changes_nothing(producer: ProducerIdAndEpoch, sequence: int) -> None:
    disk = MemoryFs()
    create(disk)
    with open_dir(disk) as directory:
        log = directory.log(*T)
        (first,) = staged(directory, NEW[:9])
        take(log, first)
        (second,) = staged(directory, NEW[9:12], task="1")
        stamp(disk, second, producer, sequence)
        before = all_bytes(log), len(log.segments), log.producers.entries.copy()
        with pytest.raises(Exception, match=r"epoch|sequence"):
            take(log, second)
        assert (all_bytes(log), len(log.segments), log.producers.entries) == before
        assert disk.exists(second)


def test_a_damaged_batch_is_not_stamped() -> None:
    disk = MemoryFs()
    create(disk)
    with open_dir(disk) as directory:
        part = stage(directory, NEW[:9], job="job", task="0", partition=T)
        path = os.path.join(DIR, part.directory, part.segments[0].name)
        with_damage = bytearray(disk.read(path))
        with_damage[-1] ^= 1
        disk.write(path, with_damage)
        with pytest.raises(CorruptBatchError, match="CRC"):
            stamp(disk, path, PRODUCER, 0)


def test_a_file_is_refused_that_was_not_stamped_or_does_not_continue() -> None:
    disk = MemoryFs()
    create(disk)
    with open_dir(disk) as directory:
        part = stage(directory, NEW[:9], job="job", task="0", partition=T)
        path = os.path.join(DIR, part.directory, part.segments[0].name)
        with pytest.raises(InvalidRecordError, match="not of a transaction"):
            read_finished(disk, path)
        stamp(disk, path, PRODUCER, 0)
        whole = disk.read(path)
        size = read_finished(disk, path).batches[1][0]
        disk.write(path, whole[:size] + whole[2 * size :])
        with pytest.raises(InvalidRecordError, match="does not continue"):
            read_finished(disk, path)
        disk.write(path, whole[:-1])
        with pytest.raises(CorruptBatchError, match="ends in a batch"):
            read_finished(disk, path)
        disk.unlink(path)
        with pytest.raises(AdoptError, match="does not exist"):
            read_finished(disk, path)


@pytest.mark.parametrize("before", [OLD, []], ids=["behind records", "in an empty log"])
def test_a_power_cut_leaves_a_beginning_of_the_transaction(before: Sequence[bytes]) -> None:
    """At every change of the disk, until the end of the flush: whole batches, each in its place and transactional."""
    disk = MemoryFs()
    create(disk, before)
    whole = [*before, *NEW]

    def cut(call: Call) -> None:
        case()
        left = disk.after_crash(random.Random(call.number))
        with open_dir(left) as directory:
            log = directory.log(*T)
            here = found(log)
            assert here == whole[: len(here)]
            headers = [header for segment in log.segments for header, _, _ in segment.headers(0)]
            assert all(header.is_transactional for header in headers if header.base_offset >= len(before))
            assert log.last_stable_offset <= len(before)
            assert log.producers.ongoing or len(here) <= len(before)
        assert damage(left) == []

    crashing = CrashFs(disk, before_change=cut)
    with open_dir(crashing) as directory:
        log = directory.log(*T)
        for path in staged(directory, NEW):
            take(log, path)
        log.flush()
    assert crashing.changes > 100


def test_a_file_that_is_lost_half_way_takes_the_directory_out_of_use() -> None:
    """Its name is the segment's, and the log does not have it: an append would go to a file without a name."""
    disk = MemoryFs()
    create(disk)
    directory = open_dir(disk)
    (path,) = staged(directory, NEW[:9])
    segment = read_finished(disk, path)
    index = path.removesuffix(".log") + ".index"
    disk.unlink(index)
    disk.mkdir(index)
    log = directory.log(*T)
    with pytest.raises(LogDirOfflineError):
        log.append_segment(segment, EPOCH)
    assert log.has_failed
    directory.close()
