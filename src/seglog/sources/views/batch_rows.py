"""Makes the rows of the views ``batches`` and ``segments`` from the batch headers of a segment, also after damage."""

from __future__ import annotations

import os.path
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from seglog.core.errors import DataLossError, OffsetOutOfRangeError
from seglog.core.fs import File, Fs, OsFs
from seglog.core.types import MAX_INT32, MAX_INT64, TimestampType, TopicPartition
from seglog.records.batch import CODEC_MASK, CONTROL_BIT, DELETE_HORIZON_BIT, TIMESTAMP_TYPE_BIT, TRANSACTIONAL_BIT
from seglog.records.batch_kernels import Stop, Verdict
from seglog.records.batch_tables import BATCH_DTYPE, BatchTable, walk_batches
from seglog.records.column_decoding import plain_error
from seglog.records.compression import Codec
from seglog.sources.directories.log_dir_mount import check_file, mount_of
from seglog.sources.directories.partition_files import is_of_topic
from seglog.sources.directories.planning import Piece, ReadRange
from seglog.sources.views.rows import BatchTask, SegmentTask, microseconds, rows_of
from seglog.storage.formats.paths import segment_paths
from seglog.storage.offline.verify.stretch_walk import StretchWalk
from seglog.storage.offline.verify.summary import Facts

_CHUNK: Final = 4 << 20
_ROWS: Final = 8192
"""Rows in each batch for Spark."""
_HOLE: Final = -1
_CODECS: Final = pa.array([*(codec.name.lower() for codec in sorted(Codec)), "5", "6", "7"])


def checks_crcs(names: Sequence[str]) -> bool:
    """Whether the columns ``names`` of the view ``batches`` say something about CRCs."""
    return not {"verdict", "reason", "computedCrc"}.isdisjoint(names)


class _WalkRows(NamedTuple):
    """Some batches; for each bad one the reason, by position."""

    table: BatchTable
    reasons: dict[int, str]


def walk_piece(fs: Fs, piece: Piece, *, check_crc: bool) -> Iterator[_WalkRows]:
    """The batches that begin in ``piece``, in order. Bytes that are not a batch become a row with verdict `_HOLE`."""
    try:
        file = fs.open(piece.log, write=False)
    except FileNotFoundError as error:
        check_file(fs, piece.log)
        raise OffsetOutOfRangeError(
            f"{piece.log} was deleted after the query was planned (by retention or compaction): call load() again"
        ) from error
    with closing(file):
        end = min(piece.end, file.size())
        position, wanted = piece.start, _CHUNK
        while position < end:
            data = file.pread(min(wanted, file.size() - position), position)
            walks = list(walk_batches(data, base=position, check_crc=check_crc))
            for walk in walks:
                # A chunk may end after the piece, because the last batch may.
                within = walk.table[: int(np.searchsorted(walk.table["position"], end))]
                if len(within):
                    yield _WalkRows(within, reasons_of(data, within, position))
            before, position = position, walks[-1].position
            following = int.from_bytes(data[8:12], "big", signed=True) + 12
            if position > before:
                wanted = _CHUNK
            elif walks[-1].stop == Stop.TORN and wanted < following <= file.size() - position:
                wanted = following
            else:
                hole, position = _hole(file, piece, position, end)
                if not _is_end(file, piece, hole, walks[-1].stop):
                    yield hole


def reasons_of(data: bytes, table: BatchTable, base: int = 0) -> dict[int, str]:
    """The reason of each damaged batch, by position."""
    found = {}
    for index in np.flatnonzero(table["verdict"] != Verdict.OK):
        error = plain_error(data, table[index], base=base)
        found[int(table["position"][index])] = getattr(error, "reason", str(error))
    return found


def _hole(file: File, piece: Piece, position: int, end: int) -> tuple[_WalkRows, int]:
    """The bytes from ``position`` to the next valid batch, and the position of that batch."""
    walk = StretchWalk(file, Facts(piece.log, base_offset=piece.base_offset))
    after = min(walk.run(position, position + 1).end, end)
    table = np.zeros(1, BATCH_DTYPE)
    table["position"], table["size"], table["verdict"] = position, after - position, _HOLE
    return _WalkRows(table, {position: walk.holes[0].reason if walk.holes else "no batch"}), after


def _is_end(file: File, piece: Piece, hole: _WalkRows, stop: Stop) -> bool:
    """Whether the hole is a normal end of the last segment: an incomplete batch, or preallocated zeros."""
    start, size = int(hole.table["position"][0]), int(hole.table["size"][0])
    if piece.next_base is not None or start + size < file.size():
        return False
    if stop == Stop.TORN:
        return True
    return all(not any(file.pread(_CHUNK, at)) for at in range(start, start + size, _CHUNK))


# Batches


def batch_rows(task: BatchTask, arrow: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The batches of ``task`` from the first to the last that has a requested offset, and all damaged ones.

    The offsets of the batches between these two do not count, because the CRC does not cover a batch's base offset.
    """
    fs = OsFs()
    mount_of(task.range.mounts, task.range.directory).check(fs)
    check_crc = checks_crcs(arrow.names)
    pieces = task.range.pieces
    for number, piece in enumerate(pieces):
        requested = _OffsetFilter(
            task.range, first=task.first and not number, last=task.last and number == len(pieces) - 1
        )
        held: list[BatchTable] = []
        reasons: dict[int, str] = {}
        for rows in walk_piece(fs, piece, check_crc=check_crc):
            held += requested.within(rows.table)
            reasons |= rows.reasons
            if sum(map(len, held)) >= _ROWS:
                _check_topic(fs, task.range)
                yield batch_columns(arrow, task.range.topic_partition, piece.log, np.concatenate(held), reasons)
                held, reasons = [], {}
        if held:
            _check_topic(fs, task.range)
            yield batch_columns(arrow, task.range.topic_partition, piece.log, np.concatenate(held), reasons)


def _check_topic(fs: Fs, task: ReadRange) -> None:
    """Raise `DataLossError` if what was just read may be another topic's of this name."""
    if not is_of_topic(fs, task.directory, task.topic_id):
        raise DataLossError(
            f"{task.directory}: topic {task.topic_partition.topic} was deleted and created again since the query was "
            "planned; call load() again"
        )


class _OffsetFilter:
    """Drops the batches of a piece before the first requested offset (``first``) and after the last one (``last``)."""

    def __init__(self, task: ReadRange, *, first: bool, last: bool) -> None:
        self._low, self._high = task.offsets
        self._begun = not first
        self._is_last = last
        self._doubtful: list[BatchTable] = []

    def within(self, table: BatchTable) -> list[BatchTable]:
        """The requested ones of the next batches, after those held back before that turn out to be requested too."""
        bad = table["verdict"] != Verdict.OK
        if not self._begun:
            wanted = np.flatnonzero((table["base_offset"] + table["last_offset_delta"] >= self._low) | bad)
            self._begun = len(wanted) > 0
            table = table[int(wanted[0]) :] if len(wanted) else table[:0]
            bad = table["verdict"] != Verdict.OK
        if not self._is_last:
            return [table] if len(table) else []
        wanted = np.flatnonzero((table["base_offset"] < self._high) | bad)
        end = int(wanted[-1]) + 1 if len(wanted) else 0
        found = [*self._doubtful, table[:end]] if end else []
        self._doubtful = [] if end else self._doubtful
        if end < len(table):
            self._doubtful.append(table[end:])
        return found


def batch_columns(
    arrow: pa.Schema, partition: TopicPartition, file: str | None, table: BatchTable, reasons: dict[int, str]
) -> pa.RecordBatch:
    """The columns ``arrow`` of the view ``batches`` for some batches of a partition. Without a ``file`` there are no
    positions."""
    return rows_of(arrow, _BatchColumns(partition, file, table, reasons).column)


class _BatchColumns:
    """Makes the columns of the view ``batches``."""

    def __init__(self, partition: TopicPartition, file: str | None, table: BatchTable, reasons: dict[int, str]) -> None:
        self._partition = partition
        self._file = file
        self._table = table
        self._reasons = reasons
        self._hole = table["verdict"] == _HOLE
        self._old = self._hole | (table["magic"] < 2)

    def column(self, name: str) -> pa.Array:
        table, rows = self._table, len(self._table)
        attributes = table["attributes"]
        if name == "topic":
            return pa.repeat(self._partition.topic, rows)
        if name == "partition":
            return pa.repeat(self._partition.partition, rows)
        if name == "file":
            return pa.repeat(pa.scalar(self._file, pa.string()), rows)
        if name == "position" and self._file is None:
            return pa.nulls(rows, pa.int64())
        if name in ("position", "size"):
            return pa.array(table[name])
        if name == "verdict":
            return self._verdict()
        if name == "reason":
            return pa.array([self._reasons.get(position) for position in table["position"].tolist()], pa.string())
        if name == "codec":
            return _CODECS.take(pa.array(attributes & CODEC_MASK, mask=self._hole))
        if name == "timestampType":
            kind = np.where((attributes & TIMESTAMP_TYPE_BIT) != 0, 1, 0)
            return pa.array(np.where(table["magic"] == 0, int(TimestampType.NONE), kind), mask=self._hole)
        if name == "deleteHorizonMs":
            return pa.array(table["base_timestamp"], mask=self._old | ((attributes & DELETE_HORIZON_BIT) == 0))
        if name in ("isTransactional", "isControl"):
            bit = TRANSACTIONAL_BIT if name == "isTransactional" else CONTROL_BIT
            return pa.array(((attributes & bit) != 0) & ~self._old, mask=self._hole)
        if name == "lastOffset":
            return pa.array(table["base_offset"] + table["last_offset_delta"], mask=self._hole)
        if name == "lastSequence":
            base = table["base_sequence"]
            last = np.where(base < 0, -1, (base + table["last_offset_delta"]) & MAX_INT32)
            return pa.array(last, mask=self._hole)
        if name in _UNKNOWN_OF_OLD:
            return pa.array(table[_UNKNOWN_OF_OLD[name]], mask=self._old)
        if name == "computedCrc":
            return pa.array(table["computed_crc"], mask=self._hole | (table["computed_crc"] < 0))
        return pa.array(table[_FIELDS[name]], mask=self._hole)

    def _verdict(self) -> pa.Array:
        names = pa.array([*(verdict.name.lower() for verdict in Verdict), "hole"])
        codes = np.where(self._hole, len(Verdict), self._table["verdict"])
        return names.take(pa.array(codes))


_FIELDS: Final = {
    "magic": "magic",
    "baseTimestamp": "base_timestamp",
    "maxTimestamp": "max_timestamp",
    "partitionLeaderEpoch": "leader_epoch",
    "producerId": "producer_id",
    "producerEpoch": "producer_epoch",
    "baseSequence": "base_sequence",
    "attributes": "attributes",
    "crc": "crc",
}
_UNKNOWN_OF_OLD: Final = {
    "baseOffset": "base_offset",
    "recordsCount": "count",
    "lastOffsetDelta": "last_offset_delta",
}
"""Fields that a message of format 0 or 1, which may contain others, does not have."""


# Segments


class _SegmentTotals:
    """Totals over the batches of a segment."""

    def __init__(self) -> None:
        self.batches = self.records = self.hole_bytes = 0
        self.last_offset = self.first_timestamp = self.max_timestamp = -1
        self.formats: set[int] = set()
        self.codecs: set[int] = set()
        self.epochs = (MAX_INT64, -1)
        self.knows_records = True

    def add(self, table: BatchTable) -> None:
        hole = table["verdict"] == _HOLE
        self.hole_bytes += int(table["size"][hole].sum())
        table = table[~hole]
        if not len(table):
            return
        codecs = table["attributes"] & CODEC_MASK
        latest = int(table["max_timestamp"].max())
        self.max_timestamp = max(self.max_timestamp, latest) if self.batches else latest
        if not self.batches and not table["attributes"][0] & DELETE_HORIZON_BIT:
            self.first_timestamp = int(table["base_timestamp"][0])
        self.batches += len(table)
        self.records += int(table["count"].sum())
        self.knows_records &= not bool(((table["magic"] < 2) & (codecs != 0)).any())
        self.last_offset = int(table["base_offset"][-1] + table["last_offset_delta"][-1])
        self.formats.update(np.unique(table["magic"]).tolist())
        self.codecs.update(np.unique(codecs).tolist())
        low, high = self.epochs
        self.epochs = min(low, int(table["leader_epoch"].min())), max(high, int(table["leader_epoch"].max()))


def segment_row(task: SegmentTask, arrow: pa.Schema, *, null_timestamps: bool) -> pa.RecordBatch:
    """The row of a segment. With ``null_timestamps`` a timestamp out of range is null, and no `TimestampRangeError`."""
    fs = OsFs()
    totals = _SegmentTotals()
    check_file(fs, task.piece.log)
    size = fs.stat(task.piece.log).size
    for rows in walk_piece(fs, task.piece._replace(end=size), check_crc=False):
        totals.add(rows.table)
    paths = segment_paths(os.path.dirname(task.piece.log), task.piece.base_offset)
    low, high = totals.epochs

    def timestamp(name: str, milliseconds: int) -> int | None:
        if name not in arrow.names:
            return None
        return microseconds(milliseconds, f"{task.piece.log}: {name}", null_timestamps=null_timestamps)

    values: dict[str, Any] = {
        "topic": task.topic,
        "partition": task.partition,
        "file": task.piece.log,
        "baseOffset": task.piece.base_offset,
        "lastOffset": totals.last_offset if totals.batches else None,
        "isLast": task.piece.next_base is None,
        "size": size,
        "indexSize": _size(fs, paths.offset_index),
        "timeIndexSize": _size(fs, paths.timeindex),
        "txnIndexSize": _size(fs, paths.txnindex),
        "batches": totals.batches,
        "records": totals.records if totals.knows_records else None,
        "firstTimestamp": timestamp("firstTimestamp", totals.first_timestamp),
        "maxTimestamp": timestamp("maxTimestamp", totals.max_timestamp),
        "formats": sorted(totals.formats),
        "codecs": [_CODECS[codec].as_py() for codec in sorted(totals.codecs)],
        "minLeaderEpoch": low if totals.batches else None,
        "maxLeaderEpoch": high if totals.batches else None,
        "holeBytes": totals.hole_bytes,
    }
    return rows_of(arrow, lambda name: pa.array([values[name]], arrow.field(name).type))


def _size(fs: Fs, path: str) -> int | None:
    return fs.stat(path).size if fs.exists(path) else None
