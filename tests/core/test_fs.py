"""The door to the real file system: what it has to have in common with Java's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from seglog.core.errors import LogDirInUseError
from seglog.core.fs import OsFs

_LOCK_AS_JAVA_DOES = """\
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_the_lock_is_the_one_that_java_takes(tmp_path: Path) -> None:
    """``FileChannel.tryLock`` is a record lock of POSIX; it must conflict with ours, whoever comes first."""
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
