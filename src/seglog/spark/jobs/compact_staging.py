"""The staging directory of a round of compaction: workers write groups of segments there, the driver moves them in."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

from seglog.core.fs import Fs, remove_tree
from seglog.storage.compaction.round import CleanedGroup, OffsetMapStats, Round
from seglog.storage.formats.paths import CLEANED, OWN_DIRECTORY
from seglog.storage.log.log import Log

_STAGING: Final = "staging"
_PREFIX: Final = "compact-"


class StagedGroup(NamedTuple):
    """A group whose new files are in ``directory``. One group of a round has the totals of the map, the rest zeros."""

    group: CleanedGroup
    directory: str
    entries: int = 0
    messages: int = 0
    bytes: int = 0


def staged_round(
    log: Log, round_: Round, work: Callable[[str], Sequence[StagedGroup]]
) -> Generator[OffsetMapStats | CleanedGroup]:
    """The events for `compaction.carry_out`: ``work`` writes all groups into staging, then they move in one by one."""
    started = log.clock.monotonic()
    with _staging(log.fs, log.path) as staging:
        written = work(staging)
        yield OffsetMapStats(
            round_.first_uncleanable,
            sum(one.entries for one in written),
            sum(one.messages for one in written),
            sum(one.bytes for one in written),
            log.clock.monotonic() - started,
        )
        for one in written:
            _move_in(log.fs, one.directory, log.path)
            yield one.group


@contextmanager
def _staging(fs: Fs, partition: str) -> Iterator[str]:
    """A new staging directory. Removes those of jobs that died: this job holds the lock of the log directory."""
    own = os.path.join(partition, OWN_DIRECTORY)
    parent = os.path.join(own, _STAGING)
    for directory in (own, parent):
        if not fs.exists(directory):
            fs.mkdir(directory)
    _clear(fs, parent)
    staging = os.path.join(parent, f"{_PREFIX}{uuid.uuid4().hex}")
    fs.mkdir(staging)
    try:
        yield staging
    finally:
        _clear(fs, parent)
        for directory in (parent, own):
            if not fs.listdir(directory):
                fs.rmdir(directory)


def _clear(fs: Fs, parent: str) -> None:
    """Remove what can be removed; a worker of a failed job may still be writing, and the next job tries again."""
    for name in fs.listdir(parent):
        if name.startswith(_PREFIX):
            with suppress(OSError):
                remove_tree(fs, os.path.join(parent, name))


def _move_in(fs: Fs, staged: str, partition: str) -> None:
    """Move a group's ``.cleaned`` files beside the segments that they will replace.

    Only one group may have ``.cleaned`` files at a time: at the next start, such a file means that every ``.swap`` file
    from its offset on is unfinished.
    """
    for name in fs.listdir(staged):
        if name.endswith(CLEANED):
            fs.rename(os.path.join(staged, name), os.path.join(partition, name))
    fs.fsync_dir(partition)
