"""JSON text and Arrow columns: fields of JSON lines as text, and rows of any type as JSON.

A reader that gives each field one type turns 18446744073709551615 into 1.8446744073709552e+19, and rejects a line whose
field has another type than before. `text_column` returns each field as the text of the line: numbers keep all digits.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


class NotAnObjectError(Exception):
    """A line is not exactly one JSON object."""


class _Number(str):
    """A number in the spelling of the line."""

    __slots__ = ()


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER: Final = json.JSONDecoder(parse_int=_Number, parse_float=_Number, parse_constant=_refuse)
Object = Mapping[str, Any]


def parse_objects(lines: Sequence[bytes]) -> list[Object]:
    """The object of each line. Raises `NotAnObjectError` if a line has none."""
    found: list[Object] = []
    for line in lines:
        try:
            value = _DECODER.decode(line.decode())
        except (ValueError, RecursionError) as error:
            raise NotAnObjectError(f"JSON parse error: {error}") from error
        if not isinstance(value, dict):
            raise NotAnObjectError("the line is not one JSON object")
        found.append(value)
    return found


def text_column(objects: Sequence[Object], name: str) -> pa.Array:
    """A field as text: strings without quotes, objects and lists as JSON, null if the field is missing or null.

    >>> text_column(parse_objects([b'{"a": {"b": -0}}', b'{"a": {"b": [1e400, "x"]}}', b'{}']), "a.b").to_pylist()
    ['-0', '[1e400,"x"]', None]
    """
    texts = [_text(_field(one, name)) for one in objects]
    try:
        return pa.array(texts, pa.string())
    except UnicodeEncodeError as error:
        raise NotAnObjectError(f"field {name!r} has half of a surrogate pair") from error


def typed_column(objects: Sequence[Object], name: str) -> pa.Array:
    """Like `text_column`; but if all values are numbers, 64-bit integers or floats."""
    values = [_field(one, name) for one in objects]
    present = [value for value in values if value is not None]
    if not present or not all(isinstance(value, _Number) for value in present):
        return text_column(objects, name)
    if all(value.lstrip("-").isdecimal() for value in present):
        try:
            return pa.array([None if value is None else int(value) for value in values], pa.int64())
        except (OverflowError, pa.ArrowInvalid) as error:
            raise NotAnObjectError(f"field {name!r} has an integer of more than 64 bits") from error
    return pa.array([None if value is None else float(value) for value in values], pa.float64())


def _field(one: Object, name: str) -> Any:
    if name in one:
        return one[name]
    value: Any = one
    for part in name.split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(part)
    return value


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else _json(value)


def _json(value: Any) -> str:
    """Compact JSON; `json.dumps` would write a `_Number` as a string."""
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{_json(name)}:{_json(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_json, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


# Rows as JSON


def json_rows(batch: pa.RecordBatch) -> pa.Array:
    """Each row as a JSON object with all its columns in their order, as bytes.

    At every depth, null, NaN and infinities become ``null``, bytes become base64, a map becomes an object with its keys
    as text, dates and times become strings as Arrow writes them, and decimals keep all digits.
    """
    parts: list[Any] = []
    for number, name in enumerate(batch.schema.names):
        parts.append(("," if number else "{") + json.dumps(name, ensure_ascii=False) + ":")
        parts.append(json_values(batch.column(number)))
    if not parts:
        return pa.array(["{}"] * batch.num_rows, pa.string()).cast(pa.binary())
    joined: pa.Array = pc.binary_join_element_wise(*parts, "}", "")
    return joined.cast(pa.binary())


def json_values(values: pa.Array) -> pa.Array:
    """Each value as JSON text."""
    kind = values.type
    if isinstance(values, pa.ExtensionArray):
        return json_values(values.storage)
    if isinstance(values, pa.DictionaryArray):
        return json_values(values.dictionary.take(values.indices))
    if pa.types.is_struct(kind):
        return _or_null(values, json_rows(pa.RecordBatch.from_struct_array(values)).cast(pa.string()))
    if pa.types.is_nested(kind):
        return _json_lists(values)
    if pa.types.is_null(kind):
        return pa.array(["null"] * len(values), pa.string())
    if is_binary(kind):
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
    """Lists as JSON arrays, maps as objects."""
    if pa.types.is_map(values.type):
        # A sliced map array still has the keys and items of the whole; a sliced list array does not.
        fields = [pa.field("key", values.type.key_type, nullable=False), pa.field("value", values.type.item_type)]
        values = values.cast(pa.list_(pa.struct(fields)))
        keys, inner = values.flatten().flatten()
        names = keys if is_binary(keys.type) else keys.cast(pa.string())
        items = pc.binary_join_element_wise(json_values(names), json_values(inner), ":")
        lengths = _lengths(values)
        opening, closing = "{", "}"
    else:
        if not pa.types.is_list(values.type):
            values = values.cast(pa.list_(values.type.value_type))
        lengths, items = _lengths(values), json_values(values.flatten())
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


def is_binary(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
