"""The producers' state while a log is loaded: from snapshots and batches, and which snapshots stay."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set

from seglog.core.fs import Fs
from seglog.storage.log import producer_snapshots as snapshots
from seglog.storage.log.producers import Producers
from seglog.storage.log.segment import Segment


def producers_at(
    fs: Fs,
    path: str,
    segments: Sequence[Segment],
    log_start: int,
    offset: int,
    *,
    expire: Callable[[Producers], object],
    trust_none: bool,
) -> tuple[Producers, list[str]]:
    """The state at ``offset``, and what was wrong with snapshots that could not be read; those are removed.

    ``expire`` is done to what comes from a snapshot, before batches follow, as Kafka does.
    ``trust_none``: where there is no snapshot at all there were no producers. So Kafka starts after a clean stop on
    logs of versions that had none, which it does not want to read from the beginning (``rebuildProducerState``).
    """
    producers, unreadable = snapshots.load_newest(fs, path, log_start, offset)
    if producers is not None:
        expire(producers)
    else:
        producers = Producers()
        producers.reflect(offset if trust_none and not unreadable else log_start)
    snapshots.replay(producers, segments, log_start, offset)
    return producers, unreadable


def remove_stray(fs: Fs, path: str, bases: Set[int], end: int) -> None:
    """Remove snapshots at which neither a segment begins nor the log ends: of what was cut, of an earlier end."""
    for offset in snapshots.list_snapshots(fs, path):
        if offset not in bases and offset != end:
            fs.unlink(snapshots.snapshot_path(path, offset))
