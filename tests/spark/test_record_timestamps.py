"""Timestamps that are no milliseconds, and those at the ends of what readers know: through every reader of records.

Each value comes out right, or as one error that names it, or in permissive mode as null; a table is never stuck.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from fastavro import parse_schema, schemaless_writer
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

import seglog
from pyspark_seglog import DefaultSource
from seglog.client.kept_connections import close_all
from seglog.core.errors import TimestampRangeError
from seglog.records.timestamps import CALENDAR, STORABLE, TimestampRange
from seglog.spark import table
from seglog.spark.read.schema import COLUMNS
from seglog.storage.directory.log_dir import LogDir
from seglog.table.building import Retention, TableUpdate, update_table
from seglog.table.iceberg.log_table import LogTable
from seglog.table.keyed.building import KeyedTableUpdate, update_keyed_table
from seglog.testing import Broker
from tests.cases import case
from tests.sources.views.view_reading import read
from tests.spark.odd_times import FORMS, NOW, ODD, TOPIC, batch, write_log
from tests.spark.stream_driver import SCHEMA, Checkpoint, Driver
from tests.table.tables import stored

pytestmark = pytest.mark.xdist_group("spark")
Times = Sequence[int | None]
FOR_FORMS = (NOW * 1_000_000, STORABLE.last + 1, -1, STORABLE.first - 1)
FOR_TABLES = (NOW * 1000, NOW * 1_000_000, -1, CALENDAR.first, CALENDAR.last, CALENDAR.last + 1, CALENDAR.first - 1)


KINDS: dict[str, Callable[..., TableUpdate | KeyedTableUpdate]] = {
    "all": update_table,
    "days": partial(update_table, partition_by="day", delta=True),
    "latest": update_keyed_table,
}


def _milliseconds(rows: pa.Table) -> Times:
    micros = rows.column("timestamp").cast(pa.int64()).to_pylist()
    return [None if one is None else one // 1000 for one in micros]


def _scanned(log: Path, **options: Any) -> Times:
    return _milliseconds(seglog.scan(log, **options).read_all())


def _sourced(options: dict[str, str]) -> Times:
    source = DefaultSource({"subscribe": TOPIC, **options})
    schema = source.schema()
    reader = source.reader(schema=schema)
    batches = [one for part in reader.partitions() for one in reader.read(part) if isinstance(one, pa.RecordBatch)]
    return _milliseconds(pa.Table.from_batches(batches).sort_by([("offset", "ascending")]))


class _Watching(Driver):
    """Keeps the records of a stream."""

    def __init__(self, options: dict[str, str]) -> None:
        options = {"subscribe": TOPIC, "startingOffsets": "earliest", **options}
        super().__init__(Checkpoint(), options, schema=StructType([*SCHEMA.fields, COLUMNS["timestamp"]]))
        self.batches: list[pa.RecordBatch] = []

    def _watch(self, batch: pa.RecordBatch) -> None:
        self.batches.append(batch)


def _streamed(options: dict[str, str]) -> Times:
    stream = _Watching(options)
    stream.drain()
    return _milliseconds(pa.Table.from_batches(stream.batches).sort_by([("offset", "ascending")]))


def _in_a_stream(options: dict[str, str]) -> tuple[Callable[[], Times], Callable[[], Times]]:
    return lambda: _streamed(options), lambda: _streamed({**options, "mode": "permissive"})


def _both_modes(options: dict[str, str]) -> tuple[Callable[[], Times], Callable[[], Times]]:
    return lambda: _sourced(options), lambda: _sourced({**options, "mode": "permissive"})


def _check(value: int, known: TimestampRange, read_: Callable[[], Times], permissive: Callable[[], Times]) -> None:
    """A reader that knows that range of timestamps."""
    case()
    expected: Times = [NOW, value, NOW + 2]
    if value in known:
        assert read_() == expected
    else:
        where = f"topic {TOPIC}, partition 0, offset 1: the timestamp {value} is out of range: not milliseconds?"
        with pytest.raises(TimestampRangeError, match=re.escape(where)):
            read_()
        expected = [NOW, None, NOW + 2]
    assert permissive() == expected


@pytest.mark.parametrize(
    ("value", "form"),
    [*((value, "create") for value in ODD), *((value, form) for form in FORMS[1:] for value in FOR_FORMS)],
)
def test_scans_and_the_source_return_what_microseconds_hold(tmp_path: Path, value: int, form: str) -> None:
    log = write_log(tmp_path, value, form)
    typed = {"value_format": "json", "format_options": {"valueSchema": "n int"}}
    _check(value, STORABLE, lambda: _scanned(log), lambda: _scanned(log, permissive=True))
    if form == "create":
        _check(value, STORABLE, lambda: _scanned(log, **typed), lambda: _scanned(log, permissive=True, **typed))
    for more in ({}, {"view": "latest"}, {"valueFormat": "json", "valueSchema": "n int"}):
        _check(value, STORABLE, *_both_modes({"path": str(log), **more}))
    _check(value, STORABLE, *_in_a_stream({"path": str(log)}))
    assert seglog.scan(log, columns=["offset"]).read_all().num_rows == 3


@pytest.mark.parametrize("value", [NOW * 1000, NOW * 1_000_000, -2, STORABLE.first - 1])
def test_brokers_return_the_same(tmp_path: Path, value: int) -> None:
    with Broker(copy_of=write_log(tmp_path, value)) as broker:
        _check(value, STORABLE, *_both_modes({"kafka.bootstrap.servers": broker.bootstrap}))
        _check(value, STORABLE, *_in_a_stream({"kafka.bootstrap.servers": broker.bootstrap}))
        close_all()


@pytest.mark.parametrize("value", ODD)
def test_views_show_the_years_that_python_knows(tmp_path: Path, value: int) -> None:
    log = write_log(tmp_path, value)
    batches = read("batches", log)
    assert [row["maxTimestamp"] for row in batches] == [NOW, value, NOW + 2]
    if value <= NOW or value in CALENDAR:
        (segment,) = read("segments", log)
        assert segment["maxTimestamp"].timestamp() == pytest.approx(max(value, NOW + 2) / 1000)
    else:
        with pytest.raises(TimestampRangeError, match=rf"flights-0/0+.log: maxTimestamp: the timestamp {value} is"):
            read("segments", log)
    (segment,) = read("segments", log, {"mode": "permissive"})
    assert segment["firstTimestamp"] == datetime.fromtimestamp(NOW / 1000, UTC)
    assert read("segments", log, {"columns": "records"}) == [{"records": 3}]


@pytest.mark.parametrize("value", FOR_TABLES)
def test_a_table_has_the_years_that_its_readers_know_and_is_never_stuck(tmp_path: Path, value: int) -> None:
    log = str(write_log(tmp_path / "log", value))

    def updated(name: str, options: dict[str, str]) -> Times:
        path = tmp_path / name / TOPIC
        KINDS[name](log, path, topic=TOPIC, options=options)
        return _milliseconds(stored(path))

    for name, update in KINDS.items():
        _check(value, CALENDAR, partial(updated, name, {}), partial(updated, name, {"mode": "permissive"}))
        done = update(log, tmp_path / name / TOPIC, topic=TOPIC)
        assert (done.records, done.behind, done.null_timestamps) == (3, 0, 0)
    days = tmp_path / "days" / TOPIC
    found = (
        DeltaTable(days / "data").to_pyarrow_table(columns=["offset", "timestamp"]).sort_by([("offset", "ascending")])
    )
    assert _milliseconds(found) == _milliseconds(stored(days))
    with LogTable.open(days) as opened:
        assert opened.iceberg.scan(row_filter="timestamp >= '2020-01-01T00:00:00+00:00'").to_arrow().num_rows >= 2


def test_a_run_counts_the_timestamps_that_it_made_null(tmp_path: Path) -> None:
    log = str(write_log(tmp_path / "log", NOW * 1_000_000))
    for update in (update_table, update_keyed_table):
        done = update(log, tmp_path / update.__name__ / TOPIC, topic=TOPIC, options={"mode": "permissive"})
        assert done.null_timestamps == 1


@pytest.mark.parametrize("kind", ["timestamp-millis", "local-timestamp-millis", "date"])
def test_keys_and_values_with_times_beyond_the_calendar_are_stored(tmp_path: Path, kind: str) -> None:
    """Decoders know 64 bits of microseconds. pyiceberg makes datetimes of the bounds of keys."""
    base, number = ("int", 2**31 - 1) if kind == "date" else ("long", NOW * 1000)
    schema, encoded = {"type": base, "logicalType": kind}, BytesIO()
    schemaless_writer(encoded, parse_schema(base), number)
    record = json.dumps({"type": "record", "name": "r", "fields": [{"name": "at", "type": schema}]})
    with LogDir.open(tmp_path / "log") as directory:
        directory.create_topic(TOPIC, 1, {"retention.ms": -1})
        directory.log(TOPIC).append_records([seglog.NewRecord(encoded.getvalue(), encoded.getvalue(), NOW)])
    options = {"keyFormat": "avro", "keyFraming": "plain", "valueFormat": "avro", "valueFraming": "plain"}
    options |= {"keySchema": json.dumps(schema), "valueSchema": record}
    path = tmp_path / "warehouse" / TOPIC
    assert update_table(tmp_path / "log", path, topic=TOPIC, options=options, delta=True).records == 1
    rows = stored(path)
    at = pa.int32() if kind == "date" else pa.int64()
    expected = number if kind == "date" else number * 1000
    assert rows.column("key").combine_chunks().view(at).to_pylist() == [expected]
    assert pc.struct_field(rows.column("value"), "at").combine_chunks().view(at).to_pylist() == [expected]
    with LogTable.open(path) as opened:
        assert opened.iceberg.scan(row_filter="partition = 0").to_arrow().num_rows == 1


def test_records_without_a_timestamp_are_not_older_than_all_others(tmp_path: Path) -> None:
    log = str(write_log(tmp_path / "log", -1))
    path = tmp_path / "days" / TOPIC
    update_table(log, path, topic=TOPIC, partition_by="day")
    assert update_table(log, path, topic=TOPIC, retention=Retention(keep_ms=0)).expired_files == 1
    assert _milliseconds(stored(path)) == [-1]


def _shown(frame: DataFrame) -> Times:
    rows = frame.select("offset", f.unix_millis("timestamp")).collect()
    return [millis for _, millis in sorted(rows)]


@pytest.mark.parametrize(("value", "buckets"), [(NOW * 1000, None), (CALENDAR.first - 1, 4), (-1, None)])
def test_a_tail_has_the_timestamps_that_the_next_run_adds(
    spark: SparkSession, tmp_path: Path, value: int, buckets: int | None
) -> None:
    log, path = str(write_log(tmp_path / "log", value)), tmp_path / "warehouse" / TOPIC
    with LogTable.open_or_create(path, key_buckets=buckets):
        pass
    if value in CALENDAR:
        assert _shown(table(spark, path, tail=log)) == [NOW, value, NOW + 2]
        return
    with pytest.raises(PySparkException, match=f"topic {TOPIC}, partition 0, offset 1: the timestamp {value} is"):
        _shown(table(spark, path, tail=log))
    found = table(spark, path, tail=log, options={"mode": "permissive"}, columns=["timestamp", "offset"])
    assert _shown(found) == [NOW, None, NOW + 2]


def test_a_permissive_table_reads_its_tail_so(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "warehouse" / TOPIC
    short, log = (write_log(tmp_path / name, value) for name, value in (("short", NOW), ("log", NOW * 1000)))
    segment = short / f"{TOPIC}-0" / "00000000000000000000.log"
    segment.write_bytes(batch("create", 0, NOW))
    metadata = f"{TOPIC}-0/partition.metadata"
    (short / metadata).write_bytes((log / metadata).read_bytes())
    assert update_table(short, path, topic=TOPIC, options={"mode": "permissive"}).records == 1
    assert _shown(table(spark, path, tail=str(log))) == [NOW, None, NOW + 2]
    update_table(log, path, topic=TOPIC, options={"mode": "permissive"})
    update_table(log, path, topic=TOPIC)
    with LogTable.open(path) as opened:
        assert opened.formats is None
