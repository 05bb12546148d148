"""Tables and views of SQL over log directories."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession, functions

from seglog.records.record import NewRecord
from seglog.spark.read.schema import COLUMNS, recall, record_schema, remember
from seglog.testing import Broker
from tests.spark.logs import write_partition

pytestmark = pytest.mark.xdist_group("spark")

RECORDS = [NewRecord(b"%d" % number, b"ab"[number % 2 : number % 2 + 1]) for number in range(10)]


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    write_partition(tmp_path / "t-0", [RECORDS, RECORDS])
    return tmp_path


@pytest.fixture
def table(spark: SparkSession, logs: Path) -> Iterator[str]:
    spark.sql(f"CREATE TABLE of_t USING seglog OPTIONS (path '{logs}', subscribe 't', keyEquals 'a', columns 'offset')")
    yield "of_t"
    spark.sql("DROP TABLE of_t")


def test_a_table_has_its_options(spark: SparkSession, table: str, logs: Path) -> None:
    assert [row.offset for row in spark.sql(f"SELECT * FROM {table} ORDER BY offset").collect()] == list(
        range(0, 20, 2)
    )
    assert spark.table(table).where("offset >= 10").count() == 5
    joined = spark.sql(f"SELECT count(*) FROM {table} a JOIN {table} b USING (offset)")
    assert joined.collect() == [(10,)]
    write_partition(logs / "t-0", [RECORDS], base_offset=20)
    assert spark.table(table).count() == 15


def test_a_table_in_another_session_of_the_same_catalog(spark: SparkSession, table: str) -> None:
    assert spark.newSession().sql(f"SELECT max(offset) FROM {table}").collect() == [(18,)]


def test_a_dropped_table_leaves_the_logs(spark: SparkSession, logs: Path) -> None:
    spark.sql(f"CREATE TABLE dropped USING seglog OPTIONS (path '{logs}')")
    spark.sql("DROP TABLE dropped")
    assert (logs / "t-0" / f"{0:020d}.log").exists()


def test_a_table_of_several_directories(spark: SparkSession, logs: Path) -> None:
    write_partition(logs.parent / "more" / "u-0", [RECORDS])
    spark.sql(f'CREATE TABLE several USING seglog OPTIONS (paths \'["{logs}", "{logs.parent}/more"]\')')
    assert spark.sql("SELECT topic, count(*) FROM several GROUP BY topic ORDER BY topic").collect() == [
        ("t", 20),
        ("u", 10),
    ]
    spark.sql("DROP TABLE several")


def test_a_query_of_a_table_has_options_of_its_own(spark: SparkSession, table: str) -> None:
    assert spark.sql(f"SELECT count(*) FROM {table} WITH (keyEquals = 'b')").collect() == [(10,)]
    assert spark.read.option("endingOffsets", '{"t": {"0": 4}}').table(table).count() == 2


def test_a_table_with_a_list_of_columns_needs_the_options_in_the_query(spark: SparkSession, logs: Path) -> None:
    spark.sql(f"CREATE TABLE listed (offset BIGINT) USING seglog OPTIONS (path '{logs}')")
    with pytest.raises(PySparkException, match="without a list of columns"):
        spark.sql("SELECT * FROM listed").collect()
    assert spark.sql(f"SELECT max(offset) FROM listed WITH (path = '{logs}')").collect() == [(19,)]
    spark.sql("DROP TABLE listed")


def test_wrong_options_are_refused_when_the_table_is_made(spark: SparkSession, logs: Path) -> None:
    with pytest.raises(PySparkException, match="did you mean subscribe"):
        spark.sql(f"CREATE TABLE wrong USING seglog OPTIONS (path '{logs}', subscripe 't')")


def test_a_temporary_view(spark: SparkSession, logs: Path) -> None:
    spark.sql(f"CREATE TEMPORARY VIEW of_view USING seglog OPTIONS (path '{logs}', keyIn '[\"hex:62\"]')")
    assert spark.sql("SELECT count(*), min(offset) FROM of_view").collect() == [(10, 1)]


def test_remembers_the_options_of_a_table() -> None:
    plain = record_schema(include_headers=False)
    assert remember(plain, {"path": "/a"}) is plain
    options = {"path": "file:/a", "subscribe": "t", "option.subscribe": "t", "provider": "seglog", "owner": "me"}
    tagged = remember(plain, options)
    assert recall(tagged, {}) == {"path": "file:/a", "subscribe": "t", "provider": "seglog", "owner": "me"}
    over = recall(tagged, {"PATH": "/b"})
    assert over == {"PATH": "/b", "subscribe": "t", "provider": "seglog", "owner": "me"}
    assert recall(COLUMNS, {}) == {}
    assert tagged.simpleString() == plain.simpleString()


# Writing

LISTED: Final = "(key STRING, value STRING)"
ROWS: Final = "SELECT 'k' AS key, 'v' AS value"
WHOLE: Final = (
    "SELECT binary('k') AS key, binary('v') AS value, 'o' AS topic, int(0) AS partition, 0L AS offset, "
    "timestamp'2013-01-01' AS timestamp, 0 AS timestampType"
)
"""A row with the names and types of a table without a list of columns: Spark hands it to the writer as it is."""


@pytest.fixture(params=["directory", "brokers"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The options of a place with topic ``o``."""
    if request.param == "directory":
        yield {"path": str(tmp_path)}
        return
    with Broker({"o": 1}) as broker:
        yield {"kafka.bootstrap.servers": broker.bootstrap}


def _listed(options: dict[str, str], sign: str = "") -> str:
    return ", ".join(f"`{name}` {sign} '{value}'" for name, value in options.items())


@pytest.mark.parametrize("columns", [LISTED, ""], ids=["listed", "inferred"])
def test_sql_writes_with_the_options_of_a_view_or_of_the_statement(
    spark: SparkSession, home: dict[str, str], columns: str
) -> None:
    """Every entry of SQL and of frames: it writes, or is refused in words. Nothing is written by accident."""
    named = {**home, "topic": "o"}
    spark.sql(f"CREATE TABLE sink {columns} USING seglog OPTIONS ({_listed(named if columns else home)})")
    spark.sql(f"CREATE TEMPORARY VIEW sink_view {columns} USING seglog OPTIONS ({_listed(named if columns else home)})")
    frame = spark.sql(ROWS if columns else WHOLE)
    frame.createOrReplaceTempView("given")
    # A view that infers its columns is one to read, so it has no option of the sink, which brokers need.
    missing = None if columns or "path" in home else "option markTopic is missing"
    needed, only_appended = "give them with the statement: INSERT INTO t WITH", "can only be appended to"
    entries: dict[str, tuple[str | None, Callable[[], object]]] = {
        "INSERT": (needed, lambda: spark.sql("INSERT INTO sink SELECT * FROM given")),
        "INSERT BY NAME": (needed, lambda: spark.sql("INSERT INTO sink (value, key) SELECT value, key FROM given")),
        "INSERT OVERWRITE": (only_appended, lambda: spark.sql("INSERT OVERWRITE sink SELECT * FROM given")),
        "CTAS": (
            needed,
            lambda: spark.sql(f"CREATE TABLE made USING seglog OPTIONS ({_listed(named)}) AS SELECT * FROM given"),
        ),
        "insertInto": (needed, lambda: frame.write.insertInto("sink")),
        "insertInto, overwrite": (only_appended, lambda: frame.write.insertInto("sink", overwrite=True)),
        "append": (needed, lambda: frame.writeTo("sink").append()),
        "overwrite": (only_appended, lambda: frame.writeTo("sink").options(**named).overwrite(functions.expr("true"))),
        "view, INSERT OVERWRITE": (only_appended, lambda: spark.sql("INSERT OVERWRITE sink_view SELECT * FROM given")),
        "INSERT WITH": (
            None,
            lambda: spark.sql(f"INSERT INTO sink WITH ({_listed(named, '=')}) SELECT * FROM given"),
        ),
        "append with options": (None, lambda: frame.writeTo("sink").options(**named).append()),
        "saveAsTable": (
            None,
            lambda: frame.write.format("seglog").options(**named).mode("append").saveAsTable("sink"),
        ),
        "view, INSERT": (missing, lambda: spark.sql("INSERT INTO sink_view SELECT * FROM given")),
        "view, insertInto": (missing, lambda: frame.write.insertInto("sink_view")),
        "view, append": (missing, lambda: frame.writeTo("sink_view").append()),
    }
    if "path" not in home:  # no entry that is refused gets as far as to know the place
        entries = {entry: found for entry, found in entries.items() if found[0] in (None, missing)}
    try:
        for entry, (message, run) in entries.items():
            if message is None:
                run()
            else:
                with pytest.raises(PySparkException) as refused:
                    run()
                assert message in str(refused.value), entry
        written = spark.read.format("seglog").options(**home).load()
        assert written.count() == sum(message is None for message, _ in entries.values())
        assert not spark.catalog.tableExists("made")
    finally:
        spark.sql("DROP TABLE sink")
        spark.catalog.dropTempView("sink_view")


def test_a_row_of_another_table_does_not_bring_its_options_along(spark: SparkSession, logs: Path) -> None:
    """Spark hands the writer the columns of the query, with what the other table has stored in them."""
    for name, path in (("source", logs), ("target", logs.parent / "target")):
        (path / "u-0").mkdir(parents=True)
        spark.sql(f"CREATE TABLE {name} USING seglog OPTIONS (path '{path}')")
    with pytest.raises(PySparkException, match="option path is missing"):
        spark.sql("INSERT INTO target SELECT * FROM source")
    assert spark.table("source").count() == 20
    for name in ("source", "target"):
        spark.sql(f"DROP TABLE {name}")


@pytest.mark.parametrize("kind", ["TABLE", "TEMPORARY VIEW"])
def test_options_of_the_sink_and_of_the_source_are_told_apart(spark: SparkSession, logs: Path, kind: str) -> None:
    with pytest.raises(PySparkException, match=r"option topic is for writing: .* such as \(key STRING, value STRING\)"):
        spark.sql(f"CREATE {kind} wrong USING seglog OPTIONS (path '{logs}', topic 't')")
    spark.sql(f"CREATE {kind} read_only {LISTED} USING seglog OPTIONS (path '{logs}', subscribe 't')")
    with pytest.raises(PySparkException, match=r"option subscribe is for reading|give them with the statement"):
        spark.sql(f"INSERT INTO read_only {ROWS}")
    spark.sql(f"DROP {kind.removeprefix('TEMPORARY ')} read_only")
