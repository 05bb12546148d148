"""One schema has one text. Those of Avro are what ``Schema.toString`` of Avro 1.12 for Java printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.testing.registry.schema_texts import canonical_text, java_double
from seglog.values.avro.schema import parse_schema
from seglog.values.schemas import SchemaError
from tests.values.avro.generated import records

_LINES = (Path(__file__).parent / "avro_texts.txt").read_text().split("\n")
"""A schema, and the line that Java printed, and so on."""


@pytest.mark.parametrize(("text", "expected"), list(zip(_LINES[:-1:2], _LINES[1::2], strict=True)))
def test_avro_is_written_as_java_writes_it(text: str, expected: str) -> None:
    assert canonical_text("AVRO", text) == expected
    assert canonical_text("AVRO", expected) == expected


def _shuffled(data: st.DataObject, node: Any) -> Any:
    if isinstance(node, list):
        return [_shuffled(data, one) for one in node]
    if isinstance(node, dict):
        names = data.draw(st.permutations(list(node)))
        return {name: _shuffled(data, node[name]) for name in names}
    return node


@given(st.data())
def test_order_and_spaces_do_not_change_the_text(data: st.DataObject) -> None:
    schema = data.draw(records())[0]
    text = canonical_text("AVRO", json.dumps(schema), normalize=True)
    parse_schema(text, strict=True)
    again = json.dumps(_shuffled(data, schema), indent=data.draw(st.none() | st.integers(0, 3)))
    assert canonical_text("AVRO", again, normalize=True) == text
    assert canonical_text("AVRO", text) == canonical_text("AVRO", text, normalize=True) == text


def test_normalized_avro_has_sorted_properties_and_no_empty_documentation() -> None:
    given_ = (
        '{"type":"record","name":"R","doc":"","z":1,"a":{"y":1,"x":2},"aliases":["B","A"],"fields":[{"name":"d","b":1,'
        '"a":2,"type":{"type":"bytes","scale":2,"x":1,"precision":4,"logicalType":"decimal"},"order":"ascending"}]}'
    )
    assert canonical_text("AVRO", given_, normalize=True) == (
        '{"type":"record","name":"R","fields":[{"name":"d","type":{"type":"bytes","logicalType":"decimal","precision":4,'
        '"scale":2,"x":1},"a":2,"b":1}],"a":{"x":2,"y":1},"z":1,"aliases":["A","B"]}'
    )


def test_types_of_references_are_names() -> None:
    place = '{"type":"record","name":"a.Place","fields":[]}'
    trip = '{"type":"record","name":"a.Trip","fields":[{"name":"from","type":"Place"},{"name":"to","type":"a.Place"}]}'
    expected = trip.replace('"a.Trip"', '"Trip","namespace":"a"').replace("a.Place", "Place")
    assert canonical_text("AVRO", trip, [place]) == expected
    whole = '{"type":"record","name":"b.Both","fields":[{"name":"t","type":"a.Trip"},{"name":"p","type":"a.Place"}]}'
    assert canonical_text("AVRO", whole, [place, trip]).endswith('"type":"a.Trip"},{"name":"p","type":"a.Place"}]}')


@pytest.mark.parametrize(
    "text",
    [
        '{"type":"record","name":"R","fields":[{"name":"x","type":"int","default":"0"}]}',
        '{"type":"record","name":"R","fields":[{"name":"x","type":"int","default":2147483648}]}',
        '{"type":"record","name":"R","fields":[{"name":"x","type":["long","null"],"default":9223372036854775808}]}',
        '{"type":"record","name":"R","aliases":"Q","fields":[]}',
        '{"type":"record","name":"R","fields":[{"name":"x","type":"int","order":"up"}]}',
        '{"type":"record","name":"a-b","fields":[]}',
        '"unknown"',
        "{",
    ],
)
def test_schemas_that_a_registry_refuses(text: str) -> None:
    with pytest.raises(SchemaError):
        canonical_text("AVRO", text)


def test_json_schemas_keep_their_order_unless_they_are_normalized() -> None:
    text = '{"type": "object",\n "properties": {"b": {"maximum": 1E3}, "a": {}}, "required": []}'
    assert (
        canonical_text("JSON", text) == '{"type":"object","properties":{"b":{"maximum":1000.0},"a":{}},"required":[]}'
    )
    assert canonical_text("JSON", text, normalize=True) == (
        '{"properties":{"a":{},"b":{"maximum":1000.0}},"required":[],"type":"object"}'
    )
    with pytest.raises(SchemaError, match="is not JSON"):
        canonical_text("JSON", "{")


_PROTO = """syntax = "proto3";
package air;
// A flight.
message Flight {
  map<string, int64> counts = 1 [deprecated = true, json_name = "c"];
  repeated air.Place stops = 2;
  reserved 3, 5 to 7;
  oneof choice {
    string text = 4;
  }
  option (my.option).name = -1.5;
}
"""


def test_protobuf_is_one_declaration_a_line() -> None:
    assert canonical_text("PROTOBUF", _PROTO) == _PROTO
    packed = _PROTO.replace("\n", " ").replace("// A flight.", "").replace("  ", " ").replace('"proto3"', "'proto3'")
    expected = _PROTO.replace("// A flight.\n", "")
    assert canonical_text("PROTOBUF", packed) == canonical_text("PROTOBUF", _PROTO, normalize=True) == expected
    tight = packed.replace(" = ", "=").replace(" {", "{").replace(", ", ",").replace("} ", "}")
    assert canonical_text("PROTOBUF", tight) == expected


def test_a_comment_is_no_token_inside_of_a_string() -> None:
    text = 'option java_package = "a//b/*c*/";\n'
    assert canonical_text("PROTOBUF", text, normalize=True) == text
    assert canonical_text("PROTOBUF", f"/* one\n   two */ {text}") == f"/* one\ntwo */\n{text}"


@given(st.floats())
def test_doubles_are_read_back(value: float) -> None:
    text = java_double(value)
    assert text in ("NaN", "Infinity", "-Infinity") or float(text) == value
