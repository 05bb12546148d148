"""Reads a task's ranges in Spark's worker: from the files of a mounted replica, and through the brokers.

A file was the leader's own when the query was planned. Since then it may have been deleted, replaced or truncated, and
this worker may see another directory, or none. So each batch has to prove itself before its records are returned: it
continues the one before it without a gap, has as many records as offsets, is whole, and has the leader epoch that the
leader has at its offset; and after its file was opened, its directory still had the topic's id. At the first doubt the
rest of the range is fetched.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from seglog.client.cluster_connections import ClusterConnections
from seglog.core.errors import SeglogError
from seglog.core.fs import Fs
from seglog.records.batch_tables import BatchTable
from seglog.records.column_decoding import Selection
from seglog.records.columns import SourcePartition
from seglog.sources.brokers.planning import FetchRange
from seglog.sources.brokers.task_reader import read_ranges
from seglog.sources.directories.planning import Piece
from seglog.sources.mounted.planning import MountedRange, SharedRange, phases
from seglog.sources.options.read_options import ReadOptions
from seglog.sources.output_batches import output_batches, selection_of
from seglog.sources.ranges import OffsetRange
from seglog.storage.formats.checkpoints import read_partition_metadata
from seglog.storage.offline.chunk_decoding import BatchExclusion, Chunk, decode_chunks, last_offsets
from seglog.storage.offline.table_batches import CHUNK_BYTES, FileRange, iter_chunks

_MAGIC: Final = 2
"""The only format whose batches have leader epochs."""
_SMALLEST_READ: Final = 64 << 10
_log: Final = logging.getLogger("seglog.spark")


def read_shared(
    fs: Fs, cluster: ClusterConnections, task: Sequence[SharedRange], schema: pa.Schema, options: ReadOptions
) -> Iterator[pa.RecordBatch]:
    """The records of ``task`` as batches of exactly ``schema``. Each partition's records are in order.

    Raises what `read_ranges` of brokers raises, and nothing about files.
    """
    before, files, behind = phases(task)
    if before:
        yield from read_ranges(cluster, before, schema, options)
    for one in files:
        yield from read_mounted(fs, cluster, one, schema, options)
    if behind:
        yield from read_ranges(cluster, behind, schema, options)


def read_mounted(
    fs: Fs, cluster: ClusterConnections, part: MountedRange, schema: pa.Schema, options: ReadOptions
) -> Iterator[pa.RecordBatch]:
    """The records of ``part`` from its files, as far as they are certain, and the others through the brokers."""
    reader = _MountedReader(fs, part, schema.names, options)
    for batch in reader.batches():
        yield from output_batches(batch, schema, options)
    (start, end), where = part.offsets, part.files.directory
    _log.info("seglog: offsets %d to %d of %s were read from %s", start, reader.low - 1, part.topic_partition, where)
    if reader.low == end:
        return
    left = end - reader.low
    _log.warning(
        "seglog: %d of %d offsets of %s, from %d on, are read through the brokers, not from %s: %s",
        left,
        end - start,
        part.topic_partition,
        reader.low,
        where,
        reader.doubt,
    )
    rest = FetchRange(
        topic_partition=part.topic_partition,
        topic_id=part.topic_id,
        offsets=OffsetRange(reader.low, end),
        size=part.size * left // (end - start) + 1,
    )
    yield from read_ranges(cluster, [rest], schema, options)


class _DoubtError(SeglogError):
    """The file is not certainly the leader's."""


class _MountedReader:
    """Reads the files of one range. All records below ``low`` were returned; ``doubt`` says why reading stopped there.

    Invariant: no record is returned before its batch has proved itself, and ``low`` only rises.
    """

    def __init__(self, fs: Fs, part: MountedRange, columns: Sequence[str], options: ReadOptions) -> None:
        self._fs = fs
        self._part = part
        self.low, self._high = part.offsets
        self.doubt = ""
        self._expected = self.low
        self._starts = np.array([span.start for span in part.spans])
        self._epochs = np.array([span.epoch for span in part.spans])
        self._wanted = selection_of(options, columns)
        self._leave_out = BatchExclusion(options.include_control, part.files.aborted)

    def batches(self) -> Iterator[pa.RecordBatch]:
        try:
            for piece in self._part.files.pieces:
                yield from self._piece(piece)
            if self.low < self._high:
                raise _DoubtError(f"its files end with offset {self.low - 1}")
        except (SeglogError, OSError) as error:
            self.doubt = str(error)

    def _piece(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        end = self._high if piece.next_base is None else min(self._high, piece.next_base)
        if end <= self.low:
            return
        size = min(CHUNK_BYTES, max(piece.end - piece.start, _SMALLEST_READ))
        wanted = self._wanted._replace(low=self.low, high=end)
        origin = SourcePartition(*self._part.topic_partition)
        chunks = self._proven(iter_chunks(self._fs, FileRange(piece.log, piece.start), size), wanted)
        for decoded in decode_chunks(chunks, wanted, origin, leave_out=self._leave_out):
            if decoded.rows is not None:
                yield decoded.rows
            self.low = max(self.low, min(decoded.upto, end))
        if self.low < end:
            raise _DoubtError(f"{piece.log} has nothing from offset {self.low} on")

    def _proven(self, chunks: Iterator[Chunk], wanted: Selection) -> Iterator[Chunk]:
        is_checked = False
        for chunk in chunks:
            if not is_checked:  # the file is open: a directory that is replaced from now on does not matter
                self._check_directory()
                is_checked = True
            self._check_batches(chunk.table, wanted)
            yield chunk

    def _check_directory(self) -> None:
        for mount in self._part.files.mounts:
            mount.check(self._fs)
        if read_partition_metadata(self._fs, self._part.files.directory) != self._part.topic_id:
            raise _DoubtError("the directory is now of another topic of this name")

    def _check_batches(self, table: BatchTable, wanted: Selection) -> None:
        """Raise unless the batches with wanted offsets are the leader's, and follow what was read without a gap."""
        ends = last_offsets(table) + 1
        is_wanted = (ends > wanted.low) & (table["base_offset"] < wanted.high)
        table, ends = table[is_wanted], ends[is_wanted]
        if not len(table):
            return
        if (table["magic"] != _MAGIC).any():
            raise _DoubtError("it has batches of an old format, without leader epochs")
        if (table["base_offset"] > np.concatenate(([self._expected], ends[:-1]))).any():
            raise _DoubtError("offsets are missing between its batches")
        if (table["count"] != table["last_offset_delta"] + 1).any():
            raise _DoubtError("records are missing in its batches")
        at = np.searchsorted(self._starts, np.maximum(table["base_offset"], self._starts[0]), side="right") - 1
        if (table["leader_epoch"] != self._epochs[at]).any():
            raise _DoubtError("its batches have other leader epochs than the leader's")
        self._expected = int(ends[-1])
