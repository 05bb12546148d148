"""`seglog spark table`: Spark's executors write the files of the same table that `seglog table` keeps."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from seglog.core.errors import TimestampRangeError
from seglog.spark.tables.executor import SparkExecutor
from seglog.table import continuation, update_table
from tests.cli.run import Run, run_here
from tests.spark.odd_times import NOW, TOPIC, write_log
from tests.table.tables import append, flights, scanned, stored

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes], spark: SparkSession) -> Run:
    """Runs a command, which takes the session that there is."""
    assert spark.version
    return run_here(capfdbinary)


def test_a_command_adds_what_the_log_has_and_goes_on(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(continuation, "WORTH_A_FILE", 1)
    log, table = tmp_path / "log", ("table", tmp_path / "log", tmp_path / "w", "--topic", "flights")
    append(log, flights(0, 60))
    append(log, flights(0, 20), partition=1)
    first = run("spark", *table, "--partition-by", "day", "--bloom", "key")
    assert (first.code, first.err, first.text[:40]) == (0, "", "flights: 80 records added in 2 files; th")
    append(log, flights(60, 5))
    assert run("spark", *table, "--json").objects[0]["added_records"] == 5
    append(log, flights(65, 5))
    assert run(*table).text.startswith("flights: 5 records added")
    assert run("spark", *table).text.startswith("flights: 0 records added in 0 files")
    assert stored(tmp_path / "w" / "flights").equals(scanned(log))


def test_a_task_that_fails_says_why_and_adds_nothing(spark: SparkSession, tmp_path: Path) -> None:
    log, table = write_log(tmp_path / "log", NOW * 1000), tmp_path / "w" / TOPIC
    executor = SparkExecutor(spark)
    with pytest.raises(TimestampRangeError, match=f"{TOPIC}"):
        update_table(log, table, topic=TOPIC, workers=executor.cores, executor=executor)
    assert stored(table).num_rows == 0
    done = update_table(log, table, topic=TOPIC, options={"mode": "permissive"}, executor=executor)
    assert (done.records, done.null_timestamps) == (3, 1)
