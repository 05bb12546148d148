"""Values that Confluent's own serializers wrote, and values for its deserializers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pyarrow as pa
import pytest

from seglog.core.fs import OsFs
from seglog.testing import Broker
from seglog.values.batch_decoder import BatchDecoder
from seglog.values.batch_encoder import BatchEncoder, resolve_write_formats
from seglog.values.value_options import parse_value_options
from tests.kit.confluent_registry import registry_client
from tests.values.batches import batch_of, formats

SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "Flight",
        "namespace": "air",
        "fields": [
            {"name": "origin", "type": "string"},
            {"name": "delay", "type": ["null", "int"]},
            {"name": "stops", "type": {"type": "array", "items": "string"}},
        ],
    }
)
FLIGHTS: list[dict[str, Any]] = [
    {"origin": "EWR", "delay": 5, "stops": []},
    {"origin": "JFK", "delay": None, "stops": ["ORD", "DEN"]},
]
_avro: Any = import_module("confluent_kafka.schema_registry.avro")
_api: Any = import_module("confluent_kafka.schema_registry")
_serialization: Any = import_module("confluent_kafka.serialization")


@pytest.fixture
def url() -> Iterator[str]:
    with Broker(registry=True) as broker:
        yield broker.registry_url


def _context(headers: list[tuple[str, bytes]] | None = None) -> Any:
    return _serialization.SerializationContext("t", _serialization.MessageField.VALUE, headers)


@pytest.mark.parametrize("framing", ["confluent", "header"])
@pytest.mark.parametrize("strategy", ["topic", "record", "topic_record"])
def test_reads_what_their_serializer_writes(url: str, framing: str, strategy: str) -> None:
    settings: dict[str, Any] = {"subject.name.strategy": getattr(_api, f"{strategy}_subject_name_strategy")}
    if framing == "header":
        settings["schema.id.serializer"] = _api.header_schema_id_serializer
    headers: list[Any] = [[] for _ in FLIGHTS]
    with registry_client(url) as client:
        serialize = _avro.AvroSerializer(client, SCHEMA, conf=settings)
        values = [serialize(one, _context(of)) for one, of in zip(FLIGHTS, headers, strict=True)]
    name = {"topic": "TopicName", "record": "RecordName", "topic_record": "TopicRecordName"}[strategy]
    decoder = BatchDecoder(
        formats(
            valueFormat="avro",
            valueFraming=framing,
            schema_registry_url=url,
            valueSubjectStrategy=name,
            valueRecordName="air.Flight",
        )
    )
    found = decoder.decode(batch_of(values, headers=headers), ["value"])
    assert found.column("value").to_pylist() == FLIGHTS


def test_their_deserializer_reads_what_the_sink_writes(url: str) -> None:
    options = {"valueFormat": "avro", "valueSchema": SCHEMA, "schema.registry.url": url}
    chosen = resolve_write_formats(parse_value_options(options), "t", OsFs())
    batch = pa.RecordBatch.from_arrays([pa.array(FLIGHTS)], names=["value"])
    (encoded,) = BatchEncoder(chosen).encode_all(iter([batch]))
    with registry_client(url) as client:
        deserialize = _avro.AvroDeserializer(client)
        assert [deserialize(raw, _context()) for raw in encoded.column("value").to_pylist()] == FLIGHTS
