"""Since when a broker's directories have lost nothing: what each end of a life leaves of that."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Mapping
from uuid import UUID

import pytest

from seglog.core.errors import LogDirFullError, LogDirOfflineError
from seglog.core.fs import OsFs
from seglog.core.ground import Ground
from seglog.core.types import TopicPartition
from seglog.storage.directory.catalog import ReplicaSpec
from seglog.storage.directory.log_dirs import LogDirs
from seglog.storage.formats.checkpoints import write_offsets
from seglog.storage.formats.life_file import BOOT_ID, Life, boot_id, decode_life, encode_life, read_life
from seglog.storage.formats.paths import HIGH_WATERMARKS, LIFE
from seglog.storage.log.log import Log
from seglog.storage.offline.repair import carry_out, plan_repair
from tests.cases import case
from tests.kit.crash_fs import Call, CrashFs
from tests.kit.manual_clock import ManualClock
from tests.kit.memory_fs import MemoryFs
from tests.storage.directory.test_log_dirs import ONE, PATHS, TWO, logs, open_dirs, wanted
from tests.storage.disk import fill

TWO_DIRS = PATHS[:2]


class Machine:
    """Its disks, and which start of it this is."""

    def __init__(self) -> None:
        self.fs = MemoryFs(clock=ManualClock())
        self.boots = 0
        for path in ("/proc", "/proc/sys", "/proc/sys/kernel", "/proc/sys/kernel/random"):
            self.fs.mkdir(path)
        self.start()

    def start(self) -> None:
        self.boots += 1
        if self.fs.exists("/proc/sys/kernel/random"):
            self.fs.write(BOOT_ID, f"boot {self.boots}\n".encode())

    def power_cut(self, rng: random.Random) -> None:
        for path in ("/proc", "/proc/sys", "/proc/sys/kernel", "/proc/sys/kernel/random", "/"):
            self.fs.fsync_dir(path)
        self.fs.crash(rng)
        self.start()


@pytest.fixture
def machine() -> Machine:
    return Machine()


def live(machine: Machine, epoch: int, *, paths: tuple[str, ...] = TWO_DIRS) -> tuple[LogDirs, int]:
    """A broker that starts, is registered, and works."""
    dirs = open_dirs(machine.fs, paths)
    kept = dirs.kept_since(epoch)
    for log in logs(dirs.hold_many(wanted("a", ONE, 0, 1))):
        fill(log, 2)
    return dirs, kept


def test_a_first_life_has_kept_nothing_from_before_and_keeps_it_through_clean_stops(machine: Machine) -> None:
    for epoch in (4, 9, 11):
        dirs, kept = live(machine, epoch)
        assert kept == 4
        assert dirs.kept_since(epoch + 1) == 4, "another registration in the same life"
        dirs.close()
        machine.start()  # the machine is started anew, too
    assert {read_life(machine.fs, path) for path in TWO_DIRS} == {read_life(machine.fs, "/d1")}
    assert (life := read_life(machine.fs, "/d1")) is not None
    assert life.epoch == 12


def test_a_process_that_dies_loses_nothing_and_a_machine_that_does_may(machine: Machine) -> None:
    assert live(machine, 1)[1] == 1
    machine.fs.kill()
    assert live(machine, 2)[1] == 1
    machine.power_cut(random.Random(1))
    assert live(machine, 3)[1] == 3
    machine.fs.kill()
    assert live(machine, 4)[1] == 3


def test_start_that_was_never_registered_keeps_what_a_clean_stop_kept(machine: Machine) -> None:
    live(machine, 1)[0].close()
    machine.start()
    open_dirs(machine.fs, TWO_DIRS)
    machine.fs.kill()
    dirs, kept = live(machine, 2)
    assert kept == 1
    dirs.close()
    machine.start()
    open_dirs(machine.fs, TWO_DIRS)
    machine.power_cut(random.Random(1))
    assert live(machine, 3)[1] == 3, "the marker of the clean stop is gone, and the machine stopped"


def test_power_cut_at_every_change_of_an_unregistered_start_leaves_a_true_claim(machine: Machine) -> None:
    """It is 1 while the marker of the clean stop is on the disk, and 9 afterwards."""
    live(machine, 1)[0].close()
    machine.start()

    def crash(call: Call) -> None:
        case()
        for rng in (random.Random(call.number), random.Random(-call.number)):
            left = machine.fs.after_crash(rng)
            for path in ("/proc", "/proc/sys", "/proc/sys/kernel", "/proc/sys/kernel/random"):
                if not left.exists(path):
                    left.mkdir(path)
            left.write(BOOT_ID, b"boot after the power cut\n")
            with LogDirs.open(TWO_DIRS, ground=Ground(fs=left, clock=ManualClock())) as dirs:
                assert dirs.kept_since(9) == (1 if all(one.was_clean for one in dirs.dirs) else 9)

    fs = CrashFs(machine.fs, before_change=crash)
    with LogDirs.open(TWO_DIRS, ground=Ground(fs=fs, clock=ManualClock()), cluster_id="c", node_id=7):
        assert fs.changes > 8


def test_full_disk_does_not_keep_a_broker_from_starting_after_a_clean_stop(machine: Machine) -> None:
    live(machine, 1)[0].close()
    machine.start()
    machine.fs.fail_at(["write", "pwrite"], 1, path=f"/d2/{LIFE}.tmp", error=errno.ENOSPC)
    dirs = open_dirs(machine.fs, TWO_DIRS)
    boots = [one.boot for path in TWO_DIRS if (one := read_life(machine.fs, path)) is not None]
    assert boots == ["boot 2", "boot 1"]
    assert dirs.kept_since(2) == 1


def test_without_an_id_of_the_start_only_a_clean_stop_counts(machine: Machine) -> None:
    machine.fs.unlink(BOOT_ID)
    live(machine, 1)[0].close()
    assert live(machine, 2)[1] == 1
    machine.fs.kill()
    assert live(machine, 3)[1] == 3


def _remove(machine: Machine, path: str) -> None:
    for name in machine.fs.listdir(path):
        if machine.fs.stat(f"{path}/{name}").is_dir:
            _remove(machine, f"{path}/{name}")
        else:
            machine.fs.unlink(f"{path}/{name}")
    machine.fs.rmdir(path)


def _cut_below_the_high_watermark(machine: Machine) -> None:
    machine.fs.unlink("/d1/.kafka_cleanshutdown")
    write_offsets(machine.fs, f"/d1/{HIGH_WATERMARKS}", {TopicPartition("a", 0): 99})


@pytest.mark.parametrize(
    "loss",
    [
        pytest.param(lambda machine: _remove(machine, "/d1/a-0"), id="a partition is gone"),
        pytest.param(lambda machine: _remove(machine, "/d1"), id="a disk was replaced"),
        pytest.param(lambda machine: machine.fs.unlink(f"/d2/{LIFE}"), id="the file is gone"),
        pytest.param(lambda machine: machine.fs.write(f"/d2/{LIFE}", b"{"), id="the file is garbage"),
        pytest.param(_cut_below_the_high_watermark, id="a log ends below its high watermark"),
    ],
)
def test_loss_between_two_starts_is_detected(machine: Machine, loss: Callable[[Machine], None]) -> None:
    live(machine, 1)[0].close()
    live(machine, 2)[0].close()
    loss(machine)
    dirs, kept = live(machine, 3)
    assert kept == 3
    dirs.close()
    assert live(machine, 4)[1] == 3, "it was lost once"


def test_loss_is_remembered_until_it_is_recorded(machine: Machine) -> None:
    live(machine, 1)[0].close()
    _remove(machine, "/d1/a-0")
    open_dirs(machine.fs, TWO_DIRS)
    machine.fs.kill()  # before it was registered
    assert live(machine, 2)[1] == 2
    machine.fs.kill()
    assert live(machine, 3)[1] == 2


def test_loss_is_reported_even_if_the_replica_was_recreated(machine: Machine) -> None:
    live(machine, 1)[0].close()
    _remove(machine, "/d1/a-0")
    dirs = open_dirs(machine.fs, TWO_DIRS)
    logs(dirs.hold_many(wanted("a", ONE, 0, 1)))
    assert dirs.kept_since(2) == 2


def test_one_more_directory_is_no_loss_and_one_fewer_is(machine: Machine) -> None:
    live(machine, 1)[0].close()
    dirs, kept = live(machine, 2, paths=PATHS)
    assert kept == 1
    dirs.close()
    assert live(machine, 3)[1] == 3


def test_a_disk_that_failed_may_have_lost_what_it_says_it_has(machine: Machine) -> None:
    dirs, _ = live(machine, 1)
    machine.fs.fail_at("fsync", 1, path="/d2/a-1", error=errno.EIO)
    with pytest.raises(LogDirOfflineError):
        dirs.dir_of(TopicPartition("a", 1)).flush()
    assert not machine.fs.exists(f"/d2/{LIFE}")
    assert dirs.kept_since(2) == 1, "what is served was kept"
    machine.fs.kill()
    assert open_dirs(machine.fs, TWO_DIRS).kept_since(3) == 3


def test_a_disk_that_can_not_even_be_marked_is_known_to_the_others(machine: Machine) -> None:
    dirs, _ = live(machine, 1)
    machine.fs.fail_at(["fsync", "fsync_dir", "unlink", "pwrite"], 1, path="/d2", error=errno.EIO, times=99)
    with pytest.raises(LogDirOfflineError):
        dirs.dir_of(TopicPartition("a", 1)).flush()
    assert machine.fs.exists(f"/d2/{LIFE}")
    machine.fs.kill()
    machine.fs.fail_at("listdir", 1, path="/d2", times=99)
    assert open_dirs(machine.fs, TWO_DIRS).kept_since(3) == 1, "of a directory that is away nothing is served"
    machine.fs.kill()
    assert open_dirs(machine.fs, TWO_DIRS).kept_since(4) == 4, "it came back"
    machine.fs.kill()
    assert open_dirs(machine.fs, TWO_DIRS).kept_since(5) == 4


def test_a_crash_at_every_change_never_says_that_more_was_kept(machine: Machine) -> None:
    """A power cut anywhere in two lives: what is told afterwards is the epoch that it is told in."""
    boots = machine.boots

    def crash(call: Call) -> None:
        case()
        left = machine.fs.after_crash(random.Random(call.number))
        for path in ("/proc", "/proc/sys", "/proc/sys/kernel", "/proc/sys/kernel/random"):
            if not left.exists(path):
                left.mkdir(path)
        left.write(BOOT_ID, f"boot {boots + call.number}\n".encode())
        with LogDirs.open(TWO_DIRS, ground=Ground(fs=left, clock=ManualClock()), cluster_id="c", node_id=7) as dirs:
            was_clean = all(one.was_clean for one in dirs.dirs)
            assert dirs.kept_since(9) == (kept if was_clean else 9)

    kept = 1
    fs = CrashFs(machine.fs, before_change=crash)
    for epoch in (1, 2):
        with LogDirs.open(TWO_DIRS, ground=Ground(fs=fs, clock=ManualClock()), cluster_id="c", node_id=7) as dirs:
            assert dirs.kept_since(epoch) == kept
            logs(dirs.hold_many(wanted("a", ONE, 0, 1)))
    assert fs.changes > 50


def test_a_repair_that_takes_records_away_is_a_loss(machine: Machine) -> None:
    dirs, _ = live(machine, 1)
    log = dirs.logs[TopicPartition("a", 0)]
    fill(log, 2)
    position = log.active.size - 40
    dirs.close()
    file = machine.fs.open(f"/d1/a-0/{log.active.base_offset:020d}.log")
    file.pwrite(b"?" * 20, position)
    plan = plan_repair("/d1", fs=machine.fs, salvage=True)
    assert carry_out(plan, fs=machine.fs, clock=ManualClock())
    dirs, kept = live(machine, 2)
    assert kept == 2
    assert not any(one.refused for one in dirs.dirs)


def test_the_file_reads_back_and_garbage_is_none() -> None:
    life = Life(17, None, frozenset({"a", "b"}), frozenset({"b"}))
    assert decode_life(encode_life(life)) == life
    for data in (
        b"",
        b"[]",
        b"{}",
        encode_life(life).replace(b"17", b'"x"'),
        encode_life(life).replace(b": 1,", b": 2,"),
    ):
        assert decode_life(data) is None


def test_this_machine_has_an_id_of_its_start() -> None:
    found = boot_id(OsFs())
    assert found == boot_id(OsFs())
    assert found is None or len(found) == 36


FLUSHED = {"flush.messages": "1"}
A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def kept_since(dirs: LogDirs, *partitions: TopicPartition) -> list[int]:
    found = [dirs.kept(one) for one in partitions]
    return [one.kept_since for one in found if one is not None]


def hold(dirs: LogDirs, name: str, topic_id: UUID, number: int, config: Mapping[str, str], *, is_new: bool) -> Log:
    (log,) = dirs.hold_many([ReplicaSpec(name, topic_id, number, config, is_new=is_new)])
    assert isinstance(log, Log)
    return log


def test_power_cut_takes_nothing_from_a_partition_that_is_always_flushed(machine: Machine) -> None:
    dirs = open_dirs(machine.fs, TWO_DIRS)
    dirs.kept_since(1)
    fill(hold(dirs, "a", ONE, 0, FLUSHED, is_new=True), 2)
    fill(hold(dirs, "b", TWO, 0, {}, is_new=True), 2)
    assert kept_since(dirs, A0, B0) == [1, 1]
    for epoch in (2, 3):
        machine.power_cut(random.Random(1))
        dirs = open_dirs(machine.fs, TWO_DIRS)
        assert dirs.kept_since(epoch) == epoch
        assert kept_since(dirs, A0, B0) == [1, epoch]
        assert dirs.logs[A0].log_end_offset == 2


def test_flush_claim_is_withdrawn_before_the_configuration_changes(machine: Machine) -> None:
    dirs = open_dirs(machine.fs, TWO_DIRS)
    dirs.kept_since(1)
    hold(dirs, "a", ONE, 0, FLUSHED, is_new=True)
    before = machine.fs.calls.copy()
    dirs.set_config("a", {})
    machine.power_cut(random.Random(1))
    dirs = open_dirs(machine.fs, TWO_DIRS)
    dirs.kept_since(2)
    assert kept_since(dirs, A0) == [2]
    assert before["fsync"] < machine.fs.calls["fsync"]
    fill(dirs.logs[A0], 3)
    dirs.set_config("a", FLUSHED)
    assert dirs.logs[A0].recovery_point == 3, "what had come before is flushed, too"
    machine.power_cut(random.Random(1))
    dirs = open_dirs(machine.fs, TWO_DIRS)
    dirs.kept_since(3)
    assert kept_since(dirs, A0) == [2]


def test_log_in_an_emptied_directory_is_a_new_one_for_ever(machine: Machine) -> None:
    dirs = open_dirs(machine.fs, ("/d1",))
    dirs.kept_since(1)
    fill(hold(dirs, "a", ONE, 0, {}, is_new=True), 2)
    dirs.close()
    _remove(machine, "/d1")
    for epoch in (5, 6):
        dirs = open_dirs(machine.fs, ("/d1",))
        hold(dirs, "a", ONE, 0, {}, is_new=False)
        dirs.kept_since(epoch, epoch - 1)
        found = dirs.kept(A0)
        assert found is not None
        assert (found.made, found.kept_since) == (5, 5)
        dirs.close()


def test_one_of_two_disks_that_is_replaced_takes_its_own_partitions_only(machine: Machine) -> None:
    dirs = open_dirs(machine.fs, TWO_DIRS)
    dirs.kept_since(1)
    for number in (0, 1):
        fill(hold(dirs, "a", ONE, number, {}, is_new=True), 2)
    gone, left = (A0, A1) if dirs.dir_of(A0).path == "/d1" else (A1, A0)
    dirs.close()
    _remove(machine, "/d1")
    for epoch in (4, 5):
        dirs = open_dirs(machine.fs, TWO_DIRS)
        hold(dirs, "a", ONE, gone.partition, {}, is_new=False)
        dirs.kept_since(epoch)
        assert kept_since(dirs, gone, left) == [4, 1]
        dirs.close()


def test_partition_whose_files_are_gone_is_a_new_one(machine: Machine) -> None:
    dirs = open_dirs(machine.fs, ("/d1",))
    dirs.kept_since(1)
    for number in (0, 1):
        fill(hold(dirs, "a", ONE, number, {}, is_new=True), 2)
    dirs.close()
    _remove(machine, "/d1/a-0")
    dirs = open_dirs(machine.fs, ("/d1",))
    hold(dirs, "a", ONE, 0, {}, is_new=False)
    machine.fs.kill()  # before it was registered
    dirs = open_dirs(machine.fs, ("/d1",))
    dirs.kept_since(7)
    found = [dirs.kept(one) for one in (A0, A1)]
    assert [one.made for one in found if one is not None] == [7, 1]


def test_older_copy_of_a_directory_keeps_nothing(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    live(machine, 3)[0].close()
    dirs = open_dirs(machine.fs, TWO_DIRS)
    assert dirs.kept_since(9, 8) == 9, "this broker was in epoch 8, and its directories do not know it"
    assert "/d1 is a copy from epoch 3 of this broker, which was in epoch 8" in caplog.text
    assert kept_since(dirs, A0) == [9]
    dirs.close()
    dirs = open_dirs(machine.fs, TWO_DIRS)
    assert dirs.kept_since(12, 9) == 9, "the copy is the directory now"


def test_a_directory_too_full_to_be_opened_is_not_taken_for_a_failed_one(machine: Machine) -> None:
    """A broker that started without it would lose its place in every ISR, also of the other directory."""
    dirs, kept = live(machine, 3)
    for number in range(2):
        dirs.logs[TopicPartition("a", number)].assign_epoch(7)
    machine.fs.kill()
    machine.fs.fail_at(("write", "pwrite"), 1, error=errno.ENOSPC, path=f"{TWO_DIRS[1]}/", times=1 << 40)
    with pytest.raises(LogDirFullError, match=r"too full to be opened.* Nothing in it is lost.* remove \d+ bytes"):
        open_dirs(machine.fs, TWO_DIRS)
    machine.fs.heal()
    assert open_dirs(machine.fs, TWO_DIRS).kept_since(4, 3) == kept


def test_a_loss_is_not_forgotten_by_a_clean_stop_before_the_registration(machine: Machine) -> None:
    """The store may have been away, or another directory too full: the broker ends before it has said what it lost."""
    live(machine, 3)
    machine.power_cut(random.Random(1))
    open_dirs(machine.fs, TWO_DIRS).close()
    assert open_dirs(machine.fs, TWO_DIRS).kept_since(5, 3) == 5
