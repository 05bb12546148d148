from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pyarrow import parquet

from seglog.core.errors import InvalidConfigError, RequestFailedError, UndecodableValueError
from seglog.core.fs import OsFs
from seglog.testing import Broker
from seglog.values.batch_decoder import BatchDecoder
from seglog.values.dead_letters import DeadLetters
from seglog.values.registry import SchemaNotFoundError
from seglog.values.schemas import SchemaError
from tests.kit.confluent_registry import registry_client
from tests.values.avro.test_decoder import encode
from tests.values.batches import batch_of, formats, framed, register

N = {"name": "n", "type": "int"}
S = {"name": "s", "type": "string", "default": "none"}
V1: Any = {"type": "record", "name": "F", "fields": [N]}
V2: Any = {"type": "record", "name": "F", "fields": [N, S]}
OTHER: Any = {"type": "record", "name": "G", "fields": [N]}
ALL = ["key", "value", "topic", "partition", "offset"]


def _values(batch: Any) -> list[Any]:
    return list(batch.column("value").to_pylist())


def test_values_of_several_ids_are_read_with_the_latest_schema(url: str) -> None:
    first, second = register(url, "t-value", V1), register(url, "t-value", V2)
    decoder = BatchDecoder(formats(valueFormat="avro", schema_registry_url=url))
    rows = [
        framed(second, V2, {"n": 1, "s": "a"}), None, framed(first, V1, {"n": 2}),
        framed(second, V2, {"n": 3, "s": "b"}),
    ]  # fmt: skip
    found = decoder.decode(batch_of(rows), ALL)
    assert found.schema.names == ALL
    assert _values(found) == [{"n": 1, "s": "a"}, None, {"n": 2, "s": "none"}, {"n": 3, "s": "b"}]
    assert _values(decoder.decode(batch_of([rows[2], None]), ALL)) == [{"n": 2, "s": "none"}, None]
    assert _values(decoder.decode(batch_of([None]), ALL)) == [None]
    assert _values(decoder.decode(batch_of([]), ALL)) == []


def test_the_readers_schema_stays_when_a_new_version_comes(url: str) -> None:
    register(url, "t-value", V1)
    chosen = formats(valueFormat="avro", schema_registry_url=url)
    second = register(url, "t-value", V2)
    decoder = BatchDecoder(chosen)
    assert _values(decoder.decode(batch_of([framed(second, V2, {"n": 1, "s": "a"})]), ["value"])) == [{"n": 1}]


def test_keys_and_ids_in_headers(url: str) -> None:
    number = register(url, "t-value", V1)
    key_number = register(url, "t-key", "long")
    with registry_client(url) as client:
        guid = client.get_latest_version("t-value").guid
    decoder = BatchDecoder(
        formats(valueFormat="avro", valueFraming="header", keyFormat="avro", schema_registry_url=url)
    )
    assert set(decoder.input_columns(["value"])) == {"value", "topic", "partition", "offset", "headers"}
    assert decoder.input_columns(["topic", "offset"]) == ["topic", "offset"]
    header = [("__value_schema_id", b"\1" + UUID(guid).bytes)]
    keys = [framed(key_number, "long", 5), None]
    values = [encode(V1, {"n": 1}), framed(number, V1, {"n": 2})]
    found = decoder.decode(batch_of(values, keys=keys, headers=[header, None]), ["key", "value"])
    assert found.to_pylist() == [{"key": 5, "value": {"n": 1}}, {"key": None, "value": {"n": 2}}]


def test_the_first_bad_value_ends_a_query_with_its_place(url: str) -> None:
    number = register(url, "t-value", V1)
    decoder = BatchDecoder(formats(valueFormat="avro", schema_registry_url=url))
    good, cut = framed(number, V1, {"n": 1}), b"\0" + number.to_bytes(4, "big")
    place = "topic t, partition 3, offset 11: the value cannot be decoded: "
    for bad, reason in (
        (cut, "the value ends too early"),
        (b"{}", "the value has 2 bytes, too few for the id of a schema"),
        (b'{"a": 1}', "the value begins with 0x7b, not with 0 and the id of a schema"),
        (
            framed(9999, V1, {"n": 1}),
            r"schema registry .*: schemas/ids/9999: HTTP 404: Schema 9999 not found \(error 40403\)",
        ),
    ):
        with pytest.raises(UndecodableValueError, match=place + reason):
            decoder.decode(batch_of([good, bad, bad]), ALL)


def test_permissive_keeps_the_bytes_and_counts(url: str, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    number, other = register(url, "t-value", V1), register(url, "other", OTHER)
    letters = DeadLetters(OsFs(), str(tmp_path / "a" / "letters"))
    chosen = formats(valueFormat="avro", schema_registry_url=url)
    decoder = BatchDecoder(chosen, permissive=True, dead_letters=letters)
    wanted = ["offset", "value", "valueBytes"]
    assert set(decoder.input_columns(wanted)) >= {"key", "value", "timestamp", "topic", "partition", "offset"}
    good, bad, wrong = framed(number, V1, {"n": 1}), b"bad", framed(other, OTHER, {"n": 1})
    found = list(decoder.decode_all(iter([batch_of([good, bad, None, wrong], keys=[b"k"] * 4)]), wanted))
    assert [row for batch in found for row in batch.to_pylist()] == [
        {"offset": 10, "value": {"n": 1}, "valueBytes": None},
        {"offset": 11, "value": None, "valueBytes": bad},
        {"offset": 12, "value": None, "valueBytes": None},
        {"offset": 13, "value": None, "valueBytes": wrong},
    ]
    with caplog.at_level(logging.WARNING):
        decoder.close()
    (name,) = (tmp_path / "a" / "letters").iterdir()
    rows = parquet.read_table(name).to_pylist()
    assert [(row["topic"], row["partition"], row["offset"], row["value"], row["column"]) for row in rows] == [
        ("t", 3, 11, bad, "value"),
        ("t", 3, 13, wrong, "value"),
    ]
    assert rows[1]["reason"] == f"schema {other}: the value: record G cannot be read as record F"
    assert rows[0]["key"] == b"k"


def test_many_bad_values_are_written_before_the_end(tmp_path: Path) -> None:
    letters = DeadLetters(OsFs(), str(tmp_path))
    decoder = BatchDecoder(formats(valueFormat="avro", valueSchema='"int"'), permissive=True, dead_letters=letters)
    for _ in range(2):
        decoder.decode(batch_of([b""] * 6000), ["value"])
    assert len(list(tmp_path.iterdir())) == 1
    decoder.close()
    decoder.close()
    assert sum(parquet.read_table(path).num_rows for path in tmp_path.iterdir()) == 12_000


def test_a_registry_that_does_not_answer_is_no_bad_value(running: Broker, url: str) -> None:
    number = register(url, "t-value", V1)
    decoder = BatchDecoder(
        formats(valueFormat="avro", valueSchema=json.dumps(V1), schema_registry_url=url), permissive=True
    )
    running.stop()
    try:
        with pytest.raises(RequestFailedError, match="refused"):
            decoder.decode(batch_of([framed(number + 7, V1, {"n": 1})]), ["value"])
    finally:
        running.start()


def test_topics_with_different_schemas_are_refused(url: str) -> None:
    register(url, "a-value", V1)
    register(url, "b-value", V2)
    register(url, "c-value", V1)
    with pytest.raises(InvalidConfigError, match="topics a and b have different schemas"):
        formats(["a", "b"], valueFormat="avro", schema_registry_url=url)
    formats(["a", "c"], valueFormat="avro", schema_registry_url=url)
    formats(["a", "b"], valueFormat="avro", schema_registry_url=url, valueSchema=json.dumps(V1))
    formats(["a", "b"], valueFormat="avro", schema_registry_url=url, valueSubject="a-value")
    with pytest.raises(SchemaNotFoundError, match=r"d-value.*valueSchema or valueSubject"):
        formats(["d"], valueFormat="avro", schema_registry_url=url)
    with pytest.raises(InvalidConfigError, match="there is no topic whose schema"):
        formats([], valueFormat="avro", schema_registry_url=url)


def test_subjects_are_named_by_the_record(url: str) -> None:
    number = register(url, "F", V1)
    options = {"valueFormat": "avro", "schema_registry_url": url, "valueSubjectStrategy": "RecordName"}
    decoder = BatchDecoder(formats(["x"], **options, valueRecordName="F"))
    assert _values(decoder.decode(batch_of([framed(number, V1, {"n": 4})]), ["value"])) == [{"n": 4}]


def test_a_schema_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "f.avsc"
    path.write_text(json.dumps(V1))
    decoder = BatchDecoder(formats(valueFormat="avro", valueSchema=str(path)))
    assert _values(decoder.decode(batch_of([encode(V1, {"n": 4})]), ["value"])) == [{"n": 4}]
    with pytest.raises(InvalidConfigError, match=r"option valueSchema: .*none.avsc cannot be read"):
        formats(valueFormat="avro", valueSchema=str(tmp_path / "none.avsc"))


def test_a_schema_that_is_not_supported_ends_before_reading() -> None:
    with pytest.raises(SchemaError, match="contains itself"):
        formats(
            valueFormat="avro",
            valueSchema='{"type":"record","name":"L","fields":[{"name":"next","type":["null","L"]}]}',
        )
