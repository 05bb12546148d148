"""The fields of a message in one version, in the order of the wire, from kio's classes and our own."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any, Final, NamedTuple, get_args, get_type_hints

from seglog.protocol.newer_messages import newer_request, newer_response

MISSING: Final = dataclasses.MISSING


class FieldSpec(NamedTuple):
    """One field. ``kind`` is Kafka's type, or "" for a nested message of class ``nested``."""

    name: str
    kind: str
    nested: Any
    is_array: bool
    is_nullable: bool
    tag: int | None
    default: Any


@cache
def request_class(key: int, version: int) -> Any:
    from kio.index import load_request_schema  # here and not above: a server is up sooner

    return newer_request(key, version) or load_request_schema(key, version)


@cache
def response_class(key: int, version: int) -> Any:
    from kio.index import load_response_schema

    return newer_response(key, version) or load_response_schema(key, version)


@cache
def fields_of(message: Any) -> tuple[FieldSpec, ...]:
    """The fields of one of kio's classes."""
    hints = get_type_hints(message)
    return tuple(_field(field, hints[field.name]) for field in dataclasses.fields(message))


def _field(field: dataclasses.Field[Any], hint: Any) -> FieldSpec:
    options = get_args(hint)
    is_nullable = type(None) in options
    if is_nullable and len(options) == 2:
        hint = next(option for option in options if option is not type(None))
        options = get_args(hint)
    is_array = getattr(hint, "__origin__", None) is tuple
    inner = options[0] if is_array else hint
    nested = inner if dataclasses.is_dataclass(inner) else None
    assert nested is None or isinstance(nested, type)
    return FieldSpec(
        name=field.name,
        kind=field.metadata.get("kafka_type", ""),
        nested=nested,
        is_array=is_array,
        is_nullable=is_nullable,
        tag=field.metadata.get("tag"),
        default=field.default,
    )
