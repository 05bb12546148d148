"""The walk over a log file from one batch to the next, read in windows. `seglog.records.batch.entries` takes the steps.

Use `entries` for bytes in memory, `walk` for a file, and the kernels' own walk in compiled loops. Three hot loops step
by themselves: `Segment.locate` and recovery's check of each batch (`seglog.storage.log.segment_recovery`), which take
over 30 % longer with a generator, and the placement of a run of batches (`seglog.storage.log.batch_placement`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from seglog.core.errors import CorruptError
from seglog.core.fs import File
from seglog.records.batch import BATCH_OVERHEAD, LOG_OVERHEAD, Entry, entries

WHOLE: Final = 1 << 20
"""Bytes read at a time if the caller needs whole batches."""
HEADERS: Final = 8 << 10
"""Bytes read at a time if the caller needs headers only: a little more than lies between two index entries."""


def walk(
    file: File, start: int = 0, end: int | None = None, *, window: int = WHOLE, whole: bool = True
) -> Iterator[tuple[Entry, int, memoryview]]:
    """The batches and messages of a log file from position ``start``, where one begins, up to ``end`` (its size).

    Yields the entry, which says where the batch lies in the third item; its position in the file; and the bytes read.
    Unless ``whole``, these may end behind the batch's header, and the rest of a large batch is never read.

    Stops before a batch that is not whole in the file. Raises `CorruptBatchError`, with the file's path and the
    position, at a magic or size that is impossible.
    """
    limit = file.size() if end is None else end
    position, wanted = start, window
    while position < limit:
        data = memoryview(file.pread(min(wanted, limit - position), position))
        size, used = len(data), 0
        try:
            for entry in entries(data, reach=None if whole else limit - position):
                at = entry.position
                following = at + entry.size
                if following > size and at + BATCH_OVERHEAD > size:
                    break
                yield entry, position + at, data
                used = following
        except CorruptError as error:
            raise error.at(file=file.path, base=position) from error
        if used:
            position, wanted = position + used, window
        elif size < wanted or size == limit - position:
            return
        else:  # one batch is larger than the window
            wanted = int.from_bytes(data[8:12]) + LOG_OVERHEAD
            if wanted > limit - position:
                return
