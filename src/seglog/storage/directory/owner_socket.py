"""The unix socket on which the process that has a log directory open takes requests of its user's other processes.

That process is the commit coordinator of Spark's writers, or a broker. A log directory itself must not contain a
socket, or Kafka would not open it; so the socket is in a temporary directory that only this user can enter. Its name
follows from the directory's real path. One connection serves one request: a line of JSON each way.
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

_LONGEST_PATH: Final = 100
"""Bytes of a unix socket's path that every system takes."""


def socket_path(directory: str) -> str:
    """The socket of a log directory. `InvalidLogDirError` if other users can enter the directory of sockets."""
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
    path = socket_path(directory)
    with suppress(FileNotFoundError):
        OsFs().unlink(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(path)
        listener.listen(128)
    except BaseException:
        listener.close()
        raise
    return listener


def exchange(address: str, request: bytes) -> bytes | None:
    """Send a line; the line of the answer. None if nothing listens; empty if the owner ended before it answered."""
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as connection:
        try:
            connection.connect(address)
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        try:
            connection.sendall(request)
            with connection.makefile("rb") as lines:
                return lines.readline()
        except (ConnectionResetError, BrokenPipeError):
            return b""
