"""Frames with typed values, written to a directory and read back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from seglog.testing import Broker

pytestmark = pytest.mark.xdist_group("spark")
SCHEMA = {
    "type": "record",
    "name": "Flight",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    ],
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with Broker(registry=True) as broker:
        yield broker.registry_url


def test_a_struct_is_registered_written_and_read(spark: SparkSession, url: str, tmp_path: Path) -> None:
    frame = spark.range(20).selectExpr(
        "cast(id as string) key",
        "named_struct('id', id, 'name', if(id % 2 = 0, null, concat('n', id)), 'at', timestamp_seconds(id)) value",
    )
    options = {"valueFormat": "avro", "schema.registry.url": url}
    writer = frame.write.format("seglog").mode("append").option("topic", "flights").options(**options)
    writer.option("valueSchema", json.dumps(SCHEMA)).save(str(tmp_path))
    read = spark.read.format("seglog").options(**options).load(str(tmp_path))
    expected = sorted(frame.selectExpr("key", "to_json(value) v").collect())
    assert sorted(read.selectExpr("cast(key as string) key", "to_json(value) v").collect()) == expected
    raw = spark.read.format("seglog").load(str(tmp_path))
    assert {row[0] for row in raw.selectExpr("hex(substring(value, 1, 5))").collect()} == {"0000000001"}


def test_a_stream_writes_structs(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "source"
    spark.range(5).selectExpr("named_struct('id', id) value").write.parquet(str(source))
    stream = spark.readStream.schema("value struct<id: bigint>").parquet(str(source))
    query = (
        stream.writeStream.format("seglog")
        .option("path", str(tmp_path / "log"))
        .option("topic", "ids")
        .options(valueFormat="json", valueSchema="id bigint")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    rows = spark.read.format("seglog").load(str(tmp_path / "log")).selectExpr("cast(value as string) v").collect()
    assert sorted(row.v for row in rows) == [f'{{"id":{number}}}' for number in range(5)]
