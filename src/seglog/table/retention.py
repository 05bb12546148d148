"""Which files of a table go: a policy of its own, not the log's. A file goes as a whole, like a segment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow.parquet as pq
from pyiceberg.conversions import from_bytes
from pyiceberg.types import IntegerType, LongType, TimestamptzType

from seglog.core.types import NO_TIMESTAMP
from seglog.table.files.record_files import FieldIds

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.manifest import DataFile

_MICROS: Final = 1000
ReadFile = Callable[["DataFile"], "pa.NativeFile"]


def older_than(files: Sequence[DataFile], ids: FieldIds, timestamp_ms: int) -> list[DataFile]:
    """The files whose records all have an earlier timestamp. A record whose timestamp is null keeps its file; so does
    -1, Kafka's "none", in a file that has no later one."""
    number = ids["timestamp"]
    return [
        one
        for one in files
        if not (one.null_value_counts or {}).get(number)
        and (newest := (one.upper_bounds or {}).get(number)) is not None
        and NO_TIMESTAMP * _MICROS != int(from_bytes(TimestamptzType(), newest)) < timestamp_ms * _MICROS
    ]


def below(files: Sequence[DataFile], ids: FieldIds, log_starts: Mapping[int, int], read: ReadFile) -> list[DataFile]:
    """The files whose records all lie below the log start offset of their partition; ``read`` opens a file."""
    return [one for one in files if _is_below(one, ids, log_starts, read)]


def _is_below(file: DataFile, ids: FieldIds, log_starts: Mapping[int, int], read: ReadFile) -> bool:
    lower, upper = file.lower_bounds or {}, file.upper_bounds or {}
    if ids["partition"] not in lower or ids["offset"] not in upper:
        return False
    first, last = (int(from_bytes(IntegerType(), bounds[ids["partition"]])) for bounds in (lower, upper))
    if first == last:
        return int(from_bytes(LongType(), upper[ids["offset"]])) < log_starts.get(first, 0)
    rows = pq.read_table(read(file), columns=["partition", "offset"])
    newest = rows.group_by("partition").aggregate([("offset", "max")])
    newest_of = {int(row["partition"]): int(row["offset_max"]) for row in newest.to_pylist()}
    return all(offset < log_starts.get(partition, 0) for partition, offset in newest_of.items())
