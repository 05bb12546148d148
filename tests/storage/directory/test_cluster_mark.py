"""The mark of a cluster in a log directory: who may use it, what the first release left, how a cluster is left."""

from __future__ import annotations

from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from seglog.core.errors import CorruptCheckpointError, InvalidLogDirError, LogDirFullError, LogDirInUseError
from seglog.core.fs import OsFs
from seglog.core.ground import Ground
from seglog.storage.directory.catalog import ReplicaSpec
from seglog.storage.directory.cluster_mark import (
    ClusterMark,
    check_marks,
    check_unmarked,
    leave_cluster,
    read_mark,
    read_marks,
)
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.directory.log_dirs import LogDirs
from seglog.storage.formats.checkpoints import read_meta_properties
from seglog.storage.formats.life_file import Life, write_life
from seglog.storage.formats.paths import CLUSTER_MARK, LIFE
from tests.kit.memory_fs import MemoryFs

ONE = UUID(int=0xABC << 64 | 1)
PATHS = ("/d1", "/d2")


def open_dirs(fs: MemoryFs) -> LogDirs:
    return LogDirs.open(PATHS, ground=Ground(fs=fs, rng=Random(fs.calls.total())), cluster_id="c", node_id=7)


def test_a_directory_that_a_cluster_has_used_is_marked_and_remembers_the_highest_generation() -> None:
    fs = MemoryFs()
    with open_dirs(fs) as dirs:
        assert read_mark(fs, "/d1") == ClusterMark("c", 7, -1, 0)
        dirs.note_history(generation=12, broker_epoch=3)
        dirs.note_history(generation=11)
        dirs.note_history(broker_epoch=4)
        written = fs.calls["rename"]
        dirs.note_history(generation=12, broker_epoch=4)
        assert fs.calls["rename"] == written, "nothing is written twice"
    fs.crash(Random(1))
    fs.unlink(f"/d2/{CLUSTER_MARK}")  # a new disk
    with open_dirs(fs):
        assert read_marks(fs, PATHS) == dict.fromkeys(PATHS, ClusterMark("c", 7, 12, 4))


def test_a_generation_that_a_full_disk_refused_is_written_when_there_is_room() -> None:
    fs = MemoryFs()
    with open_dirs(fs) as dirs:
        fs.capacity = fs.used
        with pytest.raises(LogDirFullError):
            dirs.note_history(generation=12)
        fs.capacity = None
        dirs.note_history(generation=12)
    assert read_marks(fs, PATHS) == dict.fromkeys(PATHS, ClusterMark("c", 7, 12, 0))


def test_directory_of_another_cluster_or_node_is_refused() -> None:
    fs = MemoryFs()
    open_dirs(fs).close()
    marks = read_marks(fs, PATHS)
    check_marks(marks, cluster_id="c", node_id=7, store="sqlite:/m")
    with pytest.raises(
        InvalidLogDirError, match=r"/d1 belongs to node 7 of cluster c, and sqlite:/m is .* cluster other"
    ):
        check_marks(marks, cluster_id="other", node_id=7, store="sqlite:/m")
    with pytest.raises(InvalidLogDirError, match=r"/d1 belongs to node 7 of cluster c, not to node 8: .*--node-id 7"):
        check_marks(marks, cluster_id="c", node_id=8, store="sqlite:/m")
    with pytest.raises(InvalidLogDirError, match=r"/d1 belongs to node 7 of cluster c\. .* seglog cluster leave /d1"):
        check_unmarked(fs, PATHS)


def test_a_directory_of_the_first_release_is_marked_by_its_life_and_one_of_kafka_is_not() -> None:
    fs = MemoryFs()
    LogDir.open("/kafka", ground=Ground(fs=fs), cluster_id="k", node_id=3).close()
    assert read_mark(fs, "/kafka") is None, "only meta.properties has a cluster.id"
    check_unmarked(fs, ["/kafka", "/nowhere"])
    write_life(fs, "/kafka", Life(5, None))
    assert read_mark(fs, "/kafka") == ClusterMark("k", 3)
    with LogDirs.open(["/kafka"], ground=Ground(fs=fs), cluster_id="k", node_id=3):
        assert fs.exists(f"/kafka/{CLUSTER_MARK}")


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"version": 2}', b'{"version": 1, "cluster": "c", "node": "x"}'])
def test_a_mark_that_cannot_be_read_is_not_taken_for_none(data: bytes) -> None:
    fs = MemoryFs()
    open_dirs(fs).close()
    fs.write(f"/d1/{CLUSTER_MARK}", data)
    with pytest.raises(CorruptCheckpointError, match=f"/d1/{CLUSTER_MARK}"):
        check_unmarked(fs, PATHS)


def test_directory_that_left_its_cluster_keeps_records_and_cannot_rejoin(tmp_path: Path) -> None:
    fs, path = OsFs(), str(tmp_path / "d")
    with LogDirs.open([path], cluster_id="c", node_id=7) as dirs:
        dirs.hold_many([ReplicaSpec("a", ONE, 0, {})])
        dirs.kept_since(5)
        with pytest.raises(LogDirInUseError):
            leave_cluster(fs, [path], rng=Random(1), now_ms=0)
    assert leave_cluster(fs, [path], rng=Random(1), now_ms=0) == [ClusterMark("c", 7)]
    check_unmarked(fs, [path])
    meta = read_meta_properties(fs, path)
    assert meta is not None
    assert meta.cluster_id != "c"
    assert not fs.exists(f"{path}/{LIFE}")
    with LogDir.open(path) as alone:
        assert alone.topic_id("a") == ONE
    with pytest.raises(InvalidLogDirError, match=r"belongs to cluster\.id"):
        LogDirs.open([path], cluster_id="c", node_id=7)
    with pytest.raises(InvalidLogDirError, match="belongs to no cluster of seglog"):
        leave_cluster(fs, [path], rng=Random(1), now_ms=0)
