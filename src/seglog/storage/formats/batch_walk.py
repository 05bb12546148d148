"""The walk over a log file from one batch to the next, read in windows. `seglog.records.batch.entries` takes the steps.

Use `entries` for bytes in memory and `walk` for a file. No other code adds a batch's size to a position; kernels have
`seglog.records.batch_kernels.walk`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from seglog.core.errors import CorruptError
from seglog.core.fs import File
from seglog.records.batch import BATCH_OVERHEAD, LOG_OVERHEAD, MAGIC_POSITION, Entry, entries

WHOLE: Final = 1 << 20
"""Bytes read at a time if the caller needs whole batches."""
HEADERS: Final = 8 << 10
"""Bytes read at a time if the caller needs headers only: a little more than lies between two index entries."""


_new: Final = tuple.__new__


class Step(NamedTuple):
    """One batch of a file: ``entry`` says where it lies in ``data``, ``position`` where it lies in the file."""

    entry: Entry
    position: int
    data: memoryview


def walk(
    file: File, start: int = 0, end: int | None = None, *, window: int = WHOLE, whole: bool = True
) -> Iterator[Step]:
    """The batches and messages of a log file from position ``start``, where one begins, up to ``end`` (its size).

    Stops before one that is not whole in the file. Raises `CorruptBatchError`, with the file's path and the position,
    at a magic or size that is impossible. Unless ``whole``, ``data`` has only the header of each: large batches are
    passed over without being read.
    """
    limit = file.size() if end is None else end
    position, wanted = start, window
    while position < limit:
        data = memoryview(file.pread(min(wanted, limit - position), position))
        size, used = len(data), 0
        try:
            for entry in entries(data, reach=None if whole else limit - position):
                at = entry.position
                if not whole and at + BATCH_OVERHEAD > size and at + entry.size > size:
                    break
                yield _new(Step, (entry, position + at, data))
                used = at + entry.size
        except CorruptError as error:
            raise error.at(file=file.path, base=position) from error
        if used:
            position, wanted = position + used, window
        elif size <= MAGIC_POSITION or wanted >= limit - position:
            return
        else:  # one batch is larger than the window
            wanted = max(2 * wanted, int.from_bytes(data[8:12]) + LOG_OVERHEAD)
            if wanted > limit - position:
                return
