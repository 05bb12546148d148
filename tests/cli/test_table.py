"""`seglog table`: options, their errors, output, and runs that are killed, without Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from seglog.records.record import NewRecord
from seglog.storage.directory.log_dir import LogDir
from seglog.table.iceberg.log_table import LogTable
from tests.cli.run import Run, seglog_command, start_seglog
from tests.table.tables import append, flights, scanned, stored


@pytest.fixture
def log(tmp_path: Path) -> Path:
    append(tmp_path / "log", flights(0, 30))
    append(tmp_path / "log", flights(0, 12), partition=1)
    return tmp_path / "log"


def test_adds_new_records_and_says_how_many(run: Run, log: Path, tmp_path: Path) -> None:
    table = ("table", log, tmp_path / "w", "--topic", "flights")
    first = run(*table, "--workers", "2", "--bloom", "key, value", "--partition-by", "day", "--delta")
    assert (first.code, first.err) == (0, "")
    assert first.text.startswith("flights: 42 records added in ")
    assert first.text.endswith(" KiB, and is 0 offsets behind\n")
    append(log, flights(30, 5))
    (second,) = run(*table, "--keep", "100000d", "--retain", "log", "--json").objects
    assert (second["added_records"], second["records"], second["partitions"]) == (5, 47, 2)
    assert stored(tmp_path / "w" / "flights").equals(scanned(log))
    assert (tmp_path / "w" / "flights" / "data" / "_delta_log").is_dir()
    with LogTable.open(tmp_path / "w" / "flights") as opened:
        assert (opened.form.bloom, opened.form.by_day) == (("key", "value"), True)


def test_names_records_that_retention_deleted_first(run: Run, log: Path, tmp_path: Path) -> None:
    table = ("table", log, tmp_path / "w", "--topic", "flights")
    assert run(*table).code == 0
    append(log, flights(30, 20))
    with LogDir.open(log) as directory:
        directory.log("flights", 0).delete_records(40)
    refused = run(*table)
    assert refused.code == 2
    assert "the table has flights-0 up to offset 30, and the log begins at 40" in refused.err
    accepted = run(*table, "--option", "failOnDataLoss=false")
    assert (accepted.code, accepted.text[:23]) == (0, "flights: 10 records add")
    assert accepted.err.startswith("seglog: gone: ")


def test_keeps_several_topics_and_types(run: Run, tmp_path: Path) -> None:
    with LogDir.open(tmp_path / "log") as directory:
        for topic in ("a", "b"):
            directory.create_topic(topic)
            directory.log(topic, 0).append_records([NewRecord(b'{"n": 1}')])
    given = ("--topic", "a", "--topic", "b", "--value-format", "json", "--option", "valueSchema=n int")
    done = run("table", tmp_path / "log", tmp_path / "w", *given)
    assert [line.split(":")[0] for line in done.lines] == ["a", "b"]
    with LogTable.open(tmp_path / "w" / "b") as opened:
        assert str(opened.form.schema.field("value").type).startswith("struct<n: int32")


def test_keeps_the_newest_values(run: Run, log: Path, tmp_path: Path) -> None:
    with LogDir.open(log) as directory:
        directory.create_topic("keyed")
        directory.log("keyed", 0).append_records([one for one in flights(0, 30) if one.key])
    table = ("table", log, tmp_path / "w", "--topic", "keyed", "--latest")
    assert " keys changed in " in run(*table, "--buckets", "4").text
    assert run(*table, "--rebuild", "--delete-retention", "24h", "--json").objects[0]["buckets"] == 4


def test_wrong_options_are_named(run: Run, log: Path, tmp_path: Path) -> None:
    at = (log, tmp_path / "w")
    table = (*at, "--topic", "flights")
    latest = (*table, "--latest")
    for arguments, reason in (
        (at, "--topic is missing: name the topics to keep as tables"),
        ((*table, "--retain", "day"), "--retain day: it can only be log"),
        ((*table, "--partition-by", "hour"), "--partition-by hour: it can only be day"),
        ((*table, "--keep", "30"), "--keep 30: give a number and one of"),
        ((*table, "--option", "x"), "--option: 'x' is not KEY=VALUE"),
        ((*table, "--option", "keyEquals=a"), "this table does not take option keyEquals; it takes startingOffsets"),
        ((*table, "--option", "startingOffsets=soon"), "startingOffsets"),
        ((*table, "--catalog-property", "x"), "--catalog-property: 'x' is not KEY=VALUE"),
        ((*table, "--catalog", "sqlight:///x"), "begins with sqlight://"),
        ((*table, "--bloom", "colour"), "no Bloom filter of 'colour'"),
        ((*table, "--value-format", "jsn", "--option", "valueSchema=a int"), "valueFormat is 'jsn'"),
        ((log, tmp_path / "w", "--topic", "flight"), "flight"),
        ((tmp_path / "none", tmp_path / "w", "--topic", "flights"), "none"),
        ((*latest, "--keep", "3d"), "--keep is for tables of all records: leave out --latest"),
        ((*latest, "--retain", "log"), "--retain is for tables of all records"),
        ((*latest, "--partition-by", "day"), "--partition-by is for tables of all records"),
        ((*latest, "--value-format", "json"), "--value-format is for tables of all records"),
        ((*latest, "--option", "startingOffsets=latest"), "this table does not take option startingOffsets"),
        ((*latest, "--delete-retention", "long"), "--delete-retention long: give a number"),
        ((*table, "--rebuild"), "--rebuild is for tables of the newest values: give --latest"),
        ((*table, "--buckets", "4"), "--buckets is for tables of the newest values"),
        ((*table, "--delete-retention", "1h"), "--delete-retention is for tables of the newest values"),
    ):
        ran = run("table", *arguments)
        assert (ran.code, ran.out) == (2, b""), arguments
        assert ran.err.startswith("seglog: "), arguments
        assert reason in ran.err, (arguments, ran.err)
        assert ran.err.count("\n") == 1, ran.err


def test_killed_between_and_in_runs_each_record_is_there_once(log: Path, tmp_path: Path) -> None:
    table = ("table", log, tmp_path / "w", "--topic", "flights")
    for number in range(3):
        running = start_seglog(*table, "--every", "0.1", "--json")
        assert running.stdout is not None
        before = json.loads(running.stdout.readline())
        append(log, flights(30 + number * 5, 5))
        while json.loads(running.stdout.readline())["records"] == before["records"]:
            pass
        append(log, flights(12 + number * 5, 5), partition=1)
        running.kill()
        running.wait()
        running.stdout.close()
    assert seglog_command(*table).code == 0
    assert stored(tmp_path / "w" / "flights").equals(scanned(log))


def test_stops_at_sigterm_after_a_run(log: Path, tmp_path: Path) -> None:
    running = start_seglog("table", log, tmp_path / "w", "--topic", "flights", "--every", "600")
    assert running.stdout is not None
    assert running.stdout.readline().startswith(b"flights: 42 records added")
    running.terminate()
    assert running.wait() == 0
    running.stdout.close()


def test_needs_no_spark(log: Path, tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['pyspark'] = None\n"
        "from seglog.cli.main import main; sys.exit(main(['table', *sys.argv[1:], '--topic', 'flights']))"
    )
    done = subprocess.run([sys.executable, "-c", code, log, tmp_path / "w"], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert stored(tmp_path / "w" / "flights").equals(scanned(log))


def test_names_the_extra_if_pyiceberg_is_missing(log: Path, tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['pyiceberg'] = None\n"
        "from seglog.cli.main import main; sys.exit(main(['table', *sys.argv[1:], '--topic', 'flights']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, log, tmp_path / "w"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr == "seglog: a table needs pyiceberg.catalog.sql: pip install 'seglog[table]'\n"
