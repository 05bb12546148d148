"""What this process uses, by the names that Prometheus' own client libraries give it."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from typing import Final

from seglog.core.fs import Fs
from seglog.core.metrics import Family, Sample

_STATM: Final = "/proc/self/statm"
_DESCRIPTORS: Final = "/proc/self/fd"
_KIBIBYTES: Final = 1 if sys.platform == "darwin" else 1024


def process_families(fs: Fs, started_ms: int) -> Iterator[Family]:
    """Where there is no /proc, resident memory is the most that it has been, and descriptors are not counted."""
    use = resource.getrusage(resource.RUSAGE_SELF)
    yield Family(
        "process_cpu_seconds_total", "counter", "CPU time, user and system.", [_one(use.ru_utime + use.ru_stime)]
    )
    yield Family("process_start_time_seconds", "gauge", "Start, since 1970.", [_one(started_ms / 1000)])
    resident = use.ru_maxrss * _KIBIBYTES
    if fs.exists(_STATM):
        page = os.sysconf("SC_PAGE_SIZE")
        total, resident_pages = fs.read(_STATM).split()[:2]
        resident = int(resident_pages) * page
        yield Family("process_virtual_memory_bytes", "gauge", "Virtual memory.", [_one(int(total) * page)])
        yield Family("process_open_fds", "gauge", "Open files.", [_one(_open_files(fs))])
    yield Family("process_resident_memory_bytes", "gauge", "Resident memory.", [_one(resident)])
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield Family("process_max_fds", "gauge", "Files that may be open.", [_one(limit)])


def _open_files(fs: Fs) -> int:
    """The directory's size, from Linux 6.2 on: a list of thousands takes milliseconds."""
    return fs.stat(_DESCRIPTORS).size or len(fs.listdir(_DESCRIPTORS))


def _one(value: float) -> Sample:
    return Sample(value)
