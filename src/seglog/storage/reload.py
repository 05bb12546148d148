"""The producers' state while a log is loaded: from snapshots and batches, and which snapshots stay."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set

from seglog.core.errors import CorruptSnapshotError
from seglog.core.fs import Fs, write_atomically
from seglog.records.record import parse_control
from seglog.storage import snapshots
from seglog.storage.producers import Producers, decode_snapshot, encode_snapshot
from seglog.storage.segment import Segment


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
    producers, unreadable = _newest(fs, path, log_start, offset)
    if producers is not None:
        expire(producers)
    else:
        producers = Producers()
        producers.map_end_offset = offset if trust_none and not unreadable else log_start
    _replay(producers, segments, log_start, offset)
    producers.map_end_offset = offset
    return producers, unreadable


def _newest(fs: Fs, path: str, log_start: int, offset: int) -> tuple[Producers | None, list[str]]:
    """From the newest readable snapshot of ``log_start`` to ``offset``; later ones stay: see `remove_stray`."""
    unreadable = []
    for found in reversed(snapshots.list_snapshots(fs, path)):
        if not log_start <= found <= offset:
            continue
        file = snapshots.snapshot_path(path, found)
        try:
            producers = decode_snapshot(fs.read(file), file)
        except CorruptSnapshotError as error:
            unreadable.append(str(error))
            fs.unlink(file)
            continue
        producers.map_end_offset = producers.last_snapshot_offset = found
        return producers, unreadable
    return None, unreadable


def _replay(producers: Producers, segments: Sequence[Segment], log_start: int, offset: int) -> None:
    """Bring the state from ``producers.map_end_offset`` to ``offset``."""
    for segment, following in zip(segments, [*segments[1:], None], strict=True):
        start = max(producers.map_end_offset, log_start)
        if start >= offset or (following is not None and following.base_offset <= start):
            continue
        found = segment.locate(start)
        if found is None:
            continue
        for header, position, data in segment.headers(found.position):
            if header.base_offset >= offset:
                return
            if header.producer_id < 0:
                continue
            control = None
            if header.is_control:
                records = segment.decode(data, header, position)
                control = parse_control(records[0]) if records else None
            completed = producers.replay(header, control)
            if completed is not None:
                producers.complete(completed)


def take_snapshot(fs: Fs, path: str, producers: Producers) -> None:
    """Write the state as of ``producers.map_end_offset``, unless there is a snapshot of it."""
    offset = producers.map_end_offset
    if offset > producers.last_snapshot_offset:
        write_atomically(fs, snapshots.snapshot_path(path, offset), encode_snapshot(producers))
        producers.last_snapshot_offset = offset


def remove_stray(fs: Fs, path: str, bases: Set[int], end: int) -> None:
    """Remove snapshots at which neither a segment begins nor the log ends: of what was cut, of an earlier end."""
    for offset in snapshots.list_snapshots(fs, path):
        if offset not in bases and offset != end:
            fs.unlink(snapshots.snapshot_path(path, offset))
