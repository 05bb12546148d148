"""Schemas that are not valid, but are in registries: Avro 1.12 for Java reads values of them without validation. Each
expected value is what its ``GenericDatumReader`` returned."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from seglog.records.column_encoding import byte_column
from seglog.values.avro.format import AvroFormat
from seglog.values.avro.schema import parse_schema
from seglog.values.schemas import DecodedColumn, SchemaError, SchemaText


def text_of(schema: Any) -> str:
    return schema if isinstance(schema, str) else json.dumps(schema)


def decode(values: list[bytes], writer: Any, reader: Any) -> DecodedColumn:
    column = byte_column("value", pa.array(values, pa.binary()), len(values))
    format_ = AvroFormat(SchemaText("AVRO", text_of(reader)))
    found = format_.decoder(SchemaText("AVRO", text_of(writer)), (0,))(column)
    found.array.validate(full=True)
    return found


def record(*fields: dict[str, Any], name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(type_: Any, default: Any = ..., name: str = "x") -> dict[str, Any]:
    return {"name": name, "type": type_} | ({} if default is ... else {"default": default})


_INNER = record(field("int", name="z"), name="Q")
_ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
_WRONG_DEFAULTS: list[tuple[Any, Any, bytes, Any]] = [
    ("int", "0", b"\x0a", 5),
    ("int", 1.5, b"\x0a", 5),
    ("long", "12", b"\x0a", 5),
    ("string", None, b"\x02a", "a"),
    ("string", 5, b"\x02a", "a"),
    ("boolean", "true", b"\x01", True),
    ("double", "", b"\0\0\0\0\0\0\xf8?", 1.5),
    (["null", _INNER], "null", b"\x02\x0a", {"z": 5}),
    (["null", "int"], "null", b"\x02\x0a", 5),
    (["int", "null"], "", b"\0\x0a", 5),
    (_ENUM, "Z", b"\x02", "B"),
    ({"type": "array", "items": "int"}, {}, b"\x02\x0a\0", [5]),
    ({"type": "map", "values": "int"}, [], b"\x02\x02k\x0a\0", [("k", 5)]),
    (_INNER, {"z": "5"}, b"\x0a", {"z": 5}),
    (_INNER, [], b"\x0a", {"z": 5}),
]


@pytest.mark.parametrize(("type_", "default", "raw", "expected"), _WRONG_DEFAULTS)
def test_a_wrong_default_matters_only_if_it_is_needed(type_: Any, default: Any, raw: bytes, expected: Any) -> None:
    wrong, right = record(field(type_, default)), record(field(type_))
    for writer, reader in ((wrong, right), (right, wrong), (wrong, wrong)):
        found = decode([raw], writer, reader)
        assert (found.array.to_pylist(), found.reasons) == ([{"x": expected}], {})
    skipped = decode(
        [raw + b"\x0a"], record(field(type_, default), field("int", name="y")), record(field("int", name="y"))
    )
    assert skipped.array.to_pylist() == [{"y": 5}]
    with pytest.raises(SchemaError, match=r"is not of type|default"):
        parse_schema(text_of(wrong), strict=True)


@pytest.mark.parametrize(("type_", "default"), [("int", "0"), ("int", 1.5), ("string", None), (_ENUM, "Z")])
def test_a_wrong_default_that_is_needed_names_the_field(type_: Any, default: Any) -> None:
    with pytest.raises(
        SchemaError, match=r"x: the writer's record has no such field, and the default .* is not of type"
    ):
        decode([b""], record(), record(field(type_, default)))


@pytest.mark.parametrize(
    ("type_", "default", "expected"),
    [
        ("int", 0.0, 0),
        ("long", 3000000000, 3000000000),
        ("double", "1.5", 1.5),
        ("float", "-Infinity", float("-inf")),
        (["null", "int"], 5, 5),
        (["int", "string"], "a", {"member0": None, "member1": "a"}),
        ({"type": "fixed", "name": "F", "size": 3}, "a", b"a\0\0"),
        ({"type": "fixed", "name": "F", "size": 1}, "ab", b"a"),
        ({"type": "array", "items": "int"}, None, []),
        ({"type": "array", "items": "int"}, "[]", []),
        ({"type": "map", "values": "int"}, "{}", []),
        ({"type": "map", "values": "int"}, None, []),
        (record(field("int", 3, name="z"), name="Q"), None, {"z": 3}),
        (record(field({"type": "array", "items": "int"}, "", name="z"), name="Q"), [], {"z": []}),
    ],
)
def test_defaults_that_java_converts(type_: Any, default: Any, expected: Any) -> None:
    assert decode([b""], record(), record(field(type_, default))).array.to_pylist() == [{"x": expected}]


@pytest.mark.parametrize(
    "schema",
    [
        record(field("int"), name="my-record"),
        record(field("int"), name="ünïcode$"),
        record(field("int"), namespace="a-b.c"),
        record(field("int"), namespace=None),
        record(field("int"), namespace=""),
        record(field("int"), name=".R"),
        record(field("int"), aliases="none"),
        record({**field("int"), "aliases": [None, 5], "doc": 7, "order": "ascending"}),
        record(field("int"), doc=None, extra={"any": ["thing"]}),
        record({**field({"type": "int", "logicalType": "decimal", "precision": "9"}), "logicalType": "date"}),
        "/* written by hand */ " + json.dumps(record(field("int"))) + " // to the end",
        '{"type": "record", "name": "R", "doc": "http://example.com/*no*/", "fields": [{"name": "x", "type": "int"}]}',
    ],
)
def test_names_and_attributes_that_are_not_valid_are_read(schema: Any) -> None:
    assert decode([b"\x0a"], schema, schema).array.to_pylist() == [{"x": 5}]


def test_names_of_fields_and_symbols_may_be_any_text() -> None:
    schema = record(field("int", name="a b"), field({**_ENUM, "symbols": ["x-y", "é"], "default": "gone"}, name="2"))
    assert decode([b"\x0a\0"], schema, schema).array.to_pylist() == [{"a b": 5, "2": "x-y"}]


def test_a_namespace_of_null_is_that_of_the_enclosing_type() -> None:
    inner = record(field("int", name="z"), name="In", namespace=None)
    schema = record(field(inner), field("n.In", name="y"), name="n.R")
    assert decode([b"\x0a\x0c"], schema, schema).array.to_pylist() == [{"x": {"z": 5}, "y": {"z": 6}}]
    other = record(field(record(field("int", name="z"), name="In", namespace="")), field("In", name="y"), name="n.R")
    assert decode([b"\x0a\x0c"], other, other).array.to_pylist() == [{"x": {"z": 5}, "y": {"z": 6}}]


def test_an_enum_or_fixed_type_may_be_defined_again() -> None:
    fixed = {"type": "fixed", "name": "F", "size": 1}
    schema = record(field(_ENUM), field(_ENUM, name="y"), field(fixed, name="f"), field(fixed, name="g"))
    assert decode([b"\0\x02ab"], schema, schema).array.to_pylist() == [{"x": "A", "y": "B", "f": b"a", "g": b"b"}]
    for again in ({**_ENUM, "symbols": ["A"]}, {**fixed, "name": "E"}, record(name="E")):
        with pytest.raises(SchemaError, match="E is defined twice"):
            parse_schema(text_of(record(field(_ENUM), field(again, name="y"))))


def test_of_two_types_with_one_name_that_of_the_writers_namespace_is_read() -> None:
    """Names count without their namespace. Avro for Java reads a record whatever its name; seglog does not, because a
    record of another type with the same fields would be taken for one."""
    writer, reader = record(field("int"), name="a.R"), record(field("long"), name="b.R")
    assert decode([b"\x0a"], writer, reader).array.to_pylist() == [{"x": 5}]
    two = ["null", record(field("int", 1, name="y"), name="b.R"), writer]
    assert decode([b"\x0a"], writer, two).array.to_pylist() == [{"member0": None, "member1": {"x": 5}}]
    for other in (record(field("int"), name="Q"), {**_ENUM, "name": "D"}):
        with pytest.raises(SchemaError, match=f"{other['type']} {other['name']} cannot be read as"):
            decode([b"\0"], other, {**other, "name": "Z"})


@pytest.mark.parametrize(
    "schema",
    [
        record(name="my-record"),
        record(field("int", name="a b")),
        {**_ENUM, "default": "Z"},
    ],
)
def test_a_strict_parser_refuses_wrong_names_and_defaults(schema: Any) -> None:
    with pytest.raises(SchemaError, match=r"is not a name|not one of its symbols"):
        parse_schema(text_of(schema), strict=True)
    parse_schema(text_of(schema))


@pytest.mark.parametrize(
    ("names", "fields", "expected"),
    [
        (["a"], {"b": ["a"]}, {"b": 1}),
        (["a", "b"], {"b": ["a"], "c": ["b"]}, {"b": 1, "c": 2}),
        (["a", "b"], {"b": ["a"], "a": ["b"]}, {"b": 1, "a": 2}),
        (["b"], {"b": ["a"], "c": ["b"]}, {"b": 0, "c": 1}),
        # Avro for Java refuses the rest: two fields would have one name.
        (["a", "b"], {"b": ["a"]}, {"b": 2}),
        (["b", "a"], {"b": ["a"]}, {"b": 1}),
        (["a", "b"], {"b": ["a"], "a": []}, {"b": 2, "a": 1}),
        (["x", "y"], {"b": ["x", "y"]}, {"b": 1}),
        (["x", "y", "b"], {"b": ["y", "x"]}, {"b": 3}),
        (["x"], {"b": ["x"], "c": ["x"]}, {"b": 1, "c": 0}),
    ],
)
def test_each_field_of_the_reader_is_read_once(
    names: list[str], fields: dict[str, list[str]], expected: dict[str, int]
) -> None:
    """The values are 1, 2, … in the writer's order, and the reader's defaults are 0."""
    for type_, made in ("int", int), ("string", str):
        writer = record(*(field(type_, name=name) for name in names))
        reader = record(*(field(type_, made(0), name=name) | {"aliases": old} for name, old in fields.items()))
        raw = b"".join(
            bytes([2 * number]) if type_ == "int" else b"\x02" + str(number).encode()
            for number in range(1, len(names) + 1)
        )
        found = decode([raw] * 100, writer, reader)
        assert found.reasons == {}
        assert found.array.to_pylist() == [{name: made(number) for name, number in expected.items()}] * 100


def test_the_type_null_needs_no_quotes() -> None:
    assert decode([b""], "null", ["null", "int"]).array.to_pylist() == [None]
