"""``seglog.life``: since when the directories of a broker in a cluster have lost nothing (KIP-966).

A broker that had everything up to some offset says so with its epoch; after a crash others must know whether that still
holds. One regular file in each directory, which Kafka passes over; JSON, written atomically::

    {"version": 1, "kept_since": 17, "boot": "0b7c…", "directories": ["86Gyw9TlT2CBcYKTpLXG1w"], "failed": [],
     "epoch": 21, "born": 3, "whole_since": 17, "synced": {"t-0": 3}, "made": {"t-1": 19}}

``kept_since`` is the broker epoch since which nothing was lost. ``boot`` is the start of the machine in which it was
written: a process that only died leaves all that it wrote to the page cache. A start after a clean stop writes its own
(`carry_over`). ``directories`` are the ids of all
directories that the broker then had, so that one that was replaced by an empty one is noticed, and ``failed`` those of
which the disk failed: what it had not written may be gone although nothing crashed.

The second line is about the partitions of this directory, so that loss is judged for each of them (`Kept`). ``epoch``
is the broker's last registration: an older copy of the directory has an earlier one. The directory exists since
``born`` and has lost nothing since ``whole_since``. A partition in ``synced`` has been fsynced before anything was said
of it since that epoch (``flush.messages=1``): no power cut takes from it. One in ``made`` was made in that epoch, in a
directory that had belonged to this broker before; `PENDING` until the next registration.
"""

from __future__ import annotations

import json
import logging
import os.path
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final, NamedTuple

from seglog.core.errors import LogDirFullError, LogDirOfflineError
from seglog.core.fs import Fs, NoSpaceError, write_atomically
from seglog.core.types import MAX_INT64, TopicPartition
from seglog.storage.formats.checkpoints import encode_id
from seglog.storage.formats.paths import LIFE

if TYPE_CHECKING:
    from seglog.storage.directory.log_dir import LogDir

BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
_VERSION: Final = 1
PENDING: Final = MAX_INT64
ALWAYS_FLUSHED: Final = 1
"""``flush.messages`` of a partition that is fsynced with each append."""
_logger = logging.getLogger("seglog")


class Life(NamedTuple):
    """What stands in the file; directories by their ids as ``meta.properties`` has them, partitions by their names."""

    kept_since: int
    boot: str | None
    directories: frozenset[str] = frozenset()
    failed: frozenset[str] = frozenset()
    epoch: int | None = None
    """None: an older seglog has written the file."""
    born: int = 0
    whole_since: int = 0
    synced: frozenset[tuple[str, int]] = frozenset()
    made: frozenset[tuple[str, int]] = frozenset()


class Kept(NamedTuple):
    """What the log of a partition provably kept, in broker epochs; as `seglog.cluster.model.Evidence` has it."""

    directory: str
    made: int
    kept_since: int


def encode_life(life: Life) -> bytes:
    fields = {
        "version": _VERSION,
        "kept_since": life.kept_since,
        "boot": life.boot,
        "directories": sorted(life.directories),
        "failed": sorted(life.failed),
        "epoch": life.epoch,
        "born": life.born,
        "whole_since": life.whole_since,
        "synced": dict(sorted(life.synced)),
        "made": dict(sorted(life.made)),
    }
    return json.dumps(fields).encode() + b"\n"


def decode_life(data: bytes) -> Life | None:
    """None if it is none: then nothing is known to be kept, which is safe."""
    try:
        told = json.loads(data)
        boot, kept_since, epoch = told["boot"], told["kept_since"], told.get("epoch")
        # Nothing says since when the directory of an older seglog exists: since its last loss at the latest.
        numbers = kept_since, told.get("born", kept_since), told.get("whole_since", kept_since)
        is_of_now = told["version"] == _VERSION and all(type(number) is int for number in numbers)
        if not is_of_now or not isinstance(boot, str | None) or not (epoch is None or type(epoch) is int):
            return None
        return Life(
            kept_since,
            boot,
            frozenset(map(str, told["directories"])),
            frozenset(map(str, told["failed"])),
            epoch,
            *numbers[1:],
            _epochs(told.get("synced", {})),
            _epochs(told.get("made", {})),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _epochs(told: Mapping[str, int]) -> frozenset[tuple[str, int]]:
    return frozenset((str(name), int(epoch)) for name, epoch in told.items())


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


def carry_over(fs: Fs, path: str) -> None:
    """Keep the claim of a directory that was closed cleanly over a start that is never registered. Called while the
    marker of the clean shutdown is still there: all that was written is on the disk, so from here on only another stop
    of this machine can take anything. On a full disk the file stays as it was, and claims less."""
    boot, life = boot_id(fs), read_life(fs, path)
    if boot is not None and life is not None and life.boot != boot:
        with suppress(NoSpaceError):
            write_life(fs, path, life._replace(boot=boot))


def id_of(directory: LogDir) -> str:
    return encode_id(directory.meta.directory_id) if directory.meta.directory_id is not None else directory.path


class Past(NamedTuple):
    """What the files said when the directories were opened. ``kept_since`` is None if something was lost, or there was
    nothing before; ``absent`` are the ids of directories that could not be opened.

    ``lives`` is what is left of what each directory said, without what it has lost since; ``lossy`` are those that may
    have lost something. ``has_all``: all directories are of the last life, or all are new.
    """

    kept_since: int | None
    boot: str | None
    here: frozenset[str]
    absent: frozenset[str]
    lives: Mapping[LogDir, Life]
    lossy: frozenset[LogDir]
    has_all: bool


class _Loss(NamedTuple):
    """``is_of_memory``: what a power cut takes, which is not what was fsynced."""

    reason: str
    is_of_memory: bool = False


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
    losses = {directory: loss for directory, life in lives.items() if (loss := _loss(directory, life, boot, known))}
    reasons = [loss.reason for loss in losses.values()]
    if failed & here:
        reasons.append("a disk had failed")
    if len(known - here) > absent:
        reasons.append(f"{len(known - here)} directories of {len(known)} are no longer here")
    if told and reasons:
        _logger.warning("records from before this start may be lost: %s", "; ".join(reasons))
    kept = max(life.kept_since for life in told) if told and not reasons else None
    broken = [one for one in losses if not losses[one].is_of_memory]
    broken += [one for one in directories if id_of(one) in failed]
    left = {one: _left(one, life, has_lost_all=one in broken) for one, life in lives.items() if life is not None}
    lossy = frozenset((*losses, *broken))
    has_all = not known - here and not absent and len(left) in (0, len(directories))
    return Past(kept, boot, here, known - here if absent else frozenset(), left, lossy, has_all)


def _left(directory: LogDir, life: Life, *, has_lost_all: bool) -> Life:
    """What still holds of what the file of a directory said of its partitions."""
    if has_lost_all:
        return life._replace(synced=frozenset())
    lost = {str(partition) for partition in directory.refused} | {str(one) for one in _cut(directory)}
    return life._replace(synced=frozenset(one for one in life.synced if one[0] not in lost))


def keep(flushed: Mapping[LogDir, Sequence[str]], past: Past, epoch: int, last: int | None) -> Mapping[LogDir, Life]:
    """What each directory says from here on, for a broker that is about to be registered with ``epoch``: since which
    epoch nothing was lost. Durable when it returns.

    ``flushed`` are the directories that are still in order, with those of their partitions that fsync each append
    (`flush_synced`). ``last`` is the epoch of this broker's last registration, None if that is not known.
    `LogDirOfflineError` if all their disks fail.
    """
    stale = {one for one, life in past.lives.items() if _is_stale(life, last)}
    for directory in stale:
        known = past.lives[directory].epoch
        _logger.warning("%s is a copy from epoch %s of this broker, which was in epoch %s", directory.path, known, last)
    kept = epoch if past.kept_since is None or stale else past.kept_since
    away = past.absent | past.here.difference(id_of(directory) for directory in flushed)
    common = Life(kept, past.boot, past.here | past.absent, away, epoch, epoch, epoch)
    lives = {}
    for directory, names in flushed.items():
        before = past.lives.get(directory)
        if before is None or directory in stale:
            lives[directory] = common._replace(synced=frozenset((name, epoch) for name in names))
            continue
        synced, made = dict(before.synced), dict(before.made)
        there = {str(partition) for partition in (*directory.logs, *directory.refused)}
        lives[directory] = common._replace(
            born=before.born,
            whole_since=epoch if directory in past.lossy else before.whole_since,
            synced=frozenset((name, synced.get(name, epoch)) for name in names),
            made=frozenset((name, epoch if at == PENDING else at) for name, at in made.items() if name in there),
        )
    write_all(lives)
    return lives


def _is_stale(life: Life, last: int | None) -> bool:
    """Whether a directory does not know of its broker's last life: somebody has put back an older copy of it."""
    return last is not None and life.epoch is not None and life.epoch < last


def flush_synced(directory: LogDir, partitions: Iterable[TopicPartition]) -> list[str]:
    """Those of these partitions that fsync each append, with all that they have on the disk."""
    found = []
    for partition in partitions:
        log = directory.logs.get(partition)
        if log is None or log.config.flush_messages != ALWAYS_FLUSHED:
            continue
        if log.recovery_point < log.log_end_offset:
            try:
                log.flush()
            except LogDirOfflineError:  # it tells so itself
                return []
        found.append(str(partition))
    return found


def kept_of(directory: LogDir, partition: TopicPartition, life: Life) -> Kept:
    """What the log of this partition provably kept, by what its directory says."""
    name = str(partition)
    made = _by_name(life.made).get(name, life.born)
    kept = min(life.whole_since, _by_name(life.synced).get(name, life.whole_since))
    return Kept(id_of(directory), made, max(made, kept))


@lru_cache(maxsize=32)
def _by_name(epochs: frozenset[tuple[str, int]]) -> Mapping[str, int]:
    """Thousands of partitions are asked for after a power cut."""
    return dict(epochs)


def _loss(directory: LogDir, life: Life | None, boot: str | None, known: frozenset[str]) -> _Loss | None:
    """Why a directory may have lost something since its file was written."""
    if life is None:
        is_new = id_of(directory) not in known and not directory.logs and not directory.refused
        return None if is_new else _Loss(f"{directory.path} has no {LIFE}")
    if directory.refused:
        return _Loss(f"{directory.path}: {len(directory.refused)} partitions are not served", is_of_memory=True)
    if not directory.was_clean and (boot is None or life.boot != boot):
        return _Loss(f"{directory.path} was not closed before the machine stopped", is_of_memory=True)
    cut = _cut(directory)
    if cut:
        partition, end = next(iter(cut.items()))
        reason = f"{directory.path}: {partition} was cut at {end}, below what was committed"
        return _Loss(reason, is_of_memory=True)
    return None


def _cut(directory: LogDir) -> Mapping[TopicPartition, int]:
    """Where the logs end that recovery found shorter than what was committed in them."""
    marks = directory.checkpoints.high_watermarks  # as they were when it was opened
    reports = directory.reports.items()
    return {one: report.log_end_offset for one, report in reports if report.log_end_offset < marks.get(one, 0)}


def note_failure(lives: Mapping[LogDir, Life], broken: LogDir) -> Mapping[LogDir, Life]:
    """Write down that a disk has failed, as far as that can be done: a retried fsync may say that all is well.
    ``lives`` are those of the directories that are in order; what they are now."""
    try:
        broken.fs.unlink(os.path.join(broken.path, LIFE))
        broken.fs.fsync_dir(broken.path)
    except OSError:
        _logger.warning("%s cannot be removed from %s", LIFE, broken.path)
    lives = {one: life._replace(failed=life.failed | {id_of(broken)}) for one, life in lives.items()}
    with suppress(LogDirOfflineError, LogDirFullError):  # it tells so itself
        write_all(lives)
    return lives


def write_all(lives: Mapping[LogDir, Life]) -> None:
    """`LogDirOfflineError` if all their disks fail."""
    failure: LogDirOfflineError | LogDirFullError | None = None
    written = 0
    for directory, life in lives.items():
        try:
            with directory.health.guard():
                if read_life(directory.fs, directory.path) != life:
                    directory.health.make_room(partial(write_life, directory.fs, directory.path, life))
            written += 1
        except (LogDirOfflineError, LogDirFullError) as error:
            failure = error
    if failure is not None and not written:
        raise failure
