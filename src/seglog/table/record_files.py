"""Parquet files of records, sorted by partition and offset, with page indexes, compressed by zstd.

Offsets and timestamps are stored as differences: as plain numbers, they are most of a file whose values repeat. Keys
and values that repeat have a dictionary, from which Spark's reader copies faster than from pages.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
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
_DIFFERENCES: Final = dict.fromkeys(("offset", "timestamp"), "DELTA_BINARY_PACKED")
_BYTES: Final = ("key", "value")
_SAMPLE: Final = 8192
"""Records of a file's first row group, by which it is decided whether keys and values repeat."""
_REPETITION: Final = 8
"""A dictionary pays if each of a sample's different values occurs so often. It gives up on values that turn out to be
more, so a wrong decision costs time only."""
_DICTIONARY_BYTES: Final = 512 << 10
"""Different values of a sample beyond this would not fit into a dictionary of Parquet's, which ends at 1 MiB."""

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


def repeated_bytes(rows: pa.Table) -> list[str]:
    """Which of key and value are bytes that repeat, by a sample.

    >>> repeated_bytes(pa.table({"key": [b"%d" % at for at in range(99)], "value": [b"a", b"b", None] * 33}))
    ['value']
    """
    chosen = np.random.default_rng(0).integers(0, rows.num_rows, _SAMPLE)  # values may have a period, as strides do
    sample = rows.select(list(_BYTES)).take(pa.array(chosen if rows.num_rows > _SAMPLE else np.arange(rows.num_rows)))
    return [name for name in _BYTES if pa.types.is_binary(rows.schema.field(name).type) and _repeats(sample, name)]


def _repeats(sample: pa.Table, name: str) -> bool:
    different = pc.unique(sample.column(name))
    values = sample.num_rows - sample.column(name).null_count
    return 0 < values >= len(different) * _REPETITION and different.nbytes <= _DICTIONARY_BYTES


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
            rows = pa.concat_tables(self._waiting)
            self._writer = self._writer or self._begin(rows)
            self._writer.write_table(rows, row_group_size=self._rows)
        self._records += self._rows
        self._waiting = []
        self._rows = self._bytes = 0

    def _begin(self, rows: pa.Table) -> pq.ParquetWriter:
        """The writer, for row groups such as ``rows``, the first one."""
        filters = {name: {"ndv": rows.num_rows, "fpp": FALSE_POSITIVES} for name in self._form.bloom}
        return pq.ParquetWriter(
            self._sink,
            self._form.schema,
            compression=COMPRESSION,
            use_dictionary=[*self._form.dictionaries, *repeated_bytes(rows)],
            column_encoding=_DIFFERENCES,
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
