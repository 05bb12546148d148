"""The tasks of the views, and the rows that are made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from seglog.core.types import NO_TIMESTAMP
from seglog.records.timestamps import CALENDAR, range_error
from seglog.sources.brokers.planning import FetchRange
from seglog.sources.directories.planning import Piece, ReadRange

if TYPE_CHECKING:
    import pyarrow as pa

_FROM_THE_LOG: Final = {"logPartition": "partition", "logOffset": "offset", "timestamp": "timestamp"}


class BatchTask(NamedTuple):
    """The batches in a range of bytes. A partition's ``first`` and ``last`` task drop those outside its offsets."""

    range: ReadRange
    first: bool
    last: bool


class FetchedBatchTask(NamedTuple):
    """The batches that begin in a range of offsets; a partition's ``first`` task also has the batch around its
    beginning."""

    range: FetchRange
    first: bool


class SegmentTask(NamedTuple):
    """A segment, whose file is read to its end even if the piece ends before."""

    topic: str
    partition: int
    piece: Piece


Build = Callable[[str], "pa.Array"]
"""Makes the column with this name."""


def microseconds(milliseconds: int, place: str, *, null_timestamps: bool = False) -> int | None:
    """A timestamp for Spark; None for -1, which is Kafka's "none".

    One outside of the years 1 to 9999, which Python does not know, raises `TimestampRangeError` with its ``place``, or
    is None with ``null_timestamps``.
    """
    if milliseconds == NO_TIMESTAMP:
        return None
    if milliseconds in CALENDAR:
        return milliseconds * 1000
    if null_timestamps:
        return None
    raise range_error(place, milliseconds)


def rows_of(arrow: pa.Schema, build: Build) -> pa.RecordBatch:
    """A batch with exactly the schema ``arrow``; ``build`` makes only its columns."""
    import pyarrow as pa

    arrays = [build(field.name).cast(field.type) for field in arrow]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow)


def described_rows(
    records: pa.RecordBatch,
    arrow: pa.Schema,
    describe: Callable[[bytes, bytes], Mapping[str, Any]],
    *,
    null_timestamps: bool,
) -> pa.RecordBatch:
    """A row for each record of a topic of Kafka's own: where it is in the log, and what ``describe`` makes of it, with
    timestamps in milliseconds.

    ``records`` has the columns key, value, topic, partition, offset and timestamp.
    """
    import pyarrow as pa

    def timestamp(name: str, row: int, milliseconds: int | None) -> int | None:
        if milliseconds is None:
            return None
        topic, partition, offset = (records.column(one)[row].as_py() for one in ("topic", "partition", "offset"))
        place = f"topic {topic}, partition {partition}, offset {offset}, {name}"
        return microseconds(milliseconds, place, null_timestamps=null_timestamps)

    pairs = zip(records.column("key").to_pylist(), records.column("value").to_pylist(), strict=True)
    rows = [describe(key, value) for key, value in pairs]

    def build(name: str) -> pa.Array:
        if name in _FROM_THE_LOG:
            return records.column(_FROM_THE_LOG[name])
        if pa.types.is_timestamp(arrow.field(name).type):
            times = [timestamp(name, number, row.get(name)) for number, row in enumerate(rows)]
            return pa.array(times, arrow.field(name).type)
        return pa.array([row.get(name) for row in rows], arrow.field(name).type)

    return rows_of(arrow, build)
