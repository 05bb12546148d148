"""`seglog sql`: topics of brokers and of directories, and tables of a warehouse, as views."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer

from seglog.table.building import update_table
from seglog.testing import Broker
from tests.cli.run import Run

DDL = "valueSchema=carrier string, delay int, offset int"
TYPED = ("--value-format", "json", "--option", DDL)
START = int(time.time()) * 1000


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"flights": 2, "my-topic": [b"\xff"], "bad": [b"no json"]}) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for number in range(9):
            value = json.dumps({"carrier": ("UA", "AA", "B6")[number % 3], "delay": number, "offset": 70})
            producer.produce("flights", value, key=b"k%d" % number, timestamp=START + number, partition=number % 2)
        assert producer.flush(30) == 0
        yield broker


def lines(run: Run, *arguments: object) -> list[str]:
    ran = run("sql", *arguments)
    assert ran.code == 0, ran.err
    return ran.text.splitlines()


def test_fields_of_values_are_columns(run: Run, broker: Broker) -> None:
    query = "SELECT carrier, count(*) AS n, max(delay) FROM flights GROUP BY 1 ORDER BY 1"
    for where in (("-b", broker.bootstrap), (broker.data_dir,), (broker.data_dir, "-b", broker.bootstrap)):
        assert lines(run, query, *where, *TYPED) == [
            "carrier  n  max(delay)",
            "AA       3           7",
            "B6       3           8",
            "UA       3           6",
        ]


def test_json_and_csv_have_all_kinds_of_values(run: Run, broker: Broker) -> None:
    query = 'SELECT * EXCLUDE (timestamp) FROM flights WHERE "offset" = 0 AND partition = 1'
    (row,) = map(json.loads, lines(run, query, "-b", broker.bootstrap, *TYPED, "--format", "json"))
    value = {"carrier": "AA", "delay": 1, "offset": 70}
    assert row == {
        "key": "k1", "value": value, "topic": "flights", "partition": 1, "offset": 0, "timestampType": 0,
        "headers": None, "carrier": "AA", "delay": 1,
    }  # fmt: skip
    text = "\n".join(lines(run, query, "-b", broker.bootstrap, *TYPED, "-f", "csv"))
    (found,) = csv.DictReader(io.StringIO(text))
    assert found["key"] == "k1"
    assert json.loads(found["value"]) == value
    assert (found["headers"], found["delay"]) == ("", "1")
    (row,) = map(json.loads, lines(run, 'SELECT value FROM "my-topic"', broker.data_dir, "-f", "json"))
    assert row == {"value": {"base64": "/w=="}}
    (row,) = map(json.loads, lines(run, "SELECT min(timestamp) AS t FROM flights", broker.data_dir, "-f", "json"))
    assert row["t"].startswith(time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(START / 1000)))
    assert row["t"].endswith("Z")


@pytest.mark.parametrize("form", ["parquet", "json", "csv", "table"])
def test_a_file_is_written_and_can_be_queried(run: Run, broker: Broker, tmp_path: Path, form: str) -> None:
    out = tmp_path / f"it's.{form}"
    query = "SELECT key, delay FROM flights ORDER BY delay;"
    assert lines(run, query, "-b", broker.bootstrap, *TYPED, "--format", form, "--out", str(out)) == []
    if form == "parquet":
        assert pq.read_table(out).column("delay").to_pylist() == list(range(9))
    if form != "table":
        name = str(out).replace("'", "''")
        assert lines(run, f"SELECT count(*) AS n FROM '{name}'", "-b", broker.bootstrap) == ["n", "9"]
    else:
        assert len(out.read_text().splitlines()) == 10


def test_a_long_table_is_cut_and_says_so(run: Run, broker: Broker) -> None:
    found = lines(run, "SELECT * FROM range(10001)", "-b", broker.bootstrap)
    assert len(found) == 10_002
    assert found[-1] == "only the first 10,000 rows are shown: add LIMIT, or take --format json or csv"
    assert len(lines(run, "SELECT * FROM range(10001)", "-b", broker.bootstrap, "-f", "csv")) == 10_002


def test_tables_of_a_warehouse(run: Run, broker: Broker, tmp_path: Path) -> None:
    update_table(broker.bootstrap, tmp_path / "warehouse" / "flights", topic="flights")
    query = "SELECT partition, count(*) AS n FROM flights GROUP BY 1 ORDER BY 1"
    assert lines(run, query, tmp_path / "warehouse") == ["partition  n", "        0  5", "        1  4"]
    ran = run("sql", "SELECT * FROM nix", tmp_path / "warehouse")
    assert (ran.code, ran.err) == (2, f"seglog: there is no table 'nix' in {tmp_path}/warehouse\n")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("SELECT * FROM nix", "-b", "BROKER"), "there is no topic 'nix'; existing: bad, flights, my-topic"),
        (("SELECT value FROM bad", "-b", "BROKER", *TYPED), "topic bad, partition 0, offset 0: the value cannot be"),
        (("SELEC 1", "-b", "BROKER"), 'Parser Error: syntax error at or near "SELEC"'),
        (("SELECT nix FROM flights", "-b", "BROKER"), "Binder Error: "),
        (("SELECT 1",), "sql needs brokers (-b HOST:PORT), a log directory or a warehouse"),
        (("SELECT 1", "-b", "BROKER", "-f", "xml"), "--format must be table, json, csv or parquet, not xml"),
        (("SELECT 1", "-b", "BROKER", "-f", "parquet"), "--format parquet needs --out FILE"),
        (("SELECT * FROM t", "-b", "127.0.0.1:1"), "no broker answers at 127.0.0.1:1: Connection refused"),
        (("SELECT * FROM flights", "-b", "BROKER", "-o", "valueSchemas=x"), "there is no 'valueSchemas'"),
        (("SELECT * FROM flights", "nowhere"), "nowhere' does not exist"),
    ],
)
def test_what_cannot_be_is_one_sentence(run: Run, broker: Broker, arguments: tuple[str, ...], reason: str) -> None:
    ran = run("sql", *(broker.bootstrap if one == "BROKER" else one for one in arguments))
    assert ran.code == 2
    assert reason in ran.err
    assert len(ran.err.splitlines()) == 1


def test_a_query_that_does_not_need_the_value_does_not_decode_it(run: Run, broker: Broker) -> None:
    assert lines(run, 'SELECT max("offset") AS o FROM bad', "-b", broker.bootstrap, *TYPED) == ["o", "0"]
