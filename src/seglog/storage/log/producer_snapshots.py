"""Producer snapshots on disk, and the producers' state made again from one of them and the log."""

from __future__ import annotations

import os.path
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import closing, suppress
from itertools import islice
from typing import Final, NamedTuple

from seglog.core.errors import CorruptError, CorruptSnapshotError
from seglog.core.fs import Fs, NoSpaceError, write_atomically
from seglog.records.batch import BatchHeader
from seglog.records.record import parse_control
from seglog.storage.formats.paths import SNAPSHOT, file_name, parse_file_name
from seglog.storage.log.producers import Producers, decode_snapshot, encode_snapshot
from seglog.storage.log.segment import Segment

_LOOKED_AT: Final = 10_000
"""Batches that are searched for those of one producer: 20 ms."""


def snapshot_path(partition_path: str, offset: int) -> str:
    return os.path.join(partition_path, file_name(offset, SNAPSHOT))


def list_snapshots(fs: Fs, partition_path: str) -> list[int]:
    """The offsets, ascending, up to which (exclusive) there is a snapshot."""
    parsed = (parse_file_name(name) for name in fs.listdir(partition_path))
    return sorted(file.base_offset for file in parsed if file and file.kind == SNAPSHOT and not file.state)


class RestoredProducers(NamedTuple):
    """The newest readable snapshot's state, None if there is none; and what was wrong with those that were not."""

    producers: Producers | None
    unreadable: list[str]


def load_newest(fs: Fs, partition_path: str, log_start: int, up_to: int) -> RestoredProducers:
    """Read the newest snapshot of an offset from ``log_start`` to ``up_to``. Unreadable ones are removed."""
    unreadable: list[str] = []
    for offset in reversed(list_snapshots(fs, partition_path)):
        if not log_start <= offset <= up_to:
            continue
        path = snapshot_path(partition_path, offset)
        try:
            producers = decode_snapshot(fs.read(path), path)
        except CorruptSnapshotError as error:
            unreadable.append(str(error))
            fs.unlink(path)
            continue
        producers.reflect(offset)
        producers.note_snapshot()
        return RestoredProducers(producers, unreadable)
    return RestoredProducers(None, unreadable)


def starting_at(offset: int) -> Producers:
    """No producers, as of ``offset``."""
    producers = Producers()
    producers.reflect(offset)
    producers.note_snapshot()
    return producers


def take(fs: Fs, partition_path: str, producers: Producers, *, sync: bool = True) -> None:
    """Write the state as of ``producers.map_end_offset``, unless there is a snapshot of it.

    Without ``sync`` it is left to the next flush: a torn snapshot is noticed by its CRC, and an older one used.
    """
    offset = producers.map_end_offset
    if offset <= producers.last_snapshot_offset:
        return
    path, data = snapshot_path(partition_path, offset), encode_snapshot(producers)
    if sync:
        write_atomically(fs, path, data)
    else:
        try:
            with closing(fs.open(path, create=True)) as file:
                file.pwrite(data, 0)
                file.truncate(len(data))
        except NoSpaceError:
            if fs.exists(path):
                fs.unlink(path)
            raise
    producers.note_snapshot()


def flush(fs: Fs, partition_path: str, offset: int) -> None:
    """fsync the snapshot of ``offset``, if there is one."""
    path = snapshot_path(partition_path, offset)
    if fs.exists(path):
        with suppress(FileNotFoundError), closing(fs.open(path)) as file:  # retention may take it away meanwhile
            file.fsync()


def replay(
    producers: Producers,
    segments: Sequence[Segment],
    log_start: int,
    end_offset: int,
    *,
    at_segment: Callable[[int], None] = lambda _base: None,
) -> None:
    """Bring the state up to ``end_offset`` by the batches from where it stands.

    ``at_segment`` is called with the base offset of each segment before its batches are read.
    """
    for segment, following in zip(segments, [*segments[1:], None], strict=True):
        if following is not None and following.base_offset <= producers.map_end_offset:
            continue
        start = max(segment.base_offset, producers.map_end_offset, log_start)
        if start >= end_offset:
            break
        producers.reflect(start)
        at_segment(segment.base_offset)
        _replay_segment(segment, producers, start, end_offset)
    producers.reflect(end_offset)


def _replay_segment(segment: Segment, producers: Producers, start: int, end_offset: int) -> None:
    found = segment.locate(start)
    if found is None:
        return
    for header, position, data in segment.headers(found.position):
        if header.base_offset >= end_offset:
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


def earlier_batches(segments: Sequence[Segment], producer_id: int, before: int, limit: int) -> Iterator[BatchHeader]:
    """The producer's data batches in the last ``limit`` bytes before offset ``before``, the newest first. No more than
    `_LOOKED_AT` batches are searched, and none before a damaged one is found."""
    left = _LOOKED_AT
    for segment in reversed(segments):
        if segment.base_offset >= before:
            continue
        with suppress(CorruptError):
            found = segment.locate(before)
            end = segment.size if found is None else found.position
            for header in islice(segment.headers_before(end, limit), left):
                left -= 1
                if header.producer_id == producer_id and not header.is_control:
                    yield header
            limit -= end
            if limit > 0 and left > 0:
                continue
        return


def after_truncation(
    fs: Fs, partition_path: str, segments: Sequence[Segment], producers: Producers, log_start: int, end_offset: int
) -> Producers:
    """The state of a log that now ends at ``end_offset``, with a snapshot there (``truncateAndReload``).

    Snapshots outside of the log go; one is kept at each of the last two segments.
    """
    for offset in list_snapshots(fs, partition_path):
        if offset > end_offset or offset <= log_start:
            fs.unlink(snapshot_path(partition_path, offset))
    was_empty = not producers.entries and producers.map_end_offset >= end_offset
    if producers.map_end_offset == end_offset:
        producers.on_log_start(log_start)
    else:
        producers = load_newest(fs, partition_path, log_start, end_offset).producers or starting_at(log_start)
        if not was_empty:
            last_two = [segment.base_offset for segment in segments[-2:]]

            def keep(base_offset: int) -> None:
                if base_offset in last_two:
                    take_if_room(fs, partition_path, producers)

            replay(producers, segments, log_start, end_offset, at_segment=keep)
    producers.reflect(end_offset)
    take_if_room(fs, partition_path, producers)
    return producers


def take_if_room(fs: Fs, partition_path: str, producers: Producers) -> None:
    """`take`, unless the disk is full: from an older snapshot the state can be made as well."""
    with suppress(NoSpaceError):
        take(fs, partition_path, producers)


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
    producers, unreadable = load_newest(fs, path, log_start, offset)
    if producers is not None:
        expire(producers)
    else:
        producers = Producers()
        producers.reflect(offset if trust_none and not unreadable else log_start)
    replay(producers, segments, log_start, offset)
    return producers, unreadable


def remove_stray(fs: Fs, path: str, bases: Set[int], end: int) -> None:
    """Remove snapshots at which neither a segment begins nor the log ends: of what was cut, of an earlier end."""
    for offset in list_snapshots(fs, path):
        if offset not in bases and offset != end:
            fs.unlink(snapshot_path(path, offset))
