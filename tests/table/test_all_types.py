"""Every type of a column at every depth, in the table and in its Delta log, through every reader; also once the columns
have grown."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from seglog.core.errors import InvalidConfigError
from seglog.core.fs import OsFs
from seglog.records.columns import SCHEMA
from seglog.spark import table as spark_table
from seglog.table.columns.column_types import _ICEBERG
from seglog.table.delta_log import check_columns, follow
from seglog.table.files.record_files import write_records
from seglog.table.iceberg.log_table import LogTable
from seglog.table.iceberg.positions import Position, Positions
from tests.kit.manual_clock import ManualClock

pytestmark = pytest.mark.xdist_group("spark")
TIMES = {pa.time64("us"), pa.time64("ns")}
LOCAL = pa.timestamp("us")
DECIMALS = ((9, 9), (18, 3), (38, 10))
"""Of 32, 64 and 128 bits in Parquet."""
VALUES: dict[pa.DataType, Any] = {
    pa.bool_(): True,
    pa.int8(): 1,
    pa.int16(): 2,
    pa.int32(): 3,
    pa.int64(): 4,
    pa.float32(): 1.5,
    pa.float64(): 2.5,
    pa.string(): "a",
    pa.binary(): b"b",
    pa.date32(): dt.date(2020, 1, 2),
    pa.time64("us"): dt.time(1, 2, 3),
    pa.time64("ns"): dt.time(1, 2, 3),
    pa.timestamp("us", tz="UTC"): dt.datetime(2020, 1, 2, tzinfo=dt.UTC),
    LOCAL: dt.datetime(2020, 1, 2, tzinfo=dt.UTC).replace(tzinfo=None),
    **{pa.decimal128(digits, scale): Decimal(1).scaleb(-scale) for digits, scale in DECIMALS},
}
EDGES: dict[pa.DataType, list[Any]] = {
    pa.int8(): [-(2**7), 2**7 - 1],
    pa.int16(): [-(2**15), 2**15 - 1],
    pa.int32(): [-(2**31), 2**31 - 1],
    pa.int64(): [-(2**63), 2**63 - 1],
    pa.float32(): [math.nan, -math.inf],
    pa.float64(): [math.nan, math.inf],
    pa.string(): ["", "\0é🛫"],
    pa.binary(): [b"", b"\0\xff"],
    pa.date32(): [dt.date(1, 1, 1), dt.date(9999, 12, 31)],
    pa.timestamp("us", tz="UTC"): [
        dt.datetime(1969, 12, 31, 23, 59, 59, 999999, dt.UTC),
        dt.datetime(9999, 12, 31, 23, 59, 59, 999999, dt.UTC),
    ],
    LOCAL: [
        one.replace(tzinfo=None)
        for one in (dt.datetime(1, 1, 1, tzinfo=dt.UTC), dt.datetime(9999, 12, 31, tzinfo=dt.UTC))
    ],
    **{pa.decimal128(*one): [Decimal(number).scaleb(-one[1]) for number in (-9, 0)] for one in DECIMALS},
}
DEPTHS: dict[str, tuple[Callable[[pa.DataType], pa.DataType], Callable[[Any], Any]]] = {
    "itself": (lambda kind: kind, lambda value: value),
    "struct": (lambda kind: pa.struct([("a", kind)]), lambda value: {"a": value}),
    "list": (pa.list_, lambda value: [value]),
    "map": (lambda kind: pa.map_(pa.string(), kind), lambda value: [("k", value)]),
    "key": (lambda kind: pa.map_(kind, pa.string()), lambda value: [] if value is None else [(value, "v")]),
}
FIRST = SCHEMA.set(1, pa.field("value", pa.struct([("n", pa.int32())])))
NESTINGS = [(one, None) for one in DEPTHS] + [
    (outer, inner) for outer in DEPTHS for inner in DEPTHS if outer not in ("itself", "key") and inner != "itself"
]


def _nested(kind: pa.DataType, value: Any, outer: str, inner: str | None) -> tuple[pa.DataType, Any]:
    for depth in (inner, outer):
        if depth is not None:
            of_type, of_value = DEPTHS[depth]
            kind, value = of_type(kind), of_value(value)
    return kind, value


def _columns(
    kinds: set[pa.DataType], chosen: Callable[[pa.DataType], Any] = VALUES.__getitem__
) -> tuple[pa.Schema, dict[str, Any]]:
    """A value with a field for each type at each depth, and a row whose values are ``chosen``."""
    fields, values = [], {}
    for number, kind in enumerate(VALUES):
        for outer, inner in NESTINGS:
            if kind in kinds:
                name = f"f{number}_{outer}_{inner or 'itself'}"
                made, values[name] = _nested(kind, chosen(kind), outer, inner)
                fields.append(pa.field(name, made))
    row = dict.fromkeys(SCHEMA.names) | {"value": values, "topic": "t", "partition": 0, "offset": 0}
    return SCHEMA.set(1, pa.field("value", pa.struct(fields))), row


def _add(table: LogTable, columns: pa.Schema, row: dict[str, Any], offset: int) -> str:
    """A run: it checks its columns, then adds one record."""
    check_columns(table, columns)
    table.evolve(columns, None)
    batches = pa.Table.from_pylist([row | {"offset": offset}], schema=columns).to_batches()
    written = write_records(table.files, table.path.data, batches, table.form)
    assert written is not None
    table.append([written.path], Positions(topic="t", partitions={0: Position(offset + 1)}), {0: offset})
    follow(OsFs(), table, ManualClock())
    return written.path


def _plain(value: Any) -> Any:
    """A value of any reader, comparable: maps as dicts, no time zones of their own."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items() if one is not None}
    if isinstance(value, list):
        pairs = [
            tuple(one.values()) if isinstance(one, dict) and set(one) == {"key", "value"} else one for one in value
        ]
        if pairs and all(isinstance(one, tuple) and len(one) == 2 for one in pairs):
            return {repr(_plain(key)): _plain(one) for key, one in pairs}
        return [_plain(one) for one in value]
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(dt.UTC).replace(tzinfo=None)
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    return bytes(value) if isinstance(value, bytearray) else value


def _read(value: Any) -> Any:
    found: list[Any] = value.column("value").to_pylist()
    return [_plain(one) for one in found]


def test_every_type_at_every_depth_is_read_by_every_reader(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first record has none of the types: the table and its Delta log grow."""
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    assert VALUES.keys() >= _ICEBERG.keys()
    kinds = VALUES.keys() - TIMES
    columns, row = _columns(kinds)
    path = tmp_path / "warehouse" / "t"
    with LogTable.open_or_create(path, columns=FIRST) as made:
        with made.locked():
            _add(made, FIRST, row | {"value": {"n": 1}}, 0)
            newest = _add(made, columns, row, 1)
            others = [_columns(kinds, chosen)[1] for chosen in (_edge(0), _edge(1), _no_value)]
            for offset, one in enumerate(others, 2):
                _add(made, columns, one, offset)
        metadata = made.iceberg.metadata_location
        rows = {"pyiceberg": made.iceberg.scan().to_arrow()}
    delta = DeltaTable(path / "data")
    rows["deltalake"] = delta.to_pyarrow_table()
    rows["Polars, Iceberg"] = pl.scan_iceberg(metadata).collect().to_arrow()
    rows["Polars, Delta"] = pl.read_delta(str(path / "data")).to_arrow()
    rows["Spark"] = spark_table(spark, path).toArrow()
    value = _plain(row["value"])
    expected = [{"n": 1}, value, *(_plain(one["value"]) for one in others)]
    for reader, found in rows.items():
        assert _read(found.sort_by([("offset", "ascending")])) == expected, reader
    with duckdb.connect() as connection:
        assert _read(connection.from_parquet(newest).to_arrow_table()) == [value]


def _edge(which: int) -> Callable[[pa.DataType], Any]:
    return lambda kind: EDGES.get(kind, [VALUES[kind]] * 2)[which]


def _no_value(kind: pa.DataType) -> None:
    """Nulls within structs, lists and maps."""


@pytest.mark.parametrize(("outer", "inner"), NESTINGS)
def test_a_delta_log_can_be_opened_wherever_a_local_time_is(tmp_path: Path, outer: str, inner: str | None) -> None:
    """Timestamps without a time zone need a feature of Delta's protocol."""
    kind, value = _nested(LOCAL, VALUES[LOCAL], outer, inner)
    columns = SCHEMA.set(1, pa.field("value", kind))
    row = dict.fromkeys(SCHEMA.names) | {"value": value, "topic": "t", "partition": 0}
    with LogTable.open_or_create(tmp_path / "warehouse" / "t", columns=columns) as made, made.locked():
        for offset in (0, 1):
            _add(made, columns, row, offset)
            rows = DeltaTable(made.path.data).to_pyarrow_table()
            assert _read(rows) == [_plain(value)] * (offset + 1)


def test_a_time_of_day_is_refused_before_a_commit(tmp_path: Path) -> None:
    with LogTable.open_or_create(tmp_path / "warehouse" / "t", columns=FIRST) as made:
        for kind in TIMES:
            for outer, inner in NESTINGS:
                field = ("f", _nested(kind, None, outer, inner)[0])
                columns = SCHEMA.set(1, pa.field("value", pa.struct([field])))
                with pytest.raises(InvalidConfigError, match=r"value.f[.a-z]* is a time of day: Delta"):
                    check_columns(made, columns)
