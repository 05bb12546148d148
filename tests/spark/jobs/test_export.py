"""An export holds every record of the log once, whatever happened on the way."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from seglog.cli.main import main
from seglog.core.errors import (
    InvalidConfigError,
    InvalidRecordError,
    OffsetOutOfRangeError,
    TimestampRangeError,
    UnknownTopicError,
)
from seglog.core.fs import OsFs
from seglog.records.record import NewRecord, encode_batch, end_txn_marker
from seglog.spark.jobs.export import ExportInUseError, export
from seglog.spark.jobs.export_state import OWN, locked, read_state
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.log.admit import Origin

pytestmark = pytest.mark.xdist_group("spark-jobs")

DAY_MS = 86_400_000
NOON = int(datetime(2013, 1, 1, 12, tzinfo=UTC).timestamp() * 1000)
SMALL: Mapping[str, object] = {"internal.segment.bytes": 4_000, "segment.index.bytes": 600, "index.interval.bytes": 300}


def _write(path: Path, records: Iterable[tuple[str, int, NewRecord]], *, partitions: int = 2) -> None:
    with LogDir.open(path) as directory:
        for topic, partition, record in records:
            if topic not in directory.topics():
                directory.create_topic(topic, partitions, {**SMALL, "retention.ms": -1})
            directory.log(topic, partition).append_records([record])


def _flights(count: int, *, seed: int = 0, days: int = 3) -> list[tuple[str, int, NewRecord]]:
    rng = random.Random(seed)
    return [
        (
            "flights",
            rng.randrange(2),
            NewRecord(
                json.dumps({"at": at}).encode() if rng.random() < 0.9 else None,
                b"key-%d" % at if rng.random() < 0.9 else None,
                NOON + rng.randrange(days) * DAY_MS,
                (("h", b"1"), ("h", None)) if rng.random() < 0.2 else (),
            ),
        )
        for at in range(count)
    ]


def _files(output: Path) -> list[Path]:
    """The files that a reader of Parquet finds. It skips names that begin with _ or a dot."""
    found = sorted(output.rglob("*.parquet"))
    return [file for file in found if not any(part[0] in "_." for part in file.relative_to(output).parts)]


def _rows(output: Path) -> list[dict[str, Any]]:
    rows = []
    for file in _files(output):
        topic, date = (part.partition("=")[2] for part in file.relative_to(output).parts[:2])
        with file.open("rb") as data:
            rows += [{"topic": topic, "date": date, **row} for row in pq.read_table(data).to_pylist()]
    return sorted(rows, key=lambda row: (row["topic"], row["partition"], row["offset"]))


def _expected(spark: SparkSession, path: Path) -> list[dict[str, Any]]:
    """As the source reads it, which is held to the real connector."""
    frame = spark.read.format("seglog").option("path", str(path)).option("includeHeaders", "true").load()
    rows = [row.asDict(recursive=True) for row in frame.selectExpr("date(timestamp) as date", "*").collect()]
    for row in rows:
        row["date"] = str(row["date"])
        row["timestamp"] = row["timestamp"].astimezone(UTC)
        row["key"], row["value"] = (None if row[name] is None else bytes(row[name]) for name in ("key", "value"))
        for header in row["headers"] or ():
            header["value"] = None if header["value"] is None else bytes(header["value"])
    return sorted(rows, key=lambda row: (row["topic"], row["partition"], row["offset"]))


def test_each_run_writes_new_records_only(spark: SparkSession, tmp_path: Path) -> None:
    log, output = tmp_path / "log", tmp_path / "out"
    _write(log, _flights(300))
    first = export(spark, log, output)
    assert (first.records, len(first.ranges), first.files) == (300, 2, len(_files(output)))
    assert _rows(output) == _expected(spark, log)
    again = export(spark, log, output)
    assert (again.records, again.files, again.ranges) == (0, 0, ())
    held = {file: file.read_bytes() for file in _files(output)}
    _write(log, [*_flights(50, seed=1), ("other.topic", 0, NewRecord(b"v", None, NOON))])
    second = export(spark, log, output)
    assert (second.records, {one.topic for one in second.ranges}) == (51, {"flights", "other.topic"})
    assert {file: file.read_bytes() for file in held} == held
    assert _rows(output) == _expected(spark, log)
    state = read_state(OsFs(), str(output))
    assert state is not None
    assert (state.runs, state.records, state.pending) == (2, 351, ())
    assert sorted(path.name for path in (output / OWN).iterdir()) == [".lock", "state.json"]


def test_spark_reads_it_by_topic_and_date(spark: SparkSession, tmp_path: Path) -> None:
    log, output = tmp_path / "log", tmp_path / "out"
    _write(log, _flights(100))
    export(spark, log, output, columns=["value", "offset"], value="json", compression="snappy")
    frame = spark.read.parquet(str(output))
    assert set(frame.columns) == {"value", "offset", "topic", "date"}
    assert frame.where("topic = 'flights' and date = date'2013-01-02'").count() == sum(
        record.timestamp == NOON + DAY_MS for _, _, record in _flights(100)
    )
    assert frame.selectExpr("sum(get_json_object(value, '$.at'))").first() == (
        float(sum(at for at, (_, _, record) in enumerate(_flights(100)) if record.value is not None)),
    )


def test_replaces_invalid_text_and_refuses_invalid_json(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "log"
    _write(log, [("t", 0, NewRecord(value, b"k", NOON)) for value in (b"ok", None, b"\xff!")])
    export(spark, log, tmp_path / "out", value="string")
    assert [row["value"] for row in _rows(tmp_path / "out")] == ["ok", None, "\ufffd!"]
    with pytest.raises(InvalidRecordError, match="the value of the record at offset 0 is not JSON"):
        export(spark, log, tmp_path / "json", value="json")
    assert _files(tmp_path / "json") == []


def test_offsets_for_the_first_run_and_an_end(spark: SparkSession, tmp_path: Path) -> None:
    log, output = tmp_path / "log", tmp_path / "out"
    _write(log, [("t", 0, NewRecord(b"%d" % at, None, NOON)) for at in range(20)], partitions=1)
    options = {"subscribe": "t", "startingOffsets": '{"t":{"0":5}}'}
    planned = export(spark, log, output, options={**options, "endingOffsets": '{"t":{"0":12}}'}, dry_run=True)
    assert [(one.start, one.end) for one in planned.ranges] == [(5, 12)]
    assert not output.exists()
    export(spark, log, output, options={**options, "endingOffsets": '{"t":{"0":12}}'})
    assert [row["offset"] for row in _rows(output)] == [*range(5, 12)]
    export(spark, log, output, options=options)
    assert [row["offset"] for row in _rows(output)] == [*range(5, 20)]


def test_files_end_at_their_size(spark: SparkSession, tmp_path: Path) -> None:
    log, output = tmp_path / "log", tmp_path / "out"
    rng = random.Random(0)
    with LogDir.open(log) as directory:
        directory.create_topic("t", 1)
        for _ in range(42):
            directory.log("t").append_records([NewRecord(rng.randbytes(500_000), None, NOON) for _ in range(2)])
    done = export(spark, log, output, compression="none", max_file_bytes=8 << 20, options={"minPartitions": "1"})
    sizes = [file.stat().st_size for file in _files(output)]
    assert (done.records, done.files, done.bytes) == (84, len(sizes), sum(sizes))
    assert len(sizes) >= 3
    assert [row["offset"] for row in _rows(output)] == [*range(84)]


def test_more_days_than_files_may_be_open(spark: SparkSession, tmp_path: Path) -> None:
    log, output = tmp_path / "log", tmp_path / "out"
    days = [at * 37 % 100 for at in range(300)]
    _write(log, [("t", 0, NewRecord(b"%d" % at, None, NOON + day * DAY_MS)) for at, day in enumerate(days)])
    export(spark, log, output)
    assert _rows(output) == _expected(spark, log)
    assert len({row["date"] for row in _rows(output)}) == 100


def test_a_day_that_no_calendar_has(spark: SparkSession, tmp_path: Path) -> None:
    log, output = tmp_path / "log", tmp_path / "out"
    with LogDir.open(log) as directory:
        directory.create_topic("t", 1, {"message.timestamp.after.max.ms": 2**63 - 1})
        for timestamp in (NOON, 300_000 * 365 * DAY_MS, 2**62):
            directory.log("t").append_records([NewRecord(b"v", None, timestamp)])
    with pytest.raises(TimestampRangeError, match=r"topic t, partition 0, offset 1: the timestamp .* milliseconds"):
        export(spark, log, output, columns=["offset"])
    export(spark, log, output, columns=["offset"], options={"mode": "permissive"})
    found = [(file.parent.name, file) for file in _files(output)]
    assert [name for name, _ in found] == ["date=2013-01-01", "date=__HIVE_DEFAULT_PARTITION__"]


def test_lost_records_are_an_error_or_reported(spark: SparkSession, tmp_path: Path) -> None:
    log, output = tmp_path / "log", tmp_path / "out"
    _write(log, [("t", 0, NewRecord(b"%d" % at, None, NOON)) for at in range(20)], partitions=1)
    export(spark, log, output)
    _write(log, [("t", 0, NewRecord(b"%d" % at, None, NOON)) for at in range(20, 40)], partitions=1)
    with LogDir.open(log) as directory:
        directory.log("t").delete_records(25)
    with pytest.raises(OffsetOutOfRangeError, match=r"t-0 was exported to offset 20 and begins at 25 now.*failOnData"):
        export(spark, log, output)
    done = export(spark, log, output, options={"failOnDataLoss": "false"})
    assert done.losses == ("t-0 was exported to offset 20 and begins at 25 now",)
    assert [row["offset"] for row in _rows(output)] == [*range(20), *range(25, 40)]


def test_recreated_topic_is_not_mistaken_for_the_old_one(spark: SparkSession, tmp_path: Path) -> None:
    log, output = tmp_path / "log", tmp_path / "out"
    _write(log, [("t", 0, NewRecord(b"old", None, NOON))], partitions=1)
    export(spark, log, output)
    with LogDir.open(log) as directory:
        directory.delete_topic("t")
    _write(log, [("t", 0, NewRecord(b"new", None, NOON))] * 3, partitions=1)
    with pytest.raises(OffsetOutOfRangeError, match="created again"):
        export(spark, log, output)
    assert len(export(spark, log, output, options={"failOnDataLoss": "false"}).losses) == 1
    assert [row["value"] for row in _rows(output)].count(b"new") == 3


def test_refuses_wrong_arguments(spark: SparkSession, tmp_path: Path) -> None:
    log, output = tmp_path / "log", tmp_path / "out"
    _write(log, _flights(5))
    export(spark, log, output, columns=["value", "offset"])
    with pytest.raises(InvalidConfigError, match=r"was started with columns = \['value', 'offset'\]"):
        export(spark, log, output)
    with pytest.raises(InvalidConfigError, match="an export does not take option keyEquals"):
        export(spark, log, output, options={"keyEquals": "a"})
    with pytest.raises(InvalidConfigError, match="they must be some of"):
        export(spark, log, output, columns=["topic"])
    with pytest.raises(InvalidConfigError, match="binary, string, json"):
        export(spark, log, output, key="text")
    with pytest.raises(InvalidConfigError, match="none, snappy"):
        export(spark, log, output, compression="brotli")
    with pytest.raises(UnknownTopicError):
        export(spark, log, tmp_path / "other", options={"subscribe": "none"})
    with locked(OsFs(), str(output)), pytest.raises(ExportInUseError, match="another export is writing to"):
        export(spark, log, output, columns=["value", "offset"])


def test_damage_leaves_the_output_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    log, output = tmp_path / "log", tmp_path / "out"
    _write(log, _flights(100))
    export(spark, log, output)
    held = _rows(output)
    _write(log, _flights(100, seed=1))
    path = max((log / "flights-0").glob("*.log"))
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    with pytest.raises(Exception, match="00000"):
        export(spark, log, output)
    assert _rows(output) == held
    data[-3] ^= 1
    path.write_bytes(data)
    export(spark, log, output)
    assert _rows(output) == _expected(spark, log)


def test_exports_committed_records_only(spark: SparkSession, tmp_path: Path) -> None:
    """Exports neither aborted records, nor those after the start of an open transaction."""
    log, output = tmp_path / "log", tmp_path / "out"

    def batch(value: bytes, sequence: int) -> bytearray:
        return encode_batch(
            [NewRecord(value, None, NOON)],
            producer_id=1,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=True,
        )

    def end(*, commit: bool) -> bytearray:
        return end_txn_marker(commit=commit, coordinator_epoch=0, producer_id=1, producer_epoch=0, timestamp=NOON)

    with LogDir.open(log) as directory:
        directory.create_topic("t", 1)
        partition = directory.log("t")
        partition.append(batch(b"aborted", 0))
        partition.append(end(commit=False), origin=Origin.COORDINATOR)
        partition.append(batch(b"committed", 1))
        partition.append(end(commit=True), origin=Origin.COORDINATOR)
        partition.append(batch(b"open", 2))
        partition.append_records([NewRecord(b"behind", None, NOON)])
    assert [(one.start, one.end) for one in export(spark, log, output).ranges] == [(0, 4)]
    assert [row["value"] for row in _rows(output)] == [b"committed"]
    with LogDir.open(log) as directory:
        directory.log("t").append(end(commit=True), origin=Origin.COORDINATOR)
    export(spark, log, output)
    assert [row["value"] for row in _rows(output)] == [b"committed", b"open", b"behind"]
    everything = tmp_path / "everything"
    export(spark, log, everything, options={"isolationLevel": "read_uncommitted"})
    assert len(_rows(everything)) == 4


def test_the_command_says_what_it_did(
    spark: SparkSession, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    del spark  # the command takes the session that is there
    log, output = str(tmp_path / "log"), str(tmp_path / "out")
    _write(Path(log), _flights(30))
    assert main(["spark", "export", log, output, "--topic", "flights", "--value", "json", "--dry-run"]) == 0
    assert main(["spark", "export", log, output, "--topic", "flights", "--value", "json"]) == 0
    assert main(["spark", "export", log, output, "--value", "json", "--json"]) == 0
    assert main(["spark", "export", log, output, "--option", "until"]) == 2
    lines = capsysbinary.readouterr().out.decode().splitlines()
    assert lines[0].split() == ["topic", "partition", "from", "to"]
    assert lines[3] == "30 offsets of 2 partitions to export; nothing was changed"
    assert lines[7].startswith("30 records exported to ")
    assert json.loads(lines[8])["records"] == 0
