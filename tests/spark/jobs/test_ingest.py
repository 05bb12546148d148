"""`seglog.spark.jobs.ingest`: files of all formats against plain Python that reads them line by line."""

from __future__ import annotations

import csv
import io
import json
import random
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import seglog
from seglog.client.kept_connections import close_all
from seglog.core.errors import AdoptError, SeglogError
from seglog.core.types import TopicPartition
from seglog.records.partitioner import partition_for_key
from seglog.spark.jobs.ingest import Columns, Input, ingest
from seglog.storage.offline.verify import verify
from tests.broker.broker_thread import RunningNode
from tests.cli.run import Run
from tests.client.produce.written import numbers

pytestmark = pytest.mark.xdist_group("spark-jobs")

Row = tuple[bytes | None, bytes | None, int]


@pytest.fixture
def log_dir(tmp_path: Path) -> str:
    path = str(tmp_path / "log")
    seglog.open(path).close()
    return path


def records(spark: SparkSession, log_dir: str, topic: str = "t") -> dict[int, list[Row]]:
    """Key, value and time of each record, by partition, in the log's order."""
    frame = spark.read.format("seglog").option("subscribe", topic).load(log_dir)
    found: dict[int, list[Row]] = {}
    for row in frame.selectExpr("*", "unix_millis(timestamp) AS ms").orderBy("partition", "offset").collect():
        key, value = (None if cell is None else bytes(cell) for cell in (row.key, row.value))
        found.setdefault(row.partition, []).append((key, value, row.ms))
    return found


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


def test_a_bad_line_fails_the_job_or_is_skipped(spark: SparkSession, tmp_path: Path, log_dir: str) -> None:
    path = tmp_path / "x.csv"
    path.write_text("1,2\n" * 700 + "1\n" + "1,2\n" * 300 + "1\n" + "1,2\n" * 10)
    with pytest.raises(SeglogError) as raised:
        ingest(spark, str(path), log_dir, "t", source=Input(header=False), columns=Columns(key="f0"))
    assert str(raised.value).startswith(f"{path}, line 701: ")
    assert records(spark, log_dir) == {}
    skipping = Input(header=False, bad_lines="skip")
    done = ingest(spark, str(path), log_dir, "t", source=skipping, columns=Columns(key="f0"))
    assert (done.records, done.bad_lines) == (1010, 2)
    assert [example.split(":")[0] for example in done.bad_examples] == [f"{path}, line 701", f"{path}, line 1002"]


def test_second_run_reads_only_new_lines_and_files(spark: SparkSession, tmp_path: Path, log_dir: str) -> None:
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


def test_a_directory_that_a_broker_has_open(spark: SparkSession, run: Run, tmp_path: Path) -> None:
    """The marks of files count whether the broker runs or not."""
    log, path = tmp_path / "web.log", tmp_path / "log"
    log.write_text("1\n2\n")
    with RunningNode(path) as node:
        command = ["spark", "ingest", log, "--into", path, "--topic", "t", "--partitions", "2"]
        assert run(*command).lines == ["1 file, 4 B: 2 records into topic t"]
        assert ingest(spark, log, path, "t").already
        with log.open("a") as file:
            file.write("3\nunfinished")
        assert ingest(spark, log, path, "t").records == 1
        found = [numbers(node.bootstrap, TopicPartition("t", partition)) for partition in range(2)]
        assert sorted(found[0] + found[1]) == [1, 2, 3]
        options = {"txnAppId": "nightly", "txnVersion": "1"}
        log.write_text("4\n5\n6\n")
        assert ingest(spark, log, path, "t", options=options).records == 3
        log.write_text("7\n8\n9\n")
        with pytest.raises(AdoptError, match="txn:nightly version 1 was adopted with other input"):
            ingest(spark, log, path, "t", options=options)
        assert not list(path.rglob("staging/*/*"))
    close_all()
    log.write_text("4\n5\n6\n10\n")
    assert ingest(spark, log, path, "t").records == 1
    assert sorted(int(value or b"") for rows in records(spark, str(path)).values() for _, value, _ in rows) == [
        *range(1, 7),
        10,
    ]


def test_reads_multiline_csv(spark: SparkSession, tmp_path: Path, log_dir: str) -> None:
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
