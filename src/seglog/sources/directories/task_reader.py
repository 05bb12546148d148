"""Reads the offsets of a task in Spark's worker, from the files as they are at that moment.

Between planning and reading a segment may be rolled, compacted or deleted. Offsets define what a task reads; the bytes
in the plan are only where it starts to look. If they have changed, the task surveys the directory again and continues
from the offset it has reached. A directory that is now of another topic of the same name, by the id in its
``partition.metadata``, has none of these records. If a replica is gone or its disk fails, the task continues with
another replica that had the same records when the query was planned. Records that no longer exist raise a
`DataLossError`. A worker that does not see the log directory cannot know of a loss: it raises `InvalidLogDirError`,
whatever ``failOnDataLoss`` says.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import pyarrow as pa

from seglog.core.errors import CorruptError, DataLossError, InvalidLogDirError, OffsetOutOfRangeError
from seglog.core.fs import Fs
from seglog.records.column_decoding import DecodedRows
from seglog.records.columns import SourcePartition
from seglog.sources.directories.log_dir_mount import mount_of
from seglog.sources.directories.partition_files import is_of_topic, read_segments
from seglog.sources.directories.planning import DirectoryExtent, Piece, ReadRange, SegmentExtent, spans
from seglog.sources.offsets import DATA_LOSS_HINT
from seglog.sources.options.read_options import ReadOptions
from seglog.sources.output_batches import output_batches, selection_of
from seglog.sources.ranges import OffsetRange
from seglog.storage.formats.checkpoints import read_partition_metadata
from seglog.storage.offline.batch_boundaries import IndexBoundaries
from seglog.storage.offline.chunk_decoding import BatchExclusion
from seglog.storage.offline.table_batches import CHUNK_BYTES, FileRange, iter_decoded

_ATTEMPTS: Final = 5
"""How often a task surveys the directory again without progress."""
_SMALLEST_READ: Final = 64 << 10
_log: Final = logging.getLogger("seglog.spark")


def read_range(fs: Fs, task: ReadRange, schema: pa.Schema, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The records of ``task`` as batches of exactly ``schema``, which has some of our columns: Spark accepts no other.

    Damage raises a `CorruptError` with file, position and offset, or is skipped and logged with ``mode=permissive``.
    Missing records raise `DataLossError`, or are logged with ``failOnDataLoss=false``.
    """
    work = _RangeReader(fs, task, tuple(schema.names), options)
    try:
        for batch in work.batches():
            yield from output_batches(batch, schema, options)
    except PermissionError as error:
        raise InvalidLogDirError(f"{error.filename}: permission denied on this worker") from error
    if work.damages:
        _log.warning(
            "seglog: mode=permissive skipped %d damaged places of %s, %d bytes in all; the first: %s",
            len(work.damages),
            task.directory,
            sum(damage.size for damage in work.damages),
            work.damages[0].error,
        )


class _Damage(NamedTuple):
    error: CorruptError
    size: int


class _RangeReader:
    """Reads one task. ``low`` is the offset it has reached: all records below it were returned.

    Invariant: no record is returned twice, because every new attempt starts at ``low``.
    """

    def __init__(self, fs: Fs, task: ReadRange, columns: Sequence[str], options: ReadOptions) -> None:
        self._fs = fs
        self._task = task
        self._directory = task.directory
        self._others = list(task.others)
        self._is_recreated = False
        """Whether the current directory is of another topic than the planned one."""
        self._options = options
        self._high = task.offsets.end
        self._low = task.offsets.start
        self._wanted = selection_of(options, columns)
        self._leave_out = BatchExclusion(options.include_control, task.aborted)
        self.damages: list[_Damage] = []

    def batches(self) -> Iterator[pa.RecordBatch]:
        # In permissive mode, bytes that only moved must not be taken for damage.
        planned = self._task.pieces if self._is_mounted() and not self._options.permissive else None
        attempt, before, complaint = 0, self._low, ""
        while self._low < self._high:
            try:
                pieces, planned = self._look() if planned is None else planned, None
                for piece in pieces:
                    yield from self._piece(piece)
            except (OSError, OffsetOutOfRangeError, CorruptError) as error:
                if isinstance(error, DataLossError):
                    raise
                if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
                    if not self._others:
                        raise
                    _log.warning(
                        "seglog: %s cannot be read (%s): continuing with another replica", self._directory, error
                    )
                    self._directory = self._others.pop(0)
                attempt = attempt + 1 if self._low == before else 1
                # Damage counts only if a second look finds it too: the log may be in use.
                if attempt == _ATTEMPTS or (isinstance(error, CorruptError) and str(error) == complaint):
                    raise
                before, complaint = self._low, str(error)

    def _piece(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        end = self._high if piece.next_base is None else min(self._high, piece.next_base)
        if end <= self._low:
            return
        if self._fs.stat(piece.log).size < piece.end:
            raise OffsetOutOfRangeError(f"{piece.log} is now shorter than the {piece.end} bytes it had")
        stretch = FileRange(piece.log, piece.start, is_open=piece.next_base is None, is_checked=True)
        chunk = min(CHUNK_BYTES, max(piece.end - piece.start, _SMALLEST_READ))
        wanted = self._wanted._replace(low=self._low, high=end)
        is_checked = False
        for decoded in iter_decoded(
            self._fs,
            stretch,
            wanted,
            SourcePartition(*self._task.topic_partition),
            leave_out=self._leave_out,
            chunk_bytes=chunk,
            on_damage=self._note if self._options.permissive else None,
        ):
            if not is_checked:  # the file is open: a directory that is replaced from now on does not matter
                self._check_topic()
                is_checked = True
            yield from self._advance(decoded)
        if self._low < end:
            self._check_topic()
            self._confirm(piece, end)

    def _check_topic(self) -> None:
        if not self._is_of_topic():
            raise OffsetOutOfRangeError(f"{self._directory} is now of another topic of this name")

    def _is_of_topic(self) -> bool:
        """Whether the directory is of the planned topic. A replica that never had an id is trusted."""
        if self._directory != self._task.directory and read_partition_metadata(self._fs, self._directory) is None:
            return True
        return is_of_topic(self._fs, self._directory, self._task.topic_id)

    def _advance(self, decoded: DecodedRows) -> Iterator[pa.RecordBatch]:
        if decoded.rows is not None:
            yield decoded.rows
        self._low = max(self._low, decoded.upto)

    def _note(self, error: CorruptError, size: int) -> None:
        self.damages.append(_Damage(error, size))

    def _confirm(self, piece: Piece, end: int) -> None:
        """A file had no batches up to ``end``: compaction removed them, or the file was replaced."""
        segments = read_segments(self._fs, self._directory)
        following = [*(segment.base_offset for segment in segments[1:]), None]
        known = {segment.log: next_base for segment, next_base in zip(segments, following, strict=True)}
        if known.get(piece.log, -1) != piece.next_base:
            raise OffsetOutOfRangeError(f"{piece.log} is no longer followed by {piece.next_base}")
        if piece.next_base is None and not self.damages:
            self._lose(f"{piece.log} ends with offset {self._low - 1}: offsets {self._low} to {end - 1} were truncated")
        self._low = end

    def _look(self) -> tuple[Piece, ...]:
        """The current place of the remaining offsets: in this directory, or else in another replica's."""
        unseen: list[InvalidLogDirError] = []
        segments = self._segments(unseen)
        while self._others and not (segments and segments[0].base_offset <= self._low):
            self._directory = self._others.pop(0)
            segments = self._segments(unseen)
        first = min(segments[0].base_offset, self._high) if segments else self._high
        if first > self._low:
            if unseen:  # what is missing elsewhere may be there
                raise unseen[0]
            why = "were deleted before they were read"
            if self._is_recreated:
                why = f"were not read: topic {self._task.topic_partition.topic} was deleted and created again"
            self._lose(f"{self._directory}: offsets {self._low} to {first - 1} {why}")
            self._low = first
        extent = DirectoryExtent(
            topic_partition=self._task.topic_partition,
            directory=self._directory,
            log_start=self._low,
            log_end=self._high,
            until=self._high,
            segments=tuple(segments),
        )
        index = lru_cache(4)(lambda segment: IndexBoundaries(self._fs, segment))
        pieces = spans(extent, OffsetRange(self._low, self._high), index)
        if not pieces and self._low < self._high:
            if segments[-1].base_offset <= self._low:  # else compaction took them
                self._lose(f"{self._directory} no longer has offsets {self._low} to {self._high - 1}")
            self._low = self._high
        return pieces

    def _is_mounted(self) -> bool:
        """Whether this is the planned log directory. Without an identity that is checked only if a file is missing."""
        mount = mount_of(self._task.mounts, self._directory)
        try:
            if mount.identity is not None:
                mount.check(self._fs)
        except (InvalidLogDirError, OSError):
            return False
        return True

    def _segments(self, unseen: list[InvalidLogDirError]) -> list[SegmentExtent]:
        """The segments of the current replica; none if it is gone or of another topic; none, and an error in
        ``unseen``, if this worker does not see it."""
        self._is_recreated = False
        try:
            mount_of(self._task.mounts, self._directory).check(self._fs)
            segments = read_segments(self._fs, self._directory)
            self._is_recreated = not self._is_of_topic()
            return [] if self._is_recreated else segments
        except FileNotFoundError:
            return []
        except InvalidLogDirError as error:
            _log.warning("seglog: %s", error)
            unseen.append(error)
            return []
        except OSError:
            if not self._others:
                raise
            return []

    def _lose(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{what}; {DATA_LOSS_HINT}")
        _log.warning("seglog: data was lost: %s", what)
