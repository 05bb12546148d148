"""Partitions of replicated topics in a log directory: held, let go, configured, and what a crash leaves of that."""

from __future__ import annotations

import random
from collections.abc import Callable
from uuid import UUID

import pytest

from seglog.core.errors import DamagedPartitionError, InvalidConfigError, LogClosedError, SeglogError, UnknownTopicError
from seglog.core.fs import Fs
from seglog.core.ground import Ground
from seglog.core.types import TopicPartition
from seglog.storage.directory.catalog import ReplicaSpec
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.directory.strays import Stray, size_of
from seglog.storage.formats.checkpoints import read_partition_metadata
from seglog.storage.formats.topics_file import read_topics
from seglog.storage.log.log import Log
from tests.cases import case
from tests.kit.crash_fs import Call, CrashFs, SimulatedCrash
from tests.kit.manual_clock import ManualClock
from tests.kit.memory_fs import MemoryFs
from tests.storage.crashing import DIRECTORY, TINY
from tests.storage.directories import DIR, Disk
from tests.storage.disk import fill, values

ONE, TWO, THREE = (UUID(int=0xABC << 64 | number) for number in (1, 2, 3))
CONFIG = {key: str(value) for key, value in TINY.items()}
A0, A2, B1 = TopicPartition("a", 0), TopicPartition("a", 2), TopicPartition("b", 1)


def logs(held: list[Log | SeglogError]) -> list[Log]:
    found = [one for one in held if isinstance(one, Log)]
    assert len(found) == len(held), held
    return found


def test_some_partitions_of_a_topic_are_held_and_come_back(disk: Disk) -> None:
    with disk.open() as opened:
        assert not opened.was_clean
        a2 = opened.hold("a", ONE, 2, {"retention.ms": "5"})
        held = logs(
            opened.hold_many(
                [
                    ReplicaSpec("a", ONE, 2, {"retention.ms": "5"}),
                    ReplicaSpec("a", ONE, 0, {}),
                    ReplicaSpec("b", TWO, 1, CONFIG),
                ]
            )
        )
        assert held[0] is a2
        assert [log.topic_partition for log in held] == [A2, A0, B1]
        assert a2.config.retention_ms == 5
        assert read_partition_metadata(disk.fs, f"{DIR}/a-2") == ONE
        assert opened.topics()["a"].partitions == 2
        fill(a2, 3)
    assert read_topics(disk.fs, DIR)["a"].partitions == 0
    with disk.open() as opened:
        assert opened.was_clean
        assert opened.partitions() == [A0, A2, B1]
        assert len(values(opened.hold("a", ONE, 2, {"retention.ms": "7"}))) == 3
        assert opened.log("a", 0).config.retention_ms == 7
        with pytest.raises(ValueError, match="two ids"):
            opened.hold_many([ReplicaSpec("a", ONE, 2, {}), ReplicaSpec("a", TWO, 2, {})])


def test_what_is_wrong_with_one_topic_does_not_keep_the_others(disk: Disk) -> None:
    with disk.open() as opened:
        wrong, log = opened.hold_many([ReplicaSpec("a", ONE, 0, {"segment.bytes": "1"}), ReplicaSpec("b", TWO, 0, {})])
        assert isinstance(wrong, InvalidConfigError)
        assert isinstance(log, Log)
        with pytest.raises(InvalidConfigError, match="retention"):
            opened.hold("c", THREE, 0, {"retention.sm": "1"})
        assert list(opened.topics()) == ["b"]


def test_the_configuration_is_set_as_a_whole(disk: Disk) -> None:
    with disk.open({"log.retention.ms": 77}) as opened:
        log = opened.hold("a", ONE, 0, {"retention.ms": "5", "segment.ms": "9"})
        opened.set_config("a", {"segment.ms": "8"})
        assert (log.config.retention_ms, log.config.segment_ms) == (77, 8)
        with pytest.raises(UnknownTopicError):
            opened.set_config("b", {})
        with pytest.raises(InvalidConfigError):
            opened.set_config("a", {"segment.ms": "-5"})
    with disk.open() as opened:
        assert opened.topics()["a"].config == {"segment.ms": "8"}


def test_released_replicas_do_not_return_after_a_restart(disk: Disk) -> None:
    with disk.open() as opened:
        opened.create_topic("local", 3, TINY)  # of a node that was alone before
        held = logs(opened.hold_many([ReplicaSpec("a", ONE, 0, CONFIG), ReplicaSpec("a", ONE, 2, CONFIG)]))
        fill(held[0], 2)
        opened.let_go([A0, TopicPartition("local", 1), TopicPartition("local", 2), TopicPartition("none", 1)])
        with pytest.raises(LogClosedError, match="deleted"):
            held[0].read(0)
        assert opened.partitions() == [A2, TopicPartition("local", 0)]
    with disk.open() as opened:
        assert opened.partitions() == [A2, TopicPartition("local", 0)]
        assert not opened.missing
        opened.let_go(A2)
        assert list(opened.topics()) == ["local"]
        disk.clock.advance(2_000)
        opened.housekeeping()
        assert values(opened.hold("a", ONE, 0, CONFIG)) == {}


def strays(disk: Disk) -> list[str]:
    return [name.partition(".")[0] for name in disk.names() if name.endswith("-stray")]


def test_another_topic_of_that_name_is_set_aside_first(disk: Disk) -> None:
    with disk.open() as opened:
        fill(opened.hold("a", ONE, 0, CONFIG), 2)
        opened.hold("a", ONE, 2, CONFIG)
    with disk.open() as opened:
        log = opened.hold("a", TWO, 0, CONFIG)
        assert values(log) == {}
        assert opened.partitions() == [A0]
        assert opened.topic_id("a") == TWO
        assert strays(disk) == ["a-0", "a-2"], "nobody has said that it was deleted"
        disk.clock.advance(2_000)
        opened.housekeeping()
        assert strays(disk) == ["a-0", "a-2"]
        assert [one.stray.topic_id for one in opened.remove_strays({ONE, THREE})] == [ONE, ONE]
        disk.clock.advance(61_000)
        opened.housekeeping()
        assert not [name for name in disk.names() if name.endswith(("-stray", "-delete"))]
    with disk.open() as opened:
        assert opened.was_clean
        assert read_partition_metadata(disk.fs, f"{DIR}/a-0") == TWO


@pytest.mark.parametrize("restarts", [False, True])
def test_a_stray_keeps_all_it_has_and_is_taken_back_as_it_was(disk: Disk, *, restarts: bool) -> None:
    opened = disk.open()
    log = opened.hold("a", ONE, 0, CONFIG)
    fill(log, 9)
    log.lower_high_watermark(7)
    opened.delete_records("a", 0, 3)
    before = values(log)
    opened.set_aside([A0, A2])
    assert not opened.partitions()
    assert not opened.topics()
    (found,) = opened.strays()
    assert found.stray == Stray(A0, ONE, CONFIG, 3, 7, 9, log.epochs.latest)
    assert size_of(disk.fs, found.path) > log.size
    if restarts:
        opened.close()
        opened = disk.open()
    other = opened.hold("a", TWO, 0, CONFIG)
    assert values(other) == {}
    opened.set_aside([A0])
    again = opened.hold("a", ONE, 0, CONFIG)
    assert (values(again), again.log_start_offset) == (before, 3)
    fill(again, 1)
    disk.clock.advance(2_000)
    opened.housekeeping()
    assert again.log_end_offset == 10
    assert [one.stray.topic_id for one in opened.strays()] == [TWO]
    opened.close()
    with disk.open() as opened:
        assert values(opened.log("a", 0)).items() >= before.items()


def test_of_several_strays_of_a_partition_the_one_that_goes_furthest_is_taken_back(disk: Disk) -> None:
    with disk.open() as opened:
        for records in (2, 5, 3):
            fill(opened.hold("a", ONE, 0, CONFIG), records)
            opened.set_aside([A0])
            (stray,) = opened.strays()
            disk.fs.rename(stray.path, f"{DIR}/hidden-{records}")
        for records in (2, 5, 3):
            disk.fs.rename(f"{DIR}/hidden-{records}", f"{DIR}/a-0.{records:032}-stray")
        assert opened.hold("a", ONE, 0, CONFIG).log_end_offset == 5


def test_files_that_kafka_made_are_taken_over_by_their_topic_id(disk: Disk) -> None:
    with disk.open() as opened:
        for topic, topic_id in (("a", ONE), ("b", TWO)):
            fill(opened.hold(topic, topic_id, 0, CONFIG), 2)
    disk.fs.unlink(f"{DIR}/seglog.topics")
    with disk.open() as opened:
        same, other = logs(opened.hold_many([ReplicaSpec("a", ONE, 0, {}), ReplicaSpec("b", THREE, 0, {})]))
        assert (len(values(same)), len(values(other))) == (2, 0)


def test_a_partition_whose_files_are_gone_is_reported_until_it_is_made_anew(disk: Disk) -> None:
    with disk.open() as opened:
        fill(opened.hold("a", ONE, 0, CONFIG), 2)
        opened.hold("a", ONE, 2, CONFIG)
    for number in (0, 2):
        for name in disk.names(f"{DIR}/a-{number}"):
            disk.fs.unlink(f"{DIR}/a-{number}/{name}")
        disk.fs.rmdir(f"{DIR}/a-{number}")
    for _ in range(2):
        with disk.open() as opened:
            assert opened.missing == opened.refused.keys() == {A0}, "nothing was in the other one"
            with pytest.raises(DamagedPartitionError, match="missing"):
                opened.log("a")
    with disk.open() as opened:
        log = opened.hold("a", ONE, 0, CONFIG)
        assert values(log) == {}
        fill(log, 1)
    with disk.open() as opened:
        assert not opened.refused
        assert len(values(opened.log("a"))) == 1


def test_a_crash_while_a_missing_partition_is_made_anew(disk: Disk) -> None:
    with disk.open() as opened:
        log = opened.hold("a", ONE, 0, CONFIG)
        fill(log, 2)
    for name in disk.names(f"{DIR}/a-0"):
        disk.fs.unlink(f"{DIR}/a-0/{name}")
    disk.fs.rmdir(f"{DIR}/a-0")
    disk.fs.fsync_dir(DIR)

    def crash(call: Call) -> None:
        case()
        left = disk.fs.after_crash(random.Random(call.number))
        with LogDir.open(DIR, ground=Ground(fs=left, clock=disk.clock), config=DIRECTORY) as after:
            assert after.refused.keys() == after.missing, after.refused
            fill(after.hold("a", ONE, 0, CONFIG), 1)

    fs = CrashFs(disk.fs, before_change=crash)
    with LogDir.open(DIR, ground=Ground(fs=fs, clock=disk.clock), config=DIRECTORY) as opened:
        opened.hold("a", ONE, 0, CONFIG)


def test_a_damaged_partition_is_given_as_its_error(disk: Disk) -> None:
    opened = disk.open()
    log = opened.hold("a", ONE, 0, CONFIG)
    fill(log, 2)
    log.flush()
    opened.checkpoint()
    file = disk.fs.open(log.active.paths.log)
    file.pwrite(b"?" * 50, 10)
    disk.fs.kill()
    with disk.open() as opened:
        assert not opened.was_clean
        damaged, other = opened.hold_many([ReplicaSpec("a", ONE, 0, CONFIG), ReplicaSpec("a", ONE, 2, CONFIG)])
        assert isinstance(damaged, DamagedPartitionError)
        assert isinstance(other, Log)
        with pytest.raises(DamagedPartitionError):
            opened.hold("a", ONE, 0, CONFIG)
        opened.let_go(A0)
        assert isinstance(opened.hold("a", ONE, 0, CONFIG), Log)


class Promise:
    """Which topic a partition may belong to after a crash, None: it may be not there; and what was flushed to it."""

    def __init__(self) -> None:
        self.may_be: dict[TopicPartition, set[UUID | None]] = {}
        self.flushed: dict[TopicPartition, int] = {}

    def check(self, opened: LogDir) -> None:
        assert not opened.refused, opened.refused
        for partition, ids in self.may_be.items():
            found = opened.topic_id(partition.topic) if partition in opened.logs else None
            assert found in ids, (partition, found)
            if found is not None:
                assert read_partition_metadata(opened.fs, opened.path_of(partition)) == found
                if len(ids) == 1:
                    assert len(values(opened.log(*partition))) >= self.flushed.get(partition, 0)


def _live(promise: Promise, fs: Fs) -> None:
    clock = ManualClock()
    opened = LogDir.open(DIR, ground=Ground(fs=fs, clock=clock, rng=random.Random(2)), config=DIRECTORY)

    def change(partitions: list[TopicPartition], then: UUID | None, act: Callable[[], object]) -> None:
        for one in partitions:
            promise.may_be.setdefault(one, {None}).update({then, None})
            promise.flushed.pop(one, None)
        act()
        for one in partitions:
            promise.may_be[one] = {then}

    def wanted(partitions: list[TopicPartition], topic_id: UUID) -> list[ReplicaSpec]:
        return [ReplicaSpec(one.topic, topic_id, one.partition, CONFIG) for one in partitions]

    def add(partition: TopicPartition) -> None:
        log = opened.log(*partition)
        fill(log, 12)
        log.flush()
        promise.flushed[partition] = len(values(log))

    change([A0, A2], ONE, lambda: opened.hold_many(wanted([A0, A2], ONE)))
    add(A0)
    opened.checkpoint()
    change([B1], TWO, lambda: opened.hold_many(wanted([B1], TWO)))
    add(B1)
    opened.set_config("a", {**CONFIG, "segment.ms": "5"})
    change([A0, A2], THREE, lambda: opened.hold_many(wanted([A0, A2], THREE)))
    add(A0)
    opened.checkpoint()
    change([B1], None, lambda: opened.let_go(B1))
    change([A0], None, lambda: opened.let_go(A0))
    change([A0, B1], THREE, lambda: opened.hold_many(wanted([A0, B1], THREE)))
    add(B1)
    clock.advance(2_000)
    opened.housekeeping()
    opened.close()


def test_a_crash_at_every_change_leaves_a_partition_with_its_id_or_none() -> None:
    disk = MemoryFs(clock=ManualClock())
    promise = Promise()

    def crash(call: Call) -> None:
        case()
        left = disk.after_crash(random.Random(call.number))
        opened = LogDir.open(DIR, ground=Ground(fs=left, clock=ManualClock(), rng=random.Random(1)), config=DIRECTORY)
        promise.check(opened)
        for log in opened.hold_many([ReplicaSpec("a", THREE, number, CONFIG) for number in range(3)]):
            assert isinstance(log, Log)
            fill(log, 1)
        opened.close()
        with LogDir.open(DIR, ground=Ground(fs=left, clock=ManualClock()), config=DIRECTORY) as again:
            assert again.was_clean
            assert all(values(again.log("a", number)) for number in range(3))

    fs = CrashFs(disk, before_change=crash)
    _live(promise, fs)
    assert fs.changes > 100


def test_a_process_that_dies_at_any_change_leaves_a_partition_with_its_id_or_none() -> None:
    whole = CrashFs(MemoryFs(clock=ManualClock()))
    _live(Promise(), whole)
    for crash_at in range(1, whole.changes + 1, 3):
        case()
        disk = MemoryFs(clock=ManualClock())
        promise = Promise()
        with pytest.raises(SimulatedCrash):
            _live(promise, CrashFs(disk, crash_at=crash_at, torn=0.5))
        disk.kill()
        with LogDir.open(DIR, ground=Ground(fs=disk, clock=ManualClock()), config=DIRECTORY) as opened:
            promise.check(opened)


def test_a_thousand_partitions_take_few_fsyncs() -> None:
    fs = MemoryFs(clock=ManualClock())
    with LogDir.open(DIR, ground=Ground(fs=fs, clock=ManualClock()), config=DIRECTORY) as opened:
        before = fs.calls["fsync"] + fs.calls["fsync_dir"]
        logs(opened.hold_many([ReplicaSpec("a", ONE, number, CONFIG) for number in range(1_000)]))
        assert fs.calls["fsync"] + fs.calls["fsync_dir"] - before == 3
