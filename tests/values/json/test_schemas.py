from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from seglog.values.json.ddl import parse_ddl
from seglog.values.json.json_schema import parse_json_schema
from seglog.values.schemas import SchemaError


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the name of a column"),
        ("a", "a type near"),
        ("a int b", "a comma or its end near"),
        ("a int,", "the name of a column"),
        ("a array<int", "'>' near"),
        ("a map<int, int>", "keys of a map"),
        ("a interval", "the type interval is not supported"),
        ("a decimal(39)", "at most 38 digits"),
        ("a int not null", "NOT NULL is not supported"),
        ("a int, A int", "two columns A"),
        ("a " + "array<" * 200, "nested too deeply"),
    ],
)
def test_a_wrong_ddl_is_refused_with_the_place(text: str, reason: str) -> None:
    with pytest.raises(SchemaError, match=reason):
        parse_ddl(text)


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def _type(schema: Any, **references: Any) -> pa.DataType:
    return parse_json_schema(json.dumps(schema), {name: json.dumps(one) for name, one in references.items()})


def test_a_json_schema_has_a_type() -> None:
    schema = _object(
        n={"type": "integer"},
        small={"type": "integer", "connect.type": "int16"},
        x={"type": ["null", "number"]},
        tags={"type": "array", "items": {"type": "string"}},
        counts={"type": "object", "additionalProperties": {"type": "integer"}},
        when={"oneOf": [{"type": "null"}, {"type": "string", "format": "date-time"}]},
        raw={"type": "string", "contentEncoding": "base64"},
        kind={"enum": ["a", "b"]},
        place={"$ref": "#/definitions/place"},
        other={"$ref": "other.json"},
    )
    schema["definitions"] = {"place": _object(code={"type": "string", "maxLength": 3})}
    ddl = (
        "n bigint, small smallint, x double, tags array<string>, counts map<string, bigint>, when timestamp, "
        "raw binary, kind string, place struct<code: string>, other boolean"
    )
    assert _type(schema, **{"other.json": {"type": "boolean"}}) == parse_ddl(ddl)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "object"}, "an object with neither"),
        (_object(a={"allOf": []}), r"allOf of a JSON Schema is not supported \(at a\)"),
        (_object(a={"oneOf": [{"type": "string"}, {"type": "integer"}]}), r"oneOf of several types .* \(at a\)"),
        (_object(a={"type": ["string", "integer"]}), "type of several types"),
        (_object(a={"type": "array"}), "without one schema for its items"),
        (_object(a={"type": "null"}), "the type null"),
        (_object(a=True), "without a type"),
        (_object(a={"$ref": "#"}), "recursive types are not supported"),
        (_object(a={"$ref": "#/none"}), "leads nowhere"),
        (_object(a={"$ref": "none.json"}), "not among the references"),
    ],
)
def test_unsupported_schemas_are_refused_by_name(schema: Any, reason: str) -> None:
    with pytest.raises(SchemaError, match=reason):
        _type(schema)
