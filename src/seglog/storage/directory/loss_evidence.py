"""Evidence on lost records: since which broker epoch directories and partitions have lost nothing (KIP-966).

`assess_losses` judges it when the directories are opened. `keep` records it when the broker is registered, in the
``seglog.life`` of each directory (`seglog.storage.formats.life_file`).
"""

from __future__ import annotations

import logging
import os.path
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import Final, NamedTuple

from seglog.core.errors import LogDirFullError, LogDirOfflineError, SeglogError
from seglog.core.types import TopicPartition
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.formats.checkpoints import encode_id
from seglog.storage.formats.life_file import PENDING, Life, boot_id, read_life, write_life
from seglog.storage.formats.paths import LIFE

ALWAYS_FLUSHED: Final = 1
"""``flush.messages`` of a partition that is flushed before an append is acknowledged (`Log.flushed_end`)."""
_logger = logging.getLogger("seglog")


class LogEvidence(NamedTuple):
    """The broker epochs since which a log has kept its records; see `seglog.cluster.model.Evidence`."""

    directory: str
    made: int
    kept_since: int


def id_of(directory: LogDir) -> str:
    return encode_id(directory.meta.directory_id) if directory.meta.directory_id is not None else directory.path


class LossEvidence(NamedTuple):
    """The evidence when the directories were opened. ``kept_since`` is None if records may be lost, or at the first
    start; ``absent`` are the ids of directories that could not be opened.

    ``lives``: each directory's file without claims that no longer hold. ``lossy``: directories that may have lost
    records. ``has_all``: all directories were used before, or all are new.
    """

    kept_since: int | None
    boot: str | None
    here: frozenset[str]
    absent: frozenset[str]
    lives: Mapping[LogDir, Life]
    lossy: frozenset[LogDir]
    has_all: bool


class _Loss(NamedTuple):
    """``is_of_memory``: a power cut may have lost records, but none that were fsynced."""

    reason: str
    is_of_memory: bool = False


def assess_losses(directories: Sequence[LogDir], *, absent: int = 0) -> LossEvidence:
    """Assess losses in directories that were just opened, before partitions are made in them.

    ``absent`` other directories could not be opened. Their partitions are not served, so they count only when they are
    back.
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
    return LossEvidence(kept, boot, here, known - here if absent else frozenset(), left, lossy, has_all)


def _left(directory: LogDir, life: Life, *, has_lost_all: bool) -> Life:
    """The claims of a directory's file that still hold."""
    if has_lost_all:
        return life._replace(synced=frozenset())
    lost = {str(partition) for partition in directory.refused} | {str(one) for one in _cut(directory)}
    return life._replace(synced=frozenset(one for one in life.synced if one[0] not in lost))


def keep(
    flushed: Mapping[LogDir, Sequence[str]], past: LossEvidence, epoch: int, last: int | None
) -> Mapping[LogDir, Life]:
    """Record for a broker that is about to be registered with ``epoch`` since when no record was lost; durable.

    ``flushed`` has the healthy directories, with those of their partitions that flush each append (`flush_synced`).
    ``last`` is the epoch of this broker's last registration, None if not known. `LogDirOfflineError` if all disks fail.
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
    """Whether a directory is older than its broker's last registration: a copy was restored."""
    return last is not None and life.epoch is not None and life.epoch < last


def flush_synced(directory: LogDir, partitions: Iterable[TopicPartition]) -> list[str]:
    """Flush those of these partitions that flush each append; return their names."""
    found = []
    for partition in partitions:
        log = directory.logs.get(partition)
        if log is None or log.config.flush_messages != ALWAYS_FLUSHED:
            continue
        if log.recovery_point < log.log_end_offset:
            try:
                log.flush()
            except LogDirOfflineError:  # the directory reports it
                return []
            except SeglogError as error:  # deleted meanwhile, or no room for an index: no claim about this one
                _logger.warning("%s is not flushed completely: %s", partition, error)
                continue
        found.append(str(partition))
    return found


def kept_of(directory: LogDir, partition: TopicPartition, life: Life) -> LogEvidence:
    """The evidence on a partition's log by its directory's file."""
    name = str(partition)
    made = _by_name(life.made).get(name, life.born)
    kept = min(life.whole_since, _by_name(life.synced).get(name, life.whole_since))
    return LogEvidence(id_of(directory), made, max(made, kept))


@lru_cache(maxsize=32)
def _by_name(epochs: frozenset[tuple[str, int]]) -> Mapping[str, int]:
    """As a dictionary, cached: after a power cut there are requests for thousands of partitions."""
    return dict(epochs)


def _loss(directory: LogDir, life: Life | None, boot: str | None, known: frozenset[str]) -> _Loss | None:
    """Why a directory may have lost records since its file was written; None if it has not."""
    if life is None:
        is_new = id_of(directory) not in known and not directory.logs and not directory.refused
        return None if is_new else _Loss(f"{directory.path} has no {LIFE}")
    if directory.refused:
        return _Loss(f"{directory.path}: {len(directory.refused)} partitions did not load", is_of_memory=True)
    if not directory.was_clean and (boot is None or life.boot != boot):
        return _Loss(f"{directory.path} was not closed before the machine stopped", is_of_memory=True)
    cut = _cut(directory)
    if cut:
        partition, end = next(iter(cut.items()))
        reason = f"{directory.path}: {partition} was truncated at {end}, below its committed end"
        return _Loss(reason, is_of_memory=True)
    return None


def _cut(directory: LogDir) -> Mapping[TopicPartition, int]:
    """The ends of logs that recovery cut below their high watermark."""
    marks = directory.checkpoints.high_watermarks  # as they were when it was opened
    reports = directory.reports.items()
    return {one: report.log_end_offset for one, report in reports if report.log_end_offset < marks.get(one, 0)}


def note_failure(lives: Mapping[LogDir, Life], broken: LogDir) -> Mapping[LogDir, Life]:
    """Record that a disk has failed, as far as possible: a retried fsync may succeed without the data.
    ``lives`` are those of the healthy directories; returns their new contents."""
    try:
        broken.fs.unlink(os.path.join(broken.path, LIFE))
        broken.fs.fsync_dir(broken.path)
    except OSError:
        _logger.warning("%s cannot be removed from %s", LIFE, broken.path)
    lives = {one: life._replace(failed=life.failed | {id_of(broken)}) for one, life in lives.items()}
    with suppress(LogDirOfflineError, LogDirFullError):  # the directory reports it
        write_all(lives)
    return lives


def write_all(lives: Mapping[LogDir, Life]) -> None:
    """Write the files; `LogDirOfflineError` if all disks fail."""
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
