"""What is sent of a partition: a slice of a segment's file, with what a reader is told beside it."""

from __future__ import annotations

from typing import NamedTuple

from seglog.core.fs import File
from seglog.protocol.fetch import FetchedPartition
from seglog.replication.replica import Replica
from seglog.storage.log.reads import Fetched, UpTo


class FileSlice(NamedTuple):
    """Bytes of a segment's file."""

    file: File
    position: int
    size: int

    def read_part(self, start: int, size: int) -> bytes:
        return self.file.pread(size, self.position + start)


def fetched_partition(number: int, partition: Replica, slice_: Fetched | None, up_to: UpTo) -> FetchedPartition:
    log = partition.log
    committed = up_to is UpTo.LAST_STABLE
    aborted = None
    records = None
    if slice_ is not None:
        if committed and not slice_.is_cut:
            aborted = [(txn.producer_id, txn.first_offset) for txn in slice_.aborted]
        if slice_.file is not None and slice_.size:
            records = FileSlice(slice_.file, slice_.position, slice_.size)
    return FetchedPartition(
        number,
        0,
        log.high_watermark,
        log.last_stable_offset,
        log.log_start_offset,
        aborted,
        -1,
        records,
    )
