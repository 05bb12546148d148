"""Files of one day each, for a table that is partitioned by the day of the records' timestamps.

Records wait in memory, by day in UTC, until all have been read, or until they have `MOST_WAITING` bytes. Then the day
that has most of them becomes a file. So a writer makes at most one file for each day, and one more for each
``MOST_WAITING / days`` bytes, however the timestamps lie. Records without a timestamp have files of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from seglog.core.errors import InvalidConfigError
from seglog.core.fs import FileStore
from seglog.table.files.record_files import FileForm, WrittenFile, write_records

MOST_WAITING: Final = 256 << 20
"""Bytes of records that wait in memory, and one batch."""
MOST_DAYS: Final = 4096
"""Days in the files of one writer: each commit has a file for each, and there are clocks that are wrong."""
_MICROS: Final = 86_400_000_000
Day = int | None


def by_day(batch: pa.RecordBatch) -> Iterator[tuple[Day, pa.RecordBatch]]:
    """The parts of a batch, in its order each; a day is counted from 1970, and None for records without a timestamp."""
    column = batch.column("timestamp")
    valid = np.asarray(column.is_valid())
    days = np.floor_divide(np.asarray(column.view(pa.int64()).fill_null(0)), _MICROS)
    if not valid.all():
        yield None, _chosen(batch, ~valid)
    for day in np.unique(days[valid]).tolist():
        yield day, _chosen(batch, valid & (days == day))


def _chosen(batch: pa.RecordBatch, rows: np.typing.NDArray[np.bool_]) -> pa.RecordBatch:
    """The rows, copied if there are others."""
    return batch if rows.all() else batch.take(pa.array(np.flatnonzero(rows)))


def write_days(fs: FileStore, directory: str, batches: Iterable[pa.RecordBatch], form: FileForm) -> list[WrittenFile]:
    """Write the records of ``batches`` to new files in ``directory``. Raises `InvalidConfigError` for too many days.

    The files are on the disk afterwards. Their directory's entries are not.
    """
    waiting = _WaitingDays()
    written: list[WrittenFile] = []
    for batch in batches:
        for day, part in by_day(batch):
            waiting.add(day, part)
        while waiting.size > MOST_WAITING:
            written += _write(fs, directory, waiting.take_largest(), form)
    while waiting.size:
        written += _write(fs, directory, waiting.take_largest(), form)
    return written


def _write(fs: FileStore, directory: str, batches: list[pa.RecordBatch], form: FileForm) -> list[WrittenFile]:
    made = write_records(fs, directory, batches, form)
    return [] if made is None else [made]


class _WaitingDays:
    """Records that wait, by day, and how many bytes they have."""

    def __init__(self) -> None:
        self._waiting: dict[Day, list[pa.RecordBatch]] = {}
        self._sizes: dict[Day, int] = {}
        self._seen: set[Day] = set()
        self.size = 0

    def add(self, day: Day, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        self._seen.add(day)
        if len(self._seen) > MOST_DAYS:
            place = f"{batch.column('topic')[0]}-{batch.column('partition')[0]}"
            raise InvalidConfigError(
                f"the records up to offset {batch.column('offset')[0]} of {place} have timestamps of more than "
                f"{MOST_DAYS} days, each of which would be a file: build a table without a partitioning by day"
            )
        size = max(batch.nbytes, 1)
        self._waiting.setdefault(day, []).append(batch)
        self._sizes[day] = self._sizes.get(day, 0) + size
        self.size += size

    def take_largest(self) -> list[pa.RecordBatch]:
        """The records of the day that has most, which wait no longer."""
        day = max(self._sizes, key=self._sizes.__getitem__)
        self.size -= self._sizes.pop(day)
        return self._waiting.pop(day)
