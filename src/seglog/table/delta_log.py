"""A Delta log over the files of a table, for readers of Delta. It follows the Iceberg table, which is the truth.

The log is ``data/_delta_log``. Following compares the files that both name, so it can be repeated at any time, after
any failure, and from nothing: if the directory is deleted, the next run makes it anew. Each commit has the transaction
``seglog:<uuid of the table>`` with the sequence number of the Iceberg snapshot that it shows.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.transaction import AddAction, RemoveAction

from seglog.core.clock import Clock
from seglog.core.fs import FileStore
from seglog.records.columns import SCHEMA
from seglog.table.layout import DELTA_LOG, local_path
from seglog.table.log_table import LogTable

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile

_CONFIGURATION: Final = {
    "delta.checkpointInterval": "100",
    "delta.logRetentionDuration": "interval 1 days",
    "delta.deletedFileRetentionDuration": "interval 30 days",  # a user's vacuum must not take what Iceberg still names
}


def follow(fs: FileStore, table: LogTable, clock: Clock) -> bool:
    """Bring the Delta log, which is made if need be, to the current snapshot; whether it had to change.

    The caller holds the table's lock.
    """
    current = table.iceberg.current_snapshot()
    if current is None:
        return False
    if fs.exists(os.path.join(table.path.data, DELTA_LOG)):
        delta = DeltaTable(table.path.data)
    else:
        delta = DeltaTable.create(
            table.path.data, SCHEMA, name=table.path.name, configuration=_CONFIGURATION, mode="error"
        )
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
        *(_added(name, live[name], now, is_other) for name in added),
        *(RemoveAction(name, is_other, now, partition_values={}) for name in removed),
    ]
    properties = CommitProperties(app_transactions=[Transaction(application, number)])
    delta.create_write_transaction(actions, "append", SCHEMA, commit_properties=properties)
    return True


def _added(name: str, file: DataFile, now_ms: int, is_other: bool) -> AddAction:
    """``is_other``: these are other records than before, and not the same ones in other files."""
    return AddAction(name, file.file_size_in_bytes, {}, now_ms, is_other, f'{{"numRecords":{file.record_count}}}')


def _known_files(delta: DeltaTable) -> dict[str, int]:
    """The files that the Delta log has, and their numbers of records."""
    found = pa.table(delta.get_add_actions(flatten=True)).to_pydict()
    return dict(zip(found["path"], found.get("num_records", []), strict=True))
