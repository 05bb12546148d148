"""A power cut at every change of the disk: everything opens, what was flushed is there, the log is a prefix."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from seglog.core.ground import Ground
from seglog.core.types import TopicPartition
from seglog.records.record import NewRecord
from seglog.storage.directory.log_dir import LogDir
from tests.cases import case, is_long
from tests.kit.crash_fs import Call, CrashFs, SimulatedCrash
from tests.kit.manual_clock import ManualClock
from tests.kit.memory_fs import MemoryFs
from tests.storage.crashing import DIR, DIRECTORY, TINY, Witness
from tests.storage.disk import values

OUTCOMES = 2 if is_long() else 1
"""How many outcomes are tried at each crash point; in each, the disk forgets other unflushed writes."""


def life(witness: Witness) -> None:
    """Append, roll, flush, checkpoint, close, open, configure, delete."""
    witness.open()
    witness.create("a", 2)
    witness.append("a", 0, 9)
    witness.flush("a", 0)
    witness.append("a", 0, 8)
    witness.append("a", 1, 3)
    witness.checkpoint()
    witness.create("b")
    witness.append("b", 0, 12)
    witness.here.alter_config("b", {"segment.ms": 7})
    witness.close()
    witness.open()
    witness.append("a", 0, 5)
    witness.delete("b")
    witness.append("a", 1, 8)
    witness.flush("a", 1)
    witness.clock_forward(2_000)
    witness.create("b")
    witness.append("b", 0, 2)
    witness.close()


def shortening(witness: Witness) -> None:
    """Retention, deleted records, truncation, with appends behind each."""
    witness.open()
    witness.create("a", 1, retention_bytes=2_500)
    witness.append("a", 0, 40)
    witness.flush("a", 0)
    witness.retain()
    witness.append("a", 0, 5)
    witness.clock_forward(2_000)
    witness.checkpoint()
    witness.truncate("a", 0, 38)
    witness.append("a", 0, 4)
    witness.truncate("a", 0, 24)
    witness.append("a", 0, 25)
    witness.flush("a", 0)
    witness.delete_records("a", 0, 40)
    witness.checkpoint()
    witness.append("a", 0, 4)
    witness.truncate("a", 0, 45)
    witness.append("a", 0, 3)
    witness.close()


@pytest.mark.parametrize("scenario", [life, shortening])
def test_a_crash_at_every_change_of_the_disk(scenario: Callable[[Witness], None]) -> None:
    disk = MemoryFs(clock=ManualClock())

    def crash(call: Call) -> None:
        for outcome in range(OUTCOMES):
            case()
            left = disk.after_crash(random.Random(call.number * OUTCOMES + outcome))
            opened = witness.check(left)
            for partition in opened.partitions():
                log = opened.log(*partition)
                before = values(log)
                log.append_records([NewRecord(b"new")])
                assert values(log) == {**before, log.log_end_offset - 1: b"new"}
            opened.close()
            again = LogDir.open(DIR, ground=Ground(fs=left, clock=witness.clock), config=DIRECTORY)
            assert all(not report.scanned for report in again.reports.values())
            again.close()

    fs = CrashFs(disk, before_change=crash)
    witness = Witness(fs)
    scenario(witness)
    assert fs.changes > 150


def test_a_crash_at_every_change_of_a_compaction() -> None:
    disk = MemoryFs(clock=ManualClock())

    def crash(call: Call) -> None:
        for outcome in range(OUTCOMES):
            case()
            left = disk.after_crash(random.Random(call.number * OUTCOMES + outcome))
            opened = witness.check(left)
            witness.check_keyed("c", opened)
            opened.run_compaction()
            witness.check_keyed("c", opened)
            opened.close()

    fs = CrashFs(disk, before_change=crash)
    witness = Witness(fs)
    witness.open()
    witness.here.create_topic("c", 1, {**TINY, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01})
    witness.append_keyed("c", 45)
    witness.flush_keyed("c")
    witness.append_keyed("c", 3)
    assert witness.here.run_compaction()
    witness.append_keyed("c", 30)
    witness.flush_keyed("c")
    assert witness.here.run_compaction()
    witness.clock_forward(2_000)
    witness.close()


def test_a_process_that_dies_in_the_middle_leaves_a_torn_write() -> None:
    """The same with the program's own death, and the disk as it was: what a killed process leaves."""
    whole = CrashFs(MemoryFs(clock=ManualClock()))
    life(Witness(whole))
    for crash_at in range(1, whole.changes + 1, 3):
        case()
        disk = MemoryFs(clock=ManualClock())
        witness = Witness(CrashFs(disk, crash_at=crash_at, torn=0.5))
        with pytest.raises(SimulatedCrash):
            life(witness)
        disk.locked.clear()
        witness.check(disk).close()


def test_a_crash_at_every_change_of_a_recovery() -> None:
    """Recovery itself can be stopped anywhere, and begun again."""
    disk = MemoryFs(clock=ManualClock())
    witness = Witness(disk)
    witness.open()
    witness.create("a", 1, retention_bytes=2_500)
    witness.append("a", 0, 40)
    witness.flush("a", 0)
    witness.retain()
    witness.append("a", 0, 20)
    for seed in range(5 if is_long() else 2):
        crashed = disk.after_crash(random.Random(seed))
        whole = CrashFs(crashed.after_crash(random.Random(seed)))
        witness.check(whole)
        for crash_at in range(1, whole.changes + 1):
            case()
            left = crashed.after_crash(random.Random(seed))
            with pytest.raises(SimulatedCrash):
                witness.check(CrashFs(left, crash_at=crash_at))
            left.crash(random.Random(crash_at))
            witness.check(left).close()


def test_a_log_goes_on_through_crash_after_crash() -> None:
    """One directory, many power cuts: what was flushed in an earlier life is there in a later one."""
    for seed in range(15):
        rng = random.Random(seed)
        disk = MemoryFs(clock=ManualClock())
        witness = Witness(disk)
        witness.open()
        witness.create("a", 2)
        for _ in range(12):
            case()
            for _ in range(rng.randrange(1, 6)):
                number = rng.randrange(2)
                end = witness.here.log("a", number).log_end_offset
                act = rng.randrange(5)
                if act < 3:
                    witness.append("a", number, rng.randrange(12))
                elif act == 3:
                    witness.flush("a", number)
                elif end:
                    witness.truncate("a", number, rng.randrange(max(0, end - 9), end + 1))
            disk.crash(rng)
            opened = witness.check(disk)
            witness.directory = opened
            for partition in opened.partitions():
                promised = witness.promised[TopicPartition(*partition)]
                promised.histories = [values(opened.log(*partition))]
