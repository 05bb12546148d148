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
    """A group whose new files are in ``directory``; one of a round has what its map came to, the others zeros."""

    group: CleanedGroup
    directory: str
    entries: int = 0
    messages: int = 0
    bytes: int = 0


def staged_round(
    log: Log, round_: Round, work: Callable[[str], Sequence[StagedGroup]]
) -> Generator[OffsetMapStats | CleanedGroup]:
    """For `compaction.carry_out`: all groups are written by ``work`` into a staging directory, then come one by one."""
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
    """A directory of this job's own, without those that jobs left which died: this one has the log directory's lock."""
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
    """As far as it can be done: a worker of a job that failed may still be writing, and the next job comes by again."""
    for name in fs.listdir(parent):
        if name.startswith(_PREFIX):
            with suppress(OSError):
                remove_tree(fs, os.path.join(parent, name))


def _move_in(fs: Fs, staged: str, partition: str) -> None:
    """A group's ``.cleaned`` files beside the segments that they are to replace.

    One group at a time: the next start takes a ``.cleaned`` file as a sign that every ``.swap`` from its offset on is
    unfinished.
    """
    for name in fs.listdir(staged):
        if name.endswith(CLEANED):
            fs.rename(os.path.join(staged, name), os.path.join(partition, name))
    fs.fsync_dir(partition)
