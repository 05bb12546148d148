"""How the rows of files become records: the user's `Input` and `Columns`, completed from the files themselves."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, Final, Literal, NamedTuple

import pyarrow as pa
import pyarrow.json as pjson
import pyarrow.parquet as pq

from seglog.core.errors import InvalidConfigError
from seglog.core.fs import Fs
from seglog.spark.jobs.input.columns import LINE, Columns, names_of
from seglog.spark.jobs.input.json_text import NotAnObjectError, parse_objects
from seglog.spark.jobs.input.splits import Split, first_line, sample, split_parquet, split_text

Format = Literal["csv", "json", "parquet", "text"]
PATTERNS: Final = {
    "common": (
        r'^(?P<host>\S+) (?P<ident>\S+) (?P<user>\S+) \[(?P<time>[^\]]+)\] "(?P<request>(?:[^"\\]|\\.)*)" '
        r"(?P<status>\d{3}) (?P<size>\S+)$"
    ),
    "combined": (
        r'^(?P<host>\S+) (?P<ident>\S+) (?P<user>\S+) \[(?P<time>[^\]]+)\] "(?P<request>(?:[^"\\]|\\.)*)" '
        r'(?P<status>\d{3}) (?P<size>\S+) "(?P<referer>(?:[^"\\]|\\.)*)" "(?P<agent>(?:[^"\\]|\\.)*)"'
    ),
}
"""The log formats of Apache and nginx. Their time is ``%d/%b/%Y:%H:%M:%S %z``."""
_GROUP: Final = re.compile(r"\(\?P<(\w+)>")
_SUFFIXES: Final[Mapping[str, Format]] = {
    "csv": "csv",
    "tsv": "csv",
    "json": "json",
    "jsonl": "json",
    "ndjson": "json",
    "parquet": "parquet",
}


@dataclass(frozen=True, kw_only=True)
class Input:
    """How to read files. Without ``format`` the name of the first file decides; an unknown ending means text.

    ``names`` are the columns of CSV without a ``header``. ``multiline`` allows quoted values to span lines. ``types``
    gives JSON fields a type (by Arrow's name) if the first lines suggest a wrong one. ``pattern`` splits text into
    columns: a regular expression (RE2) with named groups, or ``common`` or ``combined``; the column ``line`` is the
    whole line. ``bad_lines`` is ``error``, or ``skip`` to skip and count them.
    """

    format: Format | None = None
    header: bool = True
    names: Sequence[str] = ()
    delimiter: str | None = None
    quote: str | None = '"'
    multiline: bool = False
    null_value: str | None = None
    types: Mapping[str, str] | None = None
    pattern: str | None = None
    bad_lines: Literal["error", "skip"] = "error"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How rows become records; sent to the workers.

    ``needed`` are the columns that the expressions name; with ``*`` among them, all. ``names`` are the columns of the
    first CSV file. ``schema`` has the JSON fields that can be read by type without loss: without it, and for blocks
    that it does not fit, lines are read one by one. If the user gave the types (``is_typed``), such a line is bad.
    """

    format: Format
    columns: Columns
    needed: tuple[str, ...]
    names: tuple[str, ...] = ()
    header: bool = True
    delimiter: str = ","
    quote: str | None = '"'
    multiline: bool = False
    null_value: str | None = None
    schema: pa.Schema | None = None
    is_typed: bool = False
    pattern: str | None = None
    skip_bad: bool = False

    @property
    def wants_all(self) -> bool:
        return "*" in self.needed


class PlannedInput(NamedTuple):
    """How rows become records, and the part of each task."""

    recipe: Recipe
    splits: Sequence[Split]


def plan_input(
    fs: Fs,
    files: Sequence[str],
    source: Input,
    columns: Columns,
    share: int,
    ranges: Mapping[str, tuple[int, int]] | None = None,
) -> PlannedInput:
    """Divide ``files``, or ``ranges`` of them, among tasks of about ``share`` bytes.

    Raises `InvalidConfigError` if a file lacks a column that ``columns`` name.
    """
    recipe = _recipe(files, source, columns)
    if recipe.format == "parquet":
        return PlannedInput(recipe, split_parquet(files, share))
    splits = split_text(fs, files, share, whole=recipe.multiline, ranges=ranges)
    return PlannedInput(recipe, _with_names(fs, files, splits, recipe, source.names))


def _recipe(files: Sequence[str], source: Input, columns: Columns) -> Recipe:
    """Complete the recipe from the first file, which must have the columns."""
    format_ = source.format or format_of(files[0])
    needed = tuple(dict.fromkeys(name for expression in columns.expressions() for name in names_of(expression)))
    if columns.value is None and (format_ == "parquet" or source.multiline):
        needed = (*needed, "*")
    recipe = Recipe(
        format=format_,
        columns=columns,
        needed=needed,
        header=source.header,
        delimiter=source.delimiter or ("\t" if files[0].endswith((".tsv", ".tsv.gz")) else ","),
        quote=source.quote,
        multiline=source.multiline and format_ == "csv",
        null_value=source.null_value,
        skip_bad=source.bad_lines == "skip",
    )
    if format_ == "csv":
        names = tuple(source.names) or _header(files[0], recipe)
        _check(needed, names, files[0])
        return replace(recipe, names=names)
    if format_ == "json":
        schema = _json_schema(files[0], needed, source.types or {})
        return replace(recipe, schema=schema, is_typed=bool(source.types))
    if format_ == "parquet":
        _check(needed, pq.read_schema(files[0]).names, files[0])
        return recipe
    if source.pattern is None:
        _check(needed, [LINE], files[0])
        return recipe
    pattern = PATTERNS.get(source.pattern, source.pattern)
    try:
        groups = list(re.compile(pattern).groupindex)
    except re.error as error:
        raise InvalidConfigError(f"pattern {pattern!r} is not a regular expression: {error}") from error
    _check(needed, [*groups, LINE], files[0])
    return replace(recipe, pattern=kept_groups(pattern, needed))


def format_of(path: str) -> Format:
    """The format that a file's name suggests."""
    name = os.path.basename(path).lower()
    for ending in (".gz", ".zst", ".bz2"):
        name = name.removesuffix(ending)
    return _SUFFIXES.get(name.rpartition(".")[2], "text")


def _check(needed: Sequence[str], there: Sequence[str], file: str) -> None:
    for name in needed:
        if name != "*" and name not in there and name.split(".", maxsplit=1)[0] not in there:
            raise InvalidConfigError(f"{file} has no column {name!r}; it has {', '.join(there) or 'none'}")


def _header(file: str, recipe: Recipe) -> tuple[str, ...]:
    first = first_line(file).decode(errors="replace").removeprefix("\ufeff")
    if not recipe.header:
        count = len(next(csv.reader([first], delimiter=recipe.delimiter), []))
        return tuple(f"f{number}" for number in range(count))
    names = next(csv.reader([first], delimiter=recipe.delimiter, quotechar=recipe.quote), [])
    if not names:
        raise InvalidConfigError(f"{file} has no header line with column names")
    for name in names:
        if names.count(name) > 1:
            raise InvalidConfigError(f"{file} has more than one column {name!r}")
    return tuple(names)


def _with_names(
    fs: Fs, files: Sequence[str], splits: Sequence[Split], recipe: Recipe, given: Sequence[str]
) -> Sequence[Split]:
    """CSV splits with the column names of their own file. Raises `InvalidConfigError` if files do not match."""
    if recipe.format != "csv" or not recipe.header:
        return splits
    first = _header(files[0], recipe)
    found = {}
    for file in files:
        names = _header(file, recipe) if fs.stat(os.path.realpath(file)).size else first
        is_line = recipe.columns.value is None and not recipe.multiline
        if names != first and (given or not recipe.needed or is_line):
            _check_equal(file, names, files[0], first)
        _check([name for name in recipe.needed if name not in given], names, file)
        if recipe.wants_all and set(names) != set(first):
            _check(first, names, file)
            _check(names, first, files[0])
        found[file] = tuple(given) or names
    return [split._replace(names=found[split.path]) for split in splits]


def _check_equal(file: str, names: Sequence[str], first_file: str, first: Sequence[str]) -> None:
    """Require equal columns: whole lines become records, or the user named the columns for all files."""
    for name, expected in zip_longest(names, first):
        if name != expected:
            raise InvalidConfigError(
                f"{file} has column {name!r} where {first_file} has {expected!r}: their lines have different "
                "columns. Ingest them separately, or set an expression for the value, such as *"
            )


_EXACT: Final = ("string", "int64", "bool", "null")
"""Arrow's types of JSON fields whose values keep their text; times are read as text."""


def _json_schema(file: str, needed: Sequence[str], types: Mapping[str, str]) -> pa.Schema | None:
    """The needed fields, with the types that they have in the first lines of ``file``, or that ``types`` gives.

    None if a type could change a value, as with fractions, and the user gave no types.
    """
    data = sample(file)
    if not needed or not data.strip():
        return pa.schema([])
    try:
        options = pjson.ReadOptions(use_threads=False, block_size=len(data) + 1)
        found = pjson.read_json(pa.BufferReader(data), read_options=options).schema
    except pa.ArrowInvalid:
        if not types:
            _check(needed, _fields_of_good_lines(data), file)
            return None
        found = _schema_of_good_lines(data)
    known = dict.fromkeys(found.names) | dict.fromkeys(types)
    _check(needed, list(known), file)
    exact = all(
        name in found.names and (str(kind := found.field(name).type) in _EXACT or pa.types.is_timestamp(kind))
        for name in needed
        if name != "*"
    )
    if not exact and not types:
        return None
    top = dict.fromkeys(name.split(".", maxsplit=1)[0] if name not in known else name for name in needed if name != "*")
    try:
        return pa.schema(
            [
                (name, pa.type_for_alias(types[name]) if name in types else _settled(found.field(name).type))
                for name in top
            ]
        )
    except ValueError as error:
        raise InvalidConfigError(f"types: {error}") from error


def _fields_of_good_lines(data: bytes) -> list[str]:
    fields: dict[str, None] = {}
    for line in data.split(b"\n")[:1000]:
        with suppress(NotAnObjectError):
            fields |= dict.fromkeys(parse_objects([line])[0])
    return list(fields)


def _schema_of_good_lines(data: bytes) -> pa.Schema:
    """The fields of the lines that can be read alone, each with the first type that is not null."""
    fields: dict[str, pa.DataType] = {}
    for line in data.split(b"\n")[:1000]:
        try:
            found = pjson.read_json(pa.BufferReader(line)).schema
        except pa.ArrowInvalid:
            continue
        for one in found:
            if one.name not in fields or pa.types.is_null(fields[one.name]):
                fields[one.name] = one.type
    return pa.schema(list(fields.items()))


def _settled(type_: pa.DataType) -> Any:
    """Read text that looks like a time as text, and fields that were always null too."""
    if pa.types.is_timestamp(type_) or pa.types.is_null(type_):
        return pa.string()
    if pa.types.is_struct(type_):
        inner: Any = type_
        return pa.struct([(field.name, _settled(field.type)) for field in inner])
    if pa.types.is_list(type_):
        listed: Any = type_
        return pa.list_(_settled(listed.value_type))
    return type_


def kept_groups(pattern: str, needed: tuple[str, ...]) -> str:
    """The pattern with only the ``needed`` groups, because capturing the others costs time.

    >>> kept_groups(r"(?P<host>[a-z]+) (?P<user>[a-z]+)", ("user",))
    '(?:[a-z]+) (?P<user>[a-z]+)'
    """
    if "*" in needed:
        return pattern
    return _GROUP.sub(lambda match: match[0] if match[1] in needed else "(?:", pattern)
