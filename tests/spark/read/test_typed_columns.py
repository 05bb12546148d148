"""Keys and values with types, through the source's reader and through Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import IntegerType, StructField, StructType

import seglog
from pyspark_seglog import DefaultSource
from seglog.core.errors import InvalidConfigError
from seglog.sources.options.read_options import parse_options
from seglog.testing import Broker
from seglog.values.registry import Registry
from seglog.values.schemas import SchemaError
from seglog.values.value_options import RegistryConfig
from tests.spark.logs import batches, make_reader
from tests.values.avro.test_decoder import encode
from tests.values.batches import framed, register

_PICKLING: Any = import_module("pyspark.cloudpickle")
pytestmark = pytest.mark.xdist_group("spark")
V1: Any = {"type": "record", "name": "F", "fields": [{"name": "n", "type": "int"}]}
V2: Any = {**V1, "fields": [*V1["fields"], {"name": "when", "type": ["null", "long"], "default": None}]}


@pytest.fixture(scope="module")
def running() -> Iterator[Broker]:
    with Broker(registry=True) as broker:
        yield broker


@pytest.fixture
def url(running: Broker) -> str:
    running.reset()
    return running.registry_url


def _write(path: Path, topic: str, *values: bytes | None) -> None:
    with seglog.open(path) as directory:
        if topic not in directory.topics():
            directory.create_topic(topic)
        directory.log(topic).append_records([seglog.NewRecord(value, key=b"k") for value in values])


def _options(path: Path, url: str, **more: str) -> dict[str, str]:
    return {"path": str(path), "subscribe": "t", "valueFormat": "avro", "schema.registry.url": url, **more}


def _copy(one: Any) -> Any:
    """As Spark makes it for another process."""
    return _PICKLING.loads(_PICKLING.dumps(one))


def _read(options: dict[str, str]) -> list[dict[str, Any]]:
    return [row for batch in batches(make_reader(options)) for row in batch.to_pylist()]


def test_a_stream_and_a_batch_read_structs(spark: SparkSession, url: str, tmp_path: Path) -> None:
    first, second = register(url, "t-value", V1), register(url, "t-value", V2)
    _write(tmp_path, "t", framed(first, V1, {"n": 1}), None, framed(second, V2, {"n": 2, "when": 5}))
    options = _options(tmp_path, url)
    frame = spark.read.format("seglog").options(**options).load()
    assert frame.schema["value"].dataType.simpleString() == "struct<n:int,when:bigint>"
    rows = frame.select("offset", "value.n", "value.when", "key").collect()
    assert [tuple(row) for row in rows] == [(0, 1, None, b"k"), (1, None, None, b"k"), (2, 2, 5, b"k")]
    stream = spark.readStream.format("seglog").options(**options, startingOffsets="earliest").load()
    query = (
        stream.selectExpr("value.n", "offset")
        .writeStream.format("memory")
        .queryName("typed")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert sorted(tuple(row) for row in spark.table("typed").collect() if row.n) == [(1, 0), (2, 2)]


def test_all_types_of_avro_come_to_spark(spark: SparkSession, tmp_path: Path) -> None:
    fields: list[Any] = [
        "boolean", "int", "long", "float", "double", "bytes", "string",
        {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        {"type": "int", "logicalType": "date"}, {"type": "long", "logicalType": "timestamp-millis"},
        {"type": "long", "logicalType": "local-timestamp-micros"}, {"type": "long", "logicalType": "time-micros"},
        {"type": "string", "logicalType": "uuid"}, {"type": "array", "items": ["null", "int"]},
        {"type": "map", "values": "long"}, {"type": "enum", "name": "E", "symbols": ["A"]},
        ["null", "int", "string"], {"type": "fixed", "name": "D", "size": 12, "logicalType": "duration"},
    ]  # fmt: skip
    schema = {"type": "record", "name": "R", "fields": [{"name": f"f{n}", "type": one} for n, one in enumerate(fields)]}
    plain: list[Any] = [
        True,
        1,
        2,
        0.5,
        1.5,
        b"b",
        "s",
        b"\1\2",
        3,
        4,
        5,
        6,
        "u",
        [None, 1],
        {"k": 7},
        "A",
        "m",
        b"\1" * 12,
    ]
    physical = json.loads(json.dumps(schema).replace("logicalType", "unknown"))
    _write(tmp_path, "t", encode(physical, {f"f{n}": value for n, value in enumerate(plain)}))
    options = {"path": str(tmp_path), "valueFormat": "avro", "valueSchema": json.dumps(schema)}
    frame = spark.read.format("seglog").options(**options).load()
    (row,) = frame.selectExpr("to_json(value) j").collect()
    found = json.loads(row.j)
    assert found["f7"] == 2.58
    assert found["f13"] == [None, 1]
    assert found["f14"] == {"k": 7}
    assert found["f16"] == {"member1": "m"}
    assert found["f11"].startswith("00:00:00.000006")
    assert found["f17"] == dict.fromkeys(("months", "days", "milliseconds"), 0x01010101)


def test_permissive_adds_the_bytes_and_fills_dead_letters(url: str, tmp_path: Path) -> None:
    number = register(url, "t-value", V1)
    _write(tmp_path / "log", "t", framed(number, V1, {"n": 1}), b"bad")
    options = _options(tmp_path / "log", url, mode="permissive", deadLetter=str(tmp_path / "letters"))
    rows = _read(options)
    assert [(row["offset"], row["value"], row["valueBytes"]) for row in rows] == [
        (0, {"n": 1}, None),
        (1, None, b"bad"),
    ]
    assert len(list((tmp_path / "letters").iterdir())) == 1
    only = _read({**options, "columns": "valueBytes"})
    assert only == [{"valueBytes": None}, {"valueBytes": b"bad"}]


def test_a_query_keeps_the_schema_that_it_was_planned_with(url: str, tmp_path: Path) -> None:
    """Spark pickles the source after it has asked for the schema, and makes the reader from the copy."""
    number = register(url, "t-value", V1)
    _write(tmp_path, "t", framed(number, V1, {"n": 1}))
    source = DefaultSource(_options(tmp_path, url))
    schema = source.schema()
    copy = _copy(source)
    register(url, "t-value", V2)
    reader = _copy(copy.reader(schema))
    assert [row["value"] for batch in batches(reader) for row in batch.to_pylist()] == [{"n": 1}]


def test_a_schema_of_a_user_must_have_the_types(url: str, tmp_path: Path) -> None:
    number = register(url, "t-value", V1)
    _write(tmp_path, "t", framed(number, V1, {"n": 1}))
    value = StructType([StructField("n", IntegerType())])
    options = _options(tmp_path, url)
    assert [
        batch.to_pylist() for batch in batches(make_reader(options, StructType([StructField("value", value)])))
    ] == [[{"value": {"n": 1}}]]
    with pytest.raises(InvalidConfigError, match="column value is struct<n:int>, not int"):
        make_reader(options, StructType([StructField("value", IntegerType())]))


def test_two_topics_with_different_schemas_in_one_query_are_refused(url: str, tmp_path: Path) -> None:
    for topic, schema in (("t", V1), ("u", V2)):
        number = register(url, f"{topic}-value", schema)
        _write(tmp_path, topic, framed(number, schema, {"n": 1, "when": None}))
    with pytest.raises(InvalidConfigError, match="topics t and u have different schemas"):
        make_reader(_options(tmp_path, url, subscribe="t,u"))


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"deadLetter": "/x"}, "needs mode=permissive"),
        ({"deadLetter": "errors", "mode": "permissive"}, "topics are not supported as dead letters"),
        ({"view": "batches"}, "the view batches has no such columns"),
    ],
)
def test_options_that_contradict_each_other_are_refused(more: dict[str, str], reason: str) -> None:
    with pytest.raises(InvalidConfigError, match=reason):
        parse_options({"path": "/d", "valueFormat": "avro", "schema.registry.url": "http://a", **more})


@pytest.mark.parametrize(
    ("kind", "schema", "reason"),
    [
        ("json", "a itn", r"the type itn is not supported in a schema for JSON; did you mean int\?"),
        ("json", '{"type": "objct"}', "JSON Schema has no type objct"),
        ("avro", '"strin"', "the Avro type 'strin'"),
        ("protobuf", "mesage M {}", "the Protobuf schema cannot be compiled"),
    ],
)
@pytest.mark.parametrize("column", ["key", "value"])
def test_a_wrong_schema_names_its_option(tmp_path: Path, column: str, kind: str, schema: str, reason: str) -> None:
    options = {"path": str(tmp_path), f"{column}Format": kind, f"{column}Schema": schema}
    with pytest.raises(SchemaError, match=f"^option {column}Schema: {reason}"):
        DefaultSource(options).schema()


def test_dead_letters_need_a_format() -> None:
    with pytest.raises(InvalidConfigError, match="no effect without valueFormat"):
        parse_options({"path": "/d", "deadLetter": "/x", "mode": "permissive"})


def test_a_table_has_typed_columns(spark: SparkSession, tmp_path: Path) -> None:
    _write(tmp_path, "t", b'{"a": 1, "b": {"c": "x"}}', None)
    options = f"path '{tmp_path}', valueFormat 'json', valueSchema 'a int, b struct<c: string>'"
    spark.sql(f"CREATE TABLE typed_values USING seglog OPTIONS ({options})")
    try:
        rows = spark.sql("SELECT offset, value.a, value.b.c FROM typed_values ORDER BY offset").collect()
    finally:
        spark.sql("DROP TABLE typed_values")
    assert [tuple(row) for row in rows] == [(0, 1, "x"), (1, None, None)]


def test_protobuf_comes_to_spark(spark: SparkSession, url: str, tmp_path: Path) -> None:
    schema = (
        'syntax = "proto3"; import "google/protobuf/timestamp.proto"; message A { int32 x = 1; } '
        "message F { int64 n = 1; repeated A xs = 2; google.protobuf.Timestamp at = 3; map<string, double> m = 4; }"
    )
    registry = Registry(RegistryConfig(urls=(url,)))
    number = registry.register("t-value", "PROTOBUF", schema)
    value = b"\x08\x05\x12\x02\x08\x07\x1a\x02\x08\x3c\x22\x0c\x0a\x01k\x11" + b"\0" * 6 + b"\xf0\x3f"
    _write(tmp_path, "t", b"\0" + number.to_bytes(4, "big") + b"\x02\x02" + value)
    options = _options(tmp_path, url, valueFormat="protobuf", valueRecordName="F")
    (row,) = spark.read.format("seglog").options(**options).load().selectExpr("to_json(value) v").collect()
    assert json.loads(row.v) == {"n": 5, "xs": [{"x": 7}], "at": "1970-01-01T00:01:00.000Z", "m": {"k": 1.0}}


def test_a_table_keeps_no_secret(url: str) -> None:
    options = _options(Path("/d"), url, provider="seglog") | {
        "schema.registry.bearer.auth.token": "t",
        "valueSubject": "s",
    }
    register(url, "s", V1)
    with pytest.raises(InvalidConfigError, match=r"bearer.auth.token: the catalog would store it"):
        DefaultSource(options).schema()
