"""Scans whose keys and values have types."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from seglog.core.errors import InvalidConfigError
from seglog.core.fs import Fs
from seglog.records.columns import COLUMNS, FIELDS
from seglog.values.batch_decoder import BatchDecoder, bytes_column
from seglog.values.reader_schema import resolve_formats
from seglog.values.value_options import NAMES, parse_value_options


class TypedColumns(NamedTuple):
    """The columns that a scan reads and returns. ``schema`` has the columns that are wanted, ``read`` those that the
    decoder needs."""

    decoder: BatchDecoder
    schema: pa.Schema
    read: list[str]

    def decode(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from self.decoder.decode_all(batches, self.schema.names)


def typed_columns(
    columns: Sequence[str] | None,
    formats: Mapping[str, str | None],
    options: Mapping[str, str],
    topics: Callable[[], Iterable[str]],
    fs: Fs,
    *,
    permissive: bool,
) -> TypedColumns | None:
    """The decoder for a scan; None if ``formats`` (of ``value`` and ``key``) has none.

    Raises what `resolve_formats` raises, and `InvalidConfigError` for an option or column that does not exist.
    """
    known = {name.lower() for name in NAMES}
    for name in options:
        if name.lower() not in known:
            raise InvalidConfigError(f"format_options: there is no option {name!r}; there are {', '.join(NAMES)}")
    given = {f"{column}Format": text for column, text in formats.items() if text is not None}
    parsed = parse_value_options({**options, **given})
    if not parsed.columns:
        return None
    chosen = resolve_formats(parsed, topics, fs)
    decoder = BatchDecoder(chosen, permissive=permissive)
    there = dict(FIELDS)
    for one in chosen.columns:
        name = one.column.column
        made = chosen.format_of(name)
        assert made is not None
        there[name] = pa.field(name, made.type)
        if permissive:
            there[bytes_column(name)] = pa.field(bytes_column(name), pa.binary())
    wanted = list(columns) if columns is not None else [*COLUMNS, *decoder.extra_columns]
    for name in wanted:
        if name not in there:
            raise InvalidConfigError(f"no column {name!r}: there are {', '.join(there)}")
    return TypedColumns(decoder, pa.schema([there[name] for name in wanted]), decoder.input_columns(wanted))
