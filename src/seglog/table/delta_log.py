"""A Delta log over the files of a table, for readers of Delta. It follows the Iceberg table, which is the truth.

The log is ``data/_delta_log``. Following compares the files that both name, so it can be repeated at any time, after
any failure, and from nothing: if the directory is deleted, the next run makes it again. Each commit has the transaction
``seglog:<uuid of the table>`` with the sequence number of the Iceberg snapshot that it shows.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, TableFeatures, Transaction
from deltalake.transaction import AddAction, RemoveAction
from pyiceberg.conversions import from_bytes
from pyiceberg.types import TimestamptzType
from pyiceberg.utils.datetime import micros_to_timestamptz

from seglog.core.clock import Clock
from seglog.core.errors import InvalidConfigError
from seglog.core.fs import FileStore
from seglog.table.columns.column_types import arrow_schema, iceberg_schema
from seglog.table.columns.evolution import Widening, changes
from seglog.table.iceberg.layout import DELTA_LOG, local_path
from seglog.table.iceberg.log_table import LogTable

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile

_CONFIGURATION: Final = {
    "delta.checkpointInterval": "100",
    "delta.logRetentionDuration": "interval 1 days",
    "delta.deletedFileRetentionDuration": "interval 30 days",  # a user's vacuum must not take what Iceberg still names
}
_TIMES_OF_DAY: Final = (pa.time64("us"), pa.time64("ns"))
_LOCAL_TIME: Final = "timestampNtz"
"""The feature of Delta's protocol that allows timestamps without a time zone."""


def check_columns(table: LogTable, columns: pa.Schema) -> None:
    """Raise `InvalidConfigError` if a Delta log cannot show the table once it has ``columns``, too.

    Delta has no type for a time of day. To read older files with narrower types, it needs a feature that deltalake does
    not write.
    """
    current = table.iceberg.schema()
    widened = table.widened or next(
        (f"{'.'.join(one.path)} {one.type}" for one in changes(current, columns) if isinstance(one, Widening)), None
    )
    if widened is not None:
        field, kind = widened.rsplit(" ", 1)
        raise InvalidConfigError(
            f"the field {field} has become {kind}: a Delta log cannot show types that were widened. Build another "
            "table, or delete its directory _delta_log and do without"
        )
    for field in (*arrow_schema(current), *columns):
        if (time := _first_of(_TIMES_OF_DAY, field.type, field.name)) is not None:
            raise InvalidConfigError(f"the field {time} is a time of day: Delta has no such type")


def _first_of(kinds: Collection[pa.DataType], kind: pa.DataType, where: str) -> str | None:
    """The first field that is of one of ``kinds``, at any depth."""
    if kind in kinds:
        return where
    inner: list[pa.Field] = []
    if isinstance(kind, pa.StructType):
        inner = list(kind)
    elif isinstance(kind, pa.ListType):
        inner = [kind.value_field]
    elif isinstance(kind, pa.MapType):
        inner = [kind.key_field, kind.item_field]
    return next((found for one in inner if (found := _first_of(kinds, one.type, f"{where}.{one.name}"))), None)


def follow(fs: FileStore, table: LogTable, clock: Clock) -> bool:
    """Bring the Delta log, which is made if need be, to the current snapshot; whether it had to change.

    The caller holds the table's lock.
    """
    current = table.iceberg.current_snapshot()
    if current is None:
        return False
    columns = table.form.schema
    if fs.exists(os.path.join(table.path.data, DELTA_LOG)):
        delta = DeltaTable(table.path.data)
    else:
        plain = pa.schema([one for one in columns if not _has_local_time(one)])
        delta = DeltaTable.create(
            table.path.data, plain, name=table.path.name, configuration=_CONFIGURATION, mode="error"
        )
    _show_columns(delta, columns)
    application, number = f"seglog:{table.iceberg.metadata.table_uuid}", current.sequence_number or 0
    if delta.transaction_version(application) == number:
        return False
    live = {os.path.basename(local_path(one.file_path)): one for one in table.data_files()}
    known = _known_files(delta)
    added, removed = sorted(live.keys() - known.keys()), sorted(known.keys() - live.keys())
    is_other = table.key_buckets is not None or (
        sum(live[name].record_count for name in added) != sum(known[name] for name in removed)
    )
    now = clock.now_ms()
    actions: list[AddAction | RemoveAction] = [
        *(_added(name, live[name], now, is_other, table.form.ids["timestamp"]) for name in added),
        *(RemoveAction(name, is_other, now, partition_values={}) for name in removed),
    ]
    properties = CommitProperties(app_transactions=[Transaction(application, number)])
    delta.create_write_transaction(actions, "append", columns, commit_properties=properties)
    return True


def _show_columns(delta: DeltaTable, columns: pa.Schema) -> None:
    """Let the log have ``columns``.

    Its protocol must name a feature before a column has timestamps without a time zone, or no reader opens the table.
    deltalake names it by itself only if the type is outside of maps.
    """
    if not changes(iceberg_schema(pa.schema(delta.schema().to_arrow())), columns):
        return
    if any(map(_has_local_time, columns)) and _LOCAL_TIME not in (delta.protocol().reader_features or ()):
        delta.alter.add_feature([TableFeatures.TimestampWithoutTimezone], allow_protocol_versions_increase=True)
    delta.alter.add_columns(list(Schema.from_arrow(columns).fields))


def _has_local_time(field: pa.Field) -> bool:
    return _first_of([pa.timestamp("us")], field.type, field.name) is not None


def _added(name: str, file: DataFile, now_ms: int, is_other: bool, timestamp_id: int) -> AddAction:
    """``is_other``: these are other records than before, and not the same ones in other files."""
    statistics = {"numRecords": file.record_count, **_times(file, timestamp_id)}
    return AddAction(name, file.file_size_in_bytes, {}, now_ms, is_other, json.dumps(statistics))


def _times(file: DataFile, timestamp_id: int) -> dict[str, Any]:
    """The statistics by which a reader skips files of other times. Ours are whole milliseconds, as Delta's are."""
    bounds = [(one or {}).get(timestamp_id) for one in (file.lower_bounds, file.upper_bounds)]
    if None in bounds:
        return {}
    lower, upper = (micros_to_timestamptz(int(from_bytes(TimestamptzType(), one))) for one in bounds if one is not None)
    texts = [{"timestamp": one.isoformat(timespec="milliseconds").replace("+00:00", "Z")} for one in (lower, upper)]
    nulls = (file.null_value_counts or {}).get(timestamp_id, 0)
    return {"minValues": texts[0], "maxValues": texts[1], "nullCount": {"timestamp": nulls}}


def _known_files(delta: DeltaTable) -> dict[str, int]:
    """The files that the Delta log has, and their numbers of records."""
    found = pa.table(delta.get_add_actions(flatten=True)).to_pydict()
    return dict(zip(found["path"], found.get("num_records", []), strict=True))
