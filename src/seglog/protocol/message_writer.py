"""Encodes responses from one shape into any version, by kio's classes.

A handler returns a mapping with the newest version's field names. Times are milliseconds, codes ints, ids UUIDs. Fields
that the version lacks are left out; fields that the handler left out get their defaults.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final

from seglog.core.error_codes import ErrorCode
from seglog.protocol.schema import MISSING, FieldSpec, fields_of

_Convert = Callable[[Any], Any]
_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_NEUTRAL: Final[Mapping[str, Any]] = {"string": "", "bytes": b"", "records": b"", "bool": False, "uuid": None}


def write_message(message: Any, answer: Mapping[str, Any]) -> bytes:
    """Encode ``answer`` as a message of kio's class ``message``."""
    out = io.BytesIO()
    _writer(message)(out, _builder(message)(answer))
    return out.getvalue()


@cache
def _writer(message: Any) -> Callable[[io.BytesIO, Any], None]:
    from kio.serial import entity_writer  # here and not above: a server is up sooner

    made: Callable[[io.BytesIO, Any], None] = entity_writer(message)
    return made


@cache
def _builder(message: Any) -> Callable[[Mapping[str, Any]], Any]:
    fields = [(spec.name, _convert(spec), _default(spec)) for spec in fields_of(message)]

    def build(answer: Mapping[str, Any]) -> Any:
        values = {}
        for name, convert, default in fields:
            value = answer.get(name, default)
            values[name] = default if value is default else convert(value)
        return message(**values)

    return build


def _default(spec: FieldSpec) -> Any:
    """kio's default of a field."""
    if spec.default is not MISSING:
        return spec.default
    if spec.is_nullable:
        return None
    if spec.is_array:
        return ()
    if spec.nested is not None:
        return _builder(spec.nested)({})
    return _simple(spec)(_NEUTRAL.get(spec.kind, 0))


def _convert(spec: FieldSpec) -> _Convert:
    one = _builder(spec.nested) if spec.nested is not None else _simple(spec)
    if spec.is_array:
        return lambda values: (
            None if values is None and spec.is_nullable else tuple([one(value) for value in values or ()])
        )
    if spec.nested is not None or spec.is_nullable:
        return lambda value: None if value is None else one(value)
    neutral = _NEUTRAL.get(spec.kind, 0)
    # Null where an old version knows of none: an empty text.
    return lambda value: one(neutral if value is None else value)


def _simple(spec: FieldSpec) -> _Convert:
    kind = spec.kind
    if kind == "error_code":
        return ErrorCode  # kio writes any that has a value; its own table lacks codes of Kafka 4.4
    if kind.startswith("timedelta"):
        return lambda value: timedelta(milliseconds=value)
    if kind == "datetime_i64":
        may_be_null = spec.is_nullable
        return lambda value: None if value < 0 and may_be_null else _EPOCH + timedelta(milliseconds=value)
    return lambda value: value
