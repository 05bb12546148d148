"""An operation that a full disk refuses has changed nothing, and one that has changed something is not refused.

Each operation runs on a disk that is found full by its first, second, … call that takes room, once or from then on. A
caller who tries again when there is room has what the operation does once.
"""

from __future__ import annotations

import errno
import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple
from uuid import UUID

import pytest

from seglog.core.errors import LogDirFullError, LogDirOfflineError, SeglogError
from seglog.core.ground import Ground
from seglog.core.types import TopicPartition
from seglog.records.record import NewRecord, encode_batch, end_txn_marker
from seglog.storage.directory.log_changes import BeginEpoch, Cut
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.log.admit import Origin
from seglog.storage.log.finished_segment import read_finished
from seglog.storage.log.log import Log
from tests.cases import case
from tests.kit.manual_clock import ManualClock
from tests.kit.memory_fs import MemoryFs
from tests.storage.directories import DIR
from tests.storage.disk import fill, values
from tests.storage.log.test_finished_segment import EPOCH, NEW, staged

TAKE_ROOM: Final = ("pwrite", "truncate", "resize", "open", "map", "write", "allocate", "rename", "mkdir")
TINY: Final[Mapping[str, object]] = {
    "internal.segment.bytes": 2000,
    "segment.index.bytes": 1200,
    "index.interval.bytes": 200,
    "retention.ms": -1,
}
T0: Final = TopicPartition("t", 0)
PRODUCER: Final[Mapping[str, Any]] = {"producer_id": 7, "producer_epoch": 3}
FOR_EVER: Final = 1 << 40


class State(NamedTuple):
    """What callers can see of a directory."""

    topics: object
    logs: object


def state(opened: LogDir) -> State:
    topics = {name: (info.partitions, info.config) for name, info in opened.topics().items()}
    return State(topics, {partition: of_log(log) for partition, log in sorted(opened.logs.items())})


def of_log(log: Log) -> object:
    log.check()
    offsets = log.log_start_offset, log.log_end_offset, log.high_watermark, log.last_stable_offset
    aborted = [entry for segment in log.segments for entry in segment.txn_index.entries]
    return offsets, values(log), log.epochs.entries, dict(log.producers.entries), aborted, log.config.flush_messages


class Disk:
    """A directory with ``t-0``, which has an open transaction in its last batches, and a staged segment."""

    def __init__(self, flush_messages: int) -> None:
        self.fs, clock = MemoryFs(clock=ManualClock()), ManualClock()
        self.clock = clock
        self.opened = LogDir.open(DIR, ground=Ground(fs=self.fs, clock=clock, rng=random.Random(1)))
        self.opened.create_topic("t", 1, {**TINY, "flush.messages": flush_messages})
        self.log = self.opened.log("t")
        fill(self.log, 20)
        batch = encode_batch([NewRecord(b"x", timestamp=1)], base_sequence=0, transactional=True, **PRODUCER)
        self.log.append(batch, leader_epoch=0)
        (path, *_) = staged(self.opened, NEW, sequence=1)
        self.finished = read_finished(self.fs, path)
        self.log.flush()
        self.opened.checkpoint()


def marker(*, commit: bool) -> bytes:
    return bytes(end_txn_marker(commit=commit, coordinator_epoch=0, timestamp=1_000, **PRODUCER))


def append(disk: Disk) -> None:
    disk.log.append_records([NewRecord(b"once", timestamp=1)])


def append_in_a_new_epoch(disk: Disk) -> None:
    disk.log.append_records([NewRecord(b"once", timestamp=1)], leader_epoch=5)


def append_that_rolls(disk: Disk) -> None:
    disk.log.append_records([NewRecord(bytes(1500), timestamp=1)], leader_epoch=2)


def append_an_abort(disk: Disk) -> None:
    disk.log.append(marker(commit=False), leader_epoch=0, origin=Origin.COORDINATOR)


def append_from_a_leader(disk: Disk) -> None:
    batch = encode_batch([NewRecord(b"once", timestamp=1)], base_offset=disk.log.log_end_offset, leader_epoch=4)
    disk.log.append(batch, leader_epoch=4, origin=Origin.REPLICATION)


def append_segment(disk: Disk) -> None:
    disk.log.append_segment(disk.finished, EPOCH)


def roll(disk: Disk) -> None:
    disk.log.roll()


def assign_epoch(disk: Disk) -> None:
    disk.log.assign_epoch(9)


def begin_epoch(disk: Disk) -> None:
    (outcome,) = disk.opened.carry_out([BeginEpoch(T0, 9)])
    if isinstance(outcome, SeglogError):
        raise outcome


def delete_records(disk: Disk) -> None:
    disk.opened.delete_records("t", 0, 12)


def alter_config(disk: Disk) -> None:
    disk.opened.alter_config("t", {"flush.messages": 5})


def create_topic(disk: Disk) -> None:
    disk.opened.create_topic("new", 3, TINY)


def add_partitions(disk: Disk) -> None:
    disk.opened.add_partitions("t", 3)


def hold(disk: Disk) -> None:
    disk.opened.hold("held", UUID(int=5), 0, {"retention.ms": "-1"})


UNCHANGED: Final = (
    append,
    append_in_a_new_epoch,
    append_that_rolls,
    append_an_abort,
    append_from_a_leader,
    append_segment,
    roll,
    assign_epoch,
    begin_epoch,
    delete_records,
    alter_config,
)


def truncate(disk: Disk) -> None:
    disk.opened.truncate_to("t", 0, 10)


def truncate_with_a_copy(disk: Disk) -> None:
    end = disk.log.log_end_offset
    (outcome,) = disk.opened.carry_out([Cut(T0, 10, 10, end, saves=end > 10)])
    if isinstance(outcome, SeglogError):
        raise outcome


def start_again(disk: Disk) -> None:
    disk.opened.truncate_fully_and_start_at("t", 0, 50)


def delete_topic(disk: Disk) -> None:
    if "t" in disk.opened.topic_names():
        disk.opened.delete_topic("t")


REPEATABLE: Final = (truncate, truncate_with_a_copy, start_again, delete_topic, hold)


def refusals(
    act: Callable[[Disk], object], flush_messages: int, times: int
) -> Iterator[tuple[Disk, State, LogDirFullError | None]]:
    """For each call that takes room, a disk on which that call, and the next ones up to ``times``, found none: with the
    state before, and the error. The disk has room again then."""
    for nth in itertools.count(1):
        case()
        disk = Disk(flush_messages)
        before, error = state(disk.opened), None
        disk.fs.fail_at(TAKE_ROOM, nth, error=errno.ENOSPC, times=times)
        (fault,) = disk.fs._faults
        try:
            act(disk)
        except LogDirFullError as found:
            error = found
        except LogDirOfflineError:  # it could not be undone, and the error does not say that: the next start decides
            assert act in (append_segment, *REPEATABLE)
            continue
        is_over = fault.remaining > 0
        disk.fs.heal()
        disk.clock.advance(1_000)
        assert disk.opened.health.failure is None
        yield disk, before, error
        if is_over:
            assert error is None
            return


def once(act: Callable[[Disk], object], flush_messages: int) -> tuple[State, State]:
    """The state after the operation, and after the next start."""
    disk = Disk(flush_messages)
    act(disk)
    disk.clock.advance(1_000)
    return state(disk.opened), opened_again(disk)


def opened_again(disk: Disk) -> State:
    disk.opened.close()
    again = LogDir.open(DIR, ground=Ground(fs=disk.fs, clock=disk.clock, rng=random.Random(2)))
    assert not again.refused
    return state(again)


@pytest.mark.parametrize("times", [1, FOR_EVER])
@pytest.mark.parametrize("flush_messages", [1, 1 << 40])
@pytest.mark.parametrize("act", UNCHANGED)
def test_a_full_disk_refuses_all_of_it_or_nothing(
    act: Callable[[Disk], object], flush_messages: int, times: int
) -> None:
    done, later = once(act, flush_messages)
    for disk, before, error in refusals(act, flush_messages, times):
        if error is not None:
            assert state(disk.opened) == before, error
            act(disk)
        assert state(disk.opened) == done
        assert opened_again(disk) == later


@pytest.mark.parametrize("times", [1, FOR_EVER])
@pytest.mark.parametrize("act", REPEATABLE)
def test_what_a_full_disk_interrupts_can_be_repeated(act: Callable[[Disk], object], times: int) -> None:
    done, later = once(act, 1)
    for disk, _, error in refusals(act, 1, times):
        if error is not None:
            act(disk)
        assert state(disk.opened) == done
        assert opened_again(disk) == later


@pytest.mark.parametrize("times", [1, FOR_EVER])
@pytest.mark.parametrize("act", [create_topic, add_partitions])
def test_partitions_are_all_there_or_the_error_says_that_some_are(act: Callable[[Disk], object], times: int) -> None:
    done, later = once(act, 1)
    for disk, before, error in refusals(act, 1, times):
        if error is not None and "next start" in str(error):
            assert times == FOR_EVER, "there was room to undo it"
            assert opened_again(disk).topics == later.topics
            continue
        if error is not None:
            assert state(disk.opened) == before, error
            act(disk)
        assert state(disk.opened) == done
        assert opened_again(disk) == later
