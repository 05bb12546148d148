"""Which small files of a table are worth rewriting as one. Pure.

Files are on levels by their size, each sixteen times the one below. Once a level has sixteen files, they become one
file of the next level. So a record is rewritten once for each level, five times at most, however often a job commits,
and a level has fewer than sixteen files after a run, unless they are too large together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol, TypeVar

FAN_IN: Final = 16
SMALLEST: Final = 16 << 10
"""Bytes up to which a file is on the lowest level."""
ENOUGH: Final = 64 << 20
"""Bytes of a file that is never rewritten."""
MOST_BYTES: Final = 128 << 20
"""Bytes of files that are rewritten together, about: they are in memory."""


class StoredFile(Protocol):
    """A file as a manifest has it."""

    @property
    def file_size_in_bytes(self) -> int: ...


F = TypeVar("F", bound=StoredFile)


def level_of(size: int) -> int:
    """
    >>> [level_of(size) for size in (0, SMALLEST, SMALLEST + 1, 16 * SMALLEST, 16 * SMALLEST + 1)]
    [0, 0, 1, 1, 2]
    """
    level, most = 0, SMALLEST
    while size > most:
        level, most = level + 1, most * FAN_IN
    return level


def choose(files: Sequence[F]) -> list[list[F]]:
    """Groups of files to rewrite, each as one file: in their order, from the lowest level on."""
    levels: dict[int, list[F]] = {}
    for one in files:
        if one.file_size_in_bytes < ENOUGH:
            levels.setdefault(level_of(one.file_size_in_bytes), []).append(one)
    groups: list[list[F]] = []
    for level in sorted(levels):
        if len(levels[level]) >= FAN_IN:
            groups += [group for group in _split(levels[level]) if len(group) > 1]
    return groups


def _split(files: Sequence[F]) -> list[list[F]]:
    """Runs of at most `MOST_BYTES`."""
    runs: list[list[F]] = []
    held = 0
    for one in files:
        if not runs or held + one.file_size_in_bytes > MOST_BYTES:
            runs.append([])
            held = 0
        runs[-1].append(one)
        held += one.file_size_in_bytes
    return runs
