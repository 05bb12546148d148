"""The data source's reader as a plain object: no JVM."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType

import seglog.spark
from pyspark_seglog import DefaultSource
from seglog.core.errors import CorruptBatchError, InvalidConfigError, OffsetOutOfRangeError
from seglog.core.types import TopicPartition
from seglog.records.batch import read_header
from seglog.records.compression import Codec
from seglog.records.record import NewRecord, decode_records
from seglog.spark.read.batch_reader import SeglogReader
from seglog.spark.read.schema import COLUMNS, record_schema
from tests import golden
from tests.kafka.jars import KafkaVersion
from tests.spark.logs import as_row, batches, make_reader, offsets, rows, write_partition

RECORDS = [
    NewRecord(b"value", b"key", 1_700_000_000_000, (("a", b"1"), ("a", None), ("ключ", b""))),
    NewRecord(None, b"", 1_700_000_000_001),
    NewRecord(b"", None, 1_699_999_999_999, (("", b""),)),
    NewRecord(b"x" * 3000, None, -1),
]


@pytest.mark.parametrize("version", ["4.4.0", "2.8.2"])
def test_each_partition_that_kafka_wrote(tmp_path: Path, version: KafkaVersion) -> None:
    root = golden.unpack(tmp_path, version)
    for name in golden.partitions(root):
        expected = [as_row(record) for record in golden.expected_records(root, name)]
        options = {"path": str(golden.log_dir(root) / name), "includeHeaders": "true"}
        topic = name.rpartition("-")[0]
        assert rows(make_reader({**options, "subscribe": topic})) == expected
        if expected:
            offsets = [record.offset for record in golden.expected_records(root, name)]
            first, last = offsets[len(offsets) // 3], offsets[len(offsets) * 2 // 3]
            number = name.rpartition("-")[2]
            some = {
                "startingOffsets": f'{{"{topic}": {{"{number}": {first}}}}}',
                "endingOffsets": f'{{"{topic}": {{"{number}": {last}}}}}',
                "minPartitions": "3",
                "subscribe": topic,
            }
            inside = [row for row, offset in zip(expected, offsets, strict=True) if first <= offset < last]
            assert rows(make_reader({**options, **some})) == inside


@pytest.mark.parametrize("codec", list(Codec))
def test_codecs_headers_and_nulls_as_the_plain_decoder_has_them(tmp_path: Path, codec: Codec) -> None:
    log = write_partition(tmp_path / "t-3", [RECORDS, RECORDS[:1]], base_offset=70, codec=codec)
    data, expected = log.read_bytes(), []
    for position in (0, read_header(data).size):
        for record in decode_records(data, read_header(data, position), position):
            facts = (record.timestamp, 0, record.key, record.value, record.headers or None)
            expected += [("t", 3, record.offset, *facts)]
    assert len(expected) == 5
    assert rows(make_reader({"path": str(tmp_path), "includeHeaders": "true"})) == expected


def test_batches_have_exactly_the_schema_that_spark_wants(tmp_path: Path) -> None:
    write_partition(tmp_path / "t-0", [RECORDS[1:2], RECORDS], codec=Codec.ZSTD)
    write_partition(tmp_path / "t-1", [RECORDS[1:2]])  # no headers, no value: columns of nulls
    for schema in (
        record_schema(include_headers=True),
        record_schema(include_headers=False),
        StructType(
            [StructField("offset", LongType(), nullable=False), StructField("value", COLUMNS["value"].dataType)]
        ),
        StructType([COLUMNS["headers"], COLUMNS["timestamp"]]),
    ):
        expected = to_arrow_schema(schema, timezone="UTC")
        found = list(batches(make_reader({"path": str(tmp_path)}, schema)))
        assert found
        for batch in found:
            assert expected.equals(batch.schema)
            batch.validate(full=True)


def test_schemas_that_are_refused(tmp_path: Path) -> None:
    for schema, message in (
        (
            StructType([StructField("ofset", LongType())]),
            r"there is no column 'ofset'; there are key, .*; did you mean offset\?",
        ),
        (StructType([StructField("offset", StringType())]), "column offset is bigint, not string"),
        (
            StructType([StructField("value", COLUMNS["value"].dataType, nullable=False)]),
            "column value must be nullable",
        ),
        (StructType([COLUMNS["offset"], COLUMNS["offset"]]), "names a column twice"),
    ):
        with pytest.raises(InvalidConfigError, match=message):
            make_reader({"path": str(tmp_path)}, schema)


def test_a_reader_travels(tmp_path: Path) -> None:
    write_partition(tmp_path / "t-0", [RECORDS] * 3)
    reader = make_reader({"path": str(tmp_path), "includeHeaders": "true", "minPartitions": "3"})
    pickling: Any = cloudpickle
    travelled, partitions = pickling.loads(pickling.dumps((reader, reader.partitions())))
    assert [batch for part in partitions for batch in travelled.read(part)] == list(batches(reader))


def test_filters_are_not_pushed_down() -> None:
    assert SeglogReader.pushFilters is DataSourceReader.pushFilters


def test_nothing_to_read(tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    reader = make_reader({"path": str(tmp_path)})
    assert list(reader.partitions()) == []
    assert list(reader.read(InputPartition(None))) == []


@pytest.mark.parametrize("nothing", ["{}", '{"t": []}', '{"other": []}'])
@pytest.mark.parametrize("view", ["records", "latest", "batches", "segments"])
def test_no_partition_assigned(tmp_path: Path, nothing: str, view: str) -> None:
    write_partition(tmp_path / "t-0", [RECORDS])
    source = DefaultSource({"path": str(tmp_path), "assign": nothing, "view": view})
    assert list(source.reader(schema=source.schema()).partitions()) == []


def test_one_word_for_all_partitions_of_a_topic(tmp_path: Path) -> None:
    for name in ("a-0", "a-1", "b-0"):
        write_partition(tmp_path / name, [RECORDS])
    bounds = {
        "startingOffsets": '{"a": "earliest", "b": {"0": 2}}',
        "endingOffsets": '{"a": {"0": 1, "1": -1}, "b": "latest"}',
    }
    assert offsets(make_reader({"path": str(tmp_path), **bounds})) == [0, 0, 1, 2, 3, 2, 3]


def test_kafka_options_are_ignored_with_one_warning(tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    with pytest.warns(UserWarning, match=r"it ignores kafka\.acks, kafka\.group\.id") as caught:
        make_reader({"path": str(tmp_path), "kafka.group.id": "1", "kafka.acks": "2"})
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_reader({"path": str(tmp_path)})


@pytest.mark.filterwarnings("ignore:seglog. no file has the high watermarks of some replicas")
def test_of_replicas_the_longest_is_read(tmp_path: Path) -> None:
    for broker, count in (("a", 2), ("b", 5), ("c", 3)):
        write_partition(tmp_path / broker / "t-0", [RECORDS[:1]] * count)
    write_partition(tmp_path / "a" / "t-1", [RECORDS[:1]])
    tasks = make_reader({"path": f"{tmp_path}/*"}).ranges()
    assert [(task.topic_partition.partition, task.offsets) for task in tasks] == [(0, (0, 5)), (1, (0, 1))]
    assert tasks[0].pieces[0].log.startswith(f"{tmp_path}/b/")


def test_records_before_the_log_start_offset_are_gone(tmp_path: Path) -> None:
    write_partition(tmp_path / "t-0", [RECORDS, RECORDS])
    (tmp_path / "log-start-offset-checkpoint").write_text("0\n1\nt 0 6\n")
    assert [row[2] for row in rows(make_reader({"path": str(tmp_path), "includeHeaders": "true"}))] == [6, 7]
    with pytest.raises(OffsetOutOfRangeError, match="log start offset 6"):
        make_reader({"path": str(tmp_path), "startingOffsets": '{"t": {"0": 5}}'}).partitions()


def test_damage_has_file_position_and_offset(tmp_path: Path) -> None:
    log = write_partition(tmp_path / "t-0", [RECORDS, RECORDS])
    data = bytearray(log.read_bytes())
    position = len(data) // 2
    data[position + 70] ^= 1
    log.write_bytes(data)
    with pytest.raises(CorruptBatchError) as damage:
        list(batches(make_reader({"path": str(tmp_path)})))
    assert (damage.value.file, damage.value.position, damage.value.offset) == (str(log), position, 4)


def test_a_big_partition_is_split_without_an_index_and_with_one(tmp_path: Path) -> None:
    log = write_partition(tmp_path / "t-0", [RECORDS] * 2000, codec=Codec.LZ4)
    size = log.stat().st_size
    options = {"path": str(tmp_path), "maxBytesPerPartition": str(size // 3)}
    tasks = make_reader(options).ranges()
    assert len(tasks) in (3, 4)
    assert {task.topic_partition for task in tasks} == {TopicPartition("t", 0)}
    assert [row[2] for row in rows(make_reader({**options, "includeHeaders": "true"}))] == list(range(8000))


def test_importing_seglog_spark_does_not_load_pyspark() -> None:
    code = "import sys, seglog.spark; print([m for m in ('pyspark', 'numpy', 'pyarrow') if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
    assert "get_spark" in seglog.spark.__all__


def test_columns_by_option_with_those_that_the_connector_does_not_have(tmp_path: Path) -> None:
    write_partition(tmp_path / "t-0", [RECORDS])
    reader = make_reader({"path": str(tmp_path), "columns": "leaderEpoch, offset, isControl, producerEpoch"})
    found = [batch.to_pylist() for batch in batches(reader)]
    row = {"leaderEpoch": -1, "isControl": False, "producerEpoch": -1}
    assert found == [[{**row, "offset": offset} for offset in range(4)]]
    with pytest.raises(
        InvalidConfigError, match=r"option columns: there is no column 'ofset'; .*; did you mean offset\?"
    ):
        make_reader({"path": str(tmp_path), "columns": "ofset"})
    with pytest.raises(InvalidConfigError, match="names a column twice"):
        make_reader({"path": str(tmp_path), "columns": "offset, offset"})


def test_filters_keys_with_any_columns(tmp_path: Path) -> None:
    write_partition(tmp_path / "t-0", [RECORDS, RECORDS[:1]], codec=Codec.ZSTD)
    for keys, expected in (('["key"]', [0, 4]), ("[null]", [2, 3]), ('["", "key"]', [0, 1, 4]), ("[]", [])):
        assert offsets(make_reader({"path": str(tmp_path), "columns": "offset", "keyIn": keys})) == expected


@pytest.mark.parametrize("name", ["rolled", "rolled-by-time", "codec-none", "append-time", "compacted"])
def test_times_are_looked_up_as_a_broker_does(tmp_path: Path, name: str) -> None:
    """Against a look at every record that Kafka's consumer read."""
    root = golden.unpack(tmp_path, "4.4.0")
    records = golden.expected_records(root, f"{name}-0")
    stamps = sorted(record.timestamp for record in records)
    options = {"path": str(golden.log_dir(root)), "subscribe": name, "columns": "offset"}
    there = offsets(make_reader(options))
    for wanted in (0, stamps[0], stamps[len(stamps) // 2], stamps[-1]):
        first = next(record.offset for record in records if record.timestamp >= wanted)
        later, earlier = ([at for at in there if at >= first], [at for at in there if at < first])
        assert offsets(make_reader({**options, "startingTimestamp": str(wanted)})) == later
        assert offsets(make_reader({**options, "endingTimestamp": str(wanted)})) == earlier
    beyond = {**options, "startingTimestamp": str(stamps[-1] + 1)}
    with pytest.raises(OffsetOutOfRangeError, match=r"option startingTimestamp: .* has no record with timestamp"):
        make_reader(beyond).partitions()
    assert offsets(make_reader({**beyond, "startingOffsetsByTimestampStrategy": "latest"})) == []
    assert offsets(make_reader({**options, "endingTimestamp": str(stamps[-1] + 1)})) == there


def test_without_fail_on_data_loss_reads_the_existing_records(tmp_path: Path) -> None:
    write_partition(tmp_path / "t-0", [RECORDS], base_offset=10)
    given = {"startingOffsets": '{"t": {"0": 3}}', "endingOffsets": '{"t": {"0": 50}}'}
    options = {"path": str(tmp_path), "columns": "offset", **given}
    with pytest.raises(OffsetOutOfRangeError, match="3 is outside; set option failOnDataLoss"):
        make_reader(options).partitions()
    with pytest.warns(UserWarning, match="data was lost") as warned:
        assert offsets(make_reader({**options, "failOnDataLoss": "false"})) == [10, 11, 12, 13]
    assert len(warned) == 2
