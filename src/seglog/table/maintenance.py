"""The work that keeps a table small: rewriting small files, and forgetting what no snapshot has, files and schemas.

A file that a snapshot no longer names may still be read, by a query that began before. It is noted in
``.seglog/unnamed.json`` by the sweep that first finds it without a name, and deleted when it has stayed there for the
grace time. Files of a job that died are found in the same way. If that file is lost, the time begins again.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from seglog.core.clock import Clock
from seglog.core.errors import CatalogError
from seglog.core.fs import FileStore, write_atomically
from seglog.table.columns.column_types import conform
from seglog.table.files.record_files import SUFFIX, write_records
from seglog.table.iceberg.layout import DATA, METADATA, UNNAMED
from seglog.table.iceberg.log_table import LogTable
from seglog.table.small_files import choose

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile

DATA_GRACE_MS: Final = 24 * 3_600_000
"""How long a query that has pinned a snapshot may read its files after the snapshot is gone."""
METADATA_GRACE_MS: Final = 3_600_000
"""The same for manifests, which a query reads only while it is planned."""
SWEEP_MS: Final = 3_600_000
"""A sweep lists the table's directories and reads all manifests; it comes this often."""
ENOUGH_SCHEMAS: Final = 16
"""Schemas that no snapshot has are removed once there are so many, in a commit of its own."""
_MOST_DECODED: Final = 1 << 30
"""Bytes of records in memory while files are rewritten."""
_BATCH_ROWS: Final = 1 << 16
_SWEPT_SUFFIXES: Final = {DATA: (SUFFIX,), METADATA: (".avro", ".json")}
_VERSION: Final = 1
_log: Final = logging.getLogger("seglog.table")


class Maintenance(NamedTuple):
    """Files that were rewritten as fewer, and files that were deleted."""

    rewritten: int
    deleted: int


def maintain(fs: FileStore, table: LogTable, clock: Clock) -> Maintenance:
    """Do all that is due. The caller holds the table's lock. Raises `TableInUseError`."""
    rewritten = rewrite_small_files(fs, table) if table.key_buckets is None else 0  # a bucket is one file
    forget_schemas(table)
    due = read_unnamed(fs, table).swept_ms + SWEEP_MS
    return Maintenance(rewritten, sweep(fs, table, clock) if clock.now_ms() >= due else 0)


# Small files


def rewrite_small_files(fs: FileStore, table: LogTable) -> int:
    """Rewrite each group that `choose` finds, in a commit of its own. The number of files that were replaced."""
    replaced = 0
    for group in _groups(table):
        old = _within_memory(table, group)
        if len(old) > 1:
            written = write_records(fs, table.path.data, _merged(table, old), table.form)
            table.replace(old, [] if written is None else [written.path])
            replaced += len(old)
    return replaced


def _groups(table: LogTable) -> list[list[DataFile]]:
    """The files that become one, of one day each if the table is partitioned."""
    days: dict[str, list[DataFile]] = {}
    for one in sorted(table.data_files(), key=lambda one: one.file_path):
        days.setdefault(repr(one.partition), []).append(one)
    return [group for day in sorted(days) for group in choose(days[day])]


def _within_memory(table: LogTable, group: Sequence[DataFile]) -> list[DataFile]:
    """The first files of the group, up to `_MOST_DECODED` bytes as their footers say."""
    chosen: list[DataFile] = []
    held = 0
    for one in group:
        footer = pq.read_metadata(table.read(one))
        held += sum(footer.row_group(number).total_byte_size for number in range(footer.num_row_groups))
        if held > _MOST_DECODED and chosen:
            break
        chosen.append(one)
    return chosen


def _merged(table: LogTable, files: Sequence[DataFile]) -> list[pa.RecordBatch]:
    columns = table.form.schema
    tables = [conform(pq.read_table(table.read(one)), columns) for one in files]
    rows = pa.concat_tables(tables).sort_by([("partition", "ascending"), ("offset", "ascending")])
    return rows.to_batches(_BATCH_ROWS)


# Schemas


def forget_schemas(table: LogTable) -> int:
    """Remove the schemas that no kept snapshot has, some at a time: each load of the table reads all. Their number.

    A REST catalog may not know this update. Then the schemas stay, and the next run tries again.
    """
    unused = table.unused_schemas
    if len(unused) < ENOUGH_SCHEMAS:
        return 0
    try:
        table.remove_schemas(unused)
    except CatalogError as error:
        _log.info("seglog: %s keeps %d schemas that no snapshot has: %s", table.path.root, len(unused), error)
        return 0
    return len(unused)


# Files without a name


@dataclass(frozen=True, slots=True, kw_only=True)
class Unnamed:
    """When the last sweep was, and since when each file has had no name, in ms; paths are relative to the table."""

    swept_ms: int = 0
    since: Mapping[str, int] = field(default_factory=dict)


def read_unnamed(fs: FileStore, table: LogTable) -> Unnamed:
    """Nothing if the file does not exist or is not whole."""
    try:
        content = json.loads(fs.read(os.path.join(table.path.own, UNNAMED)))
        since = {str(name): int(since) for name, since in content["since"].items()}
        return Unnamed(swept_ms=int(content["swept"]), since=since) if content["version"] == _VERSION else Unnamed()
    except (FileNotFoundError, ValueError, TypeError, KeyError, AttributeError):
        return Unnamed()


def sweep(fs: FileStore, table: LogTable, clock: Clock) -> int:
    """Delete the files that have had no name for the grace time, and note those that have none now.

    The caller holds the table's lock, so no job on this machine is about to name a file.
    """
    now = clock.now_ms()
    known = read_unnamed(fs, table).since
    named = {table.path.relative(path) for path in table.named_files()}
    since: dict[str, int] = {}
    deleted = 0
    for directory, grace in ((DATA, DATA_GRACE_MS), (METADATA, METADATA_GRACE_MS)):
        for name in fs.listdir(os.path.join(table.path.root, directory)):
            path = os.path.join(directory, name)
            if not name.endswith(_SWEPT_SUFFIXES[directory]) or path in named:
                continue
            since[path] = known.get(path, now)
            if now - since[path] >= grace:
                with suppress(FileNotFoundError):
                    fs.unlink(os.path.join(table.path.root, path))
                del since[path]
                deleted += 1
    content = {"version": _VERSION, "swept": now, "since": since}
    write_atomically(fs, os.path.join(table.path.own, UNNAMED), json.dumps(content, indent=1).encode() + b"\n")
    return deleted
