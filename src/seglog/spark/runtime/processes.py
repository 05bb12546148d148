"""Processes of Spark: the driver's, those that a job belongs to, and the garbage collection of workers."""

from __future__ import annotations

import gc
import os
import select
import subprocess
import sys
from collections.abc import Collection
from functools import cache
from typing import ClassVar

from seglog.core.fs import OsFs

_DAEMON = "pyspark.daemon"
_REUSED = "SPARK_REUSE_WORKER"
_LINUX = sys.platform == "linux"


class ProcessWatch:
    """Watches processes that are not children of this one, by handle where there are handles: ids are reused."""

    POLL_SECONDS: ClassVar = 0.5
    """The longest time in which an end may go unnoticed."""

    def __init__(self) -> None:
        self._handles: dict[int, int] = {}

    def gone(self, pids: Collection[int]) -> set[int]:
        """Those of ``pids`` that have ended; processes not in ``pids`` are no longer watched."""
        for pid in self._handles.keys() - set(pids):
            os.close(self._handles.pop(pid))
        return {pid for pid in pids if not self._lives(pid)}

    def _lives(self, pid: int) -> bool:
        try:
            if pid not in self._handles and sys.platform == "linux":
                self._handles[pid] = os.pidfd_open(pid)
            if pid in self._handles:
                return not select.select([self._handles[pid]], [], [], 0)[0]
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # it is alive, and belongs to another user
            return True
        return True

    def close(self) -> None:
        self.gone(())


def driver_pid() -> int:
    """The JVM that runs this planning process: its parent, or its daemon's parent."""
    pid = os.getppid()
    parent, command = _process(pid)
    return parent if _DAEMON in command and parent > 1 else pid


def command_line(pid: int) -> list[str]:
    """The arguments of a process; empty if the system does not tell."""
    return _process(pid)[1]


def _process(pid: int) -> tuple[int, list[str]]:
    """The parent and the arguments of a process; 0 and empty if the system does not tell."""
    try:
        if _LINUX:
            fs = OsFs()
            state = fs.read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
            arguments = fs.read(f"/proc/{pid}/cmdline").decode(errors="replace").split("\0")
            return int(state[1]), arguments
        done = subprocess.run(["ps", "-o", "ppid=,args=", "-p", str(pid)], capture_output=True, text=True, check=False)
        parent, _, command = done.stdout.strip().partition(" ")
        return int(parent), command.split()
    except (OSError, ValueError, IndexError):
        return 0, []


@cache
def freeze_imports() -> None:
    """Exclude all loaded objects from Python's garbage collection; once in a worker that Spark uses again.

    ``pyspark/daemon.py`` runs a full collection there after each task and each commit of a micro-batch: about 50 ms
    with numba and pyarrow loaded.
    """
    if os.environ.get(_REUSED):
        gc.collect()
        gc.freeze()
