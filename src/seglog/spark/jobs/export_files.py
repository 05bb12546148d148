"""Writes the records of an export task as Parquet: one file or more for each day (UTC).

Memory is bounded by `BUFFERED_BYTES` of records that wait for their row group, one chunk of input, and the footers of
`OPEN_FILES` files. If records have more days than that, a file ends early, and its day continues in a new file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from seglog.core.errors import InvalidRecordError
from seglog.core.file_sink import FileSink
from seglog.core.fs import Fs
from seglog.core.utf8 import decode_utf8
from seglog.spark.jobs.export_state import StagedFile

ROW_GROUP_BYTES: Final = 16 << 20
BUFFERED_BYTES: Final = 64 << 20
OPEN_FILES: Final = 64
NO_DATE: Final = "__HIVE_DEFAULT_PARTITION__"
"""The date of records whose timestamp is missing or outside of the calendar."""
_DAY: Final = 86_400_000_000
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
"""0001-01-01 and 9999-12-31, in days since 1970."""
_NO_DAY: Final = _LAST_DAY + 1


class DayWriter:
    """Writes the files of one task to the new directory ``directory``, relative to ``output``.

    The names of the files begin with ``name``. The files that `finish` returns survive a power cut.
    """

    def __init__(
        self, fs: Fs, output: str, directory: str, topic: str, name: str, *, compression: str, max_file_bytes: int
    ) -> None:
        fs.mkdir(os.path.join(output, directory))
        fs.fsync_dir(os.path.join(output, os.path.dirname(directory)))
        self._fs = fs
        self._output = output
        self._directory = directory
        self._topic = topic
        self._name = name
        self._compression = compression
        self._max_file_bytes = max_file_bytes
        self._days: dict[int, _Day] = {}
        self._numbers: dict[int, int] = {}
        self._buffered = 0
        self.files: list[StagedFile] = []

    def write(self, batch: pa.RecordBatch, days: npt.NDArray[np.int64]) -> None:
        """Write records; ``days`` has the day of each, counted from 1970."""
        for day in np.unique(days).tolist():
            chosen = days == day
            part = batch if chosen.all() else batch.take(pa.array(np.flatnonzero(chosen)))
            self._of(day).add(part)
            self._buffered += part.nbytes
            if self._days[day].waiting >= ROW_GROUP_BYTES:
                self._flush(day)
        while self._buffered > BUFFERED_BYTES:
            self._flush(max(self._days, key=lambda day: self._days[day].waiting))

    def finish(self) -> list[StagedFile]:
        for day in sorted(self._days):
            self._end(day)
        self._fs.fsync_dir(os.path.join(self._output, self._directory))
        return self.files

    def _of(self, day: int) -> _Day:
        if day not in self._days:
            if len(self._days) >= OPEN_FILES:
                self._end(min(self._days, key=lambda one: self._days[one].waiting))
            number = self._numbers.get(day, 0)
            self._numbers[day] = number + 1
            name = f"{self._name}-{number:04d}.parquet"
            date = NO_DATE if day == _NO_DAY else str(np.datetime64(day, "D"))
            staged = os.path.join(self._directory, f"{date}-{name}.staged")
            final = os.path.join(f"topic={self._topic}", f"date={date}", name)
            self._days[day] = _Day(self._fs, self._output, staged, final, self._compression)
        return self._days[day]

    def _flush(self, day: int) -> None:
        one = self._days[day]
        self._buffered -= one.waiting
        one.flush()
        if one.size >= self._max_file_bytes:
            self._end(day)

    def _end(self, day: int) -> None:
        one = self._days.pop(day)
        self._buffered -= one.waiting
        self.files.append(one.finish())


class _Day:
    """The open file of a day."""

    def __init__(self, fs: Fs, output: str, staged: str, final: str, compression: str) -> None:
        self._sink = FileSink(fs, os.path.join(output, staged))
        self._staged = staged
        self._final = final
        self._compression = compression
        self._batches: list[pa.RecordBatch] = []
        self._writer: pq.ParquetWriter | None = None
        self._records = 0
        self.waiting = 0

    @property
    def size(self) -> int:
        return self._sink.size

    def add(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self.waiting += batch.nbytes

    def flush(self) -> None:
        """Write the waiting records as a row group."""
        if self._batches:
            table = pa.Table.from_batches(self._batches)
            if self._writer is None:
                self._writer = pq.ParquetWriter(self._sink, table.schema, compression=self._compression)
            self._writer.write_table(table, row_group_size=max(table.num_rows, 1))
            self._records += table.num_rows
            self._batches.clear()
            self.waiting = 0

    def finish(self) -> StagedFile:
        self.flush()
        assert self._writer is not None
        self._writer.close()
        self._sink.close()
        return StagedFile(self._staged, self._final, self._records, self._sink.size)


def days_of(timestamps: pa.Array) -> npt.NDArray[np.int64]:
    """The day of each timestamp, counted from 1970 in UTC; `_NO_DAY` without a timestamp or outside of the calendar."""
    micros = timestamps.cast(pa.timestamp("us")).cast(pa.int64())
    missing = np.zeros(len(micros), np.bool_)
    if micros.null_count:
        missing = np.array([value is None for value in micros.to_pylist()], np.bool_)
        micros = micros.fill_null(0)
    days: npt.NDArray[np.int64] = np.floor_divide(micros.to_numpy(zero_copy_only=False), _DAY)
    days[missing | (days < _FIRST_DAY) | (days > _LAST_DAY)] = _NO_DAY
    return days


def as_text(column: pa.Array) -> pa.Array:
    """Bytes as text. Invalid UTF-8 is replaced, as by Java's decoder."""
    text = column.view(pa.string())
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        return pa.array([None if one is None else decode_utf8(one) for one in column.to_pylist()], pa.string())
    return text


def as_json(column: pa.Array, name: str, offsets: pa.Array) -> pa.Array:
    """Bytes as Parquet's JSON type. Raises `InvalidRecordError` with the offset of a record that is not JSON."""
    for at, data in enumerate(column.to_pylist()):
        if data is not None:
            try:
                json.loads(data.decode())
            except (ValueError, RecursionError) as error:
                offset = offsets[at].as_py()
                raise InvalidRecordError(f"the {name} of the record at offset {offset} is not JSON: {error}") from error
    return pa.ExtensionArray.from_storage(pa.json_(), column.view(pa.string()))


def shaped(batch: pa.RecordBatch, columns: Sequence[str], formats: Mapping[str, str]) -> pa.RecordBatch:
    """The ``columns`` of ``batch``, those in ``formats`` as string or json instead of binary."""
    arrays = []
    for name in columns:
        array = batch.column(name)
        match formats.get(name, "binary"):
            case "string":
                array = as_text(array)
            case "json":
                array = as_json(array, name, batch.column("offset"))
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))
