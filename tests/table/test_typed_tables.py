"""A table with typed values has the rows of `seglog.scan` with the same format, and every reader sees them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from shutil import rmtree
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from seglog.core.errors import InvalidConfigError, UndecodableValueError
from seglog.table import small_files
from seglog.table.building import update_table
from seglog.table.columns.column_types import conform
from seglog.table.iceberg.log_table import LogTable
from seglog.testing import Broker
from tests.table.typed_logs import NEW, OLD, hashes, new_value, old_value, scanned_with, without, write
from tests.values.batches import register

_DURATION = """syntax = "proto3"; import "google/protobuf/duration.proto";
message M { google.protobuf.Duration d = 1; }"""


@pytest.fixture(scope="module")
def running() -> Iterator[Broker]:
    with Broker(registry=True) as broker:
        yield broker


@pytest.fixture
def url(running: Broker) -> str:
    running.reset()
    return running.registry_url


def _options(url: str, **more: str) -> dict[str, str]:
    return {"valueFormat": "avro", "schema.registry.url": url, **more}


def _readers(path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, pa.Table]:
    """The rows as each reader has them."""
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    with LogTable.open(path) as opened, duckdb.connect() as connection:
        snapshot, iceberg, columns = opened.snapshot(), opened.iceberg, opened.form.schema
        assert snapshot is not None
        connection.execute("set timezone = 'UTC'")
        polars: Any = pl.scan_iceberg(iceberg.metadata_location).collect()
        return {
            "files": pa.concat_tables([conform(pq.read_table(file), columns) for file in snapshot.files]),
            "pyiceberg": iceberg.scan().to_arrow(),
            "duckdb": connection.read_parquet(list(snapshot.files), union_by_name=True).to_arrow_table(),
            "polars": polars.to_arrow(compat_level=pl.CompatLevel.oldest()),
        }


def test_values_have_their_types_in_each_reader(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log, table = tmp_path / "log", tmp_path / "warehouse" / "flights"
    options = _options(url, mode="permissive", keyFormat="json", keySchema="string", keyFraming="plain")
    number = register(url, "flights-value", OLD)
    write(log, OLD, [*(old_value(n) for n in range(30)), None, b"no Avro"], number=number)
    write(log, OLD, [old_value(n) for n in range(7)], number=number, partition=1)
    done = update_table(log, table, topic="flights", options=options)
    assert (done.records, done.undecodable) == (39, 1 + 39)  # the keys are no JSON
    wanted = scanned_with(log, options)
    assert wanted.schema.names[-2:] == ["valueBytes", "keyBytes"]
    found = _readers(table, monkeypatch)
    for name, rows in found.items():
        assert hashes(rows, wanted.schema.names) == hashes(wanted), name
    with LogTable.open(table) as opened:
        assert opened.iceberg.schema().find_field("value.legs.element.code").optional
        rows = opened.iceberg.scan(row_filter="value.n >= 28", selected_fields=("offset",)).to_arrow()
    assert sorted(row["offset"] for row in rows.to_pylist()) == [28, 29]


def test_a_value_that_cannot_be_decoded_ends_a_run_that_adds_nothing(tmp_path: Path, url: str) -> None:
    log, table = tmp_path / "log", tmp_path / "warehouse" / "flights"
    number = register(url, "flights-value", OLD)
    write(log, OLD, [old_value(0), b"no Avro"], number=number)
    with pytest.raises(UndecodableValueError, match="partition 0, offset 1: the value cannot be decoded"):
        update_table(log, table, topic="flights", options=_options(url))
    assert update_table(log, table, topic="flights", options=_options(url, mode="permissive")).records == 2


def test_formats_that_contradict_the_table_are_refused(tmp_path: Path) -> None:
    log, warehouse = tmp_path / "log", tmp_path / "warehouse"
    write(log, OLD, [old_value(0)])
    typed = {"valueFormat": "avro", "valueSchema": json.dumps(OLD)}
    for name, first, then, reason in (
        ("a", {}, typed, "option valueFormat is avro, and the table has the column value as bytes"),
        ("b", typed, {}, "the types of valueFormat=avro: give that option, or build another table"),
        ("c", typed, {"valueFormat": "json", "valueSchema": "n int"}, "give that option, not json"),
        ("d", typed, typed | {"keyFormat": "json", "keySchema": "string"}, "has the column key as bytes"),
    ):
        update_table(log, warehouse / name, topic="flights", options=first)
        write(log, OLD, [old_value(1)])
        with pytest.raises(InvalidConfigError, match=reason):
            update_table(log, warehouse / name, topic="flights", options=then)
        assert update_table(log, warehouse / name, topic="flights", options=first).added_records == 1
    options = {"valueFormat": "protobuf", "valueSchema": _DURATION}
    with pytest.raises(ValueError, match=r"value\.d is of type duration.us., which Iceberg"):
        update_table(log, warehouse / "none", topic="flights", options=options)
    assert not (warehouse / "none").exists()


def test_a_newer_schema_evolves_the_table(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log, table = tmp_path / "log", tmp_path / "warehouse" / "flights"
    old = register(url, "flights-value", OLD)
    write(log, OLD, [old_value(n) for n in range(30)], number=old)
    update_table(log, table, topic="flights", options=_options(url))
    new = register(url, "flights-value", NEW)
    write(log, NEW, [*(new_value(n) for n in range(30)), None], number=new)
    write(log, OLD, [old_value(n) for n in range(5)], number=old, partition=1)
    assert update_table(log, table, topic="flights", options=_options(url)).added_records == 36
    wanted = scanned_with(log, _options(url))
    for name, rows in _readers(table, monkeypatch).items():
        assert hashes(without(rows, "name"), wanted.schema.names) == hashes(wanted), name
        names = [row["value"]["name"] for row in rows.to_pylist() if row["value"] and row["value"]["name"]]
        assert sorted(names) == sorted(f"N{n % 5}" for n in range(30)), name
    before = _readers(table, monkeypatch)["files"]
    monkeypatch.setattr(small_files, "FAN_IN", 2)
    assert update_table(log, table, topic="flights", options=_options(url)).files == 1
    for name, rows in _readers(table, monkeypatch).items():
        assert hashes(rows, before.schema.names) == hashes(before), name


def _state(table: Path) -> tuple[str, set[Path]]:
    with LogTable.open(table) as opened:
        return opened.iceberg.metadata_location, set(table.rglob("*"))


def test_a_schema_that_iceberg_cannot_express_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    log, table = tmp_path / "log", tmp_path / "warehouse" / "flights"
    write(log, OLD, [b'{"n": 1, "s": "a"}'])
    options = {"valueFormat": "json", "valueSchema": "n bigint, s string"}
    update_table(log, table, topic="flights", options=options)
    write(log, OLD, [b'{"n": 2}'])
    before = _state(table)
    for schema, reason in (
        ("n int, s string", "the field value.n is long in the table and int in the schema"),
        ("n bigint, s struct<a: int>", "the field value.s is string in the table and struct in the schema"),
    ):
        with pytest.raises(InvalidConfigError, match=reason):
            update_table(log, table, topic="flights", options={**options, "valueSchema": schema})
        assert _state(table) == before
    assert update_table(log, table, topic="flights", options=options).records == 2


def test_a_delta_log_follows_new_fields_and_refuses_what_it_cannot_show(tmp_path: Path) -> None:
    log, table = tmp_path / "log", tmp_path / "warehouse" / "flights"
    options = {"valueFormat": "json", "valueSchema": "n int, at struct<x: int>"}
    more = {**options, "valueSchema": "n int, at struct<x: int, y: string>, legs array<int>", "mode": "permissive"}
    wider = {**more, "valueSchema": "n bigint, at struct<x: int, y: string>"}
    write(log, OLD, [b'{"n": 1, "at": {"x": 1}}', None])
    update_table(log, table, topic="flights", options=options, delta=True)
    write(log, OLD, [b'{"n": 2, "at": {"x": 1, "y": "b"}, "legs": [1, 2]}', b"no JSON"])
    update_table(log, table, topic="flights", options=more)
    wanted = scanned_with(log, more)
    assert hashes(DeltaTable(table / "data").to_pyarrow_table(), wanted.schema.names) == hashes(wanted)
    before = _state(table)
    with pytest.raises(InvalidConfigError, match=r"value.n has become long: a Delta log cannot show"):
        update_table(log, table, topic="flights", options=wider)
    assert _state(table) == before
    rmtree(table / "data" / "_delta_log")
    update_table(log, table, topic="flights", options=wider)
    with pytest.raises(InvalidConfigError, match=r"value.n has become long: a Delta log cannot show"):
        update_table(log, table, topic="flights", options=wider, delta=True)
    time = {"valueFormat": "avro", "valueSchema": '{"type": "int", "logicalType": "time-millis"}'}
    with pytest.raises(InvalidConfigError, match="the field value is a time of day: Delta has no such type"):
        update_table(log, tmp_path / "warehouse" / "time", topic="flights", options=time, delta=True)
