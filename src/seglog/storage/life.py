"""``seglog.life``: since when the directories of a broker in a cluster have lost nothing (KIP-966).

A broker that had everything up to some offset says so with its epoch; after a crash others must know whether that still
holds. One regular file in each directory, which Kafka passes over; JSON, written atomically::

    {"version": 1, "kept_since": 17, "boot": "0b7c…", "directories": ["86Gyw9TlT2CBcYKTpLXG1w"], "failed": []}

``kept_since`` is the broker epoch since which nothing was lost. ``boot`` is the start of the machine in which it was
written: a process that only died leaves all that it wrote to the page cache. ``directories`` are the ids of all
directories that the broker then had, so that one that was replaced by an empty one is noticed, and ``failed`` those of
which the disk failed: what it had not written may be gone although nothing crashed.
"""

from __future__ import annotations

import json
import logging
import os.path
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from seglog.core.errors import LogDirFullError, LogDirOfflineError
from seglog.core.fs import Fs, write_atomically
from seglog.storage.checkpoint import encode_id
from seglog.storage.layout import LIFE

if TYPE_CHECKING:
    from seglog.storage.log_dir import LogDir

BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
_VERSION: Final = 1
_logger = logging.getLogger("seglog")


class Life(NamedTuple):
    """What stands in the file; directories by their ids as ``meta.properties`` has them."""

    kept_since: int
    boot: str | None
    directories: frozenset[str] = frozenset()
    failed: frozenset[str] = frozenset()


def encode_life(life: Life) -> bytes:
    fields = {
        "version": _VERSION,
        "kept_since": life.kept_since,
        "boot": life.boot,
        "directories": sorted(life.directories),
        "failed": sorted(life.failed),
    }
    return json.dumps(fields).encode() + b"\n"


def decode_life(data: bytes) -> Life | None:
    """None if it is none: then nothing is known to be kept, which is safe."""
    try:
        told = json.loads(data)
        boot, kept_since = told["boot"], told["kept_since"]
        if told["version"] != _VERSION or type(kept_since) is not int or not isinstance(boot, str | None):
            return None
        return Life(kept_since, boot, frozenset(map(str, told["directories"])), frozenset(map(str, told["failed"])))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def read_life(fs: Fs, path: str) -> Life | None:
    """Of the log directory at ``path``; None where there is no file that can be read."""
    try:
        return decode_life(fs.read(os.path.join(path, LIFE)))
    except OSError:
        return None


def write_life(fs: Fs, path: str, life: Life) -> None:
    write_atomically(fs, os.path.join(path, LIFE), encode_life(life))


def boot_id(fs: Fs) -> str | None:
    """Which start of the machine this is; None where the system does not tell (macOS)."""
    try:
        return fs.read(BOOT_ID).decode().strip() or None
    except (OSError, ValueError):
        return None


def id_of(directory: LogDir) -> str:
    return encode_id(directory.meta.directory_id) if directory.meta.directory_id is not None else directory.path


class Past(NamedTuple):
    """What the files said when the directories were opened. ``kept_since`` is None if something was lost, or there was
    nothing before; ``absent`` are the ids of directories that could not be opened."""

    kept_since: int | None
    boot: str | None
    here: frozenset[str]
    absent: frozenset[str]


def look_back(directories: Sequence[LogDir], *, absent: int = 0) -> Past:
    """Look for losses, in directories that were all opened just now, before anything is made in them.

    ``absent`` others are out of order. What those had is not served, and the broker is not asked for it: they lose
    nothing until they come back.
    """
    boot = boot_id(directories[0].fs)
    lives = {directory: read_life(directory.fs, directory.path) for directory in directories}
    told = [life for life in lives.values() if life is not None]
    here = frozenset(id_of(directory) for directory in directories)
    known = frozenset[str]().union(*(life.directories for life in told))
    failed = frozenset[str]().union(*(life.failed for life in told))
    reasons = [why for directory, life in lives.items() if (why := _loss(directory, life, boot, known))]
    if failed & here:
        reasons.append("a disk had failed")
    if len(known - here) > absent:
        reasons.append(f"{len(known - here)} directories of {len(known)} are no longer here")
    if told and reasons:
        _logger.warning("records from before this start may be lost: %s", "; ".join(reasons))
    kept = max(life.kept_since for life in told) if told and not reasons else None
    return Past(kept, boot, here, known - here if absent else frozenset())


def keep(directories: Sequence[LogDir], past: Past, epoch: int) -> int:
    """Since which epoch nothing was lost, for a broker that is about to be registered with ``epoch``; durable.

    ``directories`` are those that are still in order. `LogDirOfflineError` if all their disks fail.
    """
    kept = epoch if past.kept_since is None else past.kept_since
    away = past.absent | past.here.difference(id_of(directory) for directory in directories)
    _write_all(directories, Life(kept, past.boot, past.here | past.absent, away))
    return kept


def _loss(directory: LogDir, life: Life | None, boot: str | None, known: frozenset[str]) -> str | None:
    """Why a directory may have lost something since its file was written."""
    if life is None:
        is_new = id_of(directory) not in known and not directory.logs and not directory.refused
        return None if is_new else f"{directory.path} has no {LIFE}"
    if directory.refused:
        return f"{directory.path}: {len(directory.refused)} partitions are not served"
    if not directory.was_clean and (boot is None or life.boot != boot):
        return f"{directory.path} was not closed before the machine stopped"
    marks = directory.checkpoints.high_watermarks  # as they were when it was opened
    for partition, report in directory.reports.items():
        if report.log_end_offset < marks.get(partition, 0):
            return f"{directory.path}: {partition} was cut at {report.log_end_offset}, below what was committed"
    return None


def note_failure(healthy: Sequence[LogDir], broken: LogDir) -> None:
    """Write down that a disk has failed, as far as that can be done: a retried fsync may say that all is well."""
    try:
        broken.fs.unlink(os.path.join(broken.path, LIFE))
        broken.fs.fsync_dir(broken.path)
    except OSError:
        _logger.warning("%s cannot be removed from %s", LIFE, broken.path)
    for directory in healthy:
        try:
            with directory.health.guard():
                life = read_life(directory.fs, directory.path)
                if life is not None:
                    write_life(directory.fs, directory.path, life._replace(failed=life.failed | {id_of(broken)}))
        except (LogDirOfflineError, LogDirFullError):
            continue  # it tells so itself


def _write_all(directories: Sequence[LogDir], life: Life) -> None:
    failure: LogDirOfflineError | LogDirFullError | None = None
    written = 0
    for directory in directories:
        try:
            with directory.health.guard():
                if read_life(directory.fs, directory.path) != life:
                    directory.health.make_room(partial(write_life, directory.fs, directory.path, life))
            written += 1
        except (LogDirOfflineError, LogDirFullError) as error:
            failure = error
    if failure is not None and not written:
        raise failure
