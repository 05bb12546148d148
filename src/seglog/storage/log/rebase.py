"""Giving staged batches their place: base offset and leader epoch, which no CRC covers, 12 bytes a batch.

A batch's new offset is computed from the segment's and the counts before it, never from the one it had: stopped
anywhere, and also torn, rebasing can be done again, to the same place or to another.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from seglog.core.errors import CorruptBatchError
from seglog.core.fs import File
from seglog.records.batch import BATCH_PREFIX, LOG_OVERHEAD, entries
from seglog.storage.formats.batch_walk import walk

_PLACE: Final = Struct(">qii")
_PEEK: Final = 4 << 10
"""Bytes read at a time: of large batches only the header, of small ones several."""
_RUN: Final = 4 << 20


class StagedCounts(NamedTuple):
    records: int
    batches: int
    size: int


class BatchRun(NamedTuple):
    """Whole batches in their place: ``data`` from ``position`` of the staged file on, then comes ``next_offset``."""

    data: bytearray
    position: int
    next_offset: int


def rebase(file: File, base_offset: int, leader_epoch: int) -> StagedCounts:
    """Place all batches of a staged log file, the first at ``base_offset``; what is in place already is not written.

    Returns the counts of the file. `CorruptBatchError` if it does not end with a whole batch.
    """
    offset, batches, end, size = base_offset, 0, 0, file.size()
    for entry, position, data in walk(file, 0, size, window=_PEEK, whole=False):
        found, length, epoch, magic, _, _, delta = BATCH_PREFIX.unpack_from(data, entry.position)
        if magic != 2 or delta < 0:
            raise _no_batch(position, offset, magic, length).at(file=file.path)
        if found != offset or epoch != leader_epoch:
            file.pwrite(_PLACE.pack(offset, length, leader_epoch), position)
        offset, batches, end = offset + delta + 1, batches + 1, position + entry.size
    if end != size:
        raise CorruptBatchError("the staged file ends in a batch", position=end, file=file.path, offset=offset)
    return StagedCounts(offset - base_offset, batches, size)


def runs(file: File, base_offset: int, leader_epoch: int, *, most: int, position: int = 0) -> Iterator[BatchRun]:
    """The batches from ``position`` on as they go into a log at ``base_offset``; the file stays as it is.

    In runs of at most ``most`` bytes, and some MiB.
    """
    offset, size = base_offset, file.size()
    wanted = min(_RUN, most)
    while position < size:
        asked = min(wanted, size - position)
        data = bytearray(file.pread(asked, position))
        at = 0
        try:
            for entry in entries(data):
                _, length, _, magic, _, _, delta = BATCH_PREFIX.unpack_from(data, entry.position)
                if magic != 2 or delta < 0:
                    raise _no_batch(entry.position, offset, magic, length)
                _PLACE.pack_into(data, entry.position, offset, length, leader_epoch)
                offset, at = offset + delta + 1, entry.position + entry.size
        except CorruptBatchError as error:
            raise error.at(file=file.path, base=position) from error
        if not at:  # one batch that is larger than a run
            if len(data) == size - position or len(data) < max(asked, BATCH_PREFIX.size):
                raise CorruptBatchError("the staged file ends in a batch", position=position, file=file.path)
            wanted = BATCH_PREFIX.unpack_from(data)[1] + LOG_OVERHEAD
            continue
        del data[at:]
        yield BatchRun(data, position, offset)
        position += at
        wanted = min(_RUN, most)


def _no_batch(position: int, offset: int, magic: int, length: int) -> CorruptBatchError:
    return CorruptBatchError(
        f"length {length} and magic {magic} do not belong to a batch", position=position, offset=offset
    )
