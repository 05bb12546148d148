"""Parquet files of records, sorted by partition and offset, with page indexes, compressed by zstd."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from seglog.core.file_sink import FileSink
from seglog.core.fs import FileStore
from seglog.records.columns import SCHEMA

COLUMNS: Final = tuple(SCHEMA.names)
COMPRESSION: Final = "zstd"
SUFFIX: Final = ".parquet"
ROW_GROUP_BYTES: Final = 64 << 20
ROW_GROUP_ROWS: Final = 1 << 20
"""Records that wait for their row group are in memory: at most these bytes, or these rows, and one batch."""
_REPEATED: Final = ("topic", "partition", "timestampType")
"""Columns that a dictionary makes small. Others are written faster without one, and zstd finds what they repeat."""

FieldIds = Mapping[str, int]
"""Iceberg's number of each field, by its path: ``headers.element.key``."""
FALSE_POSITIVES: Final = 0.01
"""Of a Bloom filter, which then has ten bits for each record of a row group."""


class FileForm(NamedTuple):
    """The form that all files of a table share: field ids, and the columns that have Bloom filters."""

    ids: FieldIds
    bloom: tuple[str, ...] = ()


class WrittenFile(NamedTuple):
    """A file that is on the disk, with its number of records and its size in bytes."""

    path: str
    records: int
    size: int


def file_schema(ids: FieldIds) -> pa.Schema:
    """The columns of `SCHEMA`, with Iceberg's field ids."""
    return pa.schema([_numbered(field, field.name, ids) for field in SCHEMA])


def _numbered(field: pa.Field, path: str, ids: FieldIds) -> pa.Field:
    kind = field.type
    if isinstance(kind, pa.ListType):
        kind = pa.list_(_numbered(kind.value_field, f"{path}.element", ids))
    elif isinstance(kind, pa.StructType):
        kind = pa.struct([_numbered(one, f"{path}.{one.name}", ids) for one in kind])
    return pa.field(field.name, kind, nullable=True, metadata={"PARQUET:field_id": str(ids[path])})


def write_records(
    fs: FileStore, directory: str, batches: Iterable[pa.RecordBatch], form: FileForm
) -> WrittenFile | None:
    """Write the records of ``batches`` to a new file in ``directory``; None if there are none.

    The file is on the disk afterwards. Its directory's entry is not: the caller syncs it once for all files.
    """
    writer: _RecordFile | None = None
    try:
        for batch in batches:
            if batch.num_rows:
                writer = writer or _RecordFile(fs, os.path.join(directory, f"{uuid.uuid4().hex}{SUFFIX}"), form)
                writer.add(batch)
        return None if writer is None else writer.finish()
    except BaseException:
        if writer is not None:
            writer.abandon()
        raise


class _RecordFile:
    """One file that is being written."""

    def __init__(self, fs: FileStore, path: str, form: FileForm) -> None:
        self._path = path
        self._form = form
        self._sink = FileSink(fs, path)
        self._writer: pq.ParquetWriter | None = None
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._bytes = self._records = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= ROW_GROUP_ROWS or self._bytes >= ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._writer = self._writer or self._begin(self._rows)
            self._writer.write_table(pa.Table.from_batches(self._waiting), row_group_size=self._rows)
        self._records += self._rows
        self._waiting = []
        self._rows = self._bytes = 0

    def _begin(self, rows: int) -> pq.ParquetWriter:
        """The writer, for row groups of about ``rows``."""
        filters = {name: {"ndv": rows, "fpp": FALSE_POSITIVES} for name in self._form.bloom}
        return pq.ParquetWriter(
            self._sink,
            file_schema(self._form.ids),
            compression=COMPRESSION,
            use_dictionary=list(_REPEATED),
            write_page_index=True,
            store_schema=False,
            **({"bloom_filter_options": filters} if filters else {}),
        )

    def finish(self) -> WrittenFile:
        self._flush()
        if self._writer is not None:
            self._writer.close()
        self._sink.close()
        return WrittenFile(self._path, self._records, self._sink.size)

    def abandon(self) -> None:
        """Close the file without making it whole. No snapshot will name it, so a sweep deletes it."""
        self._sink.close()
