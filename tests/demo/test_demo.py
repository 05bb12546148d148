"""The demo on a slice of the flights, from the command line, and its parts."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from rich.console import Console

import seglog
from demo import flights, questions, tables
from demo.group import Books
from demo.picture import draw
from demo.produce import CONFIG, PARTITIONS, TOPIC, produce
from demo.produce import flights as read_flights
from demo.questions import Delays, Hour
from demo.run import are_equal, first_rows, main, prepare
from demo.show import Show
from demo.windows import Window, read_windows
from seglog.records.partitioner import partition_for_key
from seglog.testing import Broker

SLICE = 5000


@pytest.fixture(scope="session")
def table() -> bytes:
    return flights.read_csv()


@pytest.fixture(scope="session")
def loaded(table: bytes) -> list[dict[str, Any]]:
    """The first `SLICE` flights, and those without a tail number among the last, as a broker has them."""
    lines = table.splitlines(keepends=True)
    chosen = lines[: SLICE + 1] + [line for line in lines[SLICE + 1 :] if b",NA,LGA," in line][-1000:]
    with Broker() as broker:
        broker.create_topic(TOPIC, PARTITIONS, CONFIG)
        produce(broker.bootstrap, read_flights(b"".join(chosen)))
        rows = seglog.scan(broker.data_dir, topics=[TOPIC]).read_all().to_pylist()
    assert len(rows) == len(chosen) - 1
    return rows


def test_a_flight_is_a_record(loaded: list[dict[str, Any]]) -> None:
    (row,) = [row for row in loaded if b'"flight":1545,' in row["value"] and b'"day":1,' in row["value"]][:1]
    assert row["key"] == b"N14228"
    assert int(row["timestamp"].timestamp()) == 1357035300  # 2013-01-01T10:15Z: time_hour 10:00, minute 15
    assert row["headers"] == [{"key": "carrier", "value": b"UA"}, {"key": "origin", "value": b"EWR"}]
    assert row["value"].decode() == (
        '{"year":2013,"month":1,"day":1,"dep_time":517,"sched_dep_time":515,"dep_delay":2,"arr_time":830,'
        '"sched_arr_time":819,"arr_delay":11,"carrier":"UA","flight":1545,"tailnum":"N14228","origin":"EWR",'
        '"dest":"IAH","air_time":227,"distance":1400,"hour":5,"minute":15,"time_hour":"2013-01-01T10:00:00Z"}'
    )


def test_missing_fields_are_null(loaded: list[dict[str, Any]]) -> None:
    cancelled = json.loads(next(row for row in loaded if row["key"] is None)["value"])
    assert cancelled["tailnum"] is None
    assert "dep_delay" in cancelled


def test_records_are_where_their_keys_belong_and_in_order(loaded: list[dict[str, Any]]) -> None:
    keyed = [row for row in loaded if row["key"] is not None]
    assert all(row["partition"] == partition_for_key(row["key"], PARTITIONS) for row in keyed)
    assert any(row["key"] is None for row in loaded)
    for partition in range(PARTITIONS):
        times = [row["timestamp"] for row in loaded if row["partition"] == partition]
        assert times == sorted(times)


def test_known_answers(table: bytes) -> None:
    answers = questions.ask_source(table)
    assert answers.flights == 336_776
    assert answers.busiest_hour == Hour("2013-09-13 12", "2013-09-13 08")
    assert answers.worst_day == "2013-03-08"
    assert f"{answers.days['2013-03-08'].mean:.2f}" == "83.54"
    assert f"{answers.carriers['F9'].mean:.2f}" == "20.22"


def test_a_wrong_answer_is_found(table: bytes) -> None:
    right = questions.ask_source(first_rows(table, SLICE))
    assert questions.differences(right, right) == []
    carriers = {**right.carriers, "UA": right.carriers["UA"]._replace(minutes=right.carriers["UA"].minutes + 1)}
    hours = dict(right.hours)
    missing = hours.popitem()[0]
    wrong = replace(right, carriers=carriers, hours=hours, days={**right.days, "2014-02-30": Delays(1, 1, 1)})
    found = questions.differences(wrong, right)
    assert [line.split(":")[0] for line in found] == ["carriers", "hours", "days"]
    assert str(missing) in found[1]
    show = Show()
    show.console = Console(record=True, file=io.StringIO())
    assert are_equal(show, [])
    assert not are_equal(show, found)
    assert "3 answers are not those of the source table" in show.console.export_text()


def test_the_picture_needs_nothing_else(table: bytes) -> None:
    for limit in (1, SLICE, None):
        page = draw(questions.ask_source(first_rows(table, limit)), flights.airlines(), "<facts>")
        assert page.count("<svg") == 3
        assert "&lt;facts&gt;" in page
        assert "prefers-color-scheme: dark" in page
        assert "failover" not in page
        assert not re.search(r"https?://|<script|<link|nan|inf\b", page)


def test_the_picture_tells_of_group_broker_and_failover(table: bytes) -> None:
    steps = [("Two consumers of a group", ["member one has partitions 0, 1"]), ("broker 2 is <killed>", ["1.2 s"])]
    page = draw(questions.ask_source(first_rows(table, SLICE)), flights.airlines(), "", steps)
    assert "<dt>Two consumers of a group</dt><dd>member one has partitions 0, 1</dd>" in page
    assert "<dt>broker 2 is &lt;killed&gt;</dt><dd>1.2 s</dd>" in page


def test_deletes_only_directories_of_the_demo(tmp_path: Path) -> None:
    log_dir = prepare(tmp_path)
    log_dir.mkdir()
    (log_dir / "x").touch()
    assert not prepare(tmp_path).exists()
    (tmp_path / "mine" / "log").mkdir(parents=True)
    with pytest.raises(SystemExit, match="was not made by this demo"):
        prepare(tmp_path / "mine")
    assert (tmp_path / "mine" / "log").exists()


def test_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--flights", "0"])
    assert "at least 1" in capsys.readouterr().err


def test_windows_that_are_twice_there_are_found() -> None:
    def record(carrier: str, minute: int, flights: int) -> bytes:
        found = {"carrier": carrier, "minute": minute, "flights": flights, "departed": 1, "minutes": 3}
        return json.dumps(found).encode()

    right = Counter({record("UA", 15, 2): 1, record("UA", 30, 2): 1})
    windows, wrong = read_windows(right)
    assert (windows[Window("UA", 15)], len(windows), wrong) == (Delays(2, 1, 3), 2, [])
    for again in (record("UA", 15, 2), record("UA", 15, 1)):
        _, wrong = read_windows(right + Counter([again]))
        assert wrong == ["windows: Window(carrier='UA', minute=15) is there more than once"]


READ: Final = ["one", "read", 3, 0, 10, {"UA": 6, "B6": 4}]


def enter(*lines: list[object]) -> Books:
    books = Books()
    for line in lines:
        books.enter(json.dumps(line).encode())
    return books


def test_the_books_count_uncommitted_reads_of_a_dead_member_once() -> None:
    books = enter(
        READ,
        ["one", "committed", {"3": 10}],
        ["one", "read", 3, 10, 15, {"UA": 5}],
        ["two", "read", 3, 10, 18, {"UA": 5, "AA": 3}],
    )
    assert (books.flights, books.twice, books.taken_over, books.wrong) == (18, 5, {3: 10}, [])
    assert books.carriers == {"UA": 11, "B6": 4, "AA": 3}
    assert books.committed == {"one": 1}


def test_the_books_do_not_count_reads_of_a_fenced_member() -> None:
    books = enter(
        ["one", "assigned", [3]],
        READ,
        ["one", "committed", {"3": 10}],
        ["two", "assigned", [3]],
        ["two", "read", 3, 10, 15, {"UA": 5}],
        ["one", "read", 3, 10, 18, {"UA": 5, "AA": 3}],
        ["one", "refused", "why"],
        ["two", "read", 3, 15, 20, {"AA": 5}],
    )
    assert (books.flights, books.twice, books.carriers, books.wrong) == (20, 8, {"UA": 11, "B6": 4, "AA": 5}, [])
    assert books.uncommitted == {"one", "two"}
    books.enter(b'["two", "committed", {"3": 20}]')
    assert books.uncommitted == {"one"}


@pytest.mark.parametrize(
    ("then", "message"),
    [
        (["two", "read", 3, 11, 12, {"UA": 1}], "partition 3 was read up to 10, and then from 11"),
        (["two", "read", 3, 5, 12, {"UA": 7}], "partition 3 was read up to 10, and then from 5"),
        (["two", "read", 3, 10, 12, {"UA": 1}], "partition 3: 10 to 12 were 1"),
    ],
    ids=["lost", "twice", "miscounted"],
)
def test_the_books_report_errors(then: list[object], message: str) -> None:
    assert enter(READ, then).wrong == [message]


@pytest.mark.xdist_group("spark-processes")
def test_the_demo_runs_where_it_ran_before(tmp_path: Path) -> None:
    log_dir = prepare(tmp_path / "out")
    (log_dir / "flights-0").mkdir(parents=True)
    (tmp_path / "out" / "warehouse").mkdir()
    ran = subprocess.run(
        [sys.executable, "-m", "demo", "--dir", str(tmp_path / "out"), "--flights", str(SLICE)],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stderr == ""
    assert re.search(r"member one: kill -9 when [0-9,]+ were read; member two has all partitions", ran.stdout)
    assert "5,000 flights: none lost" in ran.stdout
    assert "carriers: Stable, 1 members, lag 0" in ran.stdout
    for engine in tables.ENGINES:
        assert re.search(rf"  {engine}: the delays of 1[0-9] carriers", ran.stdout)
    for command in ("topics create", "groups describe", "find", "verify"):
        assert f"$ seglog {command} " in ran.stdout
    assert "all are equal: each carrier, each hour, each day, each window; and the group has lost nothing" in ran.stdout
    assert 'option("kafka.bootstrap.servers", "127.0.0.1:' in ran.stdout
    assert re.search(r"broker [123] is killed\s+meanwhile", ran.stdout)
    assert "the stream read 5,000 flights in" in ran.stdout
    assert "5,000 flights: nothing is missing, nothing is there twice" in ran.stdout
    assert re.search(r"2,[0-9]+ windows: each is there exactly once, and right", ran.stdout)
    assert "\x1b" not in ran.stdout
    assert (tmp_path / "out" / "flights.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert len(list((tmp_path / "out" / "log").glob("flights-[0-9]"))) == PARTITIONS
    assert list((tmp_path / "out" / "warehouse").glob("flights/data/*.parquet"))
