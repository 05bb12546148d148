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
from seglog.records.columns import FIELDS
from seglog.table.column_types import FIELD_ID, conform, leaves

COMPRESSION: Final = "zstd"
SUFFIX: Final = ".parquet"
ROW_GROUP_BYTES: Final = 64 << 20
ROW_GROUP_ROWS: Final = 1 << 20
"""Records that wait for their row group are in memory: at most these bytes, or these rows, and one batch."""
_REPEATED: Final = ("topic", "partition", "timestampType")
"""Columns that a dictionary makes small. Others are written faster without one, and zstd finds what they repeat."""

FieldIds = Mapping[str, int]
"""Iceberg's number of each column, by its name."""
FALSE_POSITIVES: Final = 0.01
"""Of a Bloom filter, which then has ten bits for each record of a row group."""


class FileForm(NamedTuple):
    """What new files of a table have in common: columns with Iceberg's field ids, those with Bloom filters,
    and whether a file has records of one day only."""

    schema: pa.Schema
    bloom: tuple[str, ...] = ()
    by_day: bool = False

    @property
    def ids(self) -> FieldIds:
        return {field.name: int(field.metadata[FIELD_ID.encode()]) for field in self.schema}

    @property
    def dictionaries(self) -> list[str]:
        """The columns and fields that a dictionary makes small: values with types repeat."""
        typed = (field for field in self.schema if field.name not in FIELDS or field.type != FIELDS[field.name].type)
        return [*_REPEATED, *(path for field in typed for path in leaves(field.type, field.name))]


class WrittenFile(NamedTuple):
    """A file that is on the disk, with its number of records and its size in bytes."""

    path: str
    records: int
    size: int


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
        self._waiting: list[pa.Table] = []
        self._rows = self._bytes = self._records = 0

    def add(self, batch: pa.RecordBatch) -> None:
        rows = conform(pa.Table.from_batches([batch]), self._form.schema)
        self._waiting.append(rows)
        self._rows += rows.num_rows
        self._bytes += rows.nbytes
        if self._rows >= ROW_GROUP_ROWS or self._bytes >= ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._writer = self._writer or self._begin(self._rows)
            self._writer.write_table(pa.concat_tables(self._waiting), row_group_size=self._rows)
        self._records += self._rows
        self._waiting = []
        self._rows = self._bytes = 0

    def _begin(self, rows: int) -> pq.ParquetWriter:
        """The writer, for row groups of about ``rows``."""
        filters = {name: {"ndv": rows, "fpp": FALSE_POSITIVES} for name in self._form.bloom}
        return pq.ParquetWriter(
            self._sink,
            self._form.schema,
            compression=COMPRESSION,
            use_dictionary=self._form.dictionaries,
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
