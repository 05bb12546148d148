from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.records.column_encoding import byte_column
from seglog.values.json.format import JsonFormat
from seglog.values.schemas import DecodedColumn, SchemaText


def made(schema: str, **references: str) -> JsonFormat:
    return JsonFormat(SchemaText("JSON", schema, tuple(references.items())))


def decode(schema: str, values: Sequence[bytes | None]) -> DecodedColumn:
    column = byte_column("value", pa.array(values, pa.binary()), len(values))
    found = made(schema).decoder(None, (0,))(column)
    found.array.validate(full=True)
    return found


def one(type_: str, text: str) -> Any:
    """The value of a field, or the reason."""
    found = decode(f"f {type_}", [f'{{"f": {text}}}'.encode()])
    return found.reasons.get(0) or found.array.to_pylist()[0]["f"]


@pytest.mark.parametrize(
    ("type_", "text", "expected"),
    [
        ("boolean", "true", True),
        ("tinyint", "-128", -128),
        ("double", "1", 1.0),
        ("double", "9007199254740993", 9007199254740992.0),
        ("float", '"-Infinity"', float("-inf")),
        ("string", '"\\u00e9"', "é"),
        ("binary", '"aGk="', b"hi"),
        ("array<int>", "[1, null]", [1, None]),
        ("map<string, int>", '{"a": 1, "b": null}', [("a", 1), ("b", None)]),
        ("int", "1.0", 1),
        ("int", "-0.0", 0),
        ("smallint", "1e2", 100),
        ("bigint", "9007199254740993.0", 9007199254740993),
        ("bigint", "9223372036854775807.00", 9223372036854775807),
        ("bigint", "92233720368547758.07e2", 9223372036854775807),
        ("array<int>", "[1.0, 2e0]", [1, 2]),
        ("struct<a: int, b: string>", '{"b": "x", "c": 5}', {"a": None, "b": "x"}),
        ("int", "null", None),
    ],
)
def test_values_of_each_type(type_: str, text: str, expected: Any) -> None:
    assert one(type_, text) == expected


@pytest.mark.parametrize(
    ("type_", "text", "expected"),
    [
        ("decimal(5,2)", "1.1", "1.10"),
        ("decimal(5,2)", '"-12.50"', "-12.50"),
        ("decimal(38,0)", "12345678901234567890123456789012345678", "12345678901234567890123456789012345678"),
        ("date", '"2013-01-31"', "2013-01-31"),
        ("timestamp", '"2013-01-31T12:00:00+02:00"', "2013-01-31 10:00:00+00:00"),
        ("timestamp", '"2013-01-31t12:00:00z"', "2013-01-31 12:00:00+00:00"),
        ("timestamp", '"2013-01-31t12:00:00-01:00"', "2013-01-31 13:00:00+00:00"),
        ("timestamp", '"2013-01-31 12:00:00.5"', "2013-01-31 12:00:00.500000+00:00"),
        ("timestamp_ntz", '"2013-01-31T12:00:00"', "2013-01-31 12:00:00"),
    ],
)
def test_values_of_types_that_json_lacks(type_: str, text: str, expected: str) -> None:
    assert str(one(type_, text)) == expected


@pytest.mark.parametrize(
    ("type_", "text", "reason"),
    [
        ("int", '"1"', "'1' is not an integer"),
        ("int", "1.5", "1.5 is not an integer"),
        ("bigint", "1e-1", "0.1 is not an integer"),
        ("bigint", "9007199254740993.5", "is not an integer"),
        ("bigint", "1e300", "too large"),
        ("bigint", "1e999999999", "infinity"),
        ("bigint", "9223372036854775808", "too large"),
        ("bigint", "9223372036854775808.0", "too large"),
        ("int", "true", "True is not an integer"),
        ("int", "2147483648", "too large"),
        ("string", "1", "got a 'int' object"),
        ("boolean", "1", "boolean"),
        ("double", "true", "True is not a number"),
        ("double", '"1"', "'1' is not a number"),
        ("decimal(3,2)", "1.234", "Decimal"),
        ("decimal(3,2)", '"x"', "Conversion"),
        ("decimal(3,2)", "NaN", "NaN is not JSON"),
        ("date", '"20130131"', "not a date"),
        ("timestamp", "5", "5 is not a timestamp"),
        ("timestamp_ntz", '"2013-01-31T12:00:00Z"', "has an offset"),
        ("binary", '"a!"', "base64"),
        ("array<string>", '"abc"', "'abc' is not an array"),
        ("array<int>", "[[]]", r"\[\] is not an integer"),
        ("struct<a: string>", '[["a", "b"]]', "is not an object"),
        ("map<string, int>", "[]", "is not an object"),
    ],
)
def test_values_of_another_type_are_errors(type_: str, text: str, reason: str) -> None:
    found = decode(f"f {type_}", [f'{{"f": {text}}}'.encode(), b'{"f": null}'])
    assert list(found.reasons) == [0]
    assert found.array.to_pylist() == [None, {"f": None}]
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(found.reasons[0])


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"5", b'"x"', b'{"f": 1} x', b'\xff"', b'{"f": "\xff"}'])
def test_values_that_are_not_utf8_objects_are_errors(raw: bytes) -> None:
    for schema in ("f string", "f string, d decimal(5,2)"):
        found = decode(schema, [raw, b'{"f": "x"}', None, b"null"])
        assert list(found.reasons) == [0]
        assert [row and row["f"] for row in found.array.to_pylist()] == [None, "x", None, None]


_COUNTS = st.dictionaries(st.text(max_size=3), st.integers(-9, 9), max_size=3)
_TYPES: list[tuple[str, st.SearchStrategy[Any]]] = [
    ("boolean", st.booleans()), ("smallint", st.integers(-(2**15), 2**15 - 1)),
    ("bigint", st.integers(-(2**63), 2**63 - 1)),
    ("double", st.floats(allow_nan=False)), ("string", st.text(max_size=9)), ("binary", st.binary(max_size=9)),
    ("decimal(10,3)", st.decimals(-999999, 999999, places=3)), ("date", st.dates()),
    ("timestamp_ntz", st.datetimes()), ("array<string>", st.lists(st.none() | st.text(max_size=3), max_size=3)),
    ("map<string, bigint>", _COUNTS.map(lambda one: list(one.items()))),
]  # fmt: skip


@given(st.data())
def test_encoded_rows_decode_to_the_same_rows(data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.sampled_from(_TYPES), min_size=1, max_size=5))
    schema = ", ".join(f"f{number} struct<x: {name}>" for number, (name, _) in enumerate(chosen))
    boxes = [st.fixed_dictionaries({"x": st.none() | values}) for _, values in chosen]
    row = st.fixed_dictionaries({f"f{number}": st.none() | box for number, box in enumerate(boxes)})
    rows = data.draw(st.lists(st.none() | row, max_size=4))
    format_ = made(schema)
    column = pa.array(rows, format_.type)
    encoded = format_.encode(column)
    assert all(value is None or isinstance(json.loads(value), dict) for value in encoded.to_pylist())
    found = decode(schema, encoded.to_pylist())
    assert found.reasons == {}
    assert found.array.to_pylist() == column.to_pylist()


_ANY = '{"type": "object", "properties": {"f": {}, "n": {"type": "integer"}}}'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"text"', "text"),
        ('"1"', "1"),
        ("1", "1"),
        ("1.10", "1.10"),
        ("12345678901234567890.12345", "12345678901234567890.12345"),
        ("true", "true"),
        ("null", None),
        ('{"a": [1, "x", null, 2.50]}', '{"a":[1,"x",null,2.50]}'),
        ("[]", "[]"),
    ],
)
def test_any_json_is_a_text_with_its_numbers_as_written(text: str, expected: str | None) -> None:
    found = decode(_ANY, [f'{{"f": {text}, "n": 9007199254740993.0}}'.encode()])
    assert found.reasons == {}
    assert found.array.to_pylist() == [{"f": expected, "n": 9007199254740993}]
    (again,) = made(_ANY).encode(found.array).to_pylist()
    assert json.loads(again).get("f") == (json.loads(text) if text != '"1"' else 1)
