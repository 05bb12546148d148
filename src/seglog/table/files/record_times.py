"""The timestamps that a table has: those of the years 1 to 9999, which all of its readers know.

pyiceberg, deltalake and Python's rows make datetimes of them, also of the bounds in a file's statistics.
"""

from __future__ import annotations

from threading import Lock
from typing import Final

import numpy as np
import pyarrow as pa

from seglog.records.columns import FIELDS, misfits_of
from seglog.records.timestamps import CALENDAR, TimestampRange, timestamp_error

_PLACE: Final = ("topic", "partition", "offset")
FIRST_MICROS: Final = CALENDAR.first * 1000
LAST_MICROS: Final = CALENDAR.last * 1000 + 999
_CALENDAR: Final = TimestampRange(FIRST_MICROS, LAST_MICROS)


class RecordTimes:
    """Checks the timestamps of a run's records. Several threads may use it."""

    def __init__(self, *, null_timestamps: bool) -> None:
        """``null_timestamps``: one out of range is null and counted, instead of an error."""
        self._null_timestamps = null_timestamps
        self._lock = Lock()
        self._nulls = 0

    @property
    def nulls(self) -> int:
        """How many timestamps were out of range so far."""
        return self._nulls

    def checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch, which has the source's columns, with null in place of each timestamp out of range.

        Raises `TimestampRangeError` for the first one, unless null is wanted.
        """
        column = batch.column("timestamp")
        micros = column.view(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        misfits = misfits_of(micros, _CALENDAR)
        if misfits is not None:
            if not self._null_timestamps:
                row = int(misfits[0])
                topic, partition, offset = (batch.column(name)[row].as_py() for name in _PLACE)
                raise timestamp_error(topic, partition, offset, int(micros[row]) // 1000)
            mask = np.asarray(column.is_null()).copy()
            mask[misfits] = True
            column = pa.array(micros, pa.int64(), mask=mask).view(FIELDS["timestamp"].type)
            arrays = [column if name == "timestamp" else batch.column(name) for name in batch.schema.names]
            batch = pa.RecordBatch.from_arrays(arrays, schema=batch.schema)
        if column.null_count:
            with self._lock:
                self._nulls += column.null_count
        return batch
