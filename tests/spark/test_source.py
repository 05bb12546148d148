"""The data source in a real session; `read/test_batch_reader.py` has the tests that need none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from seglog.spark.read.schema import record_schema
from tests import golden
from tests.kafka.jars import KafkaVersion
from tests.kafka.records import ConsumedRecord
from tests.spark.logs import as_row

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log directory of the golden set, written by Kafka 4.4.0."""
    return golden.unpack(tmp_path_factory.mktemp("golden"), "4.4.0")


def load(spark: SparkSession, path: Path | str, options: Mapping[str, str] | None = None) -> DataFrame:
    return spark.read.format("seglog").options(**(options or {})).load(str(path))


def rows(frame: DataFrame) -> list[tuple[object, ...]]:
    """All rows as `tests.spark.logs.as_row` makes them, by topic, partition and offset."""
    wanted = ["topic", "partition", "offset", "millis", "timestampType", "key", "value", "headers"]
    found = frame.selectExpr(*(name if name != "millis" else "unix_millis(timestamp) AS millis" for name in wanted))
    return sorted(
        ((*row[:-1], _pairs(row.headers)) for row in found.collect()),
        key=lambda row: row[:3],
    )


def _pairs(headers: Sequence[Any] | None) -> tuple[tuple[str, bytes | None], ...] | None:
    return None if headers is None else tuple((header.key, header.value) for header in headers)


@pytest.mark.parametrize("version", ["4.4.0", "2.8.2"])
def test_reads_kafkas_logs_as_its_consumer_does(spark: SparkSession, tmp_path: Path, version: KafkaVersion) -> None:
    root = golden.unpack(tmp_path, version)
    expected: list[ConsumedRecord] = []
    for partition in golden.partitions(root):
        if not partition.startswith("__"):
            expected += golden.expected_records(root, partition)
    frame = load(spark, golden.log_dir(root), {"includeHeaders": "true"})
    assert rows(frame) == sorted((as_row(record) for record in expected), key=lambda row: row[:3])


def test_the_schema_is_that_of_sparks_kafka_connector(spark: SparkSession, kafka: Path) -> None:
    assert load(spark, golden.log_dir(kafka)).schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int>"
    )
    with_headers = load(spark, golden.log_dir(kafka), {"includeHeaders": "true"}).schema
    assert with_headers == record_schema(include_headers=True)
    assert with_headers["headers"].dataType.simpleString() == "array<struct<key:string,value:binary>>"
    assert all(field.nullable for field in with_headers)


def test_a_schema_is_a_choice_of_columns(spark: SparkSession, kafka: Path) -> None:
    reader = spark.read.format("seglog").schema("offset bigint, value binary").option("subscribe", "codec-zstd")
    found = reader.load(str(golden.log_dir(kafka))).orderBy("offset").collect()
    expected = golden.expected_records(kafka, "codec-zstd-0")
    assert [tuple(row) for row in found] == [(record.offset, record.value) for record in expected]
    with pytest.raises(PySparkException, match="there is no column 'ofset'"):
        spark.read.format("seglog").schema("ofset bigint").load(str(golden.log_dir(kafka))).count()


def test_several_paths_globs_and_one_partition(spark: SparkSession, kafka: Path) -> None:
    data = golden.log_dir(kafka)
    partitions = [str(data / "rolled-0"), str(data / "codec-lz4-0")]
    count = len(golden.expected_records(kafka, "rolled-0")) + len(golden.expected_records(kafka, "codec-lz4-0"))
    assert spark.read.format("seglog").load(partitions).count() == count
    assert load(spark, f"{data}/a.b-c_d-[01]").select("partition").distinct().count() == 2
    assert load(spark, data, {"assign": '{"a.b-c_d": [1]}'}).select("partition").distinct().collect() == [(1,)]


def test_a_partition_is_read_by_several_tasks_each_record_once(spark: SparkSession, kafka: Path) -> None:
    frame = load(spark, golden.log_dir(kafka), {"subscribe": "rolled", "minPartitions": "5"})
    assert frame.rdd.getNumPartitions() >= 5
    offsets = [row.offset for row in frame.select("offset").collect()]
    assert offsets == [record.offset for record in golden.expected_records(kafka, "rolled-0")]


def test_a_range_of_offsets(spark: SparkSession, kafka: Path) -> None:
    offsets = {"startingOffsets": '{"rolled": {"0": 31}}', "endingOffsets": '{"rolled": {"0": 107}}'}
    frame = load(spark, golden.log_dir(kafka), {"subscribe": "rolled", **offsets})
    assert [row.offset for row in frame.select("offset").collect()] == list(range(31, 107))


def test_nothing_to_read_is_not_an_error(spark: SparkSession, kafka: Path) -> None:
    assert load(spark, golden.log_dir(kafka), {"subscribe": "empty"}).collect() == []
    assert load(spark, golden.log_dir(kafka), {"subscribePattern": "no.*"}).count() == 0


def test_a_load_is_a_snapshot_and_the_next_one_sees_more(spark: SparkSession, kafka: Path, tmp_path: Path) -> None:
    source = golden.log_dir(kafka) / "codec-none-0" / f"{0:020d}.log"
    target = tmp_path / "grows-0" / source.name
    target.parent.mkdir()
    whole = source.read_bytes()
    size = int.from_bytes(whole[8:12], "big") + 12
    target.write_bytes(whole[: size + 30])  # a batch, and a piece of the next one that a broker is just writing
    first = load(spark, tmp_path)
    count = first.count()
    target.write_bytes(whole)
    assert first.count() == count < load(spark, tmp_path).count() == 156


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffset": "earliest"}, "unknown option 'startingoffset'; did you mean startingOffsets?"),
        ({"subscribe": "no-such-topic"}, "there is no topic 'no-such-topic'"),
        ({"subscribe": "rolled", "endingOffsets": '{"rolled": {"0": 999}}'}, "log end offset 180; 999 is outside"),
    ],
)
def test_an_error_names_the_wrong_option(
    spark: SparkSession, kafka: Path, options: dict[str, str], message: str
) -> None:
    with pytest.raises(PySparkException) as refused:
        load(spark, golden.log_dir(kafka), options).count()
    assert message in str(refused.value)


def test_damage_is_named_by_file_and_position(spark: SparkSession, kafka: Path, tmp_path: Path) -> None:
    source = golden.log_dir(kafka) / "codec-none-0" / f"{0:020d}.log"
    damaged = tmp_path / "bad-0" / source.name
    damaged.parent.mkdir()
    data = bytearray(source.read_bytes())
    position = int.from_bytes(data[8:12], "big") + 12
    data[position + 61] ^= 1
    damaged.write_bytes(data)
    with pytest.raises(PySparkException) as failed:
        load(spark, tmp_path).count()
    assert f"CorruptBatchError: {damaged}, position {position}, offset" in str(failed.value)
    assert "stored CRC" in str(failed.value)
