"""A scan as Arrow libraries take it: a stream of batches, or a Polars frame whose filters reach the logs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from seglog.core.extras import require
from seglog.core.progress import progress
from seglog.sources.narrowing import EVERYTHING, ArrowFilter, Narrowing, arrow_filter, both, polars_bounds
from seglog.sources.ordered_reading import ReadPart, read_in_order
from seglog.sources.scan_columns import ScanColumns
from seglog.sources.scan_logs import ScannedLogs
from seglog.storage.offline.null_timestamps import log_null_timestamps

if TYPE_CHECKING:
    import polars as pl


class Scan:
    """Records between offsets that are fixed, as batches in a fixed order. Made by `seglog.scan`.

    Batches come by topic, partition and offset. Each use reads again: an iteration, `read_all`, an Arrow stream, a
    query of DuckDB on it, a frame of `polars`. Only `read_next_batch` begins a reading that the next iteration or
    `read_all` continues.
    """

    def __init__(
        self,
        logs: ScannedLogs,
        columns: ScanColumns,
        *,
        threads: int,
        shows_progress: bool = False,
        schema: pa.Schema | None = None,
        filter_: Any = None,
    ) -> None:
        self._logs = logs
        self._shows_progress = shows_progress
        self._columns = columns
        self._threads = threads
        self._schema = schema or columns.schema
        self._filter = filter_
        self._reader: pa.RecordBatchReader | None = None
        self._failure: Exception | None = None

    @property
    def failure(self) -> Exception | None:
        """The error that ended a reading last. Engines between a scan and its user often keep only its text."""
        return self._failure

    @property
    def schema(self) -> pa.Schema:
        """The columns, and the order in which they come."""
        return self._schema

    def __repr__(self) -> str:
        return f"<seglog.Scan of {', '.join(sorted(self._logs.topics)) or 'no topic'}: {', '.join(self.schema.names)}>"

    # A stream

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """All records, as the Arrow PyCapsule interface hands them over: to pandas, Polars, DataFusion, pyarrow."""
        return self.reader().__arrow_c_stream__(requested_schema)

    def reader(self) -> pa.RecordBatchReader:
        """A new reader of all records."""
        return self.narrowed()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        reader, self._reader = self._reader, None
        if reader is not None:
            yield from reader
            return
        is_empty = True
        for batch in self._batches(self.schema.names, self._filter):
            is_empty = False
            yield batch
        if is_empty:  # libraries that iterate learn the columns from it
            yield pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in self.schema], schema=self.schema)

    def read_next_batch(self) -> pa.RecordBatch:
        """The next batch of a reading that goes on from call to call. Raises StopIteration at its end."""
        if self._reader is None:
            self._reader = self.reader()
        try:
            return self._reader.read_next_batch()
        except BaseException:
            self._reader = None
            raise

    def read_all(self) -> pa.Table:
        """All records, or those that `read_next_batch` has left."""
        return pa.Table.from_batches(self, schema=self.schema)

    def read_pandas(self, **options: Any) -> Any:
        """`read_all` as a pandas DataFrame. ``options`` are those of pyarrow's ``Table.to_pandas``."""
        return self.read_all().to_pandas(**options)

    def filter(self, expression: Any) -> Self:
        """The records that pass a pyarrow ``expression`` too. Partitions and offsets that cannot pass are not read."""
        return self._copy(self._columns, self.schema, _both_filters(self._filter, expression))

    def with_value_fields(self) -> Self:
        """The fields of a decoded value as columns too, beside ``value``. A field whose name a column has already, in
        any case, is found in ``value`` only."""
        columns = self._columns.with_value_fields()
        return self._copy(columns, columns.schema, self._filter)

    # A frame

    def polars(self) -> pl.LazyFrame:
        """A Polars LazyFrame. The columns that a query needs, bounds of its filter and ``head(n)`` reach the scan."""
        polars = require("polars", "polars", purpose="Scan.polars()")
        from polars.io.plugins import register_io_source

        schema = polars.DataFrame(self.schema.empty_table()).schema

        def batches(
            columns: list[str] | None, predicate: pl.Expr | None, rows: int | None, _size: int | None
        ) -> Iterator[pl.DataFrame]:
            bounds = EVERYTHING if predicate is None else _bounds_of(predicate)
            names = self.schema.names
            if columns is not None:
                needed = {*columns, *(() if predicate is None else predicate.meta.root_names())}
                names = [name for name in names if name in needed]
            left = rows
            for batch in self._batches(names, self._filter, bounds):
                frame = polars.from_arrow(pa.Table.from_batches([batch]), rechunk=False)
                frame = frame if predicate is None else frame.filter(predicate)
                frame = frame if columns is None else frame.select(columns)
                if left is not None:
                    frame = frame.head(left)
                    left -= len(frame)
                yield frame
                if left == 0:
                    return

        return register_io_source(batches, schema=schema, is_pure=True)

    def _copy(self, columns: ScanColumns, schema: pa.Schema, filter_: Any) -> Self:
        return type(self)(
            self._logs,
            columns,
            threads=self._threads,
            shows_progress=self._shows_progress,
            schema=schema,
            filter_=filter_,
        )

    # Reading

    def narrowed(self, columns: Sequence[str] | None = None, filter_: Any = None) -> pa.RecordBatchReader:
        """A new reader of these columns, of the records that pass a pyarrow expression. Partitions and offsets that
        cannot pass are not read, and columns that nothing needs are not decoded."""
        names = self.schema.names if columns is None else list(columns)
        schema = pa.schema([self.schema.field(name) for name in names])
        batches = self._batches(names, _both_filters(self._filter, filter_))
        return pa.RecordBatchReader.from_batches(schema, batches)

    def _batches(self, names: Sequence[str], filter_: Any, bounds: Narrowing = EVERYTHING) -> Iterator[pa.RecordBatch]:
        """The columns ``names`` of the records that pass ``filter_``; those outside of ``bounds`` may be missing."""
        try:
            yield from log_null_timestamps(self._filtered(names, filter_, bounds))
        except Exception as error:
            self._failure = error
            raise

    def _filtered(self, names: Sequence[str], filter_: Any, bounds: Narrowing) -> Iterator[pa.RecordBatch]:
        if filter_ is None:
            yield from self._read(names, bounds)
            return
        known: ArrowFilter = arrow_filter(filter_)
        extra = self.schema.names if known.columns is None else known.columns
        needed = [*names, *(name for name in self.schema.names if name in extra and name not in names)]
        for batch in self._read(needed, both(bounds, known.bounds)):
            passed = batch.filter(filter_)
            if passed.num_rows:
                yield passed.select(list(names))

    def _read(self, names: Sequence[str], bounds: Narrowing) -> Iterator[pa.RecordBatch]:
        if not self._columns.has_bytes("key"):
            bounds = bounds._replace(keys=None)

        def open_reader() -> AbstractContextManager[ReadPart[Any]]:
            return self._columns.reader(names, lambda schema: self._logs.reader(schema, bounds))

        logs, parts = self._logs, self._logs.parts(bounds)
        size = sum(map(logs.size_of, parts))
        with progress("scanning", size) if self._shows_progress else nullcontext(_advance_nothing) as advance:
            yield from read_in_order(
                parts, open_reader, threads=self._threads, on_finished=lambda part: advance(logs.size_of(part))
            )


def _advance_nothing(amount: int) -> None:
    del amount


def _both_filters(one: Any, other: Any) -> Any:
    if one is None or other is None:
        return other if one is None else one
    return one & other


def _bounds_of(predicate: pl.Expr) -> Narrowing:
    """Polars promises nothing about this form: what is unknown narrows nothing."""
    from polars.exceptions import PolarsError

    with suppress(PolarsError, ValueError, TypeError):
        return polars_bounds(json.loads(predicate.meta.serialize(format="json")))
    return EVERYTHING
