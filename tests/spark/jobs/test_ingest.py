"""`seglog.spark.jobs.ingest`: files of all formats against plain Python that reads them line by line."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import seglog
from seglog.core.errors import AdoptError, InvalidConfigError, SeglogError
from seglog.core.fs import OsFs
from seglog.records.partitioner import partition_for_key
from seglog.spark.jobs.ingest import Columns, Input, ingest
from seglog.spark.jobs.input.columns import make_records, names_of
from seglog.spark.jobs.input.json_text import json_rows
from seglog.spark.jobs.input.splits import BLOCK, count_lines, read_lines, split_text
from seglog.storage.offline.verify import verify
from tests.cases import case
from tests.cli.run import Run, run_here

pytestmark = pytest.mark.xdist_group("spark")

Row = tuple[bytes | None, bytes | None, int]


@pytest.fixture
def log_dir(tmp_path: Path) -> str:
    path = str(tmp_path / "log")
    seglog.open(path).close()
    return path


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes], spark: SparkSession) -> Run:
    assert spark.version
    return run_here(capfdbinary)


def records(spark: SparkSession, log_dir: str, topic: str = "t") -> dict[int, list[Row]]:
    """Key, value and time of each record, by partition, in the log's order."""
    frame = spark.read.format("seglog").option("subscribe", topic).load(log_dir)
    found: dict[int, list[Row]] = {}
    for row in frame.selectExpr("*", "unix_millis(timestamp) AS ms").orderBy("partition", "offset").collect():
        key, value = (None if cell is None else bytes(cell) for cell in (row.key, row.value))
        found.setdefault(row.partition, []).append((key, value, row.ms))
    return found


# LineBlock


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
def test_ranges_of_text_have_every_line_once(tmp_path: Path, ending: bytes) -> None:
    rng = random.Random(0)
    fs = OsFs()
    for number in range(60):
        lines = [b"x" * rng.choice((0, 1, 5, 300)) for _ in range(rng.randrange(60))]
        data = ending.join(lines) + (ending if lines and rng.random() < 0.5 else b"")
        expected = data.split(b"\n")[:-1] if data.endswith(b"\n") else data.split(b"\n") if data else []
        path = tmp_path / str(number)
        path.write_bytes(data)
        found, numbers = [], []
        for split in split_text(fs, [str(path)], rng.choice((1, 7, 100, 5000)), whole=False):
            for part in read_lines(split):
                found += [part.data[start:end] for start, end in zip(part.starts, part.ends, strict=False)]
                first = count_lines(fs, str(path), split.start) + part.first
                numbers += list(range(first, first + len(part.ends)))
        assert found == [line.removesuffix(b"\r") for line in expected]
        assert numbers == list(range(1, len(expected) + 1))
        case()


def test_lines_larger_than_a_block_and_compressed_files(tmp_path: Path) -> None:
    fs = OsFs()
    lines = [b"a" * (BLOCK * 2 + 5), b"b", b"c" * BLOCK, b""]
    (tmp_path / "big").write_bytes(b"\n".join(lines) + b"\n")
    (tmp_path / "big.gz").write_bytes(gzip.compress(b"\n".join(lines) + b"\n", 1))
    for name, share in (("big", 1 << 30), ("big", BLOCK), ("big", 1 << 20), ("big.gz", 1 << 10)):
        found = [
            part.data[start:end]
            for split in split_text(fs, [str(tmp_path / name)], share, whole=False)
            for part in read_lines(split)
            for start, end in zip(part.starts, part.ends, strict=False)
        ]
        assert found == lines, (name, share)


# Expressions


def test_expressions() -> None:
    batch = pa.RecordBatch.from_arrays(
        [pa.array(["a", None, 'c"d\\e\nf']), pa.array([1, 2, None]), pa.array([1.5, float("nan"), None])],
        ["text", "number", "real"],
    )

    def values(expression: str) -> list[Any]:
        made = make_records(
            Columns(value=expression), 3, lambda name: json_rows(batch) if name == "*" else batch.column(name), None
        )
        return made.column("value").to_pylist()

    assert values("text") == [b"a", None, b'c"d\\e\nf']
    assert values("number") == [b"1", b"2", None]
    assert values("{{{number}}}-{text}!") == [b"{1}-a!", None, None]
    assert values("'as it is'") == [b"as it is"] * 3
    assert [json.loads(one) for one in values("*")] == [
        {"text": "a", "number": 1, "real": 1.5},
        {"text": None, "number": 2, "real": None},
        {"text": 'c"d\\e\nf', "number": None, "real": None},
    ]
    with pytest.raises(InvalidConfigError, match="an unmatched brace"):
        names_of("{a")


@pytest.mark.parametrize(
    ("values", "columns", "expected"),
    [
        (pa.array(["2013-01-01T05:00:00Z", None]), Columns(timestamp="t"), [1357016400000, None]),
        (pa.array(["2013-01-01 05:00:00.1234567"]), Columns(timestamp="t"), [1357016400123]),
        (pa.array(["2013-01-01T07:00:00+02:00"]), Columns(timestamp="t"), [1357016400000]),
        (pa.array(["2013-01-01"]), Columns(timestamp="t"), [1356998400000]),
        (pa.array(["1357016400000"]), Columns(timestamp="t"), [1357016400000]),
        (pa.array([1357016400]), Columns(timestamp="t", timestamp_unit="s"), [1357016400000]),
        (pa.array([1357016400000999]), Columns(timestamp="t", timestamp_unit="us"), [1357016400000]),
        (pa.array([1357016400.5]), Columns(timestamp="t", timestamp_unit="s"), [1357016400500]),
        (
            pa.array(["01/Jan/2013:06:00:00 +0100"]),
            Columns(timestamp="t", timestamp_format="%d/%b/%Y:%H:%M:%S %z"),
            [1357016400000],
        ),
    ],
)
def test_times(values: pa.Array, columns: Columns, expected: list[int | None]) -> None:
    made = make_records(columns, len(values), lambda _: values, pa.array([b"v"] * len(values)))
    assert made.column("timestamp").to_pylist() == expected


# Whole jobs


def test_csv_by_key(spark: SparkSession, tmp_path: Path, log_dir: str) -> None:
    """Two files, cut into many ranges: each partition has its records in the order of the files."""
    rng = random.Random(1)
    expected: dict[int, list[Row]] = {}
    for name in ("a.csv", "b.csv"):
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["id", "tail", "when", "note"])
        for number in range(2000):
            when = 1_700_000_000_000 + number
            row = [number, f"N{rng.randrange(50)}", when, rng.choice(("", "a, b", 'say "x"', "é"))]
            line = io.StringIO()
            csv.writer(line, lineterminator="").writerow(row)
            text.write(line.getvalue() + "\n")
            key = f"{row[1]}/{number}".encode()
            record = (key, line.getvalue().encode(), when)
            expected.setdefault(partition_for_key(key, 3), []).append(record)
        (tmp_path / name).write_text(text.getvalue())
    told: list[int] = []
    done = ingest(
        spark,
        str(tmp_path / "*.csv"),
        log_dir,
        "t",
        columns=Columns(key="{tail}/{id}", timestamp="when"),
        partitions=3,
        options={"compression.type": "zstd"},
        progress=told.append,
    )
    assert (done.records, done.files, done.bad_lines) == (4000, 2, 0)
    assert sum(told) == done.bytes
    assert records(spark, log_dir) == expected
    assert verify([log_dir]).findings == []


def test_small_tasks_keep_the_order(
    spark: SparkSession, tmp_path: Path, log_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from seglog.spark.jobs import ingest as job

    monkeypatch.setattr(job, "_SMALLEST_TASK", 1000)
    (tmp_path / "web.log").write_text("".join(f"line {number}\n" for number in range(3000)))
    done = ingest(spark, str(tmp_path / "web.log"), log_dir, "t")
    assert done.tasks > 3
    assert [value for _, value, _ in records(spark, log_dir)[0]] == [
        f"line {number}".encode() for number in range(3000)
    ]


def test_json_lines(spark: SparkSession, tmp_path: Path, log_dir: str) -> None:
    day = "2024-05-01"
    lines = [
        json.dumps({"id": n, "user": {"name": f"u{n % 7}"}, "at": f"{day}T00:00:{n % 60:02d}Z", "day": day})
        for n in range(500)
    ]
    (tmp_path / "e.jsonl").write_text("\n".join(lines) + "\n\n")
    columns = Columns(key="{user.name}:{day}", timestamp="at", headers={"source": "'web'", "id": "id"})
    done = ingest(spark, str(tmp_path / "e.jsonl"), log_dir, "t", columns=columns)
    assert done.records == 500
    start = int(datetime(2024, 5, 1, tzinfo=UTC).timestamp() * 1000)
    assert records(spark, log_dir)[0] == [
        (f"u{n % 7}:{day}".encode(), line.encode(), start + n % 60 * 1000) for n, line in enumerate(lines)
    ]
    frame = spark.read.format("seglog").option("includeHeaders", "true").load(log_dir)
    first = frame.orderBy("offset").first()
    assert first is not None
    assert [(one.key, bytes(one.value)) for one in first.headers] == [("source", b"web"), ("id", b"0")]


def test_parquet(spark: SparkSession, tmp_path: Path, log_dir: str) -> None:
    count = 10_000
    table = pa.Table.from_pylist(
        [
            {"id": number, "name": f"n{number}", "at": datetime.fromtimestamp(number, UTC), "p": number % 2, "x": None}
            for number in range(count)
        ]
    )
    with closing(pq.ParquetWriter(tmp_path / "t.parquet", table.schema)) as writer:
        writer.write_table(table, row_group_size=700)
    columns = Columns(key="name", timestamp="at", partition="p")
    done = ingest(spark, str(tmp_path / "t.parquet"), log_dir, "t", columns=columns, partitions=2)
    assert done.records == count
    found = records(spark, log_dir)
    for partition in range(2):
        mine = [number for number in range(count) if number % 2 == partition]
        assert [(key, ms) for key, _, ms in found[partition]] == [(f"n{n}".encode(), n * 1000) for n in mine]
        values = [json.loads(value or b"") for _, value, _ in found[partition]]
        assert [(value["id"], value["name"], value["x"]) for value in values] == [(n, f"n{n}", None) for n in mine]


LOG = '10.0.0.{0} - bob [01/Jan/2013:05:00:{0:02d} +0000] "GET /{0} HTTP/1.1" 200 {0} "-" "curl \\"x\\" {0}"'


def test_a_web_servers_log(spark: SparkSession, tmp_path: Path, log_dir: str) -> None:
    lines = [LOG.format(number) for number in range(60)]
    (tmp_path / "access.log").write_text("\n".join(lines) + "\n")
    columns = Columns(key="host", timestamp="time", timestamp_format="%d/%b/%Y:%H:%M:%S %z", value="{status} {request}")
    source = Input(pattern="combined")
    assert ingest(spark, str(tmp_path / "access.log"), log_dir, "t", columns=columns, source=source).records == 60
    assert records(spark, log_dir)[0] == [
        (f"10.0.0.{n}".encode(), f"200 GET /{n} HTTP/1.1".encode(), 1357016400000 + n * 1000) for n in range(60)
    ]


# What goes wrong


@pytest.mark.parametrize(
    ("name", "good", "bad", "source", "columns", "reason"),
    [
        ("x.csv", "1,2\n", "1\n", Input(header=False), Columns(key="f0"), "Expected 2 columns, got 1"),
        ("x.csv", "1,2\n", "1,x\n", Input(header=False), Columns(timestamp="f1"), "Failed to parse string: 'x'"),
        ("x.json", '{"a":1}\n', "{\n", Input(), Columns(key="a"), "JSON parse error"),
        ("x.log", "ab\n", "b\n", Input(pattern="^(?P<a>a)b"), Columns(key="a"), "does not match the pattern: b"),
    ],
)
def test_bad_lines(
    spark: SparkSession,
    tmp_path: Path,
    log_dir: str,
    name: str,
    good: str,
    bad: str,
    source: Input,
    columns: Columns,
    reason: str,
) -> None:
    path = tmp_path / name
    path.write_text(good * 700 + bad + good * 300 + bad + good * 10)
    with pytest.raises(SeglogError) as raised:
        ingest(spark, str(path), log_dir, "t", source=source, columns=columns)
    assert str(raised.value).startswith(f"{path}, line 701: ")
    assert reason in str(raised.value)
    assert "--bad-lines skip" in str(raised.value)
    assert records(spark, log_dir) == {}
    skipping = Input(header=source.header, pattern=source.pattern, bad_lines="skip")
    done = ingest(spark, str(path), log_dir, "t", source=skipping, columns=columns)
    assert (done.records, done.bad_lines) == (1010, 2)
    assert [example.split(":")[0] for example in done.bad_examples] == [f"{path}, line 701", f"{path}, line 1002"]


def test_a_second_run_reads_what_is_new(spark: SparkSession, tmp_path: Path, log_dir: str) -> None:
    """Files that have grown, were rotated and are new; a line without its end waits for it."""
    log, columns = tmp_path / "web.log", Columns()
    log.write_text("1\n2\nunfinish")
    first = ingest(spark, log, Path(log_dir), "t", columns=columns)
    assert (first.records, first.unfinished) == (2, {str(log): 8})
    again = ingest(spark, [log], log_dir, "t", columns=columns)
    assert (again.already, again.records, again.known) == (True, 0, 1)
    with log.open("a") as file:
        file.write("ed\n")
    log.rename(tmp_path / "web.log.1")
    log.write_text("4\n")
    done = ingest(spark, tmp_path / "web.log*", log_dir, "t", columns=columns)
    assert (done.records, done.files, done.unfinished) == (2, 2, {})
    assert ingest(spark, tmp_path / "web.log*", log_dir, "t").already
    assert [value for _, value, _ in records(spark, log_dir)[0]] == [b"1", b"2", b"4", b"unfinished"]
    log.write_text("5")
    assert ingest(spark, log, log_dir, "t").already
    assert ingest(spark, log, log_dir, "t", take_unfinished=True).records == 1
    assert verify([log_dir]).findings == []


def test_csv_over_several_lines(spark: SparkSession, tmp_path: Path, log_dir: str) -> None:
    (tmp_path / "x.csv").write_text('a,b\n1,"x\ny"\n2,z\n')
    with pytest.raises(SeglogError, match="line 2: "):
        ingest(spark, str(tmp_path / "x.csv"), log_dir, "t", columns=Columns(key="a"))
    done = ingest(spark, tmp_path / "x.csv", log_dir, "t", columns=Columns(key="a"), source=Input(multiline=True))
    assert done.records == 2
    assert [(key, json.loads(value or b"")) for key, value, _ in records(spark, log_dir)[0]] == [
        (b"1", {"a": "1", "b": "x\ny"}),
        (b"2", {"a": "2", "b": "z"}),
    ]


def test_a_transaction_is_adopted_once(spark: SparkSession, tmp_path: Path, log_dir: str) -> None:
    (tmp_path / "x.txt").write_text("a\nb\n")
    options = {"txnAppId": "nightly", "txnVersion": "7"}
    first = ingest(spark, str(tmp_path / "x.txt"), log_dir, "t", options=options)
    again = ingest(spark, str(tmp_path / "x.txt"), log_dir, "t", options=options)
    assert (first.already, first.records, again.already, again.records) == (False, 2, True, 0)
    assert len(records(spark, log_dir)[0]) == 2
    later = {**options, "txnVersion": "8"}
    assert ingest(spark, str(tmp_path / "x.txt"), log_dir, "t", options=later).already
    assert ingest(spark, str(tmp_path / "x.txt"), log_dir, "t", options=later, again=True).records == 2
    (tmp_path / "y.txt").write_text("c\n")
    with pytest.raises(AdoptError, match="txn:nightly version 8 was adopted with other input"):
        ingest(spark, str(tmp_path / "y.txt"), log_dir, "t", options=later)
    with pytest.raises(AdoptError, match="txn:nightly version 8 was adopted with other input"):
        ingest(spark, [tmp_path / "x.txt", tmp_path / "y.txt"], log_dir, "t", options=later)
    assert len(records(spark, log_dir)[0]) == 4
    assert not list(Path(log_dir).rglob("staging/*/*"))


@pytest.mark.parametrize(
    ("columns", "source", "message"),
    [
        (Columns(key="nix"), Input(format="csv"), r"x has no column 'nix'; it has a, b"),
        (Columns(key="nix"), Input(format="json"), r"x has no column 'nix'"),
        (Columns(key="nix"), Input(), r"x has no column 'nix'; it has line"),
        (Columns(key="nix"), Input(pattern="(?P<a>"), r"is not a regular expression"),
    ],
)
def test_what_is_not_there(
    spark: SparkSession, tmp_path: Path, log_dir: str, columns: Columns, source: Input, message: str
) -> None:
    (tmp_path / "x").write_text("a,b\n" if source.format != "json" else '{"a":1}\n')
    with pytest.raises(InvalidConfigError, match=message):
        ingest(spark, str(tmp_path / "x"), log_dir, "t", columns=columns, source=source)
    with pytest.raises(FileNotFoundError):
        ingest(spark, str(tmp_path / "y"), log_dir, "t")


def test_the_command(run: Run, tmp_path: Path, log_dir: str) -> None:
    (tmp_path / "x.csv").write_text("a,b\n1,2\n3\n4,5\n")
    command = ["spark", "ingest", tmp_path / "x.csv", "--into", log_dir, "--topic", "t", "--key", "a"]
    dry = run(*command, "--dry-run", "--bad-lines", "skip")
    assert (dry.code, dry.err) == (0, "")
    assert dry.lines[0] == "key=1, value=1,2"
    assert dry.lines[-1] == "1 file, 14 B would be read by 1 tasks into topic t; nothing was written"
    assert not (Path(log_dir) / "t-0").exists()
    failed = run(*command)
    assert failed.code == 2
    assert failed.err.startswith(f"seglog: {tmp_path}/x.csv, line 3: ")
    assert failed.err.count("\n") == 1
    done = run(*command, "--bad-lines", "skip")
    assert done.lines == ["1 file, 14 B: 2 records into topic t, 1 bad lines skipped"]
    assert f"skipped: {tmp_path}/x.csv, line 3: " in done.err
    assert run(*command).lines == ["topic t has all of these records already; nothing was written (--again repeats it)"]
    (document,) = run(*command, "--again", "--bad-lines", "skip", "--json").objects
    assert (document["records"], document["bad_lines"], document["topic"]) == (2, 1, "t")
