"""`MemoryFs`: behaves as the real file system until the power goes, and forgets then what it may forget."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from seglog.core.errors import LogDirInUseError
from seglog.core.fs import Fs, OsFs, write_atomically
from tests.kit.manual_clock import ManualClock
from tests.kit.memory_fs import MemoryFs

SEEDS = range(300)


def crashes(make: Callable[[], MemoryFs]) -> list[MemoryFs]:
    disk = make()
    return [disk.after_crash(random.Random(seed)) for seed in SEEDS]


@pytest.fixture(params=["memory", "os"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Fs, str]:
    if request.param == "os":
        return OsFs(), str(tmp_path)
    fs = MemoryFs()
    fs.mkdir("/d")
    return fs, "/d"


def code(act: Callable[[], object]) -> int | None:
    """The errno that ``act`` fails with."""
    try:
        act()
    except OSError as error:
        return error.errno
    return None


# The same behaviour as the real one.


def test_files_are_written_read_and_cut(disk: tuple[Fs, str]) -> None:
    fs, root = disk
    file = fs.open(f"{root}/a", create=True)
    file.pwrite(b"hello", 3)
    assert fs.read(f"{root}/a") == b"\0\0\0hello"
    assert (file.size(), file.pread(100, 6), file.pread(3, 50)) == (8, b"lo", b"")
    file.truncate(5)
    file.truncate(7)
    assert fs.read(f"{root}/a") == b"\0\0\0he\0\0"
    fs.write(f"{root}/a", b"new")
    assert (file.pread(10, 0), fs.stat(f"{root}/a").size) == (b"new", 3)
    file.fsync()
    file.close()


def test_an_open_file_survives_rename_and_deletion(disk: tuple[Fs, str]) -> None:
    fs, root = disk
    fs.write(f"{root}/a", b"one")
    fs.write(f"{root}/b", b"two")
    file = fs.open(f"{root}/a", write=False)
    replaced = fs.open(f"{root}/b", write=False)
    fs.rename(f"{root}/a", f"{root}/b")
    assert fs.listdir(root) == ["b"]
    fs.unlink(f"{root}/b")
    assert (file.pread(9, 0), replaced.pread(9, 0)) == (b"one", b"two")
    assert not fs.exists(f"{root}/b")
    file.close()
    replaced.close()


def test_maps_and_files_show_the_same_bytes(disk: tuple[Fs, str]) -> None:
    fs, root = disk
    mapped = fs.map(f"{root}/m", size=8)
    mapped.buffer[2:4] = b"ab"
    assert fs.read(f"{root}/m") == b"\0\0ab\0\0\0\0"
    mapped.resize(3)
    mapped.resize(6)
    assert (fs.read(f"{root}/m"), mapped.size) == (b"\0\0a\0\0\0", 6)
    file = fs.open(f"{root}/m")
    file.pwrite(b"z", 0)
    assert mapped.buffer[0:1] == b"z"
    mapped.flush()
    mapped.close()
    again = fs.map(f"{root}/m", write=False)
    assert bytes(again.buffer) == b"z\0a\0\0\0"
    again.close()
    file.close()


def test_errors_are_those_of_the_system(disk: tuple[Fs, str]) -> None:
    fs, root = disk
    fs.mkdir(f"{root}/sub")
    fs.write(f"{root}/sub/x", b"")
    fs.write(f"{root}/file", b"")
    assert code(lambda: fs.open(f"{root}/none")) == errno.ENOENT
    assert code(lambda: fs.read(f"{root}/none/x")) == errno.ENOENT
    assert code(lambda: fs.read(f"{root}/file/x")) == errno.ENOTDIR
    assert code(lambda: fs.map(f"{root}/none")) == errno.ENOENT
    assert code(lambda: fs.mkdir(f"{root}/sub")) == errno.EEXIST
    assert code(lambda: fs.rmdir(f"{root}/sub")) == errno.ENOTEMPTY
    assert code(lambda: fs.unlink(f"{root}/none")) == errno.ENOENT
    assert code(lambda: fs.rename(f"{root}/none", f"{root}/x")) == errno.ENOENT
    assert code(lambda: fs.rename(f"{root}/sub", f"{root}/file")) == errno.ENOTDIR
    assert code(lambda: fs.listdir(f"{root}/file")) == errno.ENOTDIR
    assert code(lambda: fs.stat(f"{root}/none")) == errno.ENOENT
    read_only = fs.open(f"{root}/file", write=False)
    assert code(lambda: read_only.pwrite(b"x", 0)) == errno.EBADF
    fs.unlink(f"{root}/sub/x")
    fs.rmdir(f"{root}/sub")
    assert fs.listdir(root) == ["file"]
    read_only.close()


def test_directories_are_renamed_with_what_is_in_them(disk: tuple[Fs, str]) -> None:
    fs, root = disk
    fs.mkdir(f"{root}/one")
    fs.write(f"{root}/one/x", b"x")
    file = fs.open(f"{root}/one/x")
    fs.rename(f"{root}/one", f"{root}/two")
    file.pwrite(b"yz", 1)
    assert fs.read(f"{root}/two/x") == b"xyz"
    assert fs.stat(f"{root}/two").is_dir
    assert not fs.stat(f"{root}/two/x").is_dir
    fs.fsync_dir(root)
    file.close()


def test_times_and_locks(disk: tuple[Fs, str]) -> None:
    fs, root = disk
    fs.write(f"{root}/a", b"")
    fs.set_mtime(f"{root}/a", 1_234_567)
    assert fs.stat(f"{root}/a").mtime_ms == 1_234_567
    lock = fs.lock(f"{root}/.lock")
    with pytest.raises(LogDirInUseError, match=r"\.lock is locked"):
        fs.lock(f"{root}/.lock")
    lock.release()
    fs.lock(f"{root}/.lock").release()


# What a crash leaves.


def test_fsynced_data_survives_every_crash() -> None:
    def make() -> MemoryFs:
        fs = MemoryFs()
        fs.mkdir("/d")
        fs.fsync_dir("/")
        file = fs.open("/d/log", create=True)
        mapped = fs.map("/d/index", size=16)
        file.pwrite(b"x" * 10_000, 0)
        mapped.buffer[0:2] = b"ab"
        file.fsync()
        mapped.flush()
        fs.fsync_dir("/d")
        return fs

    expected = {"/d/log": b"x" * 10_000, "/d/index": b"ab" + bytes(14)}
    assert all(survivor.files() == expected for survivor in crashes(make))


def test_unsynced_appends_leave_prefixes_torn_tails_and_holes() -> None:
    synced, first, second = b"s" * 700, b"a" * 3_000, b"b" * 9_000
    whole = synced + first + second

    def make() -> MemoryFs:
        fs = MemoryFs()
        file = fs.open("/log", create=True)
        file.pwrite(synced, 0)
        file.fsync()
        fs.fsync_dir("/")
        file.pwrite(first, len(synced))
        file.pwrite(second, len(synced) + len(first))
        return fs

    images = {survivor.files()["/log"] for survivor in crashes(make)}
    assert all(image.startswith(synced) and len(image) <= len(whole) for image in images)
    for image in images:
        assert all(got in (wanted, 0) for got, wanted in zip(image, whole, strict=False))
    prefixes = {len(image) for image in images if whole.startswith(image)}
    assert {len(synced), len(synced) + len(first), len(whole)} <= prefixes
    assert any(length % 512 == 0 for length in prefixes), "no torn write"
    assert any(0 in image and image[-1] == ord("b") for image in images), "no page out of order"
    assert any(image[-1] == 0 for image in images), "no zeros at the end"


def test_a_truncation_that_was_not_synced_may_be_undone() -> None:
    def make() -> MemoryFs:
        fs = MemoryFs()
        fs.write("/log", b"old" * 1000)
        fs.fsync_dir("/")
        file = fs.open("/log")
        file.truncate(1000)
        file.pwrite(b"new" * 1000, 1000)
        return fs

    images = [survivor.files()["/log"] for survivor in crashes(make)]
    assert {3000, 1000, 4000} <= {len(image) for image in images}
    assert all(b"old" not in image[1002:] for image in images if len(image) == 4000), "bytes came back from the dead"


def test_pages_of_a_map_are_old_or_new_each() -> None:
    def make() -> MemoryFs:
        fs = MemoryFs()
        mapped = fs.map("/index", size=4096 * 3)
        mapped.flush()
        fs.fsync_dir("/")
        for page in range(3):
            mapped.buffer[page * 4096] = 1
        return fs

    images = {tuple(survivor.files()["/index"][page * 4096] for page in range(3)) for survivor in crashes(make)}
    assert images == {(a, b, c) for a in (0, 1) for b in (0, 1) for c in (0, 1)}


def test_names_are_lost_in_order_unless_the_directory_was_fsynced() -> None:
    def make() -> MemoryFs:
        fs = MemoryFs()
        fs.write("/old", b"old")
        fs.fsync_dir("/")
        fs.write("/a", b"a")
        fs.rename("/a", "/b")
        fs.unlink("/old")
        fs.write("/c", b"c")
        return fs

    seen = {tuple(survivor.files()) for survivor in crashes(make)}
    assert seen == {("/old",), ("/a", "/old"), ("/b", "/old"), ("/b",), ("/b", "/c")}


def test_a_replacement_leaves_the_old_or_the_new_file_whole() -> None:
    def make() -> MemoryFs:
        fs = MemoryFs()
        write_atomically(fs, "/checkpoint", b"old" * 500)
        fs.write("/checkpoint.tmp", b"new" * 2_000)
        fs.rename("/checkpoint.tmp", "/checkpoint")
        return fs

    assert {survivor.files()["/checkpoint"] for survivor in crashes(make)} == {b"old" * 500, b"new" * 2_000}


def test_a_rename_without_fsync_of_the_data_leaves_anything() -> None:
    def make() -> MemoryFs:
        fs = MemoryFs()
        file = fs.open("/x.tmp", create=True)
        file.pwrite(b"new" * 500, 0)
        fs.rename("/x.tmp", "/x")
        fs.fsync_dir("/")
        return fs

    assert b"" in {survivor.files()["/x"] for survivor in crashes(make)}


def test_a_move_between_directories_happens_on_both_sides_or_on_none() -> None:
    def make(fsynced: str = "") -> MemoryFs:
        fs = MemoryFs()
        for directory in ("/a", "/b"):
            fs.mkdir(directory)
        fs.write("/a/x", b"x")
        for directory in ("/", "/a", "/b"):
            fs.fsync_dir(directory)
        fs.write("/a/first", b"")
        fs.rename("/a/x", "/b/x")
        if fsynced:
            fs.fsync_dir(fsynced)
        return fs

    seen = {tuple(survivor.files()) for survivor in crashes(make)}
    assert seen == {("/a/x",), ("/a/first", "/a/x"), ("/a/first", "/b/x")}
    for side in ("/a", "/b"):
        assert {tuple(survivor.files()) for survivor in crashes(partial(make, side))} == {("/a/first", "/b/x")}


def test_a_directory_that_was_not_fsynced_takes_its_files_along() -> None:
    def make() -> MemoryFs:
        fs = MemoryFs()
        fs.mkdir("/d")
        fs.write("/d/x", b"x")
        fs.fsync_dir("/d")
        return fs

    assert {tuple(survivor.files()) for survivor in crashes(make)} == {(), ("/d/x",)}


def test_a_crash_ends_open_files_and_locks() -> None:
    fs = MemoryFs()
    file = fs.open("/log", create=True)
    mapped = fs.map("/index", size=8)
    fs.lock("/.lock")
    fs.crash(random.Random(1))
    assert code(lambda: file.pwrite(b"x", 0)) == errno.EBADF
    assert code(mapped.flush) == errno.EBADF
    fs.lock("/.lock").release()


# Faults.


def test_full_disk_writes_as_much_as_fits() -> None:
    fs = MemoryFs(capacity=1_000)
    file = fs.open("/log", create=True)
    file.pwrite(b"a" * 900, 0)
    assert code(lambda: file.pwrite(b"b" * 300, 900)) == errno.ENOSPC
    assert file.size() == 1_000
    assert code(lambda: fs.map("/index", size=8)) == errno.ENOSPC
    assert code(lambda: fs.write("/x", b"1")) == errno.ENOSPC
    file.truncate(10)
    fs.write("/x", b"1" * 990)
    assert fs.used == 1_000


def test_the_nth_call_fails_and_its_bytes_are_lost_for_good() -> None:
    fs = MemoryFs()
    file = fs.open("/d.log", create=True)
    other = fs.open("/e.log", create=True)
    fs.fsync_dir("/")
    fs.fail_at("fsync", 2, path="d.log")
    file.pwrite(b"one", 0)
    file.fsync()
    file.pwrite(b"two", 3)
    other.fsync()
    assert code(file.fsync) == errno.EIO
    file.pwrite(b"three", 6)
    file.fsync()  # succeeds, as on Linux: the page of "two" was marked clean
    fs.crash(random.Random(0))
    assert fs.read("/d.log") == b"one\0\0\0three"


def test_faults_by_operation_and_how_often() -> None:
    fs = MemoryFs()
    fs.fail_at(["pwrite", "write"], 1, error=errno.ENOSPC, times=2)
    file = fs.open("/a", create=True)
    assert code(lambda: fs.write("/b", b"")) == errno.ENOSPC
    assert code(lambda: file.pwrite(b"x", 0)) == errno.ENOSPC
    file.pwrite(b"x", 0)
    assert (fs.calls["pwrite"], fs.read("/a")) == (2, b"x")


def test_a_read_only_disk_is_read_and_not_changed() -> None:
    clock = ManualClock(77)
    fs = MemoryFs(clock=clock)
    fs.write("/a", b"x")
    fs.read_only = True
    assert fs.read("/a") == b"x"
    assert fs.stat("/a").mtime_ms == 77
    for act in (
        lambda: fs.write("/a", b""),
        lambda: fs.mkdir("/d"),
        lambda: fs.unlink("/a"),
        lambda: fs.rename("/a", "/b"),
        lambda: fs.open("/n", create=True),
        lambda: fs.lock("/.lock"),
    ):
        assert code(act) == errno.EROFS
    fs.chmod("/a", 0o600)
    assert fs.stat("/a").mode == 0o600
