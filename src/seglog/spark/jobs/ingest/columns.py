"""From a file's columns to a record's: what ``key``, ``value``, ``timestamp``, ``partition`` and headers are made of.

An expression is a column's name (of JSON, ``a.b`` for a field inside of another), a text with names in braces
(``{carrier}-{flight}``; a brace itself is doubled), a text in single quotes as it is, or ``*``: the whole row as JSON.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seglog.core.errors import InvalidConfigError
from seglog.records.columns import HEADERS

LINE: Final = "line"
"""The column of text that is the whole line."""
_PIECE: Final = re.compile(r"\{\{|\}\}|\{([^{}]+)\}|[^{}]+")
_PER_SECOND: Final = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}
Column = Callable[[str], pa.Array]
"""Hands out a column by its name."""


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Expressions for the columns of a record; without one for ``value`` it is the line, of Parquet the row as JSON.

    ``timestamp_format`` is of strptime; without it texts are ISO 8601 and numbers are in ``timestamp_unit`` since 1970.
    Times without a zone are UTC.
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
    """The columns that an expression needs; `InvalidConfigError` if it is none.

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
    """The records of some rows; ``lines`` are what they are without an expression for ``value``.

    Timestamp and partition are taken from ``typed`` columns, which may be numbers where ``column`` has texts. Raises
    `pa.ArrowInvalid` where a text is no time or number.
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
    """Of texts their bytes; of all else what it is as text, of structs, lists and maps their JSON."""
    if _is_binary(values.type):
        return values.cast(pa.binary())
    if pa.types.is_nested(values.type):
        found: pa.Array = pc.if_else(values.is_valid(), _json_values(values), pa.scalar(None, pa.string()))
        return found.cast(pa.binary())
    return values.cast(pa.string()).cast(pa.binary())


def _is_binary(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)


def _milliseconds(columns: Columns, values: pa.Array) -> pa.Array:
    """Milliseconds since 1970 of times, numbers and texts; rounded down."""
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
    """ISO 8601, all with a zone or all without; or whole numbers as texts. The first value tells which."""
    first = next((text for text in values.slice(0, 100).to_pylist() if text), "")
    if re.fullmatch(r"-?\d+", first) and not re.fullmatch(r"\d{4}", first):
        return values.cast(pa.int64())
    zone = "UTC" if re.search(r"[T ]\d\d.*(Z|[+-]\d\d:?\d*)$", first) else None
    unit = "ns" if re.search(r"\.\d{7,}", first) else "us" if re.search(r"\.\d{4,}", first) else "ms"
    try:
        return values.cast(pa.timestamp(unit, zone))
    except pa.ArrowInvalid:  # others may have more digits than the first
        return values.cast(pa.timestamp("ns", zone))


def _headers(headers: Mapping[str, str], rows: int, column: Column) -> pa.Array:
    """The same headers of each row, with its own values."""
    count = len(headers)
    values = pa.chunked_array([_bytes(expression, rows, column) for expression in headers.values()]).combine_chunks()
    order = (np.arange(count)[None, :] * rows + np.arange(rows)[:, None]).ravel()
    names = pa.array(list(headers), pa.string()).take(pa.array(np.tile(np.arange(count), rows)))
    pairs = pa.StructArray.from_arrays([names, values.take(pa.array(order))], names=["key", "value"])
    offsets = pa.array(np.arange(rows + 1, dtype=np.int32) * count)
    return pa.ListArray.from_arrays(offsets, pairs).cast(HEADERS)


# Rows as JSON


def json_rows(batch: pa.RecordBatch) -> pa.Array:
    """Each row as a JSON object of all its columns, in their order.

    The rule, at every depth: null, NaN and infinities are ``null``, bytes are base64 in a string, a map is an object
    with its keys as texts, dates and times are strings as Arrow writes them, decimals are numbers with all digits.
    """
    parts: list[Any] = []
    for number, name in enumerate(batch.schema.names):
        parts.append(("," if number else "{") + json.dumps(name, ensure_ascii=False) + ":")
        parts.append(_json_values(batch.column(number)))
    if not parts:
        return pa.array(["{}"] * batch.num_rows, pa.string()).cast(pa.binary())
    joined: pa.Array = pc.binary_join_element_wise(*parts, "}", "")
    return joined.cast(pa.binary())


def _json_values(values: pa.Array) -> pa.Array:
    kind = values.type
    if isinstance(values, pa.ExtensionArray):
        return _json_values(values.storage)
    if isinstance(values, pa.DictionaryArray):
        return _json_values(values.dictionary.take(values.indices))
    if pa.types.is_struct(kind):
        return _or_null(values, json_rows(pa.RecordBatch.from_struct_array(values)).cast(pa.string()))
    if pa.types.is_nested(kind):
        return _json_lists(values)
    if pa.types.is_null(kind):
        return pa.array(["null"] * len(values), pa.string())
    if _is_binary(kind):
        encoded = [None if one is None else b64encode(one).decode() for one in values.to_pylist()]
        return _quoted(pa.array(encoded, pa.string())).fill_null("null")
    if pa.types.is_float16(kind):
        values = values.cast(pa.float32())
        kind = values.type
    if pa.types.is_floating(kind):
        values = pc.if_else(pc.is_finite(values), values, pa.scalar(None, kind))
    if (
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_decimal(kind)
    ):
        return values.cast(pa.string()).fill_null("null")
    return _quoted(values.cast(pa.string())).fill_null("null")


def _json_lists(values: Any) -> pa.Array:
    """Of lists and maps."""
    if pa.types.is_map(values.type):
        # Keys and items of a slice are not those of the slice alone; a list's are.
        fields = [pa.field("key", values.type.key_type, nullable=False), pa.field("value", values.type.item_type)]
        values = values.cast(pa.list_(pa.struct(fields)))
        keys, inner = values.flatten().flatten()
        names = keys if _is_binary(keys.type) else keys.cast(pa.string())
        items = pc.binary_join_element_wise(_json_values(names), _json_values(inner), ":")
        lengths = _lengths(values)
        opening, closing = "{", "}"
    else:
        if not pa.types.is_list(values.type):
            values = values.cast(pa.list_(values.type.value_type))
        lengths, items = _lengths(values), _json_values(values.flatten())
        opening, closing = "[", "]"
    offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int32())
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, items), ",")
    return _or_null(values, pc.binary_join_element_wise(opening, joined, closing, ""))


def _lengths(values: pa.Array) -> Any:
    return pc.list_value_length(values).fill_null(0).to_numpy(zero_copy_only=False)


def _or_null(values: pa.Array, texts: pa.Array) -> pa.Array:
    found: pa.Array = pc.if_else(values.is_valid(), texts, "null")
    return found


def _quoted(texts: pa.Array) -> pa.Array:
    if pc.any(pc.match_substring_regex(texts, r"[\x00-\x1f]")).as_py():
        return pa.array(
            [None if one is None else json.dumps(one, ensure_ascii=False) for one in texts.to_pylist()], pa.string()
        )
    escaped = pc.replace_substring(pc.replace_substring(texts, "\\", "\\\\"), '"', '\\"')
    quoted: pa.Array = pc.binary_join_element_wise('"', escaped, '"', "")
    return quoted
