"""The background work of a `LogDir`: checkpoints, retention, flushes, compaction, forgetting."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from seglog.core.config import LogConfig
from seglog.core.fs import File, OsFs
from seglog.core.ground import Ground
from seglog.core.types import TopicPartition
from seglog.records.record import NewRecord, encode_batch
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.formats.checkpoints import read_offsets
from seglog.storage.log.log import Log
from seglog.storage.log.retention import Reason
from tests.storage.directories import DIR, TINY, Disk
from tests.storage.disk import fill, prefix, values

# Checkpoints and other regular work


@pytest.mark.parametrize("seed", range(5))
def test_deleted_records_stay_deleted_through_a_power_cut(disk: Disk, seed: int) -> None:
    opened = disk.open()
    opened.create_topic("web", 1, TINY)
    log = opened.log("web")
    for epoch in range(8):
        log.append_records([NewRecord(b"%d" % number) for number in range(3)], leader_epoch=epoch)
    log.flush()
    assert opened.delete_records("web", 0, 10) == 10
    assert read_offsets(disk.fs, f"{DIR}/log-start-offset-checkpoint") == {TopicPartition("web", 0): 10}
    disk.fs.crash(Random(seed))
    log = disk.open().log("web")
    assert (log.log_start_offset, log.log_end_offset) == (10, 24)
    assert log.epochs.entries[0] == (3, 10)


def test_checkpoints_are_written_at_kafkas_intervals(disk: Disk) -> None:
    opened = disk.open()
    opened.create_topic("web", 1, TINY)
    log = opened.log("web")
    fill(log, 40)
    log.flush()
    log.delete_records(15)
    high_watermarks, points, starts = (
        f"{DIR}/replication-offset-checkpoint",
        f"{DIR}/recovery-point-offset-checkpoint",
        f"{DIR}/log-start-offset-checkpoint",
    )
    web = TopicPartition("web", 0)
    disk.clock.advance(4_999)
    opened.housekeeping()
    assert not disk.fs.exists(high_watermarks)
    disk.clock.advance(1)
    opened.housekeeping()
    assert read_offsets(disk.fs, high_watermarks) == {web: 40}
    assert not disk.fs.exists(points)
    disk.clock.advance(25_000)
    opened.housekeeping()
    assert read_offsets(disk.fs, points) == {web: 40}
    assert read_offsets(disk.fs, starts) == {web: 15}
    fill(log, 3)
    log.flush()
    disk.clock.advance(59_000)
    opened.housekeeping()
    assert read_offsets(disk.fs, points) == {web: 40}
    disk.clock.advance(1_000)
    opened.housekeeping()
    assert read_offsets(disk.fs, points) == {web: 43}
    calls = disk.fs.calls["write"]
    disk.clock.advance(10**7)
    opened.housekeeping()
    assert disk.fs.calls["write"] == calls, "nothing changed, nothing is written"
    opened.close()


def test_the_high_watermark_of_a_log_without_followers_is_what_is_flushed(disk: Disk) -> None:
    opened = disk.open()
    opened.create_topic("web")
    fill(opened.log("web"), 5)
    opened.log("web").flush()
    fill(opened.log("web"), 5)
    opened.checkpoint()
    assert read_offsets(disk.fs, f"{DIR}/replication-offset-checkpoint") == {TopicPartition("web", 0): 5}
    opened.close()


def test_expired_segments_go_with_the_retention_check(disk: Disk) -> None:
    opened = disk.open({"log.retention.check.interval.ms": 10_000})
    opened.create_topic("web", 1, {**TINY, "retention.bytes": 5_000, "file.delete.delay.ms": 1_000})
    log = opened.log("web")
    fill(log, 100)
    size = log.size
    disk.clock.advance(30_000)
    opened.housekeeping()
    assert log.size < size
    assert log.size >= 5_000
    assert any(name.endswith(".log.deleted") for name in disk.names(f"{DIR}/web-0"))
    disk.clock.advance(1_000)
    opened.housekeeping()
    assert not any(name.endswith(".log.deleted") for name in disk.names(f"{DIR}/web-0"))
    assert values(log) == prefix(100, start=log.log_start_offset)
    opened.close()


def test_retention_can_be_run_at_once_and_says_why(disk: Disk) -> None:
    with disk.open() as opened:
        opened.create_topic("web", 1, {**TINY, "retention.ms": 1_000})
        fill(opened.log("web"), 40)
        gone = opened.run_retention()[TopicPartition("web", 0)]
        assert {segment.reason for segment in gone} == {Reason.TIME}
        assert opened.log("web").log_start_offset == 40


def test_flush_ms_is_kept(disk: Disk) -> None:
    opened = disk.open()
    opened.create_topic("web", 1, TINY)
    log = opened.log("web")
    fill(log, 3)
    disk.clock.advance(10**6)
    opened.housekeeping()
    assert log.recovery_point == 0
    opened.alter_config("web", {"flush.ms": 500})
    for expected in (3, 6):
        disk.clock.advance(501)
        opened.housekeeping()
        assert log.recovery_point == expected
        fill(log, 3)
    opened.close()


def keyed(log: Log, count: int, keys: int) -> None:
    for at in range(count):
        key = b"k%d" % (at % keys)
        log.append_records([NewRecord(b"%d" % log.log_end_offset, key=key, timestamp=1_000 + log.log_end_offset)])


def latest(log: Log) -> dict[bytes | None, bytes | None]:
    found: dict[bytes | None, bytes | None] = {}
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        fetched = log.read(offset)
        found |= {record.key: record.value for record in fetched.records()}
        offset = max([fetched.next_offset, *(header.next_offset for header, _ in fetched.batches())])
    return found


COMPACTED = {**TINY, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01}


def test_compacted_topics_are_cleaned_and_know_how_far_after_a_restart(disk: Disk) -> None:
    web = TopicPartition("web", 0)
    with disk.open() as opened:
        opened.create_topic("web", 1, COMPACTED)
        opened.create_topic("plain", 1, TINY)
        log = opened.log("web")
        keyed(log, 300, 7)
        keyed(opened.log("plain"), 100, 7)
        expected, size, plain = latest(log), log.size, opened.log("plain").size
        (stats,) = opened.run_compaction()
        assert stats.topic_partition == web
        assert log.size < size / 5
        assert opened.log("plain").size == plain
        assert latest(log) == expected
        assert opened.run_compaction() == []
    cleaned = read_offsets(disk.fs, f"{DIR}/cleaner-offset-checkpoint")
    assert cleaned == {web: stats.end_offset}
    with disk.open() as opened:
        assert latest(opened.log("web")) == expected
        assert opened.run_compaction() == []
        opened.truncate_to("web", 0, stats.end_offset - 1)
        assert read_offsets(disk.fs, f"{DIR}/cleaner-offset-checkpoint")[web] < stats.end_offset
        opened.delete_topic("web")
        assert read_offsets(disk.fs, f"{DIR}/cleaner-offset-checkpoint") == {}


def test_offsets_of_a_kafka_s_groups_are_compacted_and_all_else_of_its_making_is_kept(disk: Disk) -> None:
    names = ("__consumer_offsets", "web")
    with disk.open() as opened:
        for name in names:
            opened.create_topic(name, 1, TINY)
            keyed(opened.log(name), 300, 7)
    disk.fs.unlink(f"{DIR}/seglog.topics")  # as a Kafka would have left it
    with disk.open() as opened:
        before = {name: opened.log(name).size for name in names}
        expected = latest(opened.log(names[0]))
        assert [stats.topic_partition.topic for stats in opened.run_compaction()] == ["__consumer_offsets"]
        assert opened.log(names[0]).size < before[names[0]] / 5
        assert latest(opened.log(names[0])) == expected
        assert opened.log("web").size == before["web"]
        assert opened.topics()[names[0]].config["cleanup.policy"] == "compact"
        opened.reconfigure(replace(opened.config, topics=LogConfig(retention_ms=1)))
        assert (opened.log(names[0]).config.compact, opened.log("web").config.retention_ms) == (True, -1)


def test_housekeeping_cleans_too_unless_it_is_switched_off(disk: Disk) -> None:
    for enable in (False, True):
        opened = disk.open({"log.cleaner.enable": enable})
        if not enable:
            opened.create_topic("web", 1, COMPACTED)
            keyed(opened.log("web"), 300, 7)
        size = opened.log("web").size
        disk.clock.advance(30_000)
        opened.housekeeping()
        assert (opened.log("web").size < size) == enable
        opened.close()


def test_idle_producers_are_forgotten(disk: Disk) -> None:
    opened = disk.open()
    opened.create_topic("web", 1, TINY)
    log = opened.log("web")
    record = NewRecord(b"x", timestamp=disk.clock.now_ms())
    log.append(encode_batch([record], producer_id=1, producer_epoch=0, base_sequence=0))
    disk.clock.advance(86_400_000 - 1)
    opened.housekeeping()
    assert set(log.producers.entries) == {1}
    disk.clock.advance(600_001)
    opened.housekeeping()
    assert set(log.producers.entries) == set()
    opened.close()


def test_a_thread_does_it_all(tmp_path: Path) -> None:
    config = {"log.initial.task.delay.ms": 0, "log.retention.check.interval.ms": 1, "log.segment.delete.delay.ms": 0}
    with LogDir.open(str(tmp_path / "logs"), config=config, background=True) as opened:
        opened.create_topic("web", 1, {**TINY, "retention.bytes": 4_000, "flush.ms": 1})
        log = opened.log("web")
        fill(log, 300)
        done = threading.Event()

        def look() -> None:
            if log.size <= 8_000 and log.recovery_point == 300 and not list((tmp_path / "logs").rglob("*.log.deleted")):
                done.set()
            else:
                opened.worker.schedule(5, look)

        look()
        assert done.wait(300)  # every segment is fsynced
    assert (tmp_path / "logs" / ".kafka_cleanshutdown").exists()
    with LogDir.open(str(tmp_path / "logs")) as opened:
        assert values(opened.log("web")) == prefix(300, start=opened.log("web").log_start_offset)


# The cleaner's configuration


def test_the_cleaner_begins_anew_when_it_is_configured_otherwise(disk: Disk) -> None:
    opened = disk.open({"log.cleaner.backoff.ms": 10**9})
    opened.create_topic("web", 1, COMPACTED)
    log = opened.log("web")

    def is_cleaned_after(milliseconds: int) -> bool:
        keyed(log, 300, 7)
        size = log.size
        disk.clock.advance(milliseconds)
        opened.housekeeping()
        return log.size < size

    assert is_cleaned_after(30_000)
    assert not is_cleaned_after(10**8)
    config = replace(opened.config, log_cleaner_backoff_ms=1_000)
    opened.reconfigure(config)
    assert is_cleaned_after(0)
    assert not is_cleaned_after(999)
    assert is_cleaned_after(1)
    opened.reconfigure(replace(config, topics=LogConfig(retention_ms=1_000_000)))  # not the cleaner's
    assert not is_cleaned_after(0)
    opened.reconfigure(replace(config, log_cleaner_enable=False))
    opened.close()


class _Watched(OsFs):
    """Tells when a log is read to be cleaned."""

    __slots__ = ("begun",)

    def __init__(self) -> None:
        self.begun = threading.Event()

    def open(self, path: str, *, create: bool = False, write: bool = True) -> File:
        if path.endswith(".log") and not write:
            self.begun.set()
        return super().open(path, create=create, write=write)


@pytest.mark.parametrize("end", ["reconfigure", "close"])
def test_a_slow_round_is_given_up(tmp_path: Path, end: str) -> None:
    fs = _Watched()
    slow = {"log.cleaner.io.max.bytes.per.second": 1, "log.cleaner.enable": False}
    opened = LogDir.open(tmp_path / "logs", ground=Ground(fs=fs), config=slow)
    opened.create_topic("web", 1, COMPACTED)
    log = opened.log("web")
    keyed(log, 300, 7)
    size = log.size
    fs.begun.clear()
    rounds: list[int] = []
    cleaner = threading.Thread(target=lambda: rounds.extend(one.aborted for one in opened.run_compaction()))
    cleaner.start()
    assert fs.begun.wait(60)
    if end == "reconfigure":
        opened.reconfigure(replace(opened.config, log_cleaner_io_max_bytes_per_second=1e9))
    else:
        opened.close()
    cleaner.join(60)
    assert not cleaner.is_alive()
    assert rounds == ([True, False] if end == "reconfigure" else [True])
    assert (log.size < size) == (end == "reconfigure")
    opened.close()
