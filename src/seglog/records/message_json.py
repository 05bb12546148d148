"""Messages of Kafka's internal topics as JSON, as Kafka's ``JsonConverter`` and Jackson write them."""

from __future__ import annotations

import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Mapping
from decimal import Decimal
from typing import Final

from seglog.records.kafka_messages import Field, Message, Value


def to_json(message: Message, values: Mapping[str, Value], version: int) -> dict[str, Value]:
    """The value for `json_text`: the fields of ``version``; tagged ones only if they differ from the default."""
    shown: dict[str, Value] = {}
    for field in message.fields:
        value = values[field.name]
        if field.is_in(version) and (field.tag is None or value != field.default):
            shown[field.name] = _field_to_json(field, value, version)
    return shown


def _field_to_json(field: Field, value: Value, version: int) -> Value:
    if isinstance(value, list):
        return [_field_to_json(field, one, version) for one in value]
    if isinstance(value, dict) and isinstance(field.type, Message):
        return to_json(field.type, value, version)
    if isinstance(value, bytes):
        return urlsafe_b64encode(value).rstrip(b"=").decode() if field.type == "uuid" else b64encode(value).decode()
    return value


def json_text(value: Value) -> str:
    """JSON as Jackson writes a tree: no blanks, control characters as upper-case escapes, Java's floats."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{_quoted(name)}:{json_text(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(json_text, value)) + "]"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return java_double(value)
    return "null" if value is None else str(value)


_ESCAPED: Final = re.compile(r'["\\\x00-\x1f]')
_SHORT_ESCAPES: Final[Mapping[str, str]] = {
    '"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t",
}  # fmt: skip


def _quoted(text: str) -> str:
    return f'"{_ESCAPED.sub(_escape, text)}"'


def _escape(match: re.Match[str]) -> str:
    return _SHORT_ESCAPES.get(match[0], f"\\u{ord(match[0]):04X}")


def java_double(value: float) -> str:
    """``Double.toString``.

    >>> [java_double(x) for x in (1024.0, 1e7, 1.5e-5, float("inf"), float("nan"))]
    ['1024.0', '1.0E7', '1.5E-5', 'Infinity', 'NaN']
    """
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    number = Decimal(repr(value))
    digits = "".join(map(str, number.as_tuple().digits)).rstrip("0")
    return f"{'-' if value < 0 else ''}{digits[0]}.{digits[1:] or '0'}E{number.adjusted()}"
