from __future__ import annotations

import io
import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.records.column_encoding import byte_column
from seglog.values.avro.decoder import AvroDecoder
from seglog.values.avro.layout import Layout
from seglog.values.avro.schema import parse_schema
from seglog.values.schemas import DecodedColumn, SchemaError
from tests.values.avro.generated import Typed, plain, records, typed


def encode(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def decode(values: Sequence[bytes | None], writer: Any, reader: Any = None) -> DecodedColumn:
    written = parse_schema(json.dumps(writer))
    wanted = written if reader is None else parse_schema(json.dumps(reader))
    column = byte_column("value", pa.array(values, pa.binary()), len(values))
    found = AvroDecoder(written, wanted, Layout(wanted)).decode(column)
    found.array.validate(full=True)
    return found


def read(values: Sequence[bytes | None], writer: Any, reader: Any = None) -> list[Any]:
    """The decoded values, none of which is bad."""
    found = decode(values, writer, reader)
    assert found.reasons == {}
    return [plain(value) for value in found.array.to_pylist()]


@given(st.data())
def test_reads_what_fastavro_writes(data: st.DataObject) -> None:
    of: Typed = data.draw(typed())
    pairs = data.draw(st.lists(of.values, max_size=5))
    encoded = [encode(of.wrapped, value) for value, _ in pairs]
    assert read(encoded, of.schema) == [plain(expected) for _, expected in pairs]


_EDGES = [sign * (1 << bits) + more for bits in range(64) for sign in (-1, 1) for more in (-1, 0, 1)]


@pytest.mark.parametrize("bits", [32, 64])
def test_integers_at_the_edges_of_every_width_are_exact(bits: int) -> None:
    kind = "int" if bits == 32 else "long"
    numbers = [one for one in _EDGES if -(1 << bits - 1) <= one < 1 << bits - 1]
    for schema in (kind, ["null", kind], {"type": kind, "logicalType": "unknown"}):
        assert read([encode(schema, one) for one in numbers], schema) == numbers
    records = {"type": "record", "name": "R", "fields": [{"name": "b", "type": "boolean"}, {"name": "n", "type": kind}]}
    rows = [{"b": number > 0, "n": number} for number in numbers]
    assert read([encode(records, row) for row in rows], records) == rows
    listed = {"type": "map", "values": {"type": "array", "items": kind}}
    assert read([encode(listed, {"k": numbers})], listed) == [[["k", numbers]]]


@given(st.data())
def test_cut_or_changed_bytes_give_a_reason_or_a_value(data: st.DataObject) -> None:
    of: Typed = data.draw(records())
    good, expected = data.draw(of.values)
    whole = encode(of.wrapped, good)
    cut = whole[: data.draw(st.integers(0, len(whole)))]
    changed = bytearray(whole)
    if changed:
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    found = decode([whole, cut, bytes(changed), whole + b"\0", None, whole], of.schema)
    values = found.array.to_pylist()
    assert plain(values[0]) == plain(values[5]) == plain(expected)
    assert 3 in found.reasons
    assert (1 in found.reasons) == (cut != whole)
    assert [values[row] for row in found.reasons] == [None] * len(found.reasons)
    assert values[4] is None
    assert 4 not in found.reasons


# Evolution


_PROMOTED = {"int": ["long", "float", "double"], "long": ["float", "double"], "float": ["double"], "string": ["bytes"]}
_DEFAULTS: list[tuple[Any, Any]] = [
    ("int", -7), ("long", 1 << 40), ("double", 1.5), ("float", 0.25), ("string", "dé"),
    ("boolean", True), (["null", "int"], None), (["int", "null"], 3), ({"type": "array", "items": "int"}, [1, 2]),
    ({"type": "map", "values": "string"}, {"a": "b"}), ({"type": "array", "items": ["null", "string"]}, []),
]  # fmt: skip


@st.composite
def _evolved(draw: st.DrawFn, writer: Any) -> Any:
    """A reader's record for a writer's of plain fields."""
    fields = []
    for one in writer["fields"]:
        fate = draw(st.sampled_from(["same", "drop", "promote", "nullable", "alias"]))
        if fate == "drop":
            continue
        evolved = dict(one)
        if fate == "promote" and isinstance(one["type"], str):
            evolved["type"] = draw(st.sampled_from(_PROMOTED.get(one["type"], [one["type"]])))
        elif fate == "nullable" and not isinstance(one["type"], list):
            evolved["type"] = ["null", one["type"]]
        elif fate == "alias":
            evolved |= {"name": f"new_{one['name']}", "aliases": [one["name"]]}
        fields.append(evolved)
    for number, (kind, default) in enumerate(draw(st.lists(st.sampled_from(_DEFAULTS), min_size=1, max_size=3))):
        fields.append({"name": f"added{number}", "type": kind, "default": default})
    return {**writer, "fields": draw(st.permutations(fields))}


_WRITABLE: list[Any] = [
    "int", "long", "float", "double", "string", "bytes", "boolean", ["null", "long"], ["string", "null"],
    {"type": "array", "items": "int"}, {"type": "map", "values": ["null", "string"]},
    {"type": "array", "items": {"type": "map", "values": "long"}},
    {"type": "enum", "name": "E", "symbols": ["A", "B"]}, {"type": "fixed", "name": "F", "size": 3},
    {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": "string"}]},
]  # fmt: skip


@given(st.data())
def test_evolution_is_fastavros(data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.sampled_from(range(len(_WRITABLE))), min_size=1, max_size=6, unique=True))
    fields = [{"name": f"f{number}", "type": _WRITABLE[number]} for number in chosen]
    writer = {"type": "record", "name": "R", "fields": fields}
    reader = data.draw(_evolved(writer))
    values = data.draw(st.lists(_values(writer), max_size=4))
    encoded = [encode(writer, value) for value in values]
    parsed = fastavro.parse_schema(writer), fastavro.parse_schema(reader)
    expected = [_as_arrow(fastavro.schemaless_reader(io.BytesIO(one), *parsed)) for one in encoded]
    assert [_as_arrow(value) for value in read(encoded, writer, reader)] == expected


def _values(schema: Any) -> st.SearchStrategy[Any]:
    if isinstance(schema, list):
        return st.one_of(*map(_values, schema))
    kind = schema if isinstance(schema, str) else schema["type"]
    simple: dict[str, st.SearchStrategy[Any]] = {
        "null": st.none(),
        "int": st.integers(-(2**24), 2**24),
        "long": st.integers(-(2**24), 2**24),
        "float": st.floats(width=32, allow_nan=False),
        "double": st.floats(allow_nan=False),
        "string": st.text(max_size=9),
        "bytes": st.binary(max_size=9),
        "boolean": st.booleans(),
    }
    if kind in simple:
        return simple[kind]
    if kind == "array":
        return st.lists(_values(schema["items"]), max_size=3)
    if kind == "map":
        return st.dictionaries(st.text(max_size=3), _values(schema["values"]), max_size=3)
    if kind == "enum":
        return st.sampled_from(schema["symbols"])
    if kind == "fixed":
        return st.binary(min_size=schema["size"], max_size=schema["size"])
    return st.fixed_dictionaries({one["name"]: _values(one["type"]) for one in schema["fields"]})


def _as_arrow(value: Any) -> Any:
    """Without the difference between a map and its pairs."""
    if isinstance(value, dict):
        return sorted((key, _as_arrow(one)) for key, one in value.items())
    if isinstance(value, list):
        if value and all(isinstance(one, list | tuple) and len(one) == 2 and isinstance(one[0], str) for one in value):
            return sorted((key, _as_arrow(one)) for key, one in value)
        return [_as_arrow(one) for one in value]
    return value


def _record(*fields: dict[str, Any], name: str = "R") -> Any:
    return {"type": "record", "name": name, "fields": list(fields)}


def test_a_branch_that_the_reader_lacks_is_an_error_of_its_values_only() -> None:
    writer = _record({"name": "f", "type": ["int", "string"]})
    reader = _record({"name": "f", "type": "long"})
    found = decode([encode(writer, {"f": 5}), encode(writer, {"f": "x"})], writer, reader)
    assert found.array.to_pylist() == [{"f": 5}, None]
    assert found.reasons == {1: "f: string cannot be read as long"}


def test_null_for_a_field_that_must_not_be_null_is_an_error_of_that_value() -> None:
    writer = _record({"name": "f", "type": ["null", "int"]})
    reader = _record({"name": "f", "type": "int"})
    found = decode([encode(writer, {"f": None}), encode(writer, {"f": 1})], writer, reader)
    assert found.reasons == {0: "f: null cannot be read as int"}
    assert found.array.to_pylist() == [None, {"f": 1}]


def test_an_unknown_symbol_becomes_the_readers_default() -> None:
    def enum(symbols: str, **more: Any) -> Any:
        return _record({"name": "e", "type": {"type": "enum", "name": "E", "symbols": list(symbols), **more}})

    encoded = [encode(enum("ABC"), {"e": symbol}) for symbol in "CBA"]
    assert read(encoded, enum("ABC"), enum("BA", default="A")) == [{"e": "A"}, {"e": "B"}, {"e": "A"}]
    assert decode(encoded, enum("ABC"), enum("BA")).reasons == {0: "the enum has no such symbol"}


def test_defaults_of_bytes_are_code_points() -> None:
    """fastavro gives them as text."""
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1}
    fixed = {"type": "fixed", "name": "F", "size": 2}
    reader = _record(
        {"name": "b", "type": "bytes", "default": "\u00ff\u0001"},
        {"name": "d", "type": decimal, "default": "\u00ff\u00fe"},
        {"name": "f", "type": fixed, "default": "ab"},
        {"name": "r", "type": _record({"name": "x", "type": "string"}, name="In"), "default": {"x": "y"}},
    )
    values = read([b""], _record(), reader)
    assert values == [{"b": b"\xff\x01", "d": Decimal("-0.2"), "f": b"ab", "r": {"x": "y"}}]


def test_unions_of_numbers_are_one_wide_number() -> None:
    schema = _record({"name": "a", "type": ["int", "long"]}, {"name": "b", "type": ["null", "float", "double"]})
    encoded = [encode(schema, {"a": 1, "b": 2.5}), encode(schema, {"a": 1 << 40, "b": None})]
    assert read(encoded, schema) == [{"a": 1, "b": 2.5}, {"a": 1 << 40, "b": None}]


@pytest.mark.parametrize(
    ("writer", "reader", "reason"),
    [
        (_record({"name": "f", "type": "string"}), _record({"name": "f", "type": "int"}), "f: string cannot be read"),
        (_record({"name": "f", "type": "int"}), _record({"name": "g", "type": "int"}), "has no field g"),
        (_record({"name": "f", "type": "int"}, name="A"), _record({"name": "f", "type": "int"}, name="B"), "record A"),
        (
            _record({"name": "f", "type": {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}}),
            _record({"name": "f", "type": {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1}}),
            r"f: bytes cannot be read as bytes: its logical type is decimal\(4,2\), not decimal\(4,1\)",
        ),
        (
            _record({"name": "f", "type": {"type": "fixed", "name": "F", "size": 2}}),
            _record({"name": "f", "type": {"type": "fixed", "name": "F", "size": 3}}),
            "it has 2 bytes, not 3",
        ),
    ],
)
def test_schemas_that_do_not_fit_are_refused_with_the_place(writer: Any, reader: Any, reason: str) -> None:
    with pytest.raises(SchemaError, match=reason):
        decode([], writer, reader)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (
            _record({"name": "next", "type": ["null", "R"]}),
            r"record R contains itself \(at next\): recursive types are not supported",
        ),
        (_record({"name": "f", "type": "null"}), r"the type null is not supported \(at f\)"),
        (
            _record({"name": "f", "type": {"type": "long", "logicalType": "timestamp-nanos"}}),
            r"the logical type timestamp-nanos is not supported \(at f\)",
        ),
        (
            _record({"name": "f", "type": {"type": "bytes", "logicalType": "decimal", "precision": 39}}),
            "precision 39",
        ),
        (
            _record({"name": "f", "type": {"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}}),
            "no bytes",
        ),
    ],
)
def test_types_that_are_not_supported_are_named(schema: Any, reason: str) -> None:
    with pytest.raises(SchemaError, match=reason):
        decode([], schema)


def test_numbers_out_of_range_are_errors() -> None:
    too_long = encode("long", 2**31)
    assert decode([too_long], "int").reasons == {0: "an integer is out of the range of its type"}
    timestamp = {"type": "long", "logicalType": "timestamp-millis"}
    assert 0 in decode([encode("long", 2**63 - 1)], timestamp).reasons
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 0}
    values = [encode("bytes", number.to_bytes(20, "big", signed=True)) for number in (999, 1000, -999, -1000, 1 << 130)]
    found = decode(values, decimal)
    assert [None if one is None else int(one) for one in found.array.to_pylist()] == [999, None, -999, None, None]


@given(st.binary(max_size=12))
def test_strings_are_utf8_as_python_has_it(raw: bytes) -> None:
    try:
        expected: str | None = raw.decode()
    except UnicodeDecodeError:
        expected = None
    found = decode([encode("bytes", raw)], "string")
    assert found.array.to_pylist() == [expected]
    assert bool(found.reasons) == (expected is None)
