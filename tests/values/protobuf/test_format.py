from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.core.errors import InvalidRecordError
from seglog.core.extras import require
from seglog.core.fs import OsFs
from seglog.records.column_encoding import byte_column
from seglog.values.protobuf.compiler import compile_schema
from seglog.values.protobuf.format import ProtobufFormat
from seglog.values.reader_schema import read_schema
from seglog.values.schemas import DecodedColumn, SchemaError, SchemaText
from seglog.values.value_options import parse_value_options

SCHEMA = """
syntax = "proto3";
package air;
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
enum Kind { UNKNOWN = 0; JET = 1; }
message Flight {
  double d = 1; float f = 2; int32 i = 3; int64 l = 4; uint32 u = 5; uint64 w = 6; sint32 z = 7; fixed64 x = 8;
  bool b = 9; string s = 10; bytes raw = 11; Kind kind = 12;
  optional int32 maybe = 13;
  Place origin = 14;
  repeated string tags = 15;
  repeated Place stops = 16;
  map<string, int64> counts = 17;
  map<int32, Place> places = 18;
  oneof choice { string text = 19; int32 number = 20; }
  google.protobuf.Timestamp at = 21;
  google.protobuf.Duration took = 22;
  google.protobuf.StringValue note = 23;
  repeated Kind kinds = 24;
  message Place { string code = 1; optional double height = 2; }
}
message Other { string s = 10; }
"""
TEXT = SchemaText("PROTOBUF", SCHEMA)


def message_class(schema: SchemaText = TEXT, name: str | None = None) -> Any:
    factory: Any = require("google.protobuf.message_factory", "formats", purpose="tests")
    return factory.GetMessageClass(compile_schema(schema).named(name))


def decode(values: Sequence[bytes | None], schema: SchemaText = TEXT, name: str | None = None) -> DecodedColumn:
    column = byte_column("value", pa.array(values, pa.binary()), len(values))
    found = ProtobufFormat(schema, name).decoder(None, (0,))(column)
    found.array.validate(full=True)
    return found


def test_an_empty_message_has_defaults_and_nulls() -> None:
    (found,) = decode([b""]).array.to_pylist()
    assert found == {
        "d": 0.0, "f": 0.0, "i": 0, "l": 0, "u": 0, "w": Decimal(0), "z": 0, "x": Decimal(0), "b": False, "s": "",
        "raw": b"", "kind": "UNKNOWN", "maybe": None, "origin": None, "tags": [], "stops": [], "counts": [],
        "places": [], "text": None, "number": None, "at": None, "took": None, "note": None, "kinds": [],
    }  # fmt: skip


_INTS = st.integers(-(2**31), 2**31 - 1)
_PLACES = st.fixed_dictionaries({"code": st.text(max_size=3), "height": st.none() | st.floats(allow_nan=False)})
_FLIGHTS = st.fixed_dictionaries(
    {
        "d": st.floats(allow_nan=False), "f": st.floats(width=32, allow_nan=False), "i": _INTS,
        "l": st.integers(-(2**63), 2**63 - 1), "u": st.integers(0, 2**32 - 1),
        "w": st.integers(0, 2**64 - 1).map(Decimal), "z": _INTS, "x": st.integers(0, 2**64 - 1).map(Decimal),
        "b": st.booleans(), "s": st.text(max_size=9), "raw": st.binary(max_size=9),
        "kind": st.sampled_from(["UNKNOWN", "JET", "7"]), "maybe": st.none() | _INTS, "origin": st.none() | _PLACES,
        "tags": st.lists(st.text(max_size=3), max_size=3), "stops": st.lists(_PLACES, max_size=3),
        "counts": st.dictionaries(st.text(max_size=3), _INTS, max_size=3).map(lambda one: sorted(one.items())),
        "places": st.dictionaries(_INTS, _PLACES, max_size=2).map(lambda one: sorted(one.items())),
        "choice": st.none() | st.text(max_size=3) | _INTS,
        "at": st.none() | st.datetimes(timezones=st.just(UTC)),
        "took": st.none() | st.timedeltas(timedelta(days=-9), timedelta(days=9)),
        "note": st.none() | st.text(max_size=3),
        "kinds": st.lists(st.sampled_from(["JET", "9"]), max_size=3),
    }
).map(
    lambda one: {
        **{name: value for name, value in one.items() if name != "choice"},
        "text": one["choice"] if isinstance(one["choice"], str) else None,
        "number": one["choice"] if isinstance(one["choice"], int) else None,
    }
)  # fmt: skip
_DECODE_ERROR: type[Exception] = require("google.protobuf.message", "formats", purpose="tests").DecodeError
_NAMES = {"UNKNOWN": 0, "JET": 1}


def _message(value: dict[str, Any]) -> Any:
    """By the library's own way of setting fields."""
    message = message_class()()
    for name, one in value.items():
        field = getattr(message, name)
        if one is None:
            continue
        if name in ("kind", "kinds"):
            texts = [one] if name == "kind" else one
            numbers = [_NAMES[text] if text in _NAMES else int(text) for text in texts]
            if name == "kind":
                message.kind = numbers[0]
            else:
                message.kinds.extend(numbers)
        elif name == "origin":
            message.origin.CopyFrom(_place(one))
        elif name == "stops":
            message.stops.extend(map(_place, one))
        elif name == "tags":
            message.tags.extend(one)
        elif name == "counts":
            field.update(one)
        elif name == "places":
            for key, place in one:
                field[key].CopyFrom(_place(place))
        elif name == "at":
            message.at.FromDatetime(one)
        elif name == "took":
            message.took.FromTimedelta(one)
        elif name == "note":
            message.note.value = one
        else:
            setattr(message, name, int(one) if isinstance(one, Decimal) else one)
    return message


def _place(value: dict[str, Any]) -> Any:
    return message_class(TEXT, "Flight.Place")(**{name: one for name, one in value.items() if one is not None})


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    if isinstance(value, list):
        return sorted(map(_plain, value)) if value and isinstance(value[0], tuple) else [_plain(one) for one in value]
    return value


@given(st.lists(st.none() | _FLIGHTS, max_size=4))
def test_reads_what_the_library_writes_and_writes_what_it_reads(rows: list[dict[str, Any] | None]) -> None:
    encoded = [None if row is None else _message(row).SerializeToString(deterministic=True) for row in rows]
    found = decode(encoded)
    assert found.reasons == {}
    assert isinstance(found.array.type, pa.StructType)
    order = [field.name for field in found.array.type]
    assert [_plain(row) for row in found.array.to_pylist()] == [
        row and {name: _plain(row[name]) for name in order} for row in rows
    ]
    ours = ProtobufFormat(TEXT, None).encode(found.array).to_pylist()
    again = [None if raw is None else message_class().FromString(raw) for raw in ours]
    assert again == [None if row is None else _message(row) for row in rows]


@given(st.binary(max_size=30))
def test_any_bytes_are_a_message_or_have_a_reason(raw: bytes) -> None:
    found = decode([raw, None])
    assert not found.array[1].is_valid
    assert found.array[0].is_valid == (0 not in found.reasons)
    if 0 in found.reasons:
        with pytest.raises(_DECODE_ERROR):
            message_class().FromString(raw)
    else:
        message_class().FromString(raw)


@pytest.mark.parametrize(("field", "kind"), [("at", "timestamp"), ("took", "duration")])
def test_a_time_beyond_64_bits_is_an_error_of_its_value(field: str, kind: str) -> None:
    for seconds, nanos in ((2**62, 0), (-(2**63), 0), (9_223_372_036_854, 775_808_000)):
        message = message_class()()
        getattr(message, field).seconds, getattr(message, field).nanos = seconds, nanos
        found = decode([b"", message.SerializeToString()])
        assert found.reasons == {1: f"the {kind} of {seconds} seconds is out of range: not seconds?"}
        assert found.array[0].is_valid


def test_versions_read_each_other() -> None:
    old = SchemaText("PROTOBUF", 'syntax = "proto3"; message M { string a = 1; }')
    new = SchemaText("PROTOBUF", 'syntax = "proto3"; message M { string a = 1; optional int32 b = 2; }')
    value = message_class(new)(a="x", b=5).SerializeToString()
    assert decode([value], old).array.to_pylist() == [{"a": "x"}]
    assert decode([message_class(old)(a="y").SerializeToString()], new).array.to_pylist() == [{"a": "y", "b": None}]


def test_proto2_has_presence_and_required_fields() -> None:
    schema = SchemaText(
        "PROTOBUF", 'syntax = "proto2"; message M { required string a = 1; optional int32 b = 2 [default = 5]; }'
    )
    found = decode([b"", b"\n\1x"], schema)
    assert found.array.to_pylist() == [None, {"a": "x", "b": None}]
    assert found.reasons == {0: "required fields are missing: a"}


def test_a_value_is_of_the_message_that_its_path_names() -> None:
    format_ = ProtobufFormat(TEXT, "air.Other")
    assert format_.message == (1,)
    assert format_.decoder(TEXT, (1,)) is not None
    with pytest.raises(SchemaError, match=r"the value is a message air.Flight.Place, not air.Other"):
        format_.decoder(TEXT, (0, 0))
    with pytest.raises(SchemaError, match="no message at the path"):
        format_.decoder(TEXT, (0, 9))
    place = ProtobufFormat(TEXT, "Flight.Place")
    for path in ((0, 0), (0, 2)):  # without the maps counts and places, and with them
        assert place.decoder(TEXT, path) is not None
    compiled = compile_schema(TEXT)
    assert compiled.path_of(compiled.named("Flight.Place")) == (0, 0)
    with pytest.raises(SchemaError, match=r"no message 'None'; there are air.Flight, air.Other"):
        ProtobufFormat(TEXT, "None")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("message M { M m = 1; }", "message M contains itself"),
        ("message M { N n = 1; } message N { }", "message N has no field"),
        ("import 'google/protobuf/struct.proto'; message M { google.protobuf.Struct s = 1; }", "contains itself"),
        ("message M { int32 a = 1 }", r"cannot be compiled: line:1:\d+"),
        ("import 'none.proto'; message M { int32 a = 1; }", "none.proto"),
        ("enum E { A = 0; }", "has no message"),
    ],
)
def test_unsupported_schemas_are_refused_by_name(text: str, reason: str) -> None:
    with pytest.raises(SchemaError, match=reason):
        ProtobufFormat(SchemaText("PROTOBUF", f'syntax = "proto3"; {text}'), None)


def test_groups_are_refused() -> None:
    schema = SchemaText("PROTOBUF", 'syntax = "proto2"; message M { optional group G = 1 { optional int32 a = 1; } }')
    with pytest.raises(SchemaError, match=r"a group is not supported \(at g\)"):
        ProtobufFormat(schema, None)


def test_imports_come_from_references_and_from_files(tmp_path: Path) -> None:
    (tmp_path / "geo").mkdir()
    (tmp_path / "geo" / "place.proto").write_text('syntax = "proto3"; package geo; message Place { string code = 1; }')
    main = tmp_path / "flight.proto"
    main.write_text('syntax = "proto3"; import "geo/place.proto"; message F { geo.Place at = 1; }')
    schema = read_schema(OsFs(), parse_value_options({"valueFormat": "protobuf", "valueSchema": str(main)}).columns[0])
    assert [name for name, _ in schema.references] == ["geo/place.proto"]
    assert str(ProtobufFormat(schema, None).type) == "struct<at: struct<code: string>>"
    outside = SchemaText("PROTOBUF", SCHEMA, (("../x.proto", ""),))
    with pytest.raises(SchemaError, match="not a relative path"):
        compile_schema(outside)


def test_rows_that_do_not_fit_the_message_are_refused() -> None:
    schema = SchemaText(
        "PROTOBUF", 'syntax = "proto3"; enum E { A = 0; } message M { uint32 n = 1; repeated E e = 2; }'
    )
    format_ = ProtobufFormat(schema, None)
    for bad in ({"n": -1, "e": []}, {"n": 1, "e": [None]}, {"n": 1, "e": ["B"]}):
        with pytest.raises(InvalidRecordError, match="row 1 does not fit the message M"):
            format_.encode(pa.array([{"n": 1, "e": ["A"]}, bad], format_.type))


_KNOWN = """
syntax = "proto3";
package shop;
import "confluent/meta.proto";
import 'confluent/type/decimal.proto';  // a comment
import public "google/type/money.proto";
import "google/type/date.proto"; import "google/type/latlng.proto";
import "google/api/field_behavior.proto";
import "google/api/annotations.proto";
import "google/rpc/status.proto";
import "google/protobuf/timestamp.proto";
option (confluent.file_meta).doc = "orders // of a shop";
message Order {
  option (confluent.message_meta) = { doc: "an order", tags: ["PII"] };
  confluent.type.Decimal total = 1 [(confluent.field_meta) = { params: [{ key: "precision", value: "10" }] }];
  google.type.Money price = 2 [(google.api.field_behavior) = REQUIRED];
  google.type.Date day = 3;
  google.type.LatLng place = 4;
  google.protobuf.Timestamp at = 5;
}
"""


def test_files_that_every_registry_knows_need_no_reference(tmp_path: Path) -> None:
    schema = SchemaText("PROTOBUF", _KNOWN)
    message = message_class(schema)()
    message.total.value, message.total.precision, message.total.scale = b"\x04\xd2", 10, 2
    message.price.currency_code, message.price.units = "EUR", 12
    message.day.year = 2013
    message.place.latitude = 40.5
    found = decode([message.SerializeToString()], schema)
    expected = {
        "total": {"value": b"\x04\xd2", "precision": 10, "scale": 2},
        "price": {"currency_code": "EUR", "units": 12, "nanos": 0},
        "day": {"year": 2013, "month": 0, "day": 0},
        "place": {"latitude": 40.5, "longitude": 0.0},
        "at": None,
    }
    assert found.array.to_pylist() == [expected]
    path = tmp_path / "order.proto"
    path.write_text(_KNOWN)
    (column,) = parse_value_options({"valueformat": "protobuf", "valueschema": str(path)}).columns
    assert read_schema(OsFs(), column).references == ()
    assert decode([message.SerializeToString()], read_schema(OsFs(), column)).array.to_pylist() == [expected]


def test_a_reference_precedes_a_file_that_is_known() -> None:
    own = 'syntax = "proto3"; package google.type; message Money { string text = 1; }'
    text = 'syntax = "proto3"; import "google/type/money.proto"; message M { google.type.Money m = 1; }'
    schema = SchemaText("PROTOBUF", text, (("google/type/money.proto", own),))
    assert decode([b"\x0a\x03\x0a\x01x"], schema).array.to_pylist() == [{"m": {"text": "x"}}]


@pytest.mark.parametrize("name", ["google/type/none.proto", "confluent/none.proto", "google/type/../../x.proto"])
def test_an_import_that_is_not_known_is_named(name: str) -> None:
    text = f'syntax = "proto3"; import "{name}"; message M {{ int32 a = 1; }}'
    with pytest.raises(SchemaError, match=name.replace(".", r"\.")):
        decode([], SchemaText("PROTOBUF", text))


def test_confluents_files_are_those_of_its_own_client() -> None:
    descriptor_pb2: Any = require("google.protobuf.descriptor_pb2", "formats", purpose="tests")
    ours = compile_schema(SchemaText("PROTOBUF", _KNOWN)).pool

    def described(file: Any) -> list[str]:
        found = descriptor_pb2.FileDescriptorProto()
        file.CopyToProto(found)
        found.ClearField("options")  # the package in Go
        return [line for line in str(found).splitlines() if "json_name" not in line]

    for name, module in (("meta", "meta_pb2"), ("type/decimal", "type.decimal_pb2")):
        theirs = import_module(f"confluent_kafka.schema_registry.confluent.{module}").DESCRIPTOR
        assert described(ours.FindFileByName(f"confluent/{name}.proto")) == described(theirs)
