"""Makes the columns of records (key, value, timestamp, partition, headers) from those of a file, by expressions.

An expression is one of

- the name of a column; in JSON, ``a.b`` is the field ``b`` of the object ``a``,
- a text with names in braces, as in ``{carrier}-{flight}``; ``{{`` is a brace,
- a constant in single quotes,
- ``*``: the whole row as JSON.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seglog.core.errors import InvalidConfigError
from seglog.records.columns import HEADERS
from seglog.spark.jobs.input.json_text import is_binary, json_values

LINE: Final = "line"
"""The name of the column that is the whole line of a text file."""
_PIECE: Final = re.compile(r"\{\{|\}\}|\{([^{}]+)\}|[^{}]+")
_PER_SECOND: Final = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}
Column = Callable[[str], pa.Array]
"""Returns the column of a name."""


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Expressions for the columns of a record. Without one, ``value`` is the line; in Parquet the row as JSON.

    ``timestamp_format`` is a format of strptime. Without it, text must be ISO 8601, and numbers count
    ``timestamp_unit`` since 1970. A time without a zone is in UTC.
    """

    value: str | None = None
    key: str | None = None
    timestamp: str | None = None
    timestamp_format: str | None = None
    timestamp_unit: Literal["s", "ms", "us", "ns"] = "ms"
    partition: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def expressions(self) -> list[str]:
        given = (self.value, self.key, self.timestamp, self.partition, *self.headers.values())
        return [one for one in given if one is not None]


def names_of(expression: str) -> list[str]:
    """The columns that an expression needs. Raises `InvalidConfigError` if it is malformed.

    >>> names_of("{carrier}-{flight}"), names_of("tailnum"), names_of("'web'"), names_of("*")
    (['carrier', 'flight'], ['tailnum'], [], ['*'])
    """
    if _literal(expression) is not None:
        return []
    if "{" not in expression and "}" not in expression:
        return [expression]
    if "".join(match[0] for match in _PIECE.finditer(expression)) != expression:
        raise InvalidConfigError(f"expression {expression!r}: an unmatched brace; write {{{{ for a brace")
    return [match[1] for match in _PIECE.finditer(expression) if match[1]]


def make_records(
    columns: Columns, rows: int, column: Column, lines: pa.Array | None, typed: Column | None = None
) -> pa.RecordBatch:
    """Make a record of each row. ``lines`` are the values if there is no expression for them.

    Timestamps and partitions come from ``typed``, which may return numbers where ``column`` returns text. Raises
    `pa.ArrowInvalid` if a text is not a time or a number.
    """
    typed = typed or column
    made: dict[str, pa.Array] = {}
    if columns.key is not None:
        made["key"] = _bytes(columns.key, rows, column)
    if columns.value is not None:
        made["value"] = _bytes(columns.value, rows, column)
    else:
        made["value"] = lines if lines is not None else _bytes("*", rows, column)
    if columns.timestamp is not None:
        made["timestamp"] = _milliseconds(columns, typed(columns.timestamp))
    if columns.partition is not None:
        made["partition"] = typed(columns.partition).cast(pa.int32())
    if columns.headers:
        made["headers"] = _headers(columns.headers, rows, column)
    return pa.RecordBatch.from_arrays(list(made.values()), list(made))


def _literal(expression: str) -> str | None:
    if len(expression) > 1 and expression[0] == expression[-1] == "'":
        return expression[1:-1]
    return None


def _bytes(expression: str, rows: int, column: Column) -> pa.Array:
    literal = _literal(expression)
    if literal is not None:
        return pa.array([literal.encode()], pa.binary()).take(pa.array(np.zeros(rows, np.int64)))
    if "{" not in expression:
        return _as_bytes(column(expression))
    parts: list[Any] = []
    for match in _PIECE.finditer(expression):
        if match[1]:
            parts.append(_as_bytes(column(match[1])))
        else:
            parts.append(pa.scalar(match[0].replace("{{", "{").replace("}}", "}").encode(), pa.binary()))
    joined: pa.Array = pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))
    return joined


def _as_bytes(values: pa.Array) -> pa.Array:
    """Text as UTF-8, nested values as JSON, everything else in Arrow's text form."""
    if is_binary(values.type):
        return values.cast(pa.binary())
    if pa.types.is_nested(values.type):
        found: pa.Array = pc.if_else(values.is_valid(), json_values(values), pa.scalar(None, pa.string()))
        return found.cast(pa.binary())
    return values.cast(pa.string()).cast(pa.binary())


def _milliseconds(columns: Columns, values: pa.Array) -> pa.Array:
    """Times, numbers and text as milliseconds since 1970, rounded down."""
    kind = values.type
    if pa.types.is_binary(kind):
        values = values.cast(pa.string())
        kind = values.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        if columns.timestamp_format is not None:
            values = pc.strptime(values, format=columns.timestamp_format, unit="ms")
        else:
            values = _iso(values)
        kind = values.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        if pa.types.is_date(kind):
            values = values.cast(pa.timestamp("ms"))
        return values.cast(pa.timestamp("ms", getattr(values.type, "tz", None)), safe=False).view(pa.int64())
    per_second = _PER_SECOND[columns.timestamp_unit]
    if pa.types.is_floating(kind):
        scaled: pa.Array = pc.multiply(values.cast(pa.float64()), 1000 / per_second)
        floor: pa.Array = pc.floor(scaled)
        return floor.cast(pa.int64())
    numbers = values.cast(pa.int64())
    found: pa.Array = numbers
    if per_second < 1000:
        found = pc.multiply_checked(numbers, 1000)
    elif per_second > 1000:
        found = pc.divide(numbers, per_second // 1000)
    return found


def _iso(values: pa.Array) -> pa.Array:
    """Parse ISO 8601 or whole numbers. The first value decides which, and whether all values have a zone."""
    first = next((text for text in values.slice(0, 100).to_pylist() if text), "")
    if re.fullmatch(r"-?\d+", first) and not re.fullmatch(r"\d{4}", first):
        return values.cast(pa.int64())
    zone = "UTC" if re.search(r"[T ]\d\d.*(Z|[+-]\d\d:?\d*)$", first) else None
    unit = "ns" if re.search(r"\.\d{7,}", first) else "us" if re.search(r"\.\d{4,}", first) else "ms"
    try:
        return values.cast(pa.timestamp(unit, zone))
    except pa.ArrowInvalid:  # a later value may have more digits than the first
        return values.cast(pa.timestamp("ns", zone))


def _headers(headers: Mapping[str, str], rows: int, column: Column) -> pa.Array:
    """The headers of each row: the same names, the row's own values."""
    count = len(headers)
    values = pa.chunked_array([_bytes(expression, rows, column) for expression in headers.values()]).combine_chunks()
    order = (np.arange(count)[None, :] * rows + np.arange(rows)[:, None]).ravel()
    names = pa.array(list(headers), pa.string()).take(pa.array(np.tile(np.arange(count), rows)))
    pairs = pa.StructArray.from_arrays([names, values.take(pa.array(order))], names=["key", "value"])
    offsets = pa.array(np.arange(rows + 1, dtype=np.int32) * count)
    return pa.ListArray.from_arrays(offsets, pairs).cast(HEADERS)
