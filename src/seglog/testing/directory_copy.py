"""A copy of a log directory that shares nothing with it.

No file of the copy is a hard link: logs are appended to and cut, indexes are mapped, checkpoints are replaced, and
nothing in a directory says that a segment will never be written again. Where the file system can (btrfs, XFS), a copy
shares blocks until either side writes (``FICLONE``), and costs no space.
"""

from __future__ import annotations

import fcntl
import os
import sys
from typing import Final

from seglog.core.errors import LogDirInUseError
from seglog.core.fs import File, OsFile, OsFs, is_locked

_LOCK: Final = ".lock"
_SKIPPED: Final = frozenset({_LOCK, "seglog.reserve"})
_STEP: Final = 1 << 20
_FICLONE: Final = 0x40049409


def copy_directory(source: str, target: str) -> None:
    """Copy all regular files; modification times stay. `LogDirInUseError` if a broker has the directory open, because
    its files would not be of one moment. OSError."""
    if is_locked(os.path.join(source, _LOCK)):
        raise LogDirInUseError(f"{source} is open in a broker: stop it, or copy a snapshot of its disk")
    fs = OsFs()
    for directory, _, names in os.walk(source, onerror=_raise):
        below = os.path.normpath(os.path.join(target, os.path.relpath(directory, source)))
        if not fs.exists(below):
            fs.mkdir(below)
        for name in names:
            path = os.path.join(directory, name)
            if name not in _SKIPPED and os.path.isfile(path):
                _copy_file(fs, path, os.path.join(below, name))


def _copy_file(fs: OsFs, source: str, target: str) -> None:
    read = fs.open(source, write=False)
    try:
        written = fs.open(target, create=True)
        try:
            if not _clone(read, written):
                position = 0
                while part := read.pread(min(_STEP, read.size() - position), position):
                    written.pwrite(part, position)
                    position += len(part)
        finally:
            written.close()
    finally:
        read.close()
    fs.set_mtime(target, fs.stat(source).mtime_ms)


def _clone(source: File, target: File) -> bool:
    """Let the copy share blocks until either side writes. False where that cannot be."""
    if sys.platform != "linux" or not isinstance(source, OsFile) or not isinstance(target, OsFile):
        return False
    try:
        fcntl.ioctl(target.fileno(), _FICLONE, source.fileno())
    except OSError:
        return False
    return True


def _raise(error: OSError) -> None:
    raise error
