"""The fields of every message in every served version, and of every record of internal topics, against those that Kafka
has in its jars."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pytest

from seglog.protocol.apis import APIS
from seglog.protocol.schema import FieldSpec, fields_of, request_class, response_class
from seglog.records import kafka_schemas
from seglog.records.kafka_messages import Field, Message, parse_schemas
from tests.kafka.jars import BEFORE, CURRENT, KafkaVersion, kafka_libs

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


# Records of internal topics

TABLES = {
    "kafka-group-coordinator": (kafka_schemas.GROUP_KEYS, kafka_schemas.GROUP_VALUES),
    "kafka-transaction-coordinator": (kafka_schemas.TRANSACTION_KEYS, kafka_schemas.TRANSACTION_VALUES),
    "kafka-share-coordinator": (kafka_schemas.SHARE_KEYS, kafka_schemas.SHARE_VALUES),
    "kafka-clients": (kafka_schemas.CONSUMER_PROTOCOL,),
}
NEUTRAL = {"string": "", "bytes": "", "bool": "false", "uuid": ""}


class RecordShape(NamedTuple):
    """One field of a record: as `Shape`, with the value that it has where it is missing."""

    name: str
    kind: str
    is_nullable: bool
    tag: int | None
    default: str
    fields: tuple[RecordShape, ...]


def our_record(message: Message, version: int) -> tuple[RecordShape, ...]:
    return tuple(_our_field(field, version) for field in message.fields if field.is_in(version))


def _our_field(field: Field, version: int) -> RecordShape:
    nested = field.type if isinstance(field.type, Message) else None
    kind = ("[]" if field.array else "") + ("struct" if nested else str(field.type))
    default = "" if field.array or nested or field.type == "uuid" else _text(field.default)
    inner = our_record(nested, version) if nested else ()
    return RecordShape(field.name, kind, field.nullable, field.tag, "null" if field.default is None else default, inner)


def _text(value: object) -> str:
    if isinstance(value, bytes | str):
        return ""
    return str(value).lower()


def kafkas_record(
    fields: Sequence[Mapping[str, Any]], version: int, structs: Mapping[str, Any]
) -> Iterator[RecordShape]:
    for field in fields:
        versions = field.get("versions", field.get("taggedVersions", "0+"))
        if not _has(versions, version):
            continue
        array, kind = field["type"].startswith("[]"), field["type"].removeprefix("[]")
        inner = field.get("fields") or structs.get(kind)
        tagged = "tag" in field and _has(field.get("taggedVersions", versions), version)
        neutral = "" if array or inner else NEUTRAL.get(kind, "0")
        default = field.get("default")  # the generator takes null, which is not "null", for none
        yield RecordShape(
            field["name"][0].lower() + field["name"][1:],  # as Kafka's generator names it
            ("[]" if array else "") + ("struct" if inner else kind),
            _has(field.get("nullableVersions", "none"), version),
            field["tag"] if tagged else None,
            neutral if default is None else str(default).lower(),
            tuple(kafkas_record(inner, version, structs)) if inner else (),
        )


@pytest.mark.parametrize("release", [BEFORE, CURRENT])
@pytest.mark.parametrize("artefact", TABLES)
def test_every_field_of_every_record(artefact: str, release: KafkaVersion) -> None:
    """A record of the release before lacks tagged fields of ours, which are not written if they have their default."""
    messages = {one.name: one for table in TABLES[artefact] for one in parse_schemas(table).values()}
    seen = set()
    with zipfile.ZipFile(kafka_libs(release) / f"{artefact}-{release}.jar") as jar:
        for name in jar.namelist():
            found = re.fullmatch(r"common/message/(\w+)\.json", name)
            if found is None or found[1] not in messages:
                continue
            message = messages[found[1]]
            schema = json.loads(re.sub(r"^\s*//.*$", "", jar.read(name).decode(), flags=re.MULTILINE))
            structs = {one["name"]: one["fields"] for one in schema.get("commonStructs", ())}
            last = int(schema["validVersions"].split("-")[-1])
            assert last == message.highest
            assert message.id in (schema.get("apiKey", message.id), message.id)
            for version in range(last + 1):
                expected = tuple(kafkas_record(schema["fields"], version, structs))
                there = {field.name for field in expected}
                ours_then = our_record(message, version)
                if release == BEFORE:
                    ours_then = tuple(field for field in ours_then if field.tag is None or field.name in there)
                assert ours_then == expected, (name, version)
                assert _has(schema["flexibleVersions"], version) == (version >= message.flexible), (name, version)
            seen.add(message.name)
    if release == CURRENT:
        assert seen == messages.keys()
