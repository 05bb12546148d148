"""How many files a log keeps open, and what happens when its indexes meet a full disk or are cut by someone else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from seglog.core.errors import LogClosedError
from seglog.core.fs import OsFs
from seglog.records.record import NewRecord, encode_batch
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.log import segment_files
from seglog.storage.log.segment_files import SealedFile
from tests.kit.memory import directory_in_memory
from tests.storage.directories import TINY, flushed_log
from tests.storage.disk import fill, prefix, values

_FEW = {**TINY, "segment.index.bytes": 240, "file.delete.delay.ms": 0}


Files = set[tuple[int, int]]
"""By device and inode."""


def files_at(*paths: str | Path) -> Files:
    return {(found.st_dev, found.st_ino) for found in map(os.stat, paths)}


def descriptors_of(files: Files) -> int:
    """How many descriptors of this process stand on these files: what other threads open does not count."""
    count = 0
    for name in os.listdir("/proc/self/fd" if sys.platform == "linux" else "/dev/fd"):
        with suppress(OSError):
            found = os.fstat(int(name))
            count += (found.st_dev, found.st_ino) in files
    return count


@pytest.fixture
def memory() -> Iterator[Path]:
    with directory_in_memory() as path:
        yield path


def test_a_partition_keeps_one_file_open(memory: Path) -> None:
    with LogDir.open(memory / "logs") as opened:
        opened.create_topic("t", 50)
        for number in range(50):
            fill(opened.log("t", number), 3)
        assert descriptors_of(files_at(*(memory / "logs").glob("t-*/*"))) == 50


_MANY_SEGMENTS = """
import os, resource, sys
from seglog.records.record import NewRecord
from seglog.storage.directory.log_dir import LogDir

path, count = sys.argv[1], int(sys.argv[2])
config = {"internal.segment.bytes": 80, "segment.index.bytes": 24, "retention.ms": -1, "file.delete.delay.ms": 0}
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
with LogDir.open(path) as opened:
    opened.create_topic("t", 1, config)
    log = opened.log("t")
    for value in range(count):
        log.append_records([NewRecord(b"%d" % value)])
    assert len(log.segments) == count
for turn in range(2):
    with LogDir.open(path) as opened:
        log = opened.log("t")
        assert len(log.segments) == count
        for at in range(count):
            assert [record.value for record in log.read(at, 1).records()] == [b"%d" % at]
        log.truncate_to(count - 1)
        log.append_records([NewRecord(b"%d" % (count - 1))])
with LogDir.open(path) as opened:
    log = opened.log("t")
    held = log.read(1, 1)
    if sys.argv[3] == "deleted":
        log.delete_records(count)
        log.delete_old_segments()
        opened.housekeeping()
    else:
        log.truncate_to(0)
    assert len(log.segments) == 1
    assert len(os.listdir("/dev/fd")) < 20, os.listdir("/dev/fd")
    assert [record.offset for record in held.records()] == [1]
"""


@pytest.mark.parametrize("end", ["deleted", "truncated"])
def test_segments_beyond_the_limit_of_open_files_are_read_and_removed(memory: Path, end: str) -> None:
    """5,000 segments under 1,024 in the same proportion. Each is opened when it is read, and closed when it is deleted,
    unless a reader has it."""
    done = subprocess.run([sys.executable, "-c", _MANY_SEGMENTS, str(memory / "logs"), "1000", end], check=False)
    assert done.returncode == 0


def test_readers_of_more_deleted_segments_than_there_are_descriptors_for_find_the_oldest_gone(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_files, "most_sealed_files", lambda: 4)
    with LogDir.open(memory / "logs") as opened:
        opened.create_topic("t", 1, _FEW)
        log = opened.log("t")
        fill(log, 120)
        bases = [segment.base_offset for segment in log.segments[:-1]]
        assert len(bases) > 5
        files = files_at(*(memory / "logs" / "t-0").iterdir())
        held = [log.read(base, 1) for base in bases]
        log.delete_records(120)
        log.delete_old_segments()
        opened.housekeeping()
        assert 0 < descriptors_of(files) <= 1 + 4  # of the active segment and of readers
        with pytest.raises(LogClosedError, match="is gone"):
            held[0].read()
        assert [record.offset for record in held[-1].records()][:1] == bases[-1:]


def test_a_reader_keeps_a_segment_that_is_evicted_and_deleted(memory: Path) -> None:
    with LogDir.open(memory / "logs") as opened:
        opened.create_topic("t", 1, _FEW)
        log = opened.log("t")
        fill(log, 40)
        held = log.read(0, 100)
        assert isinstance(held.file, SealedFile)
        held.file.let_go()  # as when many others are read
        log.delete_records(30)
        log.delete_old_segments()
        opened.housekeeping()
        assert log.segments[0].base_offset > 0
        assert not os.path.exists(memory / "logs" / "t-0" / f"{0:020d}.log")
        assert [record.offset for record in held.records()][:1] == [0]


def test_a_reader_of_a_deleted_topic_learns_so(memory: Path) -> None:
    with LogDir.open(memory / "logs") as opened:
        opened.create_topic("t", 1, _FEW)
        log = opened.log("t")
        fill(log, 40)
        held = log.read(0, 100)
        assert isinstance(held.file, SealedFile)
        held.file.let_go()
        opened.delete_topic("t")
        assert held.read(), "until the files go"
        held.file.let_go()
        opened.housekeeping()
        with pytest.raises(LogClosedError, match=r"deleted or moved|is closed"):
            held.read()


def test_an_append_with_more_index_entries_than_there_is_room_for_is_whole() -> None:
    """In bulk, hundreds of batches at once: it was half applied (`struct.error`)."""
    fs, opened, log = flushed_log(0)
    batches = [encode_batch([NewRecord(b"v" * 300, timestamp=1_000 + at)], base_offset=at) for at in range(6)]
    opened.create_topic("small", 1, {**TINY, "segment.index.bytes": 24, "internal.segment.bytes": 100_000})
    log = opened.log("small")
    log.append(b"".join(bytes(one) for one in batches))
    assert log.log_end_offset == 6
    assert log.active.offset_index.count <= 3
    log.append(bytes(batches[0]))
    assert [segment.base_offset for segment in log.segments] == [0, 6], "a full index rolls"
    for offset in range(7):
        (first, *_) = log.read(offset, 1).records()
        assert first.offset == offset
    log.check()
    opened.close()
    del fs


def test_an_index_that_someone_else_has_cut_is_passed_over() -> None:
    fs, _, log = flushed_log(40)
    segment = log.segments[0]
    assert segment.offset_index.count > 2
    fs.write(segment.paths.offset_index, b"")
    fs.unlink(segment.paths.timeindex)
    assert values(log) == prefix(40)
    found = log.offset_for_timestamp(1_003)
    assert found is not None
    assert found.offset == 3


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB. Where none can be mounted, a directory: then nothing is full."""
    mount = tmp_path / "small"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=755", "tmpfs", str(mount)]
    mounted = subprocess.run(command, check=False, capture_output=True).returncode == 0
    yield mount
    if mounted:
        subprocess.run(["umount", "--lazy", str(mount)], check=True)


_KILLED = """
import os, signal, sys
from seglog.records.record import NewRecord
from seglog.storage.directory.log_dir import LogDir

opened = LogDir.open(sys.argv[1])
opened.create_topic("t", 3, {"index.interval.bytes": 100, "retention.ms": -1})
for number in range(3):
    for _ in range(100):
        opened.log("t", number).append_records([NewRecord(b"v" * 100)])
opened.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""
_OPENED = """
import sys
from seglog.core.errors import SeglogError
from seglog.storage.directory.log_dir import LogDir

try:
    with LogDir.open(sys.argv[1]) as opened:
        print(opened.log("t").log_end_offset, [record.offset for record in opened.log("t").read(50, 1).records()])
except SeglogError as error:
    print(type(error).__name__, error)
"""


def test_opening_on_a_full_disk_does_not_kill_the_process(tmpfs: Path) -> None:
    """A pre-allocated index is all holes: to touch one of them, mapped, on a full tmpfs was SIGBUS."""
    path = str(tmpfs / "logs")
    killed = subprocess.run([sys.executable, "-c", _KILLED, path], check=False)
    assert killed.returncode == -signal.SIGKILL
    filler = tmpfs / "filler"
    if os.path.ismount(tmpfs):
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(4096)):
                pass
    done = subprocess.run([sys.executable, "-c", _OPENED, path], check=False, capture_output=True, text=True)
    assert done.returncode == 0, (done.returncode, done.stderr)
    filler.unlink(missing_ok=True)
    done = subprocess.run([sys.executable, "-c", _OPENED, path], check=False, capture_output=True, text=True)
    assert done.stdout == "100 [50]\n", done.stderr


def test_a_sealed_file_is_opened_only_when_it_is_read(tmp_path: Path) -> None:
    path = str(tmp_path / "one")
    Path(path).write_bytes(b"abc")
    file = SealedFile(OsFs(), path)
    assert descriptors_of(files_at(path)) == 0
    assert file.pread(2, 1) == b"bc"
    assert descriptors_of(files_at(path)) == 1
    file.close()
    assert descriptors_of(files_at(path)) == 0
    with pytest.raises(LogClosedError):
        file.pread(1, 0)
