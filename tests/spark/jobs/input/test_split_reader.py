"""Rows of CSV, JSON and Parquet as records: no value changes, and errors name the line or the column."""

from __future__ import annotations

import base64
import bz2
import gzip
import json
from contextlib import closing
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.core.errors import InvalidConfigError
from seglog.core.fs import OsFs
from seglog.spark.jobs.input.columns import Columns
from seglog.spark.jobs.input.json_text import json_rows, parse_objects, text_column
from seglog.spark.jobs.input.recipe import Input, plan_input
from seglog.spark.jobs.input.split_reader import BadLineError, SplitReader
from seglog.spark.jobs.input.splits import BadFileError, list_files
from tests.cases import case

Record = tuple[bytes | None, bytes | None, int | None]


def read(*paths: Path, columns: Columns | None = None, source: Input | None = None) -> list[Record]:
    """Key, value and timestamp of every record, in the order of the files."""
    planned = plan_input(OsFs(), [str(path) for path in paths], source or Input(), columns or Columns(), 1 << 30)
    found: list[Record] = []
    for split in planned.splits:
        for batch in SplitReader(OsFs(), planned.recipe, split).records():
            found += [(row.get("key"), row.get("value"), row.get("timestamp")) for row in batch.to_pylist()]
    return found


# CSV


@pytest.fixture
def csvs(tmp_path: Path) -> tuple[Path, Path]:
    first, second = tmp_path / "1.csv", tmp_path / "2.csv"
    first.write_text("id,name\n1,ada\n")
    return first, second


def test_matches_the_columns_of_each_file_by_its_own_header(csvs: tuple[Path, Path]) -> None:
    csvs[1].write_text("name,extra,id\ngrace,x,2\n")
    assert read(*csvs, columns=Columns(key="id", value="name")) == [(b"1", b"ada", None), (b"2", b"grace", None)]
    csvs[1].write_text("name,id\ngrace,2\n")
    rows = [json.loads(value or b"") for _, value, _ in read(*csvs, columns=Columns(value="*"))]
    assert rows == [{"id": "1", "name": "ada"}, {"id": "2", "name": "grace"}]
    multiline = read(*csvs, columns=Columns(key="id"), source=Input(multiline=True))
    assert [json.loads(value or b"")["name"] for _, value, _ in multiline] == ["ada", "grace"]


@pytest.mark.parametrize(
    ("second", "columns", "source", "message"),
    [
        ("id,nom\n2,g\n", Columns(key="name", value="id"), Input(), r"2\.csv has no column 'name'; it has id, nom"),
        ("id,name,x\n2,g,1\n", Columns(value="*"), Input(), r"1\.csv has no column 'x'"),
        ("id\n2\n", Columns(value="*"), Input(), r"2\.csv has no column 'name'"),
        ("name,id\ng,2\n", Columns(), Input(), r"2\.csv has column 'name' where .*1\.csv has 'id'"),
        ("name,id\ng,2\n", Columns(key="id"), Input(), r"2\.csv has column 'name' where .*1\.csv has 'id'"),
        ("name,id\ng,2\n", Columns(value="a"), Input(names=("a", "b")), r"2\.csv has column 'name' where"),
        ("id,name,id\n2,g,3\n", Columns(value="name"), Input(), r"2\.csv has more than one column 'id'"),
    ],
)
def test_refuses_a_file_whose_header_does_not_fit(
    csvs: tuple[Path, Path], second: str, columns: Columns, source: Input, message: str
) -> None:
    csvs[1].write_text(second)
    with pytest.raises(InvalidConfigError, match=message):
        read(*csvs, columns=columns, source=source)


def test_a_later_file_without_any_line_has_no_records(csvs: tuple[Path, Path]) -> None:
    csvs[1].write_text("")
    assert read(*csvs) == [(None, b"1,ada", None)]


# JSON


NUMBERS = ["18446744073709551615", "1e400", "-0", "0.1234567890123456789012345678901234567890", "1E5", "-0.0", "7.50"]


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("before", [0, 5])
def test_numbers_of_json_keep_their_digits(tmp_path: Path, number: str, before: int) -> None:
    """Also where the numbers before were small, and inside of objects."""
    path = tmp_path / "x.json"
    line = f'{{"n":{number},"o":{{"in":[{number},"a"]}}}}'
    path.write_text('{"n":1,"o":{"in":[]}}\n' * before + line + "\n")
    for columns, key in (
        (Columns(key="n"), number),
        (Columns(key="o.in"), f'[{number},"a"]'),
        (Columns(key="o"), f'{{"in":[{number},"a"]}}'),
        (Columns(key="{n}-{n}"), f"{number}-{number}"),
    ):
        assert read(path, columns=columns)[-1] == (key.encode(), line.encode(), None)
    assert read(path, columns=Columns(value="n"))[-1] == (None, number.encode(), None)


@given(st.recursive(
    st.none() | st.booleans() | st.text() | st.decimals(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
))  # fmt: skip
def test_nested_json_is_the_same_json(value: Any) -> None:
    case()
    line = json.dumps({"v": value}, default=str)
    (text,) = text_column(parse_objects([line.encode()]), "v").to_pylist()
    expected = json.loads(line)["v"]
    if isinstance(expected, str) or text is None:
        assert text == expected
    else:
        assert json.loads(text) == expected


def test_a_field_may_change_its_type_late(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"a":1}\n' * 300_000 + '{"a":7.5}\n{"a":"x"}\n{"a":null}\n{}\n{"a":[1]}\n')
    found = [key for key, _, _ in read(path, columns=Columns(key="a"))]
    assert (len(found), set(found[:300_000])) == (300_005, {b"1"})
    assert found[300_000:] == [b"7.5", b"x", None, None, b"[1]"]


def test_given_types_are_held_to(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"a":1}\n{"a":"x"}\n')
    with pytest.raises(BadLineError, match=r"x\.json, line 2: .*changed from number to string"):
        read(path, columns=Columns(key="a"), source=Input(types={"a": "int64"}))


def test_times_of_json_are_numbers_or_texts(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"s":1357016400.5,"n":2024,"t":"2013-01-01T05:00:00Z"}\n{"s":1,"n":-0,"t":null}\n')
    columns = Columns(timestamp="s", timestamp_unit="s", value="n")
    assert [when for _, _, when in read(path, columns=columns)] == [1357016400500, 1000]
    assert [when for _, _, when in read(path, columns=Columns(timestamp="n"))] == [2024, 0]
    assert [when for _, _, when in read(path, columns=Columns(timestamp="t", value="s"))] == [1357016400000, None]


@pytest.mark.parametrize("bad", ["{", "[1]", '{"a":NaN}', '{"a":1} x', '{"a":' + "[" * 100_000, '{"a":"\\ud800"}'])
def test_names_a_line_that_is_not_an_object(tmp_path: Path, bad: str) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"a":1.5}\n' * 9 + bad + "\n" + '{"a":1.5}\n')
    with pytest.raises(BadLineError, match=r"x\.json, line 10: "):
        read(path, columns=Columns(key="a"))
    skipping = Input(bad_lines="skip")
    assert [key for key, _, _ in read(path, columns=Columns(key="a"), source=skipping)] == [b"1.5"] * 10


# Parquet


def test_rows_of_parquet_are_valid_json_by_the_rule(tmp_path: Path) -> None:
    """Bytes are base64, NaN and infinities null, maps objects, at every depth."""
    raw, nan = b"\xff\x00", float("nan")
    moment = datetime(2013, 1, 1, 5, tzinfo=UTC)
    columns = {
        "bytes": pa.array([raw, b"text", None]),
        "fixed": pa.array([b"ab", None, b"\xff\xff"], pa.binary(2)),
        "real": pa.array([nan, float("inf"), 0.1]),
        "real32": pa.array([nan, 0.5, None], pa.float32()),
        "map": pa.array([[("a", 1), ("b", None)], None, []], pa.map_(pa.string(), pa.int64())),
        "numbered": pa.array([[(1, nan)], [(2, 1.5)], None], pa.map_(pa.int32(), pa.float64())),
        "list": pa.array([[raw, None], None, []], pa.list_(pa.binary())),
        "struct": pa.array(
            [{"b": raw, "n": nan, "t": 'q"\n'}, None, {"b": None, "n": 1.0, "t": None}],
            pa.struct([("b", pa.binary()), ("n", pa.float64()), ("t", pa.string())]),
        ),
        "deep": pa.array([[{"m": [("k", [nan, 1.0])]}], [None], None],
                         pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.list_(pa.float64())))]))),
        "decimal": pa.array([Decimal("12345678901234567890.123"), None, Decimal("-0.001")], pa.decimal128(38, 3)),
        "at": pa.array([moment, None, moment]),
        "day": pa.array([date(2013, 1, 1), None, date(1969, 12, 31)]),
        "nothing": pa.nulls(3),
        "word": pa.array(["x", "y", "x"]).dictionary_encode(),
    }  # fmt: skip
    table = pa.Table.from_batches([pa.RecordBatch.from_arrays(list(columns.values()), list(columns))])
    with closing(pq.ParquetWriter(tmp_path / "t.parquet", table.schema)) as writer:
        writer.write_table(table)
    lines = [value for _, value, _ in read(tmp_path / "t.parquet")]
    encoded = base64.b64encode(raw).decode()
    rows = [json.loads(line or b"", parse_float=Decimal, parse_constant=pytest.fail) for line in lines]
    assert rows[0] == {
        "bytes": encoded, "fixed": "YWI=", "real": None, "real32": None, "map": {"a": 1, "b": None},
        "numbered": {"1": None}, "list": [encoded, None], "struct": {"b": encoded, "n": None, "t": 'q"\n'},
        "deep": [{"m": {"k": [None, 1]}}], "decimal": Decimal("12345678901234567890.123"),
        "at": "2013-01-01 05:00:00.000000Z", "day": "2013-01-01", "nothing": None, "word": "x",
    }  # fmt: skip
    assert rows[1] == {**dict.fromkeys(columns), "bytes": "dGV4dA==", "real32": Decimal("0.5"),
                       "numbered": {"2": Decimal("1.5")}, "deep": [None], "word": "y"}  # fmt: skip
    assert (rows[2]["map"], rows[2]["list"], rows[2]["real"], rows[2]["struct"]["n"]) == ({}, [], Decimal("0.1"), 1)
    sliced = table.to_batches()[0].slice(1, 2)
    assert [json.loads(one) for one in json_rows(sliced).to_pylist()] == [json.loads(line or b"") for line in lines[1:]]
    assert [key for key, _, _ in read(tmp_path / "t.parquet", columns=Columns(key="map", value="bytes"))] == [
        b'{"a":1,"b":null}', None, b"{}",
    ]  # fmt: skip


# Compressed files


@pytest.mark.parametrize(("ending", "compress"), [(".gz", gzip.compress), (".bz2", bz2.compress)])
@pytest.mark.parametrize("source", [Input(), Input(multiline=True)], ids=["lines", "multiline"])
def test_a_truncated_compressed_file_is_named(tmp_path: Path, ending: str, compress: Any, source: Input) -> None:
    path = tmp_path / f"x.csv{ending}"
    whole = compress(b"a,b\n" + b"".join(b"%d,%d\n" % (at, at * at) for at in range(200_000)))
    path.write_bytes(whole)
    assert len(read(path, source=source)) == 200_000
    for end in (len(whole) // 2, len(whole) - 5, 15):
        path.write_bytes(whole[:end])
        with pytest.raises(BadFileError, match=rf"x\.csv{ending}: the (gzip|bz2) data is damaged or incomplete"):
            read(path, source=source)


# Bad lines, missing columns


@pytest.mark.parametrize(
    ("name", "good", "bad", "source", "columns", "reason"),
    [
        ("x.csv", "1,2\n", "1\n", Input(header=False), Columns(key="f0"), "Expected 2 columns, got 1"),
        ("x.csv", "1,2\n", "1,x\n", Input(header=False), Columns(timestamp="f1"), "Failed to parse string: 'x'"),
        ("x.json", '{"a":1}\n', "{\n", Input(), Columns(key="a"), "JSON parse error"),
        ("x.log", "ab\n", "b\n", Input(pattern="^(?P<a>a)b"), Columns(key="a"), "does not match the pattern: b"),
    ],
)
def test_a_bad_line_is_named_or_skipped(
    tmp_path: Path, name: str, good: str, bad: str, source: Input, columns: Columns, reason: str
) -> None:
    path = tmp_path / name
    path.write_text(good * 700 + bad + good * 300 + bad + good * 10)
    with pytest.raises(BadLineError, match=rf"{name}, line 701: .*--bad-lines skip") as raised:
        read(path, source=source, columns=columns)
    assert reason in str(raised.value)
    assert len(read(path, source=replace(source, bad_lines="skip"), columns=columns)) == 1010


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (Input(format="csv"), r"x has no column 'nix'; it has a, b"),
        (Input(format="json"), r"x has no column 'nix'"),
        (Input(), r"x has no column 'nix'; it has line"),
        (Input(pattern="(?P<a>"), r"is not a regular expression"),
    ],
)
def test_a_missing_column_is_named(tmp_path: Path, source: Input, message: str) -> None:
    (tmp_path / "x").write_text("a,b\n" if source.format != "json" else '{"a":1}\n')
    with pytest.raises(InvalidConfigError, match=message):
        read(tmp_path / "x", columns=Columns(key="nix"), source=source)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nix"):
        list_files(OsFs(), [str(tmp_path / "nix")])
