"""The walk over a log file from one batch to the next, read in windows. `seglog.records.batch.entries` takes the steps.

Use `entries` for bytes in memory, `walk` for a file (or `windows`, which costs half as much per batch), and the
kernels' own walk in compiled loops. Three hot loops step by themselves: `Segment.locate` and recovery's check of each
batch (`seglog.storage.log.segment_recovery`), which take over 30 % longer with a generator, and the placement of a run
of batches (`seglog.storage.log.batch_placement`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from seglog.core.errors import CorruptError
from seglog.core.fs import File
from seglog.records.batch import BATCH_OVERHEAD, LOG_OVERHEAD, Entry, entries

_FIRST: Final = 64 << 10
"""Bytes of the first window. Windows then double in size."""
WHOLE: Final = 1 << 20
"""Bytes read at a time if the caller needs whole batches."""
HEADERS: Final = 8 << 10
"""Bytes read at a time if the caller needs headers only: a little more than lies between two index entries."""


def walk(
    file: File, start: int = 0, end: int | None = None, *, window: int = WHOLE, whole: bool = True, lax: bool = False
) -> Iterator[tuple[Entry, int, memoryview]]:
    """The batches and messages of a log file from position ``start``, where one begins, up to ``end`` (its size).

    Yields the entry, which says where the batch lies in the third item; its position in the file; and the bytes read.
    Unless ``whole``, these may end after the batch's header, and the rest of a large batch is never read. ``lax`` is
    that of `entries`.

    Stops before a batch that is not whole in the file. Raises `CorruptBatchError`, with the file's path and the
    position, at a magic or size that is impossible.
    """
    for found, position, data in windows(file, start, end, window=window, whole=whole, lax=lax):
        for entry in found:
            yield entry, position + entry.position, data


def windows(
    file: File, start: int = 0, end: int | None = None, *, window: int = WHOLE, whole: bool = True, lax: bool = False
) -> Iterator[tuple[list[Entry], int, memoryview]]:
    """`walk`, but many batches at a time: the entries, the position of the bytes in the file, and the bytes read.

    The first windows are smaller than ``window``: a look-up needs only a few batches.
    """
    limit = file.size() if end is None else end
    step = min(window, _FIRST)
    position, wanted = start, step
    while position < limit:
        data = memoryview(file.pread(min(wanted, limit - position), position))
        found: list[Entry] = []
        damage = None
        try:
            found.extend(entries(data, reach=None if whole else limit - position, lax=lax))
        except CorruptError as error:
            damage = error
        if found and _is_cut_short(found[-1], len(data)):
            found.pop()
        if found:
            yield found, position, data
        if damage is not None:
            raise damage.at(file=file.path, base=position) from damage
        if found:
            position += found[-1].position + found[-1].size
            wanted = step = min(2 * step, window)
        elif len(data) < wanted or len(data) == limit - position:
            return
        else:  # one batch is larger than the window
            wanted = int.from_bytes(data[8:12]) + LOG_OVERHEAD
            if wanted > limit - position:
                return


def _is_cut_short(entry: Entry, size: int) -> bool:
    """Whether not even the header of an entry lies within ``size`` bytes."""
    return entry.position + entry.size > size and entry.position + BATCH_OVERHEAD > size
