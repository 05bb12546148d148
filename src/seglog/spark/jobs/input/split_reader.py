"""Reads the rows of a split as records, and finds the bad ones.

Text is parsed a block at a time. If a block cannot be parsed, it is halved until the bad line is found: an error names
the line, and skipping costs nothing but that line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.json as pjson

from seglog.core.errors import SeglogError
from seglog.core.fs import Fs
from seglog.records import arrow_memory
from seglog.spark.jobs.input.columns import LINE, make_records
from seglog.spark.jobs.input.json_text import NotAnObjectError, json_rows, parse_objects, text_column, typed_column
from seglog.spark.jobs.input.recipe import Recipe
from seglog.spark.jobs.input.splits import LineBlock, Split, count_lines, open_stream, read_lines, read_row_groups

_MINUS_ZERO: Final = re.compile(rb"-0(?![.0-9eE])")
"""Minus zero as an integer, which a typed reader turns into 0."""
_EXAMPLES: Final = 3
_SHOWN: Final = 120
_NOT_ONE_ROW: Final = "the line is not one row: for values that go over several lines there is --multiline"


class BadLineError(SeglogError):
    """A line or row cannot become a record. Names the file, the line and the reason."""


class _NoRowError(Exception):
    """Lines and rows differ in number."""


class SplitReader:
    """Reads one split. ``bad`` counts the lines that were skipped, ``examples`` describes the first few."""

    def __init__(self, fs: Fs, recipe: Recipe, split: Split) -> None:
        self._fs = fs
        self._recipe = recipe
        self._split = split
        self._before: int | None = None
        self.bad = 0
        self.examples: list[str] = []

    def records(self) -> Iterator[pa.RecordBatch]:
        """The records in order. Raises `BadLineError` at the first bad line, unless the recipe says to skip it."""
        recipe = self._recipe
        if recipe.format == "parquet":
            wanted = None if recipe.wants_all else list(recipe.needed)
            yield from self._from_rows(read_row_groups(self._split, wanted), "row")
        elif recipe.multiline:
            yield from self._from_rows(self._multiline(), "record")
        else:
            skip = 1 if recipe.format == "csv" and recipe.header else 0
            for lines in read_lines(self._split, skip=skip):
                make, where = partial(self._of_lines, lines), partial(self._line, lines)
                yield from self._isolate(make, 0, len(lines.ends), where)

    # Bad lines

    def _isolate(
        self, make: Callable[[int, int], pa.RecordBatch], low: int, high: int, where: Callable[[int], str]
    ) -> Iterator[pa.RecordBatch]:
        try:
            batch = make(low, high)
        except (pa.ArrowInvalid, _NoRowError) as error:
            if high - low > 1:
                middle = (low + high) // 2
                yield from self._isolate(make, low, middle, where)
                yield from self._isolate(make, middle, high, where)
                return
            self._found_bad(where(low), str(error))
        else:
            if batch.num_rows:
                yield batch

    def _found_bad(self, where: str, reason: str) -> None:
        text = f"{self._split.path}, {where}: {reason.splitlines()[0][:_SHOWN]}"
        if not self._recipe.skip_bad:
            raise BadLineError(f"{text} (skip such lines with --bad-lines skip)")
        self.bad += 1
        if len(self.examples) < _EXAMPLES:
            self.examples.append(text)

    def _line(self, lines: LineBlock, at: int) -> str:
        if self._before is None:
            self._before = count_lines(self._fs, self._split.path, self._split.start)
        return f"line {self._before + lines.first + at}"

    # Text

    def _of_lines(self, lines: LineBlock, low: int, high: int) -> pa.RecordBatch:
        recipe = self._recipe
        texts = _texts(lines, low, high)
        if recipe.format == "text":
            return self._of_text(lines, low, texts)
        lengths = pc.binary_length(texts)
        if pc.any(pc.equal(lengths, 0)).as_py():
            texts = texts.filter(pc.greater(lengths, 0))
        if not recipe.needed:
            return make_records(recipe.columns, len(texts), _no_column, texts)
        if recipe.format == "json":
            return self._of_json(lines.slice(low, high), texts)
        self._check_quotes(texts)
        table = self._csv(lines.slice(low, high))
        if table.num_rows != len(texts):
            raise _NoRowError(_NOT_ONE_ROW)
        batch = _one_batch(table)
        return make_records(recipe.columns, len(texts), _columns_of(batch, lambda: json_rows(batch)), texts)

    def _of_json(self, data: bytes, texts: pa.Array) -> pa.RecordBatch:
        recipe = self._recipe
        if recipe.schema is not None and (recipe.is_typed or not _MINUS_ZERO.search(data)):
            try:
                table = self._json(data)
                if table.num_rows != len(texts):
                    raise _NoRowError("the line is not one JSON object")
                return make_records(recipe.columns, len(texts), _columns_of(_one_batch(table), lambda: texts), texts)
            except (pa.ArrowInvalid, _NoRowError):
                if recipe.is_typed:
                    raise
        try:
            objects = parse_objects(texts.to_pylist())

            def column(name: str) -> pa.Array:
                return texts if name == "*" else text_column(objects, name)

            return make_records(
                recipe.columns, len(texts), column, texts, typed=lambda name: typed_column(objects, name)
            )
        except NotAnObjectError as error:
            raise _NoRowError(str(error)) from error

    def _check_quotes(self, texts: pa.Array) -> None:
        """Reject a line with an odd number of quotes: it is not a whole row, though the parser may accept it."""
        quote = self._recipe.quote
        if quote and pc.any(pc.equal(pc.bit_wise_and(pc.count_substring(texts, quote), 1), 1)).as_py():
            raise _NoRowError(_NOT_ONE_ROW)

    def _of_text(self, lines: LineBlock, low: int, texts: pa.Array) -> pa.RecordBatch:
        recipe = self._recipe
        bad: list[tuple[int, str]] = []
        if recipe.pattern is None:
            batch = pa.RecordBatch.from_arrays([texts], [LINE])
        else:
            found: Any = pc.extract_regex(texts, pattern=recipe.pattern)
            if found.null_count:
                good = pc.is_valid(found)
                for at in np.flatnonzero(~good.to_numpy(zero_copy_only=False)).tolist():
                    shown = texts[at].as_py()[:40].decode(errors="backslashreplace")
                    bad.append((low + at, f"does not match the pattern: {shown}"))
                texts, found = texts.filter(good), found.filter(good)
            groups = [field.name for field in found.type]
            batch = pa.RecordBatch.from_arrays([*found.flatten(), texts], [*groups, LINE])
        named = batch.select([name for name in batch.schema.names if name != LINE])
        made = make_records(recipe.columns, len(texts), _columns_of(batch, lambda: json_rows(named)), texts)
        for at, reason in bad:  # only now: if `make_records` fails, the halves of the block report them
            self._found_bad(self._line(lines, at), reason)
        return made

    @property
    def _names(self) -> tuple[str, ...]:
        return self._split.names or self._recipe.names

    def _csv(self, data: bytes) -> pa.Table:
        table: pa.Table = pcsv.read_csv(
            pa.BufferReader(data),
            read_options=pcsv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=list(self._names)),
            parse_options=self._csv_format(),
            convert_options=self._csv_types(),
        )
        return table

    def _csv_format(self) -> Any:
        recipe = self._recipe
        return pcsv.ParseOptions(
            delimiter=recipe.delimiter, quote_char=recipe.quote or False, newlines_in_values=recipe.multiline
        )

    def _csv_types(self) -> Any:
        """Every value is the text in the file."""
        recipe = self._recipe
        wanted = list(recipe.names) if recipe.wants_all else [name for name in recipe.needed if name in self._names]
        return pcsv.ConvertOptions(
            include_columns=wanted,
            column_types=dict.fromkeys(wanted, pa.string()),
            strings_can_be_null=recipe.null_value is not None,
            null_values=[recipe.null_value] if recipe.null_value is not None else [],
        )

    def _json(self, data: bytes) -> pa.Table:
        table: pa.Table = pjson.read_json(
            pa.BufferReader(data),
            read_options=pjson.ReadOptions(use_threads=False, block_size=len(data) + 1),
            parse_options=pjson.ParseOptions(explicit_schema=self._recipe.schema, unexpected_field_behavior="ignore"),
        )
        return table

    # Rows that are not lines

    def _from_rows(self, batches: Iterator[pa.RecordBatch], unit: str) -> Iterator[pa.RecordBatch]:
        number = 1
        groups = f"row groups {self._split.groups[0]} to {self._split.groups[-1]}, " if self._split.groups else ""
        for batch in batches:

            def make(low: int, high: int, batch: pa.RecordBatch = batch) -> pa.RecordBatch:
                part = batch.slice(low, high - low)
                return make_records(self._recipe.columns, high - low, _columns_of(part, lambda: json_rows(part)), None)

            def where(at: int, first: int = number) -> str:
                return f"{groups}{unit} {first + at}"

            yield from self._isolate(make, 0, batch.num_rows, where)
            number += batch.num_rows

    def _multiline(self) -> Iterator[pa.RecordBatch]:
        recipe = self._recipe

        def handle(row: Any) -> str:
            self._found_bad(f"record {row.number}", f"{row.actual_columns} columns, expected {row.expected_columns}")
            return "skip"

        form = self._csv_format()
        form.invalid_row_handler = handle
        with open_stream(self._split.path) as file:
            stream: Any = pcsv.open_csv(
                file,
                read_options=pcsv.ReadOptions(
                    use_threads=False, column_names=list(self._names), skip_rows=1 if recipe.header else 0
                ),
                parse_options=form,
                convert_options=self._csv_types(),
            )
            yield from stream


def _texts(lines: LineBlock, low: int, high: int) -> pa.Array:
    """The lines without their line ends, as an array of bytes."""
    start, end = int(lines.starts[low]), int(lines.starts[high])
    data = np.frombuffer(lines.data, np.uint8)[start:end]
    ends, following = lines.ends[low:high] - start, lines.starts[low + 1 : high + 1] - start
    keep = np.ones(len(data), np.bool_)
    keep[ends[following > ends]] = False
    keep[(ends + 1)[following > ends + 1]] = False
    offsets, bounds = arrow_memory.allocate(high - low + 1, np.int32)
    offsets[0] = 0
    np.cumsum(ends - (lines.starts[low:high] - start), out=offsets[1:])
    return pa.Array.from_buffers(pa.binary(), high - low, [None, bounds, arrow_memory.copy(data[keep])])


def _no_column(name: str) -> pa.Array:
    raise KeyError(name)


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    names = table.schema.names
    return pa.RecordBatch.from_arrays([table.column(name).combine_chunks() for name in names], names)


def _columns_of(batch: pa.RecordBatch, row: Callable[[], pa.Array]) -> Callable[[str], pa.Array]:
    def column(name: str) -> pa.Array:
        if name == "*":
            return row()
        if name in batch.schema.names:
            return batch.column(name)
        first, *inner = name.split(".")
        found: pa.Array = pc.struct_field(batch.column(first), inner)
        return found

    return column
