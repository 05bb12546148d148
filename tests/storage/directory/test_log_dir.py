"""`LogDir`: opening, damage, closing, and what it finds in a directory that is none."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from seglog.core.errors import (
    CorruptCheckpointError,
    DamagedPartitionError,
    InvalidLogDirError,
    LogClosedError,
    LogDirInUseError,
)
from seglog.core.fs import OsFs
from seglog.core.ground import Ground
from seglog.core.types import TopicPartition
from seglog.storage.directory.loading import LoadProgress
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.formats.checkpoints import read_offsets
from tests.storage.directories import DIR, TINY, Disk
from tests.storage.disk import fill, overwrite, prefix, values

# Opening


def test_a_new_directory_is_made_with_its_own_identity(disk: Disk) -> None:
    with LogDir.open("/a/b/logs", ground=Ground(fs=disk.fs, clock=disk.clock), cluster_id="lkc-1", node_id=7) as opened:
        assert (opened.meta.version, opened.meta.cluster_id, opened.meta.node_id) == (1, "lkc-1", 7)
    assert disk.names("/a/b/logs") == [".kafka_cleanshutdown", ".lock", "meta.properties"]
    again = LogDir.open("/a/b/logs", ground=Ground(fs=disk.fs, clock=disk.clock))
    assert again.meta == opened.meta
    assert not disk.fs.exists("/a/b/logs/.kafka_cleanshutdown")
    again.close()
    with pytest.raises(InvalidLogDirError, match=r"belongs to cluster\.id lkc-1, not lkc-2"):
        LogDir.open("/a/b/logs", ground=Ground(fs=disk.fs, clock=disk.clock), cluster_id="lkc-2")
    with pytest.raises(InvalidLogDirError, match=r"belongs to node\.id 7, not 8"):
        LogDir.open("/a/b/logs", ground=Ground(fs=disk.fs, clock=disk.clock), node_id=8)
    assert disk.fs.exists("/a/b/logs/.kafka_cleanshutdown"), "a refusal leaves the marker"


def test_a_directory_that_is_not_there_is_made_only_when_asked(disk: Disk) -> None:
    with pytest.raises(InvalidLogDirError, match="does not exist"):
        LogDir.open(DIR, ground=Ground(fs=disk.fs), create=False)
    disk.fs.write("/file", b"")
    with pytest.raises(InvalidLogDirError, match="not a directory"):
        LogDir.open("/file", ground=Ground(fs=disk.fs))


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


def test_files_that_are_not_partitions_are_left_alone(disk: Disk) -> None:
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
    with LogDir.open(DIR, ground=Ground(fs=disk.fs, clock=disk.clock), config=config, progress=tell) as again:
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
    with LogDir.open(path, ground=Ground(fs=OsFs())) as opened:
        opened.create_topic("web", 2, TINY)
        fill(opened.log("web", 1), 50)
    with LogDir.open(path) as opened:
        assert values(opened.log("web", 1)) == prefix(50)
        opened.delete_topic("web")
    with LogDir.open(path) as opened:
        assert opened.topics() == {}


def test_missing_meta_properties_beside_partitions_is_refused(disk: Disk) -> None:
    """Other ids would separate the data from their cluster. A directory without partitions gets new ones."""
    with disk.open() as opened:
        meta = disk.fs.read(f"{DIR}/meta.properties")
    disk.fs.unlink(f"{DIR}/meta.properties")
    with disk.open() as opened:
        opened.create_topic("t", 1, TINY)
        fill(opened.log("t"), 3)
    disk.fs.unlink(f"{DIR}/meta.properties")
    before = {name: disk.fs.stat(f"{DIR}/{name}").size for name in disk.names()}
    why = rf"{DIR}/meta.properties is missing, and t-0 is there: restore the file, or write it again .* cluster.id="
    with pytest.raises(InvalidLogDirError, match=why):
        disk.open()
    assert {name: disk.fs.stat(f"{DIR}/{name}").size for name in disk.names()} == before
    for empty in (b"", b"#\n", b"version=0\n", b"garbage\n", bytes(90)):
        disk.fs.write(f"{DIR}/meta.properties", empty)
        with pytest.raises(
            InvalidLogDirError, match=r"names no cluster\.id and no node\.id, and t-0 is there: restore"
        ):
            disk.open()
        assert disk.fs.read(f"{DIR}/meta.properties") == empty
    disk.fs.write(f"{DIR}/meta.properties", meta)
    with disk.open() as opened:
        assert values(opened.log("t")) == prefix(3)
