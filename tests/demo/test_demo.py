"""The demo on a slice of the flights, from the command line, and its parts."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from rich.console import Console

import seglog
from demo import flights, questions
from demo.load import PARTITIONS, load
from demo.picture import draw
from demo.questions import Delays, Hour
from demo.run import are_equal, main, prepare
from demo.show import Show
from seglog.records.partitioner import partition_for_key

SLICE = 5000


@pytest.fixture(scope="module")
def table() -> bytes:
    return flights.read_csv()


@pytest.fixture(scope="module")
def records(table: bytes) -> list[seglog.NewRecord]:
    return flights.to_records(table)


def test_a_flight_is_a_record(table: bytes) -> None:
    record = flights.to_records(table, 1)[0]
    assert record.key == b"N14228"
    assert record.timestamp == 1357035300000  # 2013-01-01T10:15Z: time_hour 10:00, minute 15
    assert record.headers == (("carrier", b"UA"), ("origin", b"EWR"))
    assert bytes(record.value or b"").decode() == (
        '{"year":2013,"month":1,"day":1,"dep_time":517,"sched_dep_time":515,"dep_delay":2,"arr_time":830,'
        '"sched_arr_time":819,"arr_delay":11,"carrier":"UA","flight":1545,"tailnum":"N14228","origin":"EWR",'
        '"dest":"IAH","air_time":227,"distance":1400,"hour":5,"minute":15,"time_hour":"2013-01-01T10:00:00Z"}'
    )


def test_what_is_missing_is_null_and_the_order_is_that_of_departure(records: list[seglog.NewRecord]) -> None:
    assert len(records) == 336_776
    assert sum(record.key is None for record in records) == 2512
    assert all(left.timestamp <= right.timestamp for left, right in pairwise(records))
    cancelled = next(record for record in records if record.key is None)
    row = json.loads(bytes(cancelled.value or b""))
    assert (row["tailnum"], row["dep_time"], row["dep_delay"]) == (None, None, None)


def test_records_are_where_their_keys_belong_and_in_order(records: list[seglog.NewRecord], tmp_path: Path) -> None:
    without_key = [record for record in records if record.key is None]
    records = records[:SLICE] + without_key[-1000:]
    counts: list[int] = []
    written = load(str(tmp_path / "log"), records, counts.append)
    assert written.records == sum(counts) == len(records)
    assert written.batches == len(counts)
    with seglog.open(str(tmp_path / "log")) as log_dir:
        assert log_dir.topics()["flights"].config["retention.ms"] == "-1"
    found = seglog.scan(str(tmp_path / "log")).read_all().to_pylist()
    assert len(found) == len(records)
    keyed = [row for row in found if row["key"] is not None]
    assert all(row["partition"] == partition_for_key(row["key"], PARTITIONS) for row in keyed)
    assert len({row["partition"] for row in found if row["key"] is None}) == PARTITIONS
    for partition in range(PARTITIONS):
        times = [row["timestamp"] for row in found if row["partition"] == partition]
        assert times == sorted(times)
    assert sorted(row["value"] for row in found) == sorted(bytes(record.value or b"") for record in records)


def test_known_answers(table: bytes) -> None:
    answers = questions.ask_source(table)
    assert answers.flights == 336_776
    assert answers.busiest_hour == Hour("2013-09-13 12", "2013-09-13 08")
    assert answers.worst_day == "2013-03-08"
    assert f"{answers.days['2013-03-08'].mean:.2f}" == "83.54"
    assert f"{answers.carriers['F9'].mean:.2f}" == "20.22"


def test_a_wrong_answer_is_found(table: bytes) -> None:
    right = questions.ask_source(table, SLICE)
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
    assert are_equal(show, right, right)
    assert not are_equal(show, wrong, right)
    assert "3 answers of Spark are not those of the source table" in show.console.export_text()


def test_the_picture_needs_nothing_else(table: bytes) -> None:
    for limit in (1, SLICE, None):
        page = draw(questions.ask_source(table, limit), flights.airlines(), "<facts>")
        assert page.count("<svg") == 3
        assert "&lt;facts&gt;" in page
        assert "prefers-color-scheme: dark" in page
        assert not re.search(r"https?://|<script|<link|nan|inf\b", page)


def test_only_what_the_demo_made_is_deleted(tmp_path: Path) -> None:
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


@pytest.mark.xdist_group("spark")
def test_the_demo_runs_where_it_ran_before(records: list[seglog.NewRecord], tmp_path: Path) -> None:
    load(str(prepare(tmp_path / "out")), records[:100], lambda _: None)
    ran = subprocess.run(
        [sys.executable, "-m", "demo", "--dir", str(tmp_path / "out"), "--flights", str(SLICE)],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stderr == ""
    assert "5,000 flights that left New York in 2013" in ran.stdout
    for command in ("ls", "find", "verify"):
        assert f"$ seglog {command} " in ran.stdout
    assert "numbers are equal: each carrier, each hour, each day" in ran.stdout
    assert "\x1b" not in ran.stdout
    assert (tmp_path / "out" / "flights.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert sorted(path.name for path in (tmp_path / "out" / "log").glob("flights-*")) == [
        f"flights-{partition}" for partition in range(PARTITIONS)
    ]
