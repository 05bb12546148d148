"""The fields of every message in every served version against those that Kafka's clients have in their jar."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from seglog.protocol.apis import APIS
from seglog.protocol.schema import FieldSpec, fields_of, request_class, response_class
from tests.kafka.jars import CURRENT, kafka_libs

_NUMBERS = {"timedelta_i32": "int32", "timedelta_i64": "int64", "datetime_i64": "int64", "error_code": "int16"}
"""kio's names for numbers with a meaning."""


class Shape(NamedTuple):
    """One field: its type on the wire, ``[]`` before an array's, and the fields of a struct."""

    kind: str
    is_nullable: bool
    tag: int | None
    fields: tuple[Shape, ...]


def ours(specs: Sequence[FieldSpec]) -> tuple[Shape, ...]:
    return tuple(
        Shape(
            ("[]" if spec.is_array else "") + ("struct" if spec.nested else _NUMBERS.get(spec.kind, spec.kind)),
            _is_nullable(spec),
            spec.tag,
            ours(fields_of(spec.nested)) if spec.nested else (),
        )
        for spec in specs
    )


def _is_nullable(spec: FieldSpec) -> bool:
    """An id of zeros is no null on the wire, and a time may be -1."""
    return spec.is_nullable and spec.kind not in ("uuid", "datetime_i64")


def kafkas(fields: Sequence[Mapping[str, Any]], version: int, structs: Mapping[str, Any]) -> tuple[Shape, ...]:
    return tuple(_kafkas(fields, version, structs))


def _kafkas(fields: Sequence[Mapping[str, Any]], version: int, structs: Mapping[str, Any]) -> Iterator[Shape]:
    for field in fields:
        if not _has(field["versions"], version):
            continue
        array, kind = field["type"].startswith("[]"), field["type"].removeprefix("[]")
        inner = field.get("fields") or structs.get(kind)
        tagged = "tag" in field and _has(field.get("taggedVersions", field["versions"]), version)
        yield Shape(
            ("[]" if array else "") + ("struct" if inner else kind),
            _has(field.get("nullableVersions", "none"), version),
            field["tag"] if tagged else None,
            kafkas(inner, version, structs) if inner else (),
        )


def _has(versions: str, version: int) -> bool:
    low, is_range, high = versions.rstrip("+").partition("-")
    if versions == "none":
        return False
    last = int(high) if is_range else 1 << 15 if versions.endswith("+") else int(low)
    return int(low) <= version <= last


def test_every_field_of_every_message() -> None:
    compared = 0
    with zipfile.ZipFile(kafka_libs(CURRENT) / f"kafka-clients-{CURRENT}.jar") as jar:
        for name in jar.namelist():
            if not re.fullmatch(r"common/message/\w+(Request|Response)\.json", name):
                continue
            schema = json.loads(re.sub(r"^\s*//.*$", "", jar.read(name).decode(), flags=re.MULTILINE))
            api = APIS.get(schema["apiKey"])
            if api is None:
                continue
            structs = {one["name"]: one["fields"] for one in schema.get("commonStructs", ())}
            class_of = request_class if schema["type"] == "request" else response_class
            for version in range(api.served, api.high + 1):
                message = class_of(api.key, version)
                expected = kafkas(schema["fields"], version, structs)
                assert ours(fields_of(message)) == expected, (name, version)
                assert bool(message.__flexible__) == _has(schema["flexibleVersions"], version), (name, version)
                compared += 1
    assert compared > 400
