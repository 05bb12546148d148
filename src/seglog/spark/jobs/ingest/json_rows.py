"""Lines of JSON as columns of text in which every number keeps its digits.

A reader that gives each field one type turns 18446744073709551615 into 1.8446744073709552e+19, and calls a line bad
whose field has another type than those before it. Here a field is the text that stands in the line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

import pyarrow as pa


class NotAnObjectError(Exception):
    """A line that is not one JSON object."""


class _Number(str):
    """A number as it is written."""

    __slots__ = ()


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER: Final = json.JSONDecoder(parse_int=_Number, parse_float=_Number, parse_constant=_refuse)
Object = Mapping[str, Any]


def parse_objects(lines: Sequence[bytes]) -> list[Object]:
    """Each line's object; `NotAnObjectError` on a line that is none."""
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
    """A field as text: of a string its characters, of an object or a list its JSON; null where it is missing or null.

    >>> text_column(parse_objects([b'{"a": {"b": -0}}', b'{"a": {"b": [1e400, "x"]}}', b'{}']), "a.b").to_pylist()
    ['-0', '[1e400,"x"]', None]
    """
    texts = [_text(_field(one, name)) for one in objects]
    try:
        return pa.array(texts, pa.string())
    except UnicodeEncodeError as error:
        raise NotAnObjectError(f"field {name!r} has half of a surrogate pair") from error


def typed_column(objects: Sequence[Object], name: str) -> pa.Array:
    """The same as numbers if all values are numbers: integers if all are, else 64-bit floats."""
    values = [_field(one, name) for one in objects]
    there = [value for value in values if value is not None]
    if not there or not all(isinstance(value, _Number) for value in there):
        return text_column(objects, name)
    if all(value.lstrip("-").isdecimal() for value in there):
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
    """Compact JSON. `json.dumps` would write a `_Number` as a string."""
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{_json(name)}:{_json(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_json, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
