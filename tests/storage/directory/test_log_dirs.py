"""Several log directories of one broker: where partitions go, and one that fails alone."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from uuid import UUID

import pytest

from seglog.core.errors import (
    DamagedPartitionError,
    InvalidLogDirError,
    LogDirOfflineError,
    SeglogError,
    UnknownTopicError,
)
from seglog.core.ground import Ground
from seglog.core.types import TopicPartition
from seglog.storage.directory.catalog import ReplicaSpec
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.directory.log_dirs import LogDirs
from seglog.storage.formats.checkpoints import read_meta_properties, write_meta_properties
from seglog.storage.log.log import Log
from tests.kit.manual_clock import ManualClock
from tests.kit.memory_fs import MemoryFs
from tests.storage.crashing import DIRECTORY, TINY
from tests.storage.disk import fill, values

ONE, TWO = UUID(int=0xABC << 64 | 1), UUID(int=0xABC << 64 | 2)
CONFIG = {key: str(value) for key, value in TINY.items()}
PATHS = ("/d1", "/d2", "/d3")


def open_dirs(
    fs: MemoryFs,
    paths: Sequence[str] = PATHS,
    *,
    cluster_id: str | None = "c",
    node_id: int | None = 7,
    changed: Callable[[LogDir], None] | None = None,
) -> LogDirs:
    rng = random.Random(fs.calls.total())
    return LogDirs.open(
        paths,
        ground=Ground(fs=fs, clock=ManualClock(), rng=rng),
        config=DIRECTORY,
        cluster_id=cluster_id,
        node_id=node_id,
        changed=changed,
    )


@pytest.fixture
def fs() -> MemoryFs:
    return MemoryFs(clock=ManualClock())


def wanted(topic: str, topic_id: UUID, *numbers: int, is_new: bool = False) -> list[ReplicaSpec]:
    return [ReplicaSpec(topic, topic_id, number, CONFIG, is_new) for number in numbers]


def logs(held: list[Log | SeglogError]) -> list[Log]:
    found = [one for one in held if isinstance(one, Log)]
    assert len(found) == len(held), held
    return found


def test_partitions_go_where_there_are_fewest_and_are_found_again(fs: MemoryFs) -> None:
    with open_dirs(fs, PATHS[:2]) as dirs:
        logs(dirs.hold_many(wanted("a", ONE, 0, 1, 2)))
    with open_dirs(fs) as dirs:
        held = logs(dirs.hold_many(wanted("a", ONE, 2, 3, 4, 5, 6, 7)))
        assert sorted(len(one.logs) for one in dirs.dirs) == [2, 3, 3]
        assert [log.topic_partition.partition for log in held] == [2, 3, 4, 5, 6, 7]
        assert dirs.dir_of(TopicPartition("a", 2)).path == "/d1"
        assert dirs.dir_of(TopicPartition("a", 3)).path == "/d3"
        assert all(not log.hw_follows_end for log in dirs.logs.values())
        dirs.set_config("a", {"retention.ms": "5"})
        assert {log.config.retention_ms for log in dirs.logs.values()} == {5}
        dirs.let_go([TopicPartition("a", 3), TopicPartition("a", 99)])
        with pytest.raises(UnknownTopicError, match="/d1, /d2, /d3"):
            dirs.dir_of(TopicPartition("a", 3))
        assert dirs.found() == {TopicPartition("a", number): ONE for number in (0, 1, 2, 4, 5, 6, 7)}
    with open_dirs(fs) as dirs:
        assert len(dirs.logs) == 7
        logs(dirs.hold_many(wanted("a", TWO, 0)))
        assert dirs.found() == {TopicPartition("a", 0): TWO}, "the others were of the earlier topic"


def test_all_are_of_one_cluster_and_one_node_and_have_their_own_id(fs: MemoryFs) -> None:
    open_dirs(fs, PATHS[:2]).close()
    found = [read_meta_properties(fs, path) for path in PATHS[:2]]
    assert {(one.cluster_id, one.node_id) for one in found if one} == {("c", 7)}
    assert len({one.directory_id for one in found if one} - {None}) == 2
    with open_dirs(fs, cluster_id=None, node_id=None) as dirs:  # the new one is as those that are there
        assert {(one.meta.cluster_id, one.meta.node_id) for one in dirs.dirs} == {("c", 7)}
    with pytest.raises(InvalidLogDirError, match=r"/d1 belongs to node\.id 7, not 8"):
        open_dirs(fs, node_id=8)
    assert found[0] is not None
    write_meta_properties(fs, "/d2", found[0]._replace(node_id=8), 0)
    with pytest.raises(InvalidLogDirError, match=r"/d1 belongs to node\.id 7, /d2 to node\.id 8"):
        open_dirs(fs, node_id=None)
    write_meta_properties(fs, "/d2", found[0], 0)
    with pytest.raises(InvalidLogDirError, match=r"/d1 and /d2 have the same directory\.id"):
        open_dirs(fs)
    write_meta_properties(fs, "/d2", found[0]._replace(directory_id=None), 0)
    with open_dirs(fs) as dirs:
        assert len({one.meta.directory_id for one in dirs.dirs} - {None}) == 3
    with pytest.raises(InvalidLogDirError, match="/d1 twice"):
        open_dirs(fs, ["/d1", "/d2", "/x/../d1"])
    with pytest.raises(InvalidLogDirError, match="no directory"):
        open_dirs(fs, [])


def test_a_partition_in_two_directories_is_refused_in_both(fs: MemoryFs) -> None:
    for path in ("/d1", "/d2"):
        with LogDir.open(path, ground=Ground(fs=fs), cluster_id="c", node_id=7) as one:
            for number in (0, len(path) if path == "/d2" else 1):
                fill(one.hold("a", ONE, number, CONFIG), 1)
    with open_dirs(fs, PATHS[:2]) as dirs:
        assert [sorted(one.refused) for one in dirs.dirs] == [[TopicPartition("a", 0)]] * 2
        (twice,) = dirs.hold_many(wanted("a", ONE, 0))
        assert isinstance(twice, DamagedPartitionError)
        assert "in /d1 and in /d2" in str(twice)
        assert len(dirs.logs) == 2


def test_a_directory_whose_disk_fails_is_offline_alone_and_told_once(fs: MemoryFs) -> None:
    told: list[tuple[str, str]] = []
    dirs = open_dirs(fs, changed=lambda directory: told.append((directory.path, str(directory.health.failure))))
    held = logs(dirs.hold_many(wanted("a", ONE, 0, 1, 2)))
    fs.fail_at("pwrite", 1, path="/d2", error=errno.EIO, times=99)
    for _ in range(2):
        with pytest.raises(LogDirOfflineError):
            fill(held[1], 1)
    assert [path for path, _ in told] == ["/d2"]
    assert list(dirs.offline) == ["/d2"]
    for log in (held[0], held[2]):
        fill(log, 1)
    before, there, new = dirs.hold_many([*wanted("a", ONE, 1), *wanted("a", ONE, 2), *wanted("b", TWO, 0)])
    assert isinstance(before, LogDirOfflineError)
    assert there is held[2]
    assert isinstance(new, Log)
    dirs.let_go([TopicPartition("a", 1), TopicPartition("a", 0)])
    assert dirs.dir_of(TopicPartition("a", 1)).path == "/d2", "what a broken disk has stays there"
    fs.fail_at("fsync", 1, path="/d3", error=errno.EIO)
    with pytest.raises(LogDirOfflineError):
        held[2].flush()
    assert [path for path, _ in told] == ["/d2", "/d3"]
    dirs.close()
    fs.heal()
    with open_dirs(fs) as dirs:
        assert [one.was_clean for one in dirs.dirs] == [True, False, False]


def test_replicas_of_an_offline_directory_are_not_recreated(fs: MemoryFs) -> None:
    with open_dirs(fs) as dirs:
        logs(dirs.hold_many(wanted("a", ONE, 0, 1, 2)))
    fs.fail_at("listdir", 1, path="/d2", times=99)
    with open_dirs(fs) as dirs:
        assert [one.path for one in dirs.dirs] == ["/d1", "/d3"]
        assert "/d2" in str(dirs.offline["/d2"])
        here, away = dirs.hold_many(wanted("a", ONE, 0, 1))
        assert isinstance(here, Log)
        assert isinstance(away, LogDirOfflineError)
        assert "/d2" in str(away)
        logs(dirs.hold_many(wanted("b", TWO, 0, is_new=True)))
    fs.fail_at("listdir", 1, times=99)
    with pytest.raises(LogDirOfflineError, match=r"/d1.*/d2.*/d3"):
        open_dirs(fs)
    fs.heal()
    fs.mkdir("/d1/what")
    with pytest.raises(InvalidLogDirError, match="/d1/what"):
        open_dirs(fs)
    fs.rmdir("/d1/what")
    open_dirs(fs).close()  # every lock was given back


def test_they_work_on_real_disks_with_threads(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("one", "two")]
    with LogDirs.open(paths, background=True) as dirs:
        for log in logs(dirs.hold_many(wanted("a", ONE, 0, 1, 2))):
            fill(log, 3)
    with LogDirs.open(paths, background=True) as dirs:
        assert all(one.was_clean for one in dirs.dirs)
        assert [len(values(log)) for log in dirs.logs.values()] == [3, 3, 3]


def test_a_disk_that_fails_under_what_is_to_go_keeps_nothing_from_the_others(fs: MemoryFs) -> None:
    """An earlier topic of that name has a partition there."""
    dirs = open_dirs(fs, PATHS[:2])
    logs(dirs.hold_many(wanted("b", TWO, 0)))
    logs(dirs.hold_many(wanted("a", ONE, 0)))
    assert dirs.dir_of(TopicPartition("a", 0)).path == "/d2"
    fs.fail_at("rename", 1, path="/d2", error=errno.EIO)
    held = dirs.hold_many([*wanted("a", UUID(int=7), 1), *wanted("b", TWO, 1)])
    assert list(dirs.offline) == ["/d2"]
    assert isinstance(held[1], Log)
    dirs.let_go([TopicPartition("a", 0), TopicPartition("b", 1)])
    dirs.close()
