"""A pass over all logs of a directory, one of which has no room: the others get their turn, the one is reported."""

from __future__ import annotations

import errno
import logging
from random import Random
from typing import Final

import pytest

from seglog.core.errors import LogDirFullError, SeglogError
from seglog.core.ground import Ground
from seglog.core.passes import for_each, raise_first
from seglog.core.types import TopicPartition
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.directory.loss_evidence import flush_synced
from seglog.storage.log.log import Log
from tests.kit.manual_clock import ManualClock
from tests.kit.memory_fs import MemoryFs
from tests.storage.directories import TINY
from tests.storage.disk import fill

LOGS: Final = 5
BAD: Final = 1
OTHERS: Final = [number for number in range(LOGS) if number != BAD]
TAKE_ROOM: Final = ("pwrite", "truncate", "open", "write", "rename")


class Disk:
    """A directory whose log ``t-1`` finds no room for anything but its records."""

    def __init__(self, **config: object) -> None:
        self.clock = ManualClock()
        self.fs = MemoryFs(clock=self.clock)
        self.opened = self._open()
        self.opened.create_topic("t", LOGS, {**TINY, **config})
        for log in self.logs:
            fill(log, 40)

    def _open(self) -> LogDir:
        return LogDir.open("/logs", ground=Ground(fs=self.fs, clock=self.clock, rng=Random(1)))

    @property
    def logs(self) -> list[Log]:
        return [self.opened.log("t", number) for number in range(LOGS)]

    def fill_up(self) -> None:
        self.fs.fail_at(TAKE_ROOM, 1, error=errno.ENOSPC, path=f"/t-{BAD}/", times=1 << 40)

    def flushed(self) -> list[bool]:
        return [log.recovery_point == log.log_end_offset for log in self.logs]


def all_but_one() -> list[bool]:
    return [number != BAD for number in range(LOGS)]


def test_flush_ms_flushes_the_logs_after_one_without_room(caplog: pytest.LogCaptureFixture) -> None:
    disk = Disk(**{"flush.ms": 100})
    disk.fill_up()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):  # it is planned again
            for number in OTHERS:
                fill(disk.opened.log("t", number), 1)
            disk.clock.advance(200)
            disk.opened.housekeeping()
            assert disk.flushed() == all_but_one()
    assert "t-1 is not flushed completely" in caplog.text
    disk.fs.heal()
    disk.clock.advance(200)
    disk.opened.housekeeping()
    assert all(disk.flushed())


def test_a_flush_of_all_goes_on_and_raises_then() -> None:
    disk = Disk()
    disk.fill_up()
    with pytest.raises(LogDirFullError, match="/t-1/"):
        disk.opened.flush()
    assert disk.flushed() == all_but_one()
    points = (disk.fs.read("/logs/recovery-point-offset-checkpoint")).decode()
    assert f"t 4 {disk.logs[4].log_end_offset}" in points


def test_retention_goes_on_after_a_log_that_has_no_room_to_roll() -> None:
    disk = Disk(**{"retention.ms": 1_000})
    disk.clock.advance(10_000_000_000)
    disk.fill_up()
    gone = disk.opened.run_retention()
    assert sorted(partition.partition for partition in gone) == OTHERS


def test_closing_goes_on_after_a_log_without_room() -> None:
    disk = Disk()
    disk.fill_up()
    disk.opened.close()
    disk.fs.heal()
    assert not disk.fs.exists("/logs/.kafka_cleanshutdown"), "the one is recovered"
    again = disk._open()
    assert not again.refused
    assert [again.log("t", number).log_end_offset for number in range(LOGS)] == [40] * LOGS


def test_checkpoints_are_written_beside_one_without_room() -> None:
    disk = Disk()
    for log in disk.logs:
        log.flush()
    disk.fs.fail_at("write", 1, error=errno.ENOSPC, path="recovery-point", times=1 << 40)
    with pytest.raises(LogDirFullError, match="recovery-point"):
        disk.opened.checkpoint()
    assert "t 4 40" in disk.fs.read("/logs/replication-offset-checkpoint").decode()


def test_partitions_are_set_aside_beside_one_without_room() -> None:
    disk = Disk()
    disk.fill_up()
    with pytest.raises(LogDirFullError):
        disk.opened.set_aside([TopicPartition("t", number) for number in range(LOGS)])
    assert [partition.partition for partition in disk.opened.partitions()] == [BAD]
    assert sorted(stray.stray.partition.partition for stray in disk.opened.strays()) == OTHERS


def test_a_claim_is_made_for_the_others() -> None:
    """What was flushed counts as kept, also if a log before it has no room."""
    disk = Disk(**{"flush.messages": 1})
    for log in disk.logs:
        log.defer_flushes()
        fill(log, 15)
    disk.fill_up()
    found = flush_synced(disk.opened, [TopicPartition("t", number) for number in range(LOGS)])
    assert found == [f"t-{number}" for number in OTHERS]


def test_a_deletion_goes_on_after_a_directory_without_room_for_a_name() -> None:
    disk = Disk()
    disk.fs.fail_at("rename", 1, error=errno.ENOSPC, path="/t-", times=1 << 40)
    disk.opened.delete_topic("t")
    assert not disk.opened.topics()
    assert not [name for name in disk.fs.listdir("/logs") if name.startswith("t-")]


def test_the_first_error_is_raised_and_the_others_are_counted() -> None:
    def act(number: int) -> None:
        if number % 2:
            raise LogDirFullError(f"{number} is full")

    failed = for_each(range(6), act)
    assert [item for item, _ in failed] == [1, 3, 5]
    with pytest.raises(SeglogError, match="1 is full") as raised:
        raise_first(failed)
    assert raised.value.__notes__ == ["2 others of the same pass failed, too"]
    raise_first([])


def test_a_bug_ends_the_pass() -> None:
    def act(_: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        for_each([1], act)
