"""Tables and views of SQL over log directories."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from seglog.records.record import NewRecord
from seglog.spark.read.schema import COLUMNS, recall, record_schema, remember
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


def test_a_table_with_a_list_of_columns_is_an_error(spark: SparkSession, logs: Path) -> None:
    spark.sql(f"CREATE TABLE listed (offset BIGINT) USING seglog OPTIONS (path '{logs}')")
    with pytest.raises(PySparkException, match="without a list of columns"):
        spark.sql("SELECT * FROM listed").collect()
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
    assert recall(tagged, {"path": "/b"}) == {"path": "/b"}
    assert recall(COLUMNS, {}) == {}
    assert tagged.simpleString() == plain.simpleString()
