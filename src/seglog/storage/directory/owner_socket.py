"""The unix socket on which the process that has a log directory open takes requests of its user's other processes.

That process is the commit coordinator of Spark's writers, or a broker. A log directory itself must not contain a
socket, or Kafka would not open it; so the socket is in a temporary directory that only this user can enter. The file
``seglog.socket`` of the log directory names it, because another process of the user may have another ``TMPDIR``. The
owner writes the file after it has locked the directory and leaves it when it ends: nothing listens on its socket then.
One connection serves one request: a line of JSON each way.
"""

from __future__ import annotations

import hashlib
import os
import socket
import stat
import tempfile
from contextlib import closing, suppress
from typing import Final

from seglog.core.errors import InvalidLogDirError
from seglog.core.fs import OsFs
from seglog.storage.formats.paths import SOCKET

_LONGEST_PATH: Final = 100
"""Bytes of a unix socket's path that every system takes."""


def socket_path(directory: str) -> str:
    """Where this process listens for a log directory, if it opens it; the name follows from the directory's real path.
    `InvalidLogDirError` if other users can enter the directory of sockets."""
    fs = OsFs()
    name = f"seglog-{os.getuid()}"
    digest = hashlib.sha256(os.path.realpath(directory).encode()).hexdigest()[:20]
    path = os.path.join(tempfile.gettempdir(), name, f"{digest}.sock")
    if len(os.fsencode(path)) > _LONGEST_PATH:
        path = os.path.join("/tmp", name, f"{digest}.sock")
    parent = os.path.dirname(path)
    with suppress(FileExistsError):
        fs.mkdir(parent)
        os.chmod(parent, 0o700)
    found = os.lstat(parent)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise InvalidLogDirError(f"{parent} must be a directory that only this user can enter (mode 0700): remove it")
    return path


def listen_for(directory: str) -> socket.socket:
    """A new socket of a log directory, whose lock the caller has: one that is there is of a process that was killed."""
    fs, path = OsFs(), socket_path(directory)
    with suppress(FileNotFoundError):
        fs.unlink(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(path)
        listener.listen(128)
        pointer = os.path.join(directory, SOCKET)
        fs.write(f"{pointer}.tmp", os.fsencode(path))
        fs.rename(f"{pointer}.tmp", pointer)
    except BaseException:
        listener.close()
        raise
    return listener


def address_of_owner(directory: str) -> str | None:
    """The socket of the last process that had a log directory open; None if it is not known."""
    try:
        return os.fsdecode(OsFs().read(os.path.join(directory, SOCKET))) or None
    except OSError:
        return None


def exchange(directory: str, request: bytes) -> bytes | None:
    """Send a line to the owner of a log directory; the line of the answer. None if nothing listens that this user can
    reach; empty if the owner ended before it answered."""
    address = address_of_owner(directory)
    if address is None:
        return None
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as connection:
        try:
            connection.connect(address)
        except OSError:
            return None
        try:
            connection.sendall(request)
            with connection.makefile("rb") as lines:
                return lines.readline()
        except (ConnectionResetError, BrokenPipeError):
            return b""


def why_unreachable(directory: str) -> str:
    """For an error: why `exchange` finds nobody, as far as ``seglog.socket`` tells; empty without that file."""
    address = address_of_owner(directory)
    if address is None:
        return ""
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as connection:
        try:
            connection.connect(address)
        except PermissionError:
            why = "which only its user may use"
        except FileNotFoundError:
            why = "which is not there for this process: it runs on another machine, or has another /tmp"
        except OSError as error:
            why = f"which does not answer ({error.strerror})"
        else:
            why = "which answers"
    return f"the last process of seglog that had it open listens on {address}, {why}"
