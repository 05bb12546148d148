"""What lies in log directories, found with a few small reads: partitions, segments, their ends and batch boundaries.

Nothing is decoded here and nothing is changed. A directory may be one that a broker is writing at this moment: the last
segment ends behind its last whole batch, and an index may have the zeros of its pre-allocated rest.
"""

from __future__ import annotations

import os.path
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final

from seglog.core.errors import InvalidConfigError
from seglog.core.fs import Fs
from seglog.core.types import TopicPartition
from seglog.spark.ranges import PartitionExtent, SegmentExtent
from seglog.storage.boundaries import find_end
from seglog.storage.layout import (
    LOG,
    META_PROPERTIES,
    SWAP,
    PartitionDir,
    list_partitions,
    parse_file_name,
    partition_at,
    segment_paths,
)

_WILD: Final = frozenset("*?[")
_ATTEMPTS: Final = 5


def find_partitions(fs: Fs, paths: Iterable[str]) -> list[PartitionDir]:
    """The partitions under ``paths``: log directories, partitions' directories, or globs of either.

    A partition that several log directories have (replicas) is found several times.
    """
    found: dict[str, PartitionDir] = {}
    for path in paths:
        for match in expand(fs, path):
            real = os.path.realpath(match)
            for partition in _partitions_at(fs, match):
                is_inside = partition.path != match
                found.setdefault(os.path.join(real, os.path.basename(partition.path)) if is_inside else real, partition)
    return sorted(found.values(), key=lambda partition: (partition.topic_partition, partition.path))


def expand(fs: Fs, path: str) -> list[str]:
    """``path`` itself, or what matches it if it has ``*``, ``?`` or ``[…]`` in it; sorted, absolute."""
    if path.startswith("file:"):
        path = "/" + path.removeprefix("file:").lstrip("/")
    elif "://" in path:
        raise InvalidConfigError(f"path {path!r}: seglog reads files of this machine or of a mounted file system")
    absolute = os.path.abspath(os.path.expanduser(path))
    if not _WILD & set(absolute) or fs.exists(absolute):
        return [absolute]
    matches = ["/"]
    for part in absolute.strip("/").split("/"):
        if _WILD & set(part):
            matches = [
                os.path.join(parent, name)
                for parent in matches
                if _is_dir(fs, parent)
                for name in fs.listdir(parent)
                if fnmatchcase(name, part) and (part.startswith(".") or not name.startswith("."))
            ]
        else:
            matches = [joined for parent in matches if fs.exists(joined := os.path.join(parent, part))]
    matches = [match for match in matches if _is_dir(fs, match)]
    if not matches:
        raise InvalidConfigError(f"path {path!r}: no directory matches")
    return matches


def _is_dir(fs: Fs, path: str) -> bool:
    return fs.exists(path) and fs.stat(os.path.realpath(path)).is_dir


def _partitions_at(fs: Fs, path: str) -> list[PartitionDir]:
    if not fs.exists(path):
        raise InvalidConfigError(f"path {path!r}: there is no such directory")
    if not _is_dir(fs, path):
        raise InvalidConfigError(f"path {path!r} is a file: give its partition's directory or its log directory")
    names = fs.listdir(path)
    partition = partition_at(path)
    if partition is not None and any((file := parse_file_name(name)) and file.kind == LOG for name in names):
        return [partition]
    partitions = list_partitions(fs, path)
    if not partitions and META_PROPERTIES not in names:
        raise InvalidConfigError(
            f"path {path!r} is neither a log directory (there is no <topic>-<partition> in it) nor a "
            "partition's (there is no segment in it)"
        )
    return partitions


def read_extent(
    fs: Fs, path: str, topic_partition: TopicPartition, log_start: int, *, permissive: bool = False
) -> PartitionExtent:
    """A partition's segments and offsets. ``log_start`` is what the checkpoint beside it says, 0 if nothing.

    Reads the last segment's last index entry and hops from there over batch headers to the end. Damage there raises
    `CorruptBatchError`; ``permissive``, it is the end.
    """
    segments = read_segments(fs, path)
    first = segments[0].base_offset if segments else 0
    end = first
    if segments:
        size, end = find_end(fs, segments[-1], permissive=permissive)
        segments[-1] = segments[-1]._replace(size=size)
    return PartitionExtent(
        topic_partition=topic_partition,
        directory=path,
        log_start=min(max(log_start, first), end),
        log_end=end,
        until=end,
        segments=tuple(segments),
    )


def read_segments(fs: Fs, path: str) -> list[SegmentExtent]:
    """The segments of a partition's directory, with the sizes of their files; FileNotFoundError if it is gone.

    While a compaction takes the place of segments, there is a moment at which the new one is complete but has not its
    name yet (``.swap``), and the old ones have gone.
    """
    for attempt in range(_ATTEMPTS):
        files: dict[int, str] = {}
        for name in fs.listdir(path):
            file = parse_file_name(name)
            if file is None or file.kind != LOG or file.state not in ("", SWAP):
                continue
            if not file.state or file.base_offset not in files:
                files[file.base_offset] = os.path.join(path, name)
        try:
            return [SegmentExtent(base, files[base], fs.stat(files[base]).size) for base in sorted(files)]
        except FileNotFoundError:
            if attempt == _ATTEMPTS - 1:
                raise
    return []


def find_by_time(fs: Fs, extent: PartitionExtent, timestamp: int) -> int | None:
    """The first offset, not below the log start, of a record with ``timestamp`` (ms) or a later one; None if none."""
    from seglog.storage.scan_bounds import offset_at_time

    paths = [
        segment_paths(extent.directory, segment.base_offset)._replace(log=segment.log) for segment in extent.segments
    ]
    return offset_at_time(fs, paths, timestamp, extent.log_start)
