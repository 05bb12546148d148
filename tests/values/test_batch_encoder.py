from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.core.errors import InvalidConfigError, InvalidRecordError
from seglog.core.fs import OsFs
from seglog.values.batch_decoder import BatchDecoder
from seglog.values.batch_encoder import BatchEncoder, WriteFormats, resolve_write_formats
from seglog.values.reader_schema import make_format
from seglog.values.registry import Registry, SchemaRefusedError
from seglog.values.value_options import RegistryConfig, parse_value_options
from tests.values.avro.generated import Typed, plain, typed
from tests.values.avro.test_decoder import decode, encode
from tests.values.batches import batch_of, formats

V1: Any = {"type": "record", "name": "F", "fields": [{"name": "n", "type": "int"}]}
V2: Any = {"type": "record", "name": "F", "fields": [{"name": "n", "type": ["null", "long"]}]}


def resolved(topic: str | None = "t", **options: str) -> WriteFormats:
    given = {name.replace("_", "."): text for name, text in options.items()}
    return resolve_write_formats(parse_value_options(given), topic, OsFs())


def written(chosen: WriteFormats, values: list[Any]) -> list[bytes | None]:
    type_ = make_format(chosen.columns[0][0]).type
    batch = pa.RecordBatch.from_arrays([pa.array(values, type_)], names=["value"])
    (found,) = BatchEncoder(chosen).encode_all(iter([batch]))
    return list(found.column("value").to_pylist())


@given(st.data())
def test_avro_is_what_fastavro_writes(data: st.DataObject) -> None:
    """The bytes are equal, except for the blocks of arrays and maps, so they are read again."""
    of: Typed = data.draw(typed())
    pairs = data.draw(st.lists(of.values, max_size=4))
    column = decode([encode(of.wrapped, value) for value, _ in pairs], of.schema).array
    chosen = resolved(valueFormat="avro", valueSchema=json.dumps(of.schema))
    (batch,) = BatchEncoder(chosen).encode_all(iter([pa.RecordBatch.from_arrays([column], names=["value"])]))
    ours = batch.column("value").to_pylist()
    assert [one is None for one in ours] == [expected is None for _, expected in pairs]
    again = decode(ours, of.schema).array.to_pylist()
    assert [plain(one) for one in again] == [plain(expected) for _, expected in pairs]
    if "array" not in json.dumps(of.schema) and "map" not in json.dumps(of.schema) and "[" not in json.dumps(of.schema):
        assert ours == [encode(of.wrapped, value) for value, _ in pairs]


def test_a_schema_is_registered_and_its_id_written(url: str) -> None:
    chosen = resolved(valueFormat="avro", valueSchema=json.dumps(V1), schema_registry_url=url)
    latest = Registry(RegistryConfig(urls=(url,))).latest("t-value")
    values = written(chosen, [{"n": 5}, None])
    assert values == [b"\0" + latest.schema_id.to_bytes(4, "big") + b"\n", None]
    assert resolved(valueFormat="avro", valueSchema=json.dumps(V1), schema_registry_url=url) == chosen
    assert written(resolved(valueFormat="avro", schema_registry_url=url), [{"n": 5}]) == values[:1]
    by_id = resolved(None, valueFormat="avro", valueSchemaId=str(latest.schema_id), schema_registry_url=url)
    assert written(by_id, [{"n": 5}]) == values[:1]


@pytest.mark.parametrize(
    ("kind", "schema", "value"),
    [
        ("avro", json.dumps(V1), {"n": 1}),
        ("json", '{"type": "object", "properties": {"n": {"type": "integer"}}}', {"n": 1}),
        ("protobuf", 'syntax = "proto3"; message A { int32 x = 1; } message F { int32 n = 1; }', {"n": 1}),
    ],
)
@pytest.mark.parametrize("framing", ["plain", "confluent", "apicurio"])
def test_encoded_values_decode_in_each_format_and_framing(
    url: str, kind: str, schema: str, value: Any, framing: str
) -> None:
    options = {"valueFormat": kind, "valueFraming": framing, "schema_registry_url": url}
    if kind == "protobuf":
        options["valueRecordName"] = "F"
    values = written(resolved(**options, valueSchema=schema), [value, None, value])
    found = BatchDecoder(formats(**options)).decode(batch_of(values), ["value"])
    assert found.column("value").to_pylist() == [value, None, value]


def test_impossible_write_options_are_refused(url: str) -> None:
    text = json.dumps(V1)
    for more, reason in (
        ({"valueFormat": "avro", "valueSchema": text, "valueFraming": "header"}, "only for reading"),
        ({"valueFormat": "json", "valueSchema": "a int"}, "not a JSON Schema"),
        ({"valueFormat": "avro", "valueSchema": text, "valueSchemaId": "1"}, "exclude each other"),
    ):
        with pytest.raises(InvalidConfigError, match=reason):
            resolved(**more, schema_registry_url=url)
    with pytest.raises(InvalidConfigError, match="the subject depends on the topic"):
        resolved(None, valueFormat="avro", valueSchema=text, schema_registry_url=url)
    with pytest.raises(InvalidConfigError, match="valueSchemaId needs schema"):
        resolved(valueFormat="avro", valueSchema=text, valueSchemaId="1")
    resolved(valueFormat="avro", valueSchema=text, schema_registry_url=url)
    with pytest.raises(SchemaRefusedError, match="incompatible"):
        resolved(valueFormat="avro", valueSchema='"string"', schema_registry_url=url)


def test_a_row_that_does_not_fit_is_named() -> None:
    chosen = resolved(valueFormat="avro", valueSchema=json.dumps(V1))
    with pytest.raises(InvalidRecordError, match="row 1: n is null, which its schema does not allow"):
        written(chosen, [{"n": 1}, {"n": None}])
    assert written(resolved(valueFormat="avro", valueSchema=json.dumps(V2)), [{"n": None}]) == [b"\0"]
    batch = pa.RecordBatch.from_arrays([pa.array(["x"])], names=["value"])
    with pytest.raises(InvalidConfigError, match="the column is string; the schema needs struct"):
        list(BatchEncoder(chosen).encode_all(iter([batch])))
