"""Small partition directories made by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from seglog.core.types import Buffer
from seglog.storage.formats.paths import INDEX, LOG, TIME_INDEX, file_name
from seglog.storage.log.index import OFFSET_ENTRY, TIME_ENTRY


def write_log(directory: Path, batches: Iterable[Buffer], *, base_offset: int = 0) -> Path:
    """A ``.log`` of the batches as they are; returns its path."""
    path = directory / file_name(base_offset, LOG)
    path.write_bytes(b"".join(batches))
    return path


def write_index(directory: Path, entries: Sequence[tuple[int, int]], *, base_offset: int = 0, room: int = 0) -> Path:
    """An ``.index`` of (relative offset, position), and ``room`` for more entries, in zeros."""
    path = directory / file_name(base_offset, INDEX)
    path.write_bytes(b"".join(OFFSET_ENTRY.pack(*entry) for entry in entries) + bytes(room * OFFSET_ENTRY.size))
    return path


def write_time_index(
    directory: Path, entries: Sequence[tuple[int, int]], *, base_offset: int = 0, room: int = 0
) -> Path:
    """A ``.timeindex`` of (timestamp, relative offset)."""
    path = directory / file_name(base_offset, TIME_INDEX)
    path.write_bytes(b"".join(TIME_ENTRY.pack(*entry) for entry in entries) + bytes(room * TIME_ENTRY.size))
    return path
