"""`LogDir`: opening, topics, checkpoints, retention, closing."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from seglog.core.errors import (
    CorruptCheckpointError,
    DamagedPartitionError,
    InvalidConfigError,
    InvalidLogDirError,
    InvalidTopicError,
    LogClosedError,
    LogDirInUseError,
    TopicExistsError,
    UnknownTopicError,
)
from seglog.core.fs import OsFs
from seglog.core.types import TopicPartition
from seglog.records.record import NewRecord, encode_batch
from seglog.storage.checkpoint import read_offsets, read_partition_metadata
from seglog.storage.dir_loading import LoadProgress
from seglog.storage.log import Log
from seglog.storage.log_dir import LogDir
from seglog.storage.retention import Reason
from seglog.testing import ManualClock, MemoryFs
from tests.storage.disk import fill, overwrite, prefix, values

DIR = "/logs"
TINY: Mapping[str, object] = {
    "internal.segment.bytes": 2000,
    "segment.index.bytes": 1200,
    "index.interval.bytes": 200,
    "retention.ms": -1,
}


class Disk:
    """A disk in memory with a clock, and a log directory on it that can be opened again and again."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.fs = MemoryFs(clock=self.clock)
        self.seed = 0

    def open(self, config: Mapping[str, object] | None = None, *, background: bool = False) -> LogDir:
        self.seed += 1
        return LogDir.open(
            DIR, fs=self.fs, clock=self.clock, config=config, rng=random.Random(self.seed), background=background
        )

    def names(self, path: str = DIR) -> list[str]:
        return self.fs.listdir(path)


@pytest.fixture
def disk() -> Disk:
    return Disk()


# Opening


def test_a_new_directory_is_made_with_its_own_identity(disk: Disk) -> None:
    with LogDir.open("/a/b/logs", fs=disk.fs, clock=disk.clock, cluster_id="lkc-1", node_id=7) as opened:
        assert (opened.meta.version, opened.meta.cluster_id, opened.meta.node_id) == (1, "lkc-1", 7)
    assert disk.names("/a/b/logs") == [".kafka_cleanshutdown", ".lock", "meta.properties"]
    again = LogDir.open("/a/b/logs", fs=disk.fs, clock=disk.clock)
    assert again.meta == opened.meta
    assert not disk.fs.exists("/a/b/logs/.kafka_cleanshutdown")
    again.close()
    with pytest.raises(InvalidLogDirError, match=r"belongs to cluster\.id lkc-1, not lkc-2"):
        LogDir.open("/a/b/logs", fs=disk.fs, clock=disk.clock, cluster_id="lkc-2")
    with pytest.raises(InvalidLogDirError, match=r"belongs to node\.id 7, not 8"):
        LogDir.open("/a/b/logs", fs=disk.fs, clock=disk.clock, node_id=8)
    assert disk.fs.exists("/a/b/logs/.kafka_cleanshutdown"), "a refusal leaves the marker"


def test_a_directory_that_is_not_there_is_made_only_when_asked(disk: Disk) -> None:
    with pytest.raises(InvalidLogDirError, match="does not exist"):
        LogDir.open(DIR, fs=disk.fs, create=False)
    disk.fs.write("/file", b"")
    with pytest.raises(InvalidLogDirError, match="not a directory"):
        LogDir.open("/file", fs=disk.fs)


def test_a_directory_that_everyone_may_write_is_refused(disk: Disk) -> None:
    disk.fs.mkdir(DIR)
    disk.fs.chmod(DIR, 0o777)
    with pytest.raises(InvalidLogDirError, match=r"may be written by everyone \(mode 0777\)"):
        disk.open()


@pytest.mark.parametrize("name", ["_staging", ".seglog", "lost+found", "web-logs", "web-0.deleted-delete"])
def test_an_unknown_directory_is_refused_by_name(disk: Disk, name: str) -> None:
    disk.open().close()
    disk.fs.mkdir(f"{DIR}/{name}")
    with pytest.raises(InvalidLogDirError, match=f"{DIR}/{name}".replace("+", r"\+")):
        disk.open()
    disk.fs.rmdir(f"{DIR}/{name}")
    disk.open().close()


def test_what_is_no_partition_is_left_alone(disk: Disk) -> None:
    disk.open().close()
    aside = ["web-0." + "0" * 32 + "-future", "web-1." + "0" * 32 + "-stray", "__cluster_metadata-0"]
    for name in [*aside, "remote-log-index-cache"]:
        disk.fs.mkdir(f"{DIR}/{name}")
        disk.fs.write(f"{DIR}/{name}/x", b"")
    for name in ("seglog.watermarks", "bootstrap.checkpoint", "notes.txt"):
        disk.fs.write(f"{DIR}/{name}", b"whatever")
    before = disk.names()
    with disk.open() as opened:
        assert opened.partitions() == []
        disk.clock.advance(10**9)
        opened.housekeeping()
    assert disk.names() == before


def test_symbolic_links_are_followed_to_the_directory_and_not_inside_of_it(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o755)
    (tmp_path / "link").symlink_to("real")
    with LogDir.open(str(tmp_path / "link")) as opened:
        assert opened.path == str(tmp_path / "real")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "real" / "web-0").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidLogDirError, match="web-0 is a symbolic link"):
        LogDir.open(str(tmp_path / "link"))


def test_a_directory_is_open_once(tmp_path: Path) -> None:
    with LogDir.open(str(tmp_path)), pytest.raises(LogDirInUseError, match=r"\.lock is locked"):
        LogDir.open(str(tmp_path))
    LogDir.open(str(tmp_path)).close()


def test_a_failed_opening_gives_the_lock_back(disk: Disk) -> None:
    disk.open().close()
    disk.fs.mkdir(f"{DIR}/unknown")
    for _ in range(2):
        with pytest.raises(InvalidLogDirError):
            disk.open()


def test_directories_of_kafka_are_opened_and_nothing_in_them_expires(disk: Disk) -> None:
    with disk.open() as opened:
        opened.create_topic("web", 2, TINY)
        fill(opened.log("web", 0), 60)
    disk.fs.unlink(f"{DIR}/seglog.topics")
    disk.fs.unlink(f"{DIR}/web-1/partition.metadata")
    disk.fs.write(f"{DIR}/meta.properties", b"#\nbroker.id=3\nversion=0\n")
    disk.clock.advance(100 * 86_400_000)
    with disk.open({"log.retention.hours": 1}) as opened:
        assert opened.meta.node_id == 3
        info = opened.topics()["web"]
        assert (info.partitions, info.config) == (2, {"retention.ms": "-1", "retention.bytes": "-1"})
        assert info.topic_id is not None
        assert opened.run_retention() == {}
        assert values(opened.log("web", 0)) == prefix(60)
        altered = opened.alter_config("web", {"segment.ms": 1000})
        assert altered.config == {"retention.ms": "-1", "retention.bytes": "-1", "segment.ms": "1000"}
        opened.alter_config("web", {"retention.ms": None})
        assert len(opened.run_retention()[TopicPartition("web", 0)]) > 3
    assert disk.fs.read(f"{DIR}/meta.properties") == b"#\nbroker.id=3\nversion=0\n"
    assert not disk.fs.exists(f"{DIR}/web-1/partition.metadata")


# Topics


def test_topics_are_created_listed_configured_and_come_back(disk: Disk) -> None:
    with disk.open({"log.segment.bytes": 2_000_000}) as opened:
        made = opened.create_topic("web.clicks", 3, {"retention.ms": "86400000", "cleanup.policy": "compact,delete"})
        assert (made.name, made.partitions) == ("web.clicks", 3)
        assert made.config == {"retention.ms": "86400000", "cleanup.policy": "compact,delete"}
        assert made.topic_id is not None
        assert opened.partitions() == [TopicPartition("web.clicks", number) for number in range(3)]
        for number in range(3):
            assert read_partition_metadata(disk.fs, f"{DIR}/web.clicks-{number}") == made.topic_id
        config = opened.log("web.clicks", 1).config
        assert (config.retention_ms, config.segment_bytes, config.compact) == (86_400_000, 2_000_000, True)
        opened.alter_config("web.clicks", {"retention.ms": None, "segment.ms": 5_000})
        assert opened.log("web.clicks", 2).config.segment_ms == 5_000
        assert opened.log("web.clicks", 2).config.retention_ms == 7 * 86_400_000
    with disk.open() as opened:
        again = opened.topics()
        assert again == {"web.clicks": made._replace(config={"segment.ms": "5000", "cleanup.policy": "compact,delete"})}
        assert opened.log("web.clicks").config.segment_ms == 5_000
    assert disk.names().count("seglog.topics") == 1


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ä", "x" * 250, "web\n", "../web"])
def test_bad_names_are_refused(disk: Disk, name: str) -> None:
    with disk.open() as opened, pytest.raises(InvalidTopicError):
        opened.create_topic(name)
    assert disk.fs.listdir("/") == ["logs"]


def test_names_that_collide_and_bad_configurations_are_refused(disk: Disk) -> None:
    with disk.open() as opened:
        opened.create_topic("web.clicks_1")
        with pytest.raises(TopicExistsError):
            opened.create_topic("web.clicks_1")
        with pytest.raises(InvalidTopicError, match="nothing but"):
            opened.create_topic("web_clicks.1")
        for partitions in (0, -1, 100_001):
            with pytest.raises(ValueError, match="1 to 100000 partitions"):
                opened.create_topic("t", partitions)
        with pytest.raises(InvalidConfigError, match=r"retention\.sm"):
            opened.create_topic("t", config={"retention.sm": 1})
        with pytest.raises(InvalidConfigError, match=r"segment\.bytes=5"):
            opened.alter_config("web.clicks_1", {"segment.bytes": 5})
        with pytest.raises(InvalidConfigError, match=r"retention\.sm"):
            opened.alter_config("web.clicks_1", {"retention.sm": None})
        assert list(opened.topics()) == ["web.clicks_1"]
        for act in (opened.delete_topic, opened.log, lambda name: opened.alter_config(name, {})):
            with pytest.raises(UnknownTopicError, match="no"):
                act("none")
        with pytest.raises(UnknownTopicError, match=r"web\.clicks_1-1"):
            opened.log("web.clicks_1", 1)


def test_the_longest_name_can_be_deleted(disk: Disk) -> None:
    longest = "x" * 249
    with disk.open() as opened:
        opened.create_topic(longest)
        opened.delete_topic(longest)
        aside = [name for name in disk.names() if name.endswith("-delete")]
        assert len(aside) == 1
        assert len(aside[0]) == 255
    disk.open().close()


def test_a_deleted_topic_goes_after_a_delay_and_can_be_created_anew(disk: Disk) -> None:
    with disk.open() as opened:
        first = opened.create_topic("web", 2, TINY)
        opened.create_topic("other")
        log = opened.log("web")
        fill(log, 50)
        opened.flush()
        fetched = log.read(0)
        opened.delete_topic("web")
        with pytest.raises(UnknownTopicError):
            opened.log("web")
        with pytest.raises(LogClosedError):
            fill(log, 1)
        assert len(fetched.read()) > 0, "who reads may finish"
        second = opened.create_topic("web", 2)
        assert second.topic_id != first.topic_id
        assert opened.log("web").log_end_offset == 0
        assert TopicPartition("web", 0) not in read_offsets(disk.fs, f"{DIR}/recovery-point-offset-checkpoint")
        assert len([name for name in disk.names() if name.endswith("-delete")]) == 2
        disk.clock.advance(60_001)
        opened.housekeeping()
        assert not [name for name in disk.names() if name.endswith("-delete")]
        assert sorted(opened.topics()) == ["other", "web"]


def test_what_waits_to_be_removed_is_removed_after_a_restart(disk: Disk) -> None:
    with disk.open() as opened:
        opened.create_topic("web", 1, TINY)
        fill(opened.log("web"), 50)
        opened.delete_topic("web")
    with disk.open() as opened:
        assert opened.topics() == {}
        opened.housekeeping()
        assert [name for name in disk.names() if name.endswith("-delete")]
        disk.clock.advance(60_001)
        opened.housekeeping()
        assert not [name for name in disk.names() if name.endswith("-delete")]


def test_a_creation_and_a_deletion_that_were_cut_short_are_completed(disk: Disk) -> None:
    with disk.open() as opened:
        made = opened.create_topic("web", 3)
    path = f"{DIR}/seglog.topics"
    content = json.loads(disk.fs.read(path))
    disk.fs.write(
        path, json.dumps(content | {"topics": content["topics"] | {"new": content["topics"]["web"]}}).encode()
    )
    for name in ("web-1", "web-2"):
        for file in disk.fs.listdir(f"{DIR}/{name}"):
            disk.fs.unlink(f"{DIR}/{name}/{file}")
    disk.fs.rmdir(f"{DIR}/web-2")
    with disk.open() as opened:
        assert {name: info.partitions for name, info in opened.topics().items()} == {"web": 3, "new": 3}
        for number in range(3):
            assert read_partition_metadata(disk.fs, f"{DIR}/web-{number}") == made.topic_id
        fill(opened.log("web", 0), 5)
    content["topics"]["web"]["deleted"] = True
    disk.fs.write(path, json.dumps(content).encode())
    with disk.open() as opened:
        assert {name: info.partitions for name, info in opened.topics().items()} == {"new": 3}
        assert "web" not in json.loads(disk.fs.read(path))["topics"]
        assert len([name for name in disk.names() if name.endswith("-delete")]) == 3


def test_a_partition_whose_directory_is_gone_is_not_made_anew(disk: Disk) -> None:
    with disk.open() as opened:
        opened.create_topic("web", 2, TINY)
        fill(opened.log("web", 1), 5)
    for file in disk.fs.listdir(f"{DIR}/web-1"):
        disk.fs.unlink(f"{DIR}/web-1/{file}")
    disk.fs.rmdir(f"{DIR}/web-1")
    for _ in range(2):
        with disk.open() as opened:
            with pytest.raises(DamagedPartitionError, match="web-1 is missing"):
                opened.log("web", 1)
            assert opened.log("web", 0).log_end_offset == 0
            assert opened.topics()["web"].partitions == 2
    with disk.open() as opened:
        opened.delete_topic("web")
        opened.create_topic("web", 2)
        assert not opened.refused


def test_files_of_another_topic_of_that_name_are_refused(disk: Disk) -> None:
    with disk.open() as opened:
        opened.create_topic("web", 2)
        opened.create_topic("other")
    disk.fs.write(f"{DIR}/web-1/partition.metadata", disk.fs.read(f"{DIR}/other-0/partition.metadata"))
    with disk.open() as opened:
        with pytest.raises(InvalidLogDirError, match=r"web-1/partition\.metadata: topic id"):
            opened.log("web", 1)
        assert opened.partitions() == [TopicPartition("other", 0), TopicPartition("web", 0)]


# Damage and recovery


def test_one_damaged_partition_does_not_stop_the_others_and_stays_refused(disk: Disk) -> None:
    with disk.open() as opened:
        opened.create_topic("web", 3, TINY)
        for number in range(3):
            fill(opened.log("web", number), 40)
    overwrite(disk.fs, f"{DIR}/web-1/{0:020d}.log", 70, b"XYZ")
    disk.fs.unlink(f"{DIR}/web-1/{0:020d}.index")
    for _ in range(3):
        with disk.open() as opened:
            assert list(opened.refused) == [TopicPartition("web", 1)]
            with pytest.raises(DamagedPartitionError, match=r"web-1/0{20}\.log, position 0, offset 0: stored CRC"):
                opened.log("web", 1)
            assert values(opened.log("web", 2)) == prefix(40)
            opened.checkpoint()
        assert not disk.fs.exists(f"{DIR}/.kafka_cleanshutdown"), "or the next start would not look"
        points = read_offsets(disk.fs, f"{DIR}/recovery-point-offset-checkpoint")
        assert points[TopicPartition("web", 1)] == 40
    with disk.open() as opened:
        opened.delete_topic("web")
    assert disk.fs.exists(f"{DIR}/.kafka_cleanshutdown")


def test_recovery_runs_in_threads_and_tells_how_far_it_is(disk: Disk) -> None:
    opened = disk.open()
    opened.create_topic("web", 5, TINY)
    for number in range(5):
        fill(opened.log("web", number), 40)
    disk.fs.crash(random.Random(0))
    seen: list[LoadProgress] = []
    threads = set()

    def tell(progress: LoadProgress) -> None:
        threads.add(threading.current_thread().name)
        seen.append(progress)

    config = {"num.recovery.threads.per.data.dir": 3}
    with LogDir.open(DIR, fs=disk.fs, clock=disk.clock, config=config, progress=tell) as again:
        assert len(again.partitions()) == 5
        assert not any(report.clean for report in again.reports.values())
    assert seen[-1].partitions_done == seen[-1].partitions_total == 5
    assert [progress.partitions_done for progress in seen] == sorted(progress.partitions_done for progress in seen)
    assert seen[-1].bytes_done == seen[-1].bytes_total
    assert all(name.startswith("seglog-load") for name in threads)


def test_without_a_readable_recovery_point_everything_is_checked(disk: Disk) -> None:
    with disk.open() as opened:
        opened.create_topic("web", 1, TINY)
        fill(opened.log("web"), 40)
    disk.fs.unlink(f"{DIR}/.kafka_cleanshutdown")
    disk.fs.write(f"{DIR}/recovery-point-offset-checkpoint", b"garbage")
    with disk.open() as opened:
        assert "recovery-point-offset-checkpoint" in str(opened.checkpoints.unreadable[0])
        report = opened.reports[TopicPartition("web", 0)]
        assert report.scanned[0] == 0
        assert values(opened.log("web")) == prefix(40)
    points = read_offsets(disk.fs, f"{DIR}/recovery-point-offset-checkpoint")
    assert points == {TopicPartition("web", 0): 40}


# Checkpoints and other regular work


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
    assert not any(name.endswith(".deleted") for name in disk.names(f"{DIR}/web-0"))
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
            if log.size <= 8_000 and log.recovery_point == 300 and not list((tmp_path / "logs").rglob("*.deleted")):
                done.set()
            else:
                opened.worker.schedule(5, look)

        look()
        assert done.wait(20)
    assert (tmp_path / "logs" / ".kafka_cleanshutdown").exists()
    with LogDir.open(str(tmp_path / "logs")) as opened:
        assert values(opened.log("web")) == prefix(300, start=opened.log("web").log_start_offset)


# Closing


def test_a_closed_directory_is_trimmed_marked_and_of_no_more_use(disk: Disk) -> None:
    opened = disk.open()
    opened.create_topic("web", 1, TINY)
    log = opened.log("web")
    fill(log, 40)
    opened.close()
    opened.close()
    for act in (opened.housekeeping, opened.flush, opened.checkpoint, lambda: opened.log("web"), opened.run_retention):
        with pytest.raises(LogClosedError):
            act()
    with pytest.raises(LogClosedError):
        opened.create_topic("x")
    with pytest.raises(LogClosedError):
        fill(log, 1)
    assert disk.fs.read(f"{DIR}/.kafka_cleanshutdown") == b'{"version":0,"brokerEpoch":-1}'
    disk.fs.crash(random.Random(1))
    with disk.open() as again:
        assert again.reports[TopicPartition("web", 0)].scanned == ()
        assert values(again.log("web")) == prefix(40)


def test_truncation_is_no_damage_to_the_next_start(disk: Disk) -> None:
    for offset in (0, 7, 23, 40):
        for seed in range(20):
            disk = Disk()
            opened = disk.open()
            opened.create_topic("web", 1, TINY)
            fill(opened.log("web"), 40)
            opened.flush()
            opened.truncate_to("web", 0, offset)
            disk.fs.crash(random.Random(seed))
            again = disk.open()
            assert not again.refused
            assert values(again.log("web")) == prefix(again.log("web").log_end_offset)
            again.truncate_fully_and_start_at("web", 0, 100)
            disk.fs.crash(random.Random(seed))
            with disk.open() as again:
                assert not again.refused


# Garbage


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b'{"version": 2, "topics": {}}',
        b'{"version": 1}',
        b'{"version": 1, "topics": {"a/b": {}}}',
        b'{"version": 1, "topics": {"web": 5}}',
        b'{"version": 1, "topics": {"web": {"id": null, "partitions": 1, "config": {}}}}',
        b'{"version": 1, "topics": {"web": {"id": "x", "partitions": 1, "config": {}, "deleted": false}}}',
        b'{"version": 1, "topics": {"web": {"id": null, "partitions": -1, "config": {}, "deleted": false}}}',
        b'{"version": 1, "topics": {"web": {"id": null, "partitions": 1, "config": {"a": "b"}, "deleted": false}}}',
        b'{"version": 1, "topics": {"web": {"id": null, "partitions": 1, "config": {"a": 1}, "deleted": false}}}',
        b'{"version": 1, "topics": {"web": {"id": null, "partitions": 1, "config": {}, "deleted": 0}}}',
        b'{"version": 1, "topics": {"web": {"id": 5, "partitions": 1, "config": {}, "deleted": false}}}',
        b"[" * 100_000,
    ],
)
def test_garbage_in_the_topics_is_named_and_the_directory_left_as_it_is(disk: Disk, content: bytes) -> None:
    with disk.open() as opened:
        opened.create_topic("web", 1, TINY)
    disk.fs.write(f"{DIR}/seglog.topics", content)
    before = disk.fs.files()
    with pytest.raises(CorruptCheckpointError, match=f"{DIR}/seglog.topics"):
        disk.open()
    assert disk.fs.files() == before


def test_works_on_the_real_file_system(tmp_path: Path) -> None:
    path = str(tmp_path / "deep" / "logs")
    with LogDir.open(path, fs=OsFs()) as opened:
        opened.create_topic("web", 2, TINY)
        fill(opened.log("web", 1), 50)
    with LogDir.open(path) as opened:
        assert values(opened.log("web", 1)) == prefix(50)
        opened.delete_topic("web")
    with LogDir.open(path) as opened:
        assert opened.topics() == {}
