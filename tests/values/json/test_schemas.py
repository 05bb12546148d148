from __future__ import annotations

import json
from base64 import b64encode
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from seglog.records.column_encoding import byte_column
from seglog.values.json.ddl import parse_ddl
from seglog.values.json.format import JsonFormat
from seglog.values.json.json_schema import parse_json_schema
from seglog.values.json.shapes import arrow_type
from seglog.values.schemas import DecodedColumn, SchemaError, SchemaText


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
    return arrow_type(
        parse_json_schema(json.dumps(schema), {name: json.dumps(one) for name, one in references.items()})
    )


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


_NULLS = [
    {"type": "null"},
    {"type": "null", "title": "Not included"},
    {"type": ["null"]},
    {"const": None},
    {"enum": [None]},
]
_PLACE = _object(code={"type": "string"})
_TYPES: list[tuple[dict[str, Any], str]] = [
    ({"type": "integer"}, "bigint"), ({"type": "string"}, "string"), ({"type": "boolean"}, "boolean"),
    ({"type": "number", "format": "float"}, "float"), ({"type": "string", "format": "date"}, "date"),
    (_PLACE, "struct<code: string>"), ({"type": "array", "items": {"type": "number"}}, "array<double>"),
    ({"type": "object", "additionalProperties": {"type": "boolean"}}, "map<string, boolean>"),
    ({"const": 3}, "bigint"), ({"const": 2.5}, "double"), ({"const": "x"}, "string"), ({"const": True}, "boolean"),
    ({"enum": [1, 2]}, "bigint"), ({"enum": ["a", None]}, "string"), ({"enum": [False, True]}, "boolean"),
]  # fmt: skip


@pytest.mark.parametrize("keyword", ["oneOf", "anyOf"])
@pytest.mark.parametrize(("schema", "ddl"), _TYPES)
def test_null_beside_a_type_is_that_type(keyword: str, schema: dict[str, Any], ddl: str) -> None:
    expected = parse_ddl(f"a {ddl}")
    for null in _NULLS:
        for branches in ([null, schema], [schema, null], [null, schema, null]):
            assert _type(_object(a={keyword: branches})) == expected
            assert _type(_object(a={keyword: branches, "default": None, "description": "x"})) == expected


@pytest.mark.parametrize(("schema", "ddl"), _TYPES)
def test_one_schema_inside_of_another_is_that_schema(schema: dict[str, Any], ddl: str) -> None:
    expected = parse_ddl(f"a {ddl}")
    wrapped: dict[str, Any] = schema
    for _ in range(3):
        for keyword in ("allOf", "oneOf", "anyOf"):
            wrapped = {keyword: [wrapped], "description": "x"}
    assert _type(_object(a=wrapped)) == expected
    restricted = {
        "allOf": [schema, {"minimum": 1}, {"not": {"const": 7}}],
        "if": {"minimum": 3},
        "then": {"maximum": 9},
    }
    assert _type(_object(a=restricted)) == expected
    referred = _object(a={"$ref": "#/$defs/a%20b", "description": "x"})
    assert _type({**referred, "$defs": {"a b": schema}}) == expected


@pytest.mark.parametrize(
    ("schema", "ddl"),
    [
        ({"anyOf": [{"type": "number"}, {"type": "string"}]}, "string"),
        ({"anyOf": [{"type": "integer"}, {"type": "number"}]}, "double"),
        ({"type": ["integer", "number", "null"]}, "double"),
        ({"type": ["string", "integer"]}, "string"),
        ({"enum": [1, "a", None]}, "string"),
        ({"enum": [1, 2.5]}, "double"),
        ({"oneOf": [_PLACE, _object(n={"type": "integer"})]}, "struct<code: string, n: bigint>"),
        ({"oneOf": [_PLACE, {"type": "string"}]}, "string"),
        ({"oneOf": [_object(x={"type": "integer"}), _object(x={"type": "string"})]}, "struct<x: string>"),
        ({**_object(t={"type": "string"}), "oneOf": [_PLACE, {"type": "null"}]}, "struct<t: string, code: string>"),
        ({**_PLACE, "anyOf": [{"required": ["code"]}, {"required": ["x"]}]}, "struct<code: string>"),
        ({"allOf": [_PLACE, _object(n={"type": "integer"})]}, "struct<code: string, n: bigint>"),
        ({"allOf": [{"type": "number"}, {"type": "integer", "format": "int32"}]}, "int"),
        ({"allOf": [{"type": "string"}, {"type": "string", "format": "date"}]}, "date"),
        ({"allOf": [{"type": "object"}, _PLACE]}, "struct<code: string>"),
        ({"properties": {"code": {"type": "string"}}}, "struct<code: string>"),
        ({"type": "array", "prefixItems": [{"type": "number"}, {"type": "number"}], "items": False}, "array<double>"),
        ({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]}, "array<string>"),
        ({"type": "array", "items": [{"type": "integer"}, {"type": "integer"}]}, "array<bigint>"),
        ({"prefixItems": [{"type": "integer"}], "items": {"type": "number"}}, "array<double>"),
        ({"type": "array"}, "array<string>"),
        ({"type": "object"}, "map<string, string>"),
        ({"type": "object", "properties": {}, "additionalProperties": False}, "map<string, string>"),
        ({"type": "object", "patternProperties": {"^a": {"type": "integer"}}}, "map<string, bigint>"),
        ({"type": "object", "additionalProperties": True}, "map<string, string>"),
        ({"type": "null"}, "string"),
        ({"type": "any"}, "string"),
        ({"type": "string", "format": "byte"}, "binary"),
        ({"anyOf": [{"description": "any"}, {"type": "null"}]}, "string"),
        ({"type": "array", "items": {"oneOf": [{"type": "null"}, {}]}}, "array<string>"),
        ({"anyOf": [{"type": "integer"}, {"minimum": 3}]}, "string"),
        ({"type": "integer", "anyOf": [{"type": "null"}, {"minimum": 3}]}, "bigint"),
        ({"type": ["string", "integer"], "anyOf": [{"type": "string"}, {"minimum": 3}]}, "string"),
        ({"allOf": [_PLACE], "oneOf": [{"required": ["x"]}, {"properties": {"x": {"type": "integer"}}}]},
         "struct<code: string, x: bigint>"),
        ({"type": "number", "connect.type": "bytes", "connect.parameters": {"scale": "2"}}, "decimal(38, 2)"),
        ({"type": "number", "connect.type": "bytes",
          "connect.parameters": {"scale": "3", "connect.decimal.precision": "9"}}, "decimal(9, 3)"),
        ({}, "string"),
        (True, "string"),
        ({"title": "x"}, "string"),
    ],
)  # fmt: skip
def test_schemas_of_several_types_have_one_that_holds_all(schema: Any, ddl: str) -> None:
    assert _type(_object(a=schema)) == parse_ddl(f"a {ddl}")


def _decoded(schema: Any, *values: bytes) -> DecodedColumn:
    format_ = JsonFormat(SchemaText("JSON", json.dumps(schema)))
    return format_.decoder(None, (0,))(byte_column("value", pa.array(values, pa.binary()), len(values)))


@pytest.mark.parametrize("branches", [[{}, {"type": "null"}], [{"type": "null"}, {"title": "any"}], [{"minimum": 1}]])
@pytest.mark.parametrize("keyword", ["oneOf", "anyOf"])
def test_a_schema_that_says_nothing_beside_null_has_any_value(keyword: str, branches: list[Any]) -> None:
    found = _decoded(_object(a={keyword: branches}), b'{"a": 1.50}', b'{"a": null}', b'{"a": "x"}', b'{"a": [1, {}]}')
    assert found.reasons == {}
    assert [one["a"] for one in found.array.to_pylist()] == ["1.50", None, "x", "[1,{}]"]


def test_a_decimal_of_connect_is_a_number_or_its_unscaled_bytes() -> None:
    """The values are those of Connect's ``JsonSchemaConverter`` with ``decimal.format`` BASE64 and NUMERIC."""
    schema = {
        "type": "number", "title": "org.apache.kafka.connect.data.Decimal", "connect.type": "bytes",
        "connect.version": 1, "connect.parameters": {"scale": "2"},
    }  # fmt: skip
    found = _decoded(schema, b'"BLA="', b'"/w=="', b'"AA=="', b"12.34", b"-7", b"null", b'"12.34"', b"true", b"1.234")
    values = [Decimal("12.00"), Decimal("-0.01"), Decimal("0.00"), Decimal("12.34"), Decimal("-7.00")]
    assert found.array.to_pylist() == [*values, None, None, None, None]
    assert sorted(found.reasons) == [6, 7, 8]
    written = JsonFormat(SchemaText("JSON", json.dumps(schema))).encode(found.array.slice(0, 5)).to_pylist()
    assert written == [b"12.00", b"-0.01", b"0.00", b"12.34", b"-7.00"]
    optional = {"oneOf": [{"type": "null"}, schema], "connect.index": 0}
    assert _decoded(_object(a=optional), b'{"a": "BLA="}').array.to_pylist() == [{"a": Decimal("12.00")}]
    with pytest.raises(SchemaError, match="are not parameters of a decimal"):
        _type({**schema, "connect.parameters": {"scale": "x"}})


@pytest.mark.parametrize(
    ("parameters", "type_"),
    [
        ({"scale": "2", "connect.decimal.precision": "64"}, pa.string()),
        ({"scale": "127"}, pa.string()),
        ({"scale": "-64"}, pa.string()),
        ({"scale": "38"}, pa.decimal128(38, 38)),
        ({"scale": "-3"}, pa.decimal128(38, -3)),
        ({"scale": "2", "connect.decimal.precision": "0"}, pa.decimal128(38, 2)),
    ],
)
def test_a_decimal_of_connect_that_arrow_cannot_hold_is_text(parameters: Any, type_: pa.DataType) -> None:
    schema = {"type": "number", "connect.type": "bytes", "connect.parameters": parameters}
    assert _type(_object(a=schema)) == pa.struct([("a", type_)])
    if type_ == pa.string():
        found = _decoded(_object(a=schema), b'{"a": "BLA="}', b'{"a": 12.50}')
        assert found.array.to_pylist() == [{"a": "BLA="}, {"a": "12.50"}]


def test_a_decimal_of_connect_that_is_too_long_is_an_error_of_its_value() -> None:
    schema = {"type": "number", "connect.type": "bytes", "connect.parameters": {"scale": "2"}}
    long, longest = (b'"%s"' % b64encode(bytes(size)) for size in (65, 64))
    found = _decoded(schema, long, longest, b'"BLA="')
    assert found.array.to_pylist() == [None, Decimal("0.00"), Decimal("12.00")]
    (reason,) = found.reasons.values()
    assert "has 65 bytes: a decimal has 64 at the most" in reason


def test_references_are_found_by_pointer_anchor_and_id() -> None:
    place = {**_PLACE, "$id": "https://example.com/place.json", "$anchor": "here"}
    refs = ["#/$defs/p", "#here", "https://example.com/place.json", "place.json", "https://example.com/place.json#"]
    for ref in refs:
        schema = {"$id": "https://example.com/root.json", **_object(a={"$ref": ref}), "$defs": {"p": place}}
        assert _type(schema) == parse_ddl("a struct<code: string>"), ref
    listed = _object(a={"$ref": "#/properties/b/oneOf/1"}, b={"oneOf": [{"type": "null"}, _PLACE]})
    assert _type(listed) == parse_ddl("a struct<code: string>, b struct<code: string>")
    draft_3 = _object(a={**_PLACE, "id": "urn:jsonschema:Place"}, b={"type": "object", "$ref": "urn:jsonschema:Place"})
    assert _type(draft_3) == parse_ddl("a struct<code: string>, b struct<code: string>")
    other = {"$defs": {"p": {"$ref": "#/$defs/q"}, "q": {"type": "integer"}}}
    assert _type(_object(a={"$ref": "other.json#/$defs/p"}), **{"other.json": other}) == parse_ddl("a bigint")


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (_object(a={"allOf": []}), r"allOf of a JSON Schema is not a list of schemas \(at a\)"),
        (_object(a={"oneOf": {"type": "string"}}), r"oneOf of a JSON Schema is not a list of schemas \(at a\)"),
        (_object(a={"type": "text"}), r"no type text \(at a\)"),
        (_object(a={"type": "array", "items": 5}), r"5 is not a JSON Schema \(at a\[\]\)"),
        (_object(a={"$ref": "#"}), "recursive types are not supported"),
        (_object(a={"type": "array", "items": {"$ref": "#"}}), "recursive types are not supported"),
        (_object(a={"$ref": "#/properties/b"}, b={"anyOf": [{"$ref": "#/properties/a"}]}), "recursive types"),
        (_object(a={"$ref": "#/none"}), "leads nowhere"),
        (_object(a={"$ref": "#/properties/a/9"}), "leads nowhere"),
        (_object(a={"$ref": "none.json"}), "not among the references"),
    ],
)
def test_wrong_schemas_are_refused_with_the_place(schema: Any, reason: str) -> None:
    with pytest.raises(SchemaError, match=reason):
        _type(schema)


def test_definitions_that_multiply_are_refused() -> None:
    definitions: dict[str, Any] = {"d0": {"type": "string"}}
    for number in range(1, 40):
        ref = {"$ref": f"#/$defs/d{number - 1}"}
        definitions[f"d{number}"] = _object(a=ref, b=ref)
    with pytest.raises(SchemaError, match="over 100,000 parts"):
        _type({"$ref": "#/$defs/d39", "$defs": definitions})
    with pytest.raises(SchemaError, match=r"nested too deeply|not JSON"):
        parse_json_schema('{"items":' * 5000 + "{}" + "}" * 5000, {})


# Schemas as generators write them, with values that the same libraries wrote


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parent / "generated").glob("*.json")), ids=lambda path: path.stem
)
def test_values_of_generated_schemas_are_read_and_written(path: Path) -> None:
    case = json.loads(path.read_text())
    format_ = JsonFormat(SchemaText("JSON", json.dumps(case["schema"])))
    assert str(format_.type) == case["columns"]
    values = [json.dumps(one).encode() for one in case["values"]]
    found = format_.decoder(None, (0,))(byte_column("value", pa.array(values, pa.binary()), len(values)))
    found.array.validate(full=True)
    assert found.reasons == {}
    written = [json.loads(one) for one in format_.encode(found.array).to_pylist()]
    # A schema may lack fields that a value has; a field that is null is not written.
    assert all(_is_part(new, old) for new, old in zip(written, case["values"], strict=True)), written


def _is_part(new: Any, old: Any) -> bool:
    if isinstance(new, dict):
        return isinstance(old, dict) and all(name in old and _is_part(one, old[name]) for name, one in new.items())
    if isinstance(new, list):
        return isinstance(old, list) and len(new) == len(old) and all(map(_is_part, new, old))
    # The digits of an untyped text are written as a number.
    return bool(new == old or (isinstance(old, str) and not isinstance(new, str) and new == float(old)))
