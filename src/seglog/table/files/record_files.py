"""Parquet files of records, sorted by partition and offset, with page indexes, compressed by zstd.

Offsets and timestamps are stored as differences: as plain numbers, they are most of a file whose values repeat. Keys
and values that repeat have a dictionary, from which Spark's reader copies faster than from pages.
"""

from __future__ import annotations

import math
import os
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from seglog.core.file_sink import FileSink
from seglog.core.fs import FileStore
from seglog.records.columns import FIELDS
from seglog.table.columns.column_types import FIELD_ID, conform, leaves

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
"""A dictionary pays if each of a row group's different values occurs so often. A dictionary is given up once it exceeds
its limit, so a wrong estimate costs time only."""
_USUAL_LIMIT: Final = 1 << 20
"""Bytes of Parquet's dictionaries, by default: those of columns that are not sampled."""
_LENGTH_BYTES: Final = 4
"""The length before each value of a dictionary."""
_DICTIONARY_BYTES: Final = 4 << 20
"""The largest estimate of a dictionary's bytes. A reader holds a dictionary while it reads a row group."""

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


def repeated_bytes(rows: pa.Table) -> dict[str, int]:
    """Which of key and value are bytes that repeat, by a sample, and about how many bytes their dictionaries have.

    >>> repeated_bytes(pa.table({"key": [b"%d" % at for at in range(99)], "value": [b"a", b"b", None] * 33}))
    {'value': 10}
    """
    chosen = np.random.default_rng(0).integers(0, rows.num_rows, _SAMPLE)  # values may have a period, as strides do
    sample = rows.select(list(_BYTES)).take(pa.array(chosen if rows.num_rows > _SAMPLE else np.arange(rows.num_rows)))
    sizes = {
        name: _dictionary_bytes(sample.column(name), rows.num_rows)
        for name in _BYTES
        if pa.types.is_binary(rows.schema.field(name).type)
    }
    return {name: size for name, size in sizes.items() if size is not None}


def _dictionary_bytes(sample: pa.ChunkedArray, rows: int) -> int | None:
    """The estimated size of the dictionary of a row group with a column like ``sample``; None if it does not pay."""
    different = pc.unique(pc.drop_null(sample))
    drawn = len(sample) - sample.null_count
    values = drawn * rows / len(sample)
    estimate = float(len(different)) if len(sample) == rows else _different(len(different), drawn)
    if not drawn or values < estimate * _REPETITION:
        return None
    size = int(estimate * (_LENGTH_BYTES + pc.sum(pc.binary_length(different)).as_py() / len(different)))
    return size if size <= _DICTIONARY_BYTES else None


def _different(found: int, drawn: int) -> float:
    """How many different values there are, all about as often, if a sample of ``drawn`` has ``found`` of them.

    >>> [round(_different(found, 8192)) for found in (1, 100, 6716)], _different(99, 99)
    ([1, 100, 19915], inf)
    """
    if found == drawn:
        return math.inf
    low, high = float(found), float(drawn) * drawn
    while high - low > 1e-3 * low:
        middle = (low + high) / 2
        low, high = (middle, high) if -middle * math.expm1(-drawn / middle) < found else (low, middle)
    return high


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
        repeated = repeated_bytes(rows)
        limit = max([_USUAL_LIMIT, *(2 * size for size in repeated.values())])
        options: dict[str, Any] = {"dictionary_pagesize_limit": limit}
        if filters:
            options["bloom_filter_options"] = filters
        return pq.ParquetWriter(
            self._sink,
            self._form.schema,
            compression=COMPRESSION,
            use_dictionary=[*self._form.dictionaries, *repeated],
            column_encoding=_DIFFERENCES,
            write_page_index=True,
            store_schema=False,
            **options,
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
