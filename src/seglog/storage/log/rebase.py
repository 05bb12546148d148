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
from seglog.records.batch import BATCH_OVERHEAD, BATCH_PREFIX, LOG_OVERHEAD

_PLACE: Final = Struct(">qii")
_PEEK: Final = 4 << 10
"""Bytes read at a time: batches of 16 KiB are hopped over, a look at each; of small ones several come with one read."""
_RUN: Final = 4 << 20


class Walked(NamedTuple):
    records: int
    batches: int
    size: int


class Run(NamedTuple):
    """Whole batches in their place: ``data`` from ``position`` of the staged file on, then comes ``next_offset``."""

    data: bytearray
    position: int
    next_offset: int


def rebase(file: File, base_offset: int, leader_epoch: int) -> Walked:
    """Place all batches of a staged log file, the first at ``base_offset``; what is in place already is not written.

    What was counted is what the file has. `CorruptBatchError` where it is not whole.
    """
    position, offset, batches, size = 0, base_offset, 0, file.size()
    unpack, pack, prefix = BATCH_PREFIX.unpack_from, _PLACE.pack, BATCH_PREFIX.size
    while position < size:
        chunk = file.pread(min(_PEEK, size - position), position)
        at, limit = 0, len(chunk) - prefix
        while at <= limit:
            found, length, epoch, magic, _, _, delta = unpack(chunk, at)
            if magic != 2 or length < BATCH_OVERHEAD - LOG_OVERHEAD or delta < 0:
                raise _no_batch(file, position + at, offset, magic, length)
            if found != offset or epoch != leader_epoch:
                file.pwrite(pack(offset, length, leader_epoch), position + at)
            offset += delta + 1
            batches += 1
            at += length + LOG_OVERHEAD
        if not at:
            raise CorruptBatchError("the staged file ends in a batch", position=position, file=file.path, offset=offset)
        position += at
    if position != size:
        raise CorruptBatchError("the staged file ends in a batch", position=size, file=file.path, offset=offset)
    return Walked(offset - base_offset, batches, size)


def runs(file: File, base_offset: int, leader_epoch: int, *, most: int, position: int = 0) -> Iterator[Run]:
    """The batches from ``position`` on as they go into a log at ``base_offset``; the file stays as it is.

    In runs of at most ``most`` bytes, and some MiB.
    """
    offset, size = base_offset, file.size()
    wanted = min(_RUN, most)
    while position < size:
        data = bytearray(file.pread(min(wanted, size - position), position))
        at, limit = 0, len(data)
        while at + BATCH_PREFIX.size <= limit:
            _, length, _, magic, _, _, delta = BATCH_PREFIX.unpack_from(data, at)
            if magic != 2 or length < BATCH_OVERHEAD - LOG_OVERHEAD or delta < 0:
                raise _no_batch(file, position + at, offset, magic, length)
            if at + length + LOG_OVERHEAD > limit:
                break
            _PLACE.pack_into(data, at, offset, length, leader_epoch)
            offset += delta + 1
            at += length + LOG_OVERHEAD
        if not at:  # one batch that is larger than a run
            if limit == size - position or limit < BATCH_PREFIX.size:
                raise CorruptBatchError("the staged file ends in a batch", position=position, file=file.path)
            wanted = BATCH_PREFIX.unpack_from(data)[1] + LOG_OVERHEAD
            continue
        del data[at:]
        yield Run(data, position, offset)
        position += at
        wanted = min(_RUN, most)


def _no_batch(file: File, position: int, offset: int, magic: int, length: int) -> CorruptBatchError:
    return CorruptBatchError(
        f"length {length} and magic {magic} are no batch's", position=position, file=file.path, offset=offset
    )
