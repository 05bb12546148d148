"""Producer snapshots on disk, and the producers' state made anew from one of them and the log."""

from __future__ import annotations

import os.path
from collections.abc import Sequence

from seglog.records.record import parse_control
from seglog.storage.producers import Producers, decode_snapshot

from seglog.core.errors import CorruptSnapshotError
from seglog.core.fs import Fs
from seglog.storage.layout import SNAPSHOT, file_name, parse_file_name
from seglog.storage.segment import Segment


def snapshot_path(partition_path: str, offset: int) -> str:
    return os.path.join(partition_path, file_name(offset, SNAPSHOT))


def list_snapshots(fs: Fs, partition_path: str) -> list[int]:
    """The offsets, ascending, up to which (exclusive) there is a snapshot."""
    parsed = (parse_file_name(name) for name in fs.listdir(partition_path))
    return sorted(file.base_offset for file in parsed if file and file.kind == SNAPSHOT and not file.state)


def load_newest(fs: Fs, partition_path: str, log_start: int, up_to: int) -> Producers:
    """The state of the newest readable snapshot between the log's start and ``up_to``; unreadable and later ones go."""
    for offset in reversed(list_snapshots(fs, partition_path)):
        path = snapshot_path(partition_path, offset)
        if offset > up_to:
            fs.unlink(path)
            continue
        if offset < log_start:
            break
        try:
            producers = decode_snapshot(fs.read(path), path)
        except CorruptSnapshotError:
            fs.unlink(path)
            continue
        producers.map_end_offset = producers.last_snapshot_offset = offset
        return producers
    producers = Producers()
    producers.map_end_offset = log_start
    return producers


def rebuild(fs: Fs, partition_path: str, segments: Sequence[Segment], log_start: int, end_offset: int) -> Producers:
    """The producers' state as of ``end_offset``: the newest snapshot, and the batches from there on."""
    producers = load_newest(fs, partition_path, log_start, end_offset)
    for segment in segments:
        start = max(segment.base_offset, producers.map_end_offset, log_start)
        following = next((other.base_offset for other in segments if other.base_offset > segment.base_offset), None)
        if (following is not None and following <= producers.map_end_offset) or start >= end_offset:
            continue
        found = segment.locate(start)
        if found is None:
            continue
        for header, position, data in segment.headers(found.position):
            if header.base_offset >= end_offset:
                break
            if header.producer_id < 0:
                continue
            control = None
            if header.is_control:
                records = segment.decode(data, header, position)
                control = parse_control(records[0]) if records else None
            completed = producers.replay(header, control)
            if completed is not None:
                producers.complete(completed)
    producers.map_end_offset = end_offset
    return producers
