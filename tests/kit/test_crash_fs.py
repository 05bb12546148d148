"""`CrashFs`: a crash at each change of the disk."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from seglog.core.fs import Fs, write_atomically
from tests.kit.crash_fs import CrashFs, SimulatedCrash
from tests.kit.memory_fs import MemoryFs


def work(fs: Fs) -> None:
    fs.mkdir("/d")
    file = fs.open("/d/log", create=True)
    file.pwrite(b"12345678", 0)
    file.fsync()
    mapped = fs.map("/d/index", size=8)
    mapped.buffer[0] = 1
    mapped.resize(8)
    mapped.resize(4)
    mapped.flush()
    fs.open("/d/log", create=True).close()
    write_atomically(fs, "/d/checkpoint", b"0\n0\n")
    fs.set_mtime("/d/log", 5)
    fs.unlink("/d/checkpoint")
    file.truncate(2)


def any_call(fs: Fs) -> list[Callable[[], object]]:
    return [
        lambda: fs.write("/x", b""),
        lambda: fs.listdir("/"),
        lambda: fs.exists("/"),
        lambda: fs.stat("/"),
        lambda: fs.lock("/.lock"),
        lambda: fs.read("/d/log"),
        lambda: fs.open("/x"),
        lambda: fs.map("/x"),
        lambda: fs.rmdir("/d"),
    ]


def test_counts_changes_and_nothing_else() -> None:
    fs = CrashFs(MemoryFs())
    work(fs)
    assert [(call.operation, call.path) for call in fs.trace] == [
        ("mkdir", "/d"),
        ("open", "/d/log"),
        ("pwrite", "/d/log"),
        ("fsync", "/d/log"),
        ("map", "/d/index"),
        ("resize", "/d/index"),
        ("flush", "/d/index"),
        ("write", "/d/checkpoint.tmp"),
        ("rename", "/d/checkpoint.tmp"),
        ("fsync_dir", "/d"),
        ("set_mtime", "/d/log"),
        ("unlink", "/d/checkpoint"),
        ("truncate", "/d/log"),
    ]
    assert fs.changes == 13
    assert not fs.crashed


def test_every_crash_point_is_reached_and_nothing_happens_from_there_on() -> None:
    whole = CrashFs(MemoryFs())
    work(whole)
    for crash_at in range(1, whole.changes + 1):
        disk = MemoryFs()
        fs = CrashFs(disk, crash_at=crash_at)
        with pytest.raises(SimulatedCrash):
            work(fs)
        assert fs.trace == whole.trace[:crash_at]
        before = disk.files()
        for act in any_call(fs):
            with pytest.raises(SimulatedCrash):
                act()
        assert disk.files() == before
        disk.crash(random.Random(crash_at))


def test_the_last_write_may_be_torn() -> None:
    disk = MemoryFs()
    with pytest.raises(SimulatedCrash):
        work(CrashFs(disk, crash_at=3, torn=0.5))
    assert disk.files() == {"/d/log": b"1234"}
    disk = MemoryFs()
    with pytest.raises(SimulatedCrash):
        work(CrashFs(disk, crash_at=8, torn=0.5))
    assert disk.files()["/d/checkpoint.tmp"] == b"0\n"


def test_callback_can_inspect_the_disk_before_each_change() -> None:
    disk = MemoryFs()
    seen: list[tuple[str, int]] = []
    fs = CrashFs(disk, before_change=lambda call: seen.append((call.operation, len(disk.files()))))
    work(fs)
    assert [operation for operation, _ in seen] == [call.operation for call in fs.trace]
    assert [files for _, files in seen] == [0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 2]
