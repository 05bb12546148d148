"""The door to the real file system: what it has to have in common with Java's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from seglog.core.errors import LogDirInUseError
from seglog.core.fs import OsFs, unnamed_file

_LOCK_AS_JAVA_DOES = """\
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_the_lock_is_the_one_that_java_takes(tmp_path: Path) -> None:
    """``FileChannel.tryLock`` is a POSIX record lock; it must conflict with ours, whichever comes first."""
    path = str(tmp_path / ".lock")
    command = [sys.executable, "-c", _LOCK_AS_JAVA_DOES, path]
    lock = OsFs().lock(path)
    refused = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert (refused.stdout, refused.returncode) == ("", 1)
    assert "BlockingIOError" in refused.stderr
    lock.release()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        with pytest.raises(LogDirInUseError):
            OsFs().lock(path)
        other.communicate("")
    OsFs().lock(path).release()


_MANY_FILES = """\
import os, resource, sys
from seglog.core.fs import OsFs

resource.setrlimit(resource.RLIMIT_NOFILE, (40, 100))
kept = []
try:
    while True:
        kept.append(OsFs().map(f"{sys.argv[1]}/{len(kept)}", size=8))
except OSError as error:
    print(len(kept) > 40 // 2, error.strerror, error.filename == f"{sys.argv[1]}/{len(kept)}")
opened = len(os.listdir("/dev/fd"))
for file in kept:
    file.close()
print(opened > 90, len(os.listdir("/dev/fd")) < 20)
"""


def test_as_many_files_are_opened_as_the_hard_limit_allows(tmp_path: Path) -> None:
    """And then it is said how many; a descriptor of a file that could not be mapped is closed once."""
    command = [sys.executable, "-c", _MANY_FILES, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout == "True Too many open files: 100 are allowed (ulimit -n) True\nTrue True\n"


def test_zeros_of_a_mapped_file_get_their_place_on_the_disk(tmp_path: Path) -> None:
    """A page that has none on a full disk would end the process when an entry is written to it (SIGBUS)."""
    mapped = OsFs().map(str(tmp_path / "index"), size=1 << 20)
    mapped.buffer[0:3] = b"abc"
    reserved = mapped.reserve(3, 8)
    assert 8 <= reserved < 1 << 20
    assert mapped.reserve(reserved, reserved + 1) == 2 * reserved
    assert os.stat(tmp_path / "index").st_blocks * 512 >= 2 * reserved
    assert mapped.reserve((1 << 20) - 5, (1 << 20) - 2) == mapped.size == 1 << 20
    assert bytes(mapped.buffer) == b"abc" + bytes((1 << 20) - 3)
    mapped.close()


def test_a_hole_is_no_used_byte(tmp_path: Path) -> None:
    """Of four replicas with pre-allocated indexes, `seglog cluster strays` counted 80 MiB."""
    with (tmp_path / "index").open("wb") as file:
        file.write(b"1")
        file.truncate(10 << 20)
    found = OsFs().stat(str(tmp_path / "index"))
    assert found.size == 10 << 20
    assert 0 < found.used < 1 << 20


def test_a_file_without_a_name_is_read_by_its_path_and_then_gone() -> None:
    with unnamed_file(b"secret") as path:
        assert [Path(path).read_bytes() for _ in range(2)] == [b"secret"] * 2
        descriptor = int(path.rpartition("/")[2])
        assert os.fstat(descriptor).st_nlink == 0
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
