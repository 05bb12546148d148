"""Libraries that take a scan, and what of their queries reaches the log."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
import pytest

import seglog
from seglog.core.errors import CorruptBatchError
from seglog.sources.scan_dataset import ScanDataset
from tests.storage.offline.written_segments import numbered, write_segment

MOMENT = datetime.fromtimestamp(20, UTC)


@pytest.fixture
def other(partition: Path) -> Path:
    """A second partition, of four records, beside `partition`, whose 30 records are a second apart from 1970 on."""
    return write_segment(partition.parent / "web-1", 0, numbered(0, 4))


@pytest.fixture
def scan(partition: Path, other: Path) -> seglog.Scan:
    del other
    return seglog.scan(partition.parent)


@pytest.fixture
def damaged(partition: Path, other: Path) -> seglog.Scan:
    """Damage at offsets 12 to 14 of partition 0: whatever reads them fails."""
    del other
    path = partition / "00000000000000000012.log"
    data = bytearray(path.read_bytes())
    data[70] ^= 0xFF
    path.write_bytes(data)
    found = seglog.scan(partition.parent)
    with pytest.raises(CorruptBatchError):
        found.read_all()
    return found


def test_every_library_takes_it_as_it_is(scan: seglog.Scan) -> None:
    assert duckdb.execute("SELECT count(*) FROM scan").fetchall() == [(34,)]
    twice = duckdb.execute('SELECT a."offset" FROM scan a JOIN scan b USING (partition, "offset")')
    assert len(twice.fetchall()) == 34
    assert isinstance(scan, ScanDataset)
    dataset: Any = scan
    lazy = [pl.scan_pyarrow_dataset(dataset), scan.polars()]
    frames = [pl.from_arrow(scan), pl.DataFrame(scan), *(one.collect() for one in lazy)]
    for frame in frames:
        assert isinstance(frame, pl.DataFrame)
        assert frame.shape == (34, 8)
        assert frame["offset"].to_list() == [*range(30), *range(4)]
    pandas: Any = import_module("pandas")
    assert pandas.DataFrame.from_arrow(scan)["offset"].sum() == sum(range(30)) + 6
    assert scan.read_pandas()["offset"].sum() == sum(range(30)) + 6
    assert pa.table(scan).equals(scan.read_all())
    assert pa.RecordBatchReader.from_stream(scan).read_all().equals(scan.read_all())
    assert scan.count_rows() == 34
    assert scan.head(3).column("offset").to_pylist() == [0, 1, 2]
    fragment: Any = next(iter(dataset.get_fragments()))  # as DataFusion reads it
    assert fragment.scanner(dataset.schema, columns=["offset"]).to_table().num_rows == 34
    assert dataset.scanner(["offset"]).to_table().column_names == ["offset"]
    assert scan.take([33]).column("partition").to_pylist() == [1]
    assert scan.to_table(columns=["offset"], filter=pc.field("partition") == 1).num_rows == 4
    assert scan.to_table(columns={"next": pc.field("offset") + 1}).column("next").to_pylist()[:2] == [1, 2]


def test_a_scan_without_records_has_its_columns(tmp_path: Path) -> None:
    write_segment(tmp_path / "web-0", 0, [])
    nothing = seglog.scan(tmp_path)
    for frame in (pl.from_arrow(nothing), nothing.polars().collect()):
        assert isinstance(frame, pl.DataFrame)
        assert (frame.shape, frame.columns[0]) == ((0, 8), "key")
    assert [name for name, *_ in duckdb.execute("SELECT * FROM nothing").description or ()][:1] == ["key"]


def test_an_interpreter_without_engines_gets_a_stream(partition: Path) -> None:
    """pyarrow's datasets import pandas. Polars takes the stream, and DuckDB too, which then filters by itself."""
    program = (
        "import sys, seglog; "
        f"scan = seglog.scan({str(partition)!r}); "
        "assert not {'pandas', 'pyarrow.dataset', 'duckdb', 'polars'} & sys.modules.keys(); "
        "import polars, duckdb; print(polars.DataFrame(scan).shape, "
        "duckdb.sql('SELECT count(*) FROM scan WHERE \"offset\" > 10').fetchall(), type(scan).__name__)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "(30, 8) [(19,)] Scan\n"


SQL = (
    "partition = 1",
    "\"offset\" < 12 AND topic = 'web'",
    '"offset" >= 15',
    "timestamp >= '1970-01-01 00:00:20Z' AND timestamp < '1970-01-01 00:00:25Z'",
    "topic IN ('a', 'b')",
    'partition IN (1, 2) OR "offset" BETWEEN 24 AND 26',
)
POLARS = (
    pl.col("partition") == 1,
    (pl.col("offset") < 12) & (pl.col("topic") == "web"),
    pl.col("offset") >= 15,
    (pl.col("timestamp") >= MOMENT) & (pl.col("timestamp") < datetime.fromtimestamp(25, UTC)),
    pl.col("topic").is_in(["a", "b"]),
    pl.col("partition").is_in([1, 2]) | pl.col("offset").is_between(24, 26),
)
COUNTS = (4, 16, 15, 5, 0, 10)


@pytest.mark.parametrize(("sql", "polars", "count"), list(zip(SQL, POLARS, COUNTS, strict=True)))
def test_what_a_filter_leaves_out_is_not_read(damaged: seglog.Scan, sql: str, polars: pl.Expr, count: int) -> None:
    if "OR" in sql:  # bounds of both: the damage lies between them, so it is met
        with pytest.raises(Exception, match="CRC"):
            damaged.polars().filter(polars).collect()
        return
    assert duckdb.execute(f"SELECT count(*) FROM damaged WHERE {sql}").fetchall() == [(count,)]
    assert damaged.polars().filter(polars).select(pl.len()).collect().item() == count
    expression = pc.field("partition") == 1
    assert damaged.filter(expression).read_all().num_rows == 4


def test_polars_stops_at_head(damaged: seglog.Scan) -> None:
    assert damaged.polars().head(5).collect()["offset"].to_list() == list(range(5))


@pytest.mark.parametrize("step", [-1, 0, 1, 999, 1000, 1001, 3500])
def test_times_between_milliseconds_and_in_any_order(tmp_path: Path, step: int) -> None:
    """A filter on timestamps is exact, also where they do not rise."""
    times = [5, 3, 9, 1, 1, 7, 2, 8, 0, 4]
    with seglog.open(tmp_path) as directory:
        directory.create_topic("t", config={"retention.ms": "-1"})
        for at in range(0, 10, 3):
            some = [seglog.NewRecord(b"v", timestamp=time) for time in times[at : at + 3]]
            directory.log("t").append_records(some)
    scan = seglog.scan(tmp_path, columns=["offset", "timestamp"])
    moment = pa.scalar(step, pa.timestamp("us", "UTC"))
    field = pc.field("timestamp")
    for expression in (field >= moment, field > moment, field < moment, field <= moment, field == moment):
        assert scan.filter(expression).read_all().equals(scan.read_all().filter(expression))
        assert scan.narrowed(["offset"], expression).read_all().num_columns == 1


def test_columns_that_a_query_does_not_need_are_not_decoded(tmp_path: Path) -> None:
    """A value that cannot be decoded fails every query that needs it, and no other."""
    with seglog.open(tmp_path) as directory:
        directory.create_topic("t")
        directory.log("t").append_records([seglog.NewRecord(value, key=b"k") for value in (b'{"n": 1}', b"bad")])
    options: Any = {"value_format": "json", "format_options": {"valueSchema": "n bigint"}}
    scan = seglog.scan(tmp_path, **options).with_value_fields()
    assert duckdb.execute('SELECT max("offset") FROM scan').fetchall() == [(1,)]
    assert scan.polars().select(pl.col("key")).collect().height == 2
    for query in ("SELECT n FROM scan", "SELECT max(value) FROM scan"):
        with pytest.raises(Exception, match="the value cannot be decoded"):
            duckdb.execute(query).fetchall()
    assert "offset 1: the value cannot be decoded" in str(scan.failure)
    assert duckdb.execute('SELECT n, value FROM scan WHERE "offset" = 0').fetchall() == [(1, {"n": 1})]


def test_fields_of_a_value_that_columns_have_stay_in_it(tmp_path: Path) -> None:
    with seglog.open(tmp_path) as directory:
        directory.create_topic("t")
        values = [b'{"Key": 1, "offset": 2, "n": {"a": 3}}', None]
        directory.log("t").append_records([seglog.NewRecord(value) for value in values])
    options: Any = {"value_format": "json", "format_options": {"valueSchema": "Key int, offset int, n struct<a: int>"}}
    scan = seglog.scan(tmp_path, **options).with_value_fields()
    assert scan.schema.names[8:] == ["n"]
    rows = [(row["offset"], row["n"], row["value"]) for row in scan.read_all().to_pylist()]
    assert rows == [(0, {"a": 3}, {"Key": 1, "offset": 2, "n": {"a": 3}}), (1, None, None)]
    assert seglog.scan(tmp_path).with_value_fields().schema == seglog.scan(tmp_path).schema


def test_what_pyarrow_would_do_with_files_is_an_error_and_not_a_crash(scan: seglog.Scan, tmp_path: Path) -> None:
    program = f"""
import pickle, pyarrow.dataset as ds, seglog
scan = seglog.scan({str(tmp_path / "data")!r})
narrow = seglog.scan({str(tmp_path / "data")!r}, columns=["offset"])
for work in (
    lambda: ds.dataset([scan, scan]).to_table(),
    lambda: narrow.join(narrow, "offset").to_table(),
    lambda: scan.sort_by("offset").to_table(),
    lambda: scan.replace_schema(scan.schema),
    lambda: pickle.dumps(scan),
):
    try:
        work()
        print("no error")
    except (OSError, TypeError, ValueError) as error:
        print(type(error).__name__)
ds.write_dataset(scan, {str(tmp_path / "out")!r}, format="parquet")
print(ds.dataset({str(tmp_path / "out")!r}).count_rows(), sum(one.count_rows() for one in scan.get_fragments()))
"""
    assert isinstance(scan, pyarrow.dataset.Dataset)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [
        "TypeError",
        "FileNotFoundError",
        "FileNotFoundError",
        "TypeError",
        "TypeError",
        "34",
        "34",
    ]
