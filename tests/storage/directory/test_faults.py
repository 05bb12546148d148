"""Full and failing disks, read-only directories, directories in use: a clear error each, nothing lost."""

from __future__ import annotations

import errno
import os
import random
import select
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from seglog.core.errors import (
    InvalidLogDirError,
    LogDirFullError,
    LogDirInUseError,
    LogDirOfflineError,
    SeglogError,
)
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.log.log import Log
from tests.cases import case
from tests.kit.memory_fs import MemoryFs
from tests.storage.directories import DIR, TINY, flushed_log, open_dir
from tests.storage.disk import fill, overwrite, prefix, values


def assert_offline(opened: LogDir, log: Log, *, flushed: int) -> None:
    """Writes stop, reads continue, and there is no marker of a clean shutdown."""
    fs = opened.fs
    assert isinstance(fs, MemoryFs)
    before = fs.files()
    acts: list[Callable[[], object]] = [
        lambda: fill(log, 1),
        log.flush,
        log.roll,
        lambda: log.truncate_to(1),
        lambda: opened.create_topic("new"),
        lambda: opened.delete_topic("t"),
        opened.checkpoint,
        opened.flush,
        opened.housekeeping,
    ]
    for act in acts:
        with pytest.raises(LogDirOfflineError, match=f"{DIR} is out of use"):
            act()
    assert fs.files() == before, "a failed write is not retried"
    opened.close()
    assert not fs.exists(f"{DIR}/.kafka_cleanshutdown")
    fs.capacity, fs.read_only = None, False
    for seed in range(5):
        again = open_dir(fs.after_crash(random.Random(seed)))
        assert not again.refused
        assert again.log("t").log_end_offset >= flushed
        assert values(again.log("t")) == prefix(again.log("t").log_end_offset)


def fill_and_flush(log: Log) -> None:
    for _ in range(60):
        fill(log, 5)
        log.flush()


# A failing disk

_WRITES = ("pwrite", "fsync", "open", "fsync_dir", "truncate")


@pytest.mark.parametrize(
    ("operation", "code"),
    [
        *((operation, code) for operation in _WRITES for code in (errno.EIO, errno.EROFS)),
        *((operation, code) for operation in ("fsync", "fsync_dir") for code in (errno.ENOSPC, errno.EDQUOT)),
    ],
)
def test_the_first_failed_write_takes_the_directory_out_of_use(operation: str, code: int) -> None:
    for nth in range(1, 4):
        case()
        fs, opened, log = flushed_log()
        fs.fail_at(operation, nth, error=code, path="/t-0")
        with pytest.raises(LogDirOfflineError, match=r"out of use(?: since)?: \[Errno") as caught:
            fill_and_flush(log)
        assert isinstance(caught.value.__cause__, OSError)
        assert caught.value.__cause__.errno == code
        assert_offline(opened, log, flushed=30)


@pytest.mark.parametrize("operation", ["write", "rename", "fsync_dir", "mkdir"])
def test_so_does_a_failure_beside_the_partitions(operation: str) -> None:
    fs, opened, log = flushed_log()
    fs.fail_at(operation, 1)
    with pytest.raises(LogDirOfflineError):
        opened.create_topic("new")
    assert_offline(opened, log, flushed=30)


@pytest.mark.parametrize("operation", ["write", "rename", "fsync_dir"])
@pytest.mark.parametrize(
    "cut",
    [lambda log_dir: log_dir.truncate_to("t", 0, 10), lambda log_dir: log_dir.truncate_fully_and_start_at("t", 0, 100)],
)
def test_a_log_whose_cut_fails_keeps_its_high_watermark(operation: str, cut: Callable[[LogDir], object]) -> None:
    fs, opened, log = flushed_log()
    fs.fail_at(operation, 1)
    with pytest.raises(LogDirOfflineError):
        cut(opened)
    assert (log.high_watermark, log.log_end_offset) == (30, 30)


@pytest.mark.parametrize("operation", ["fsync", "write", "rename", "truncate", "fsync_dir"])
def test_a_failure_while_closing_is_told_and_leaves_no_marker(operation: str) -> None:
    fs, opened, log = flushed_log()
    fill(log, 3)
    fs.fail_at(operation, 1, path="/logs/")
    with pytest.raises(LogDirOfflineError):
        opened.close()
    assert not fs.exists(f"{DIR}/.kafka_cleanshutdown")
    again = open_dir(fs)
    assert values(again.log("t")) == prefix(33)


def test_a_failure_in_the_background_is_met_by_the_next_append() -> None:
    fs = MemoryFs()
    opened = open_dir(fs, background=True)
    opened.create_topic("t", 1, TINY)
    log = opened.log("t")
    fs.fail_at("fsync", 1, path=".log")
    log.background.submit(log.flush)
    opened.worker.stop()
    with pytest.raises(LogDirOfflineError, match="out of use"):
        fill(log, 1)
    opened.close()


@pytest.mark.parametrize("operation", ["read", "pread", "listdir", "open", "write", "unlink", "fsync_dir", "lock"])
def test_a_failure_while_opening_is_told_and_changes_no_log(operation: str) -> None:
    fs, opened, _ = flushed_log()
    opened.close()
    logs = {path: data for path, data in fs.files().items() if path.endswith(".log")}
    if operation in ("pread", "write"):
        fs.unlink(f"{DIR}/.kafka_cleanshutdown")
    fs.fail_at(operation, 1)
    with pytest.raises((LogDirOfflineError, InvalidLogDirError), match=r"cannot be (opened|loaded)"):
        open_dir(fs)
    assert {path: data for path, data in fs.files().items() if path.endswith(".log")} == logs
    again = open_dir(fs)
    assert values(again.log("t")) == prefix(30)


# A full disk


def test_a_disk_that_is_full_when_a_torn_tail_must_be_saved() -> None:
    fs, _, log = flushed_log()
    fill(log, 3)
    fs.crash(random.Random(0))
    overwrite(fs, log.active.paths.log, fs.stat(log.active.paths.log).size, b"torn" * 5_000)
    before = fs.read(log.active.paths.log)
    fs.capacity = fs.used
    with pytest.raises(LogDirFullError, match="No space left"):
        open_dir(fs)
    assert fs.read(log.active.paths.log) == before, "nothing is cut that was not saved"
    fs.capacity = None
    assert values(open_dir(fs).log("t")) == prefix(open_dir_end(fs))


def open_dir_end(fs: MemoryFs) -> int:
    fs.locked.clear()
    opened = open_dir(fs)
    return opened.log("t").log_end_offset


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 4 MiB where one can be mounted, else one with a limit on the size of files."""
    mount = tmp_path / "small"
    mount.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m,mode=755", "tmpfs", str(mount)], check=False, capture_output=True
    )
    if mounted.returncode == 0:
        yield mount
        subprocess.run(["umount", str(mount)], check=True)
        return
    import resource
    import signal

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    yield mount
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def test_a_really_full_disk(small_disk: Path) -> None:
    """Refused appends leave nothing behind, all others are kept, and appends succeed again once there is room."""
    if not os.path.ismount(small_disk):
        return  # a limit on the size of files is no full disk: EFBIG
    config = {"segment.bytes": 1 << 30, "segment.index.bytes": 4_000, "retention.ms": -1}
    filler = small_disk / "filler"
    filler.write_bytes(bytes(3_400_000))
    with LogDir.open(str(small_disk / "logs")) as opened:
        opened.create_topic("t", 1, config)
        log = opened.log("t")
        with pytest.raises(LogDirFullError, match=r"is full: .*No space left on device"):
            fill(log, 2_000, size=1_000)
        written = log.log_end_offset
        assert written > 400
        assert log.active.size == (small_disk / "logs" / "t-0" / f"{0:020d}.log").stat().st_size
        log.check()
    assert (small_disk / "logs" / ".kafka_cleanshutdown").exists()
    with LogDir.open(str(small_disk / "logs")) as opened:
        log = opened.log("t")
        assert values(log) == prefix(written, size=1_000)
        with pytest.raises(LogDirFullError):
            fill(log, 1, size=1_000)
        filler.unlink()
        assert opened.health.has_room(opened.clock.monotonic() + 1)
        fill(log, 100, size=1_000)
        assert values(log) == prefix(written + 100, size=1_000)


# Not to be written


def test_a_read_only_disk() -> None:
    fs, opened, _ = flushed_log()
    opened.close()
    fs.read_only = True
    before = fs.files()
    with pytest.raises(InvalidLogDirError, match=f"{DIR} cannot be opened for writing: .*Read-only"):
        open_dir(fs)
    assert fs.files() == before


def in_child(act: Callable[[], object], *, user: int | None = None) -> str:
    """Run ``act`` in a forked process, as another user where we may; what it raised, as text."""
    receive, report = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if user is not None:
                os.setgid(user)
                os.setuid(user)
            act()
            os.write(report, b"nothing")
        except SeglogError as error:
            os.write(report, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(report)
    try:
        assert select.select([receive], [], [], 30)[0]
        return os.read(receive, 1 << 16).decode()
    finally:
        os.close(receive)
        os.waitpid(child, 0)


_FORKS = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
_NOBODY = 65534


@_FORKS
def test_a_directory_that_one_may_not_write(tmp_path: Path) -> None:
    path = tmp_path / "logs"
    with LogDir.open(str(path)) as opened:
        opened.create_topic("t", 1, TINY)
        fill(opened.log("t"), 30)
    parents = [tmp_path, *tmp_path.parents[:-1]]
    modes = {parent: parent.stat().st_mode for parent in parents}
    user = _NOBODY if os.getuid() == 0 else None
    try:
        if user is not None:
            for parent in parents:
                parent.chmod(modes[parent] | 0o055)
        path.chmod(0o555)
        (path / ".lock").chmod(0o444)
        said = in_child(lambda: LogDir.open(str(path)), user=user)
        missing = in_child(lambda: LogDir.open(str(path / "new")), user=user)
    finally:
        path.chmod(0o755)
        (path / ".lock").chmod(0o644)
        for parent in parents if user is not None else []:
            parent.chmod(modes[parent])
    assert said.startswith(f"InvalidLogDirError: {path} cannot be opened for writing: [Errno 13]")
    assert missing.startswith(f"InvalidLogDirError: {path / 'new'} cannot be opened for writing: [Errno 13]")
    with LogDir.open(str(path)) as opened:
        assert values(opened.log("t")) == prefix(30)


@_FORKS
def test_a_directory_that_another_process_has_open(tmp_path: Path) -> None:
    path = str(tmp_path / "logs")
    with LogDir.open(path) as opened:
        opened.create_topic("t", 1, TINY)
        said = in_child(lambda: LogDir.open(path))
        assert said.startswith(f"LogDirInUseError: {path}/.lock is locked: another seglog or Kafka")
        fill(opened.log("t"), 5)
        with pytest.raises(LogDirInUseError):
            LogDir.open(path)
    with LogDir.open(path) as opened:
        assert values(opened.log("t")) == prefix(5)
