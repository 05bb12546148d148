"""Scans whose keys and values have types."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from typing import Any

import pyarrow as pa

from seglog.core.errors import InvalidConfigError
from seglog.core.fs import Fs
from seglog.core.suggestions import did_you_mean
from seglog.records.columns import COLUMNS, FIELDS, schema_of
from seglog.sources.ordered_reading import ReadPart
from seglog.values.batch_decoder import BatchDecoder, bytes_column
from seglog.values.reader_schema import ReadFormats, choose_formats, make_format
from seglog.values.value_options import ValueOptions


class ScanColumns:
    """The columns that a scan can return, and those that it does: ``schema``. Keys and values are bytes, or decoded."""

    def __init__(
        self,
        columns: Sequence[str] | None,
        options: ValueOptions,
        topics: Callable[[], Iterable[str]],
        fs: Fs,
        *,
        permissive: bool,
        dead_letters: str | None = None,
    ) -> None:
        """Raises what `choose_formats` raises, and `InvalidConfigError` for a column that does not exist. ``topics``
        is called only if schemas depend on the topics."""
        self._fs = fs
        self._permissive = permissive
        self._dead_letters = dead_letters
        self._formats = choose_formats(options, topics, fs)
        self._there = dict(FIELDS) | self._typed_fields(self._formats)
        self._fields: dict[str, int] = {}
        """The columns that are fields of the value, with their place in it."""
        names = COLUMNS if columns is None else columns
        extra = [name for name in self._there if name not in FIELDS] if columns is None else []
        self.schema = self.schema_of([*names, *extra])

    def _typed_fields(self, formats: ReadFormats | None) -> dict[str, pa.Field]:
        found: dict[str, pa.Field] = {}
        if formats is None:
            return {}
        for one in formats.columns:
            name, made = one.column.column, make_format(one)
            found[name] = pa.field(name, made.type)
            if self._permissive:
                found[bytes_column(name)] = pa.field(bytes_column(name), pa.binary())
        return found

    def with_value_fields(self) -> ScanColumns:
        """The same columns, and after them the fields of a value that is a struct. A field whose name a column has, in
        any case, is found in ``value`` only."""
        found = copy(self)
        kind = self._there["value"].type
        taken = {name.lower() for name in self._there}
        fields = list(kind) if isinstance(kind, pa.StructType) else []
        found._fields = {one.name: place for place, one in enumerate(fields) if one.name.lower() not in taken}
        found._there = self._there | {name: pa.field(name, fields[place].type) for name, place in found._fields.items()}
        found.schema = found.schema_of([*self.schema.names, *found._fields])
        return found

    def schema_of(self, names: Sequence[str]) -> pa.Schema:
        """The schema of these columns."""
        for name in names:
            if name not in self._there:
                raise InvalidConfigError(
                    f"no column {name!r}: there are {', '.join(self._there)}{did_you_mean(name, self._there)}"
                )
        if len(set(names)) != len(names):
            raise InvalidConfigError(f"columns names a column twice: {', '.join(names)}")
        return pa.schema([self._there[name] for name in names])

    def has_bytes(self, name: str) -> bool:
        """Whether a column has the bytes of the log."""
        return self._formats is None or self._formats.format_of(name) is None

    @contextmanager
    def reader(
        self, names: Sequence[str], open_reader: Callable[[pa.Schema], AbstractContextManager[ReadPart[Any]]]
    ) -> Iterator[ReadPart[Any]]:
        """Reads the columns ``names`` of parts in one thread; only the columns that these need are read as bytes.

        ``open_reader`` opens a reader of batches that have exactly a schema.
        """
        if self._formats is None:
            with open_reader(schema_of(names)) as read:
                yield read
            return
        decoder = BatchDecoder.opened(
            self._formats, self._fs, permissive=self._permissive, dead_letters=self._dead_letters
        )
        schema = self.schema_of(names)
        decoded = list(dict.fromkeys("value" if name in self._fields else name for name in names))
        with open_reader(schema_of(decoder.input_columns(decoded))) as read:
            yield lambda part: (self._columns_of(decoder.decode(batch, decoded), schema) for batch in read(part))
        decoder.close()

    def _columns_of(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """The columns of ``schema`` of a decoded batch."""
        arrays = []
        for field in schema:
            place = self._fields.get(field.name)
            found = batch.column(field.name) if place is None else _field_of(batch.column("value"), place)
            arrays.append(found if found.type == field.type else found.cast(field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _field_of(structs: pa.Array, place: int) -> pa.Array:
    """A field; null where the struct is."""
    import pyarrow.compute as pc

    field: pa.Array = pc.struct_field(structs, [place])
    return field
