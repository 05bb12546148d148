"""A table in an object store, with a SQL or a REST catalog, is as one in a directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyspark.sql import DataFrame, SparkSession

from seglog.core.errors import CatalogError, InvalidConfigError, TableInUseError, UnknownTableError
from seglog.records.columns import COLUMNS, SCHEMA
from seglog.spark import table as read_table
from seglog.storage.directory.log_dir import LogDir
from seglog.table import small_files
from seglog.table.building import Retention, update_table
from seglog.table.files import record_files
from seglog.table.iceberg.catalogs import CatalogOptions
from seglog.table.iceberg.log_table import LogTable
from seglog.table.maintenance import DATA_GRACE_MS, sweep
from tests.kit.manual_clock import ManualClock
from tests.kit.object_store import BUCKET, SECRET, ObjectStoreServer
from tests.kit.rest_catalog import TOKEN, RestCatalogServer
from tests.table.tables import append, by_offset, flights, scanned, stored

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStoreServer]:
    with ObjectStoreServer() as server:
        yield server


@pytest.fixture
def table(tmp_path: Path) -> str:
    return f"s3://{BUCKET}/{tmp_path.name}/flights"


@pytest.fixture(params=["sql", "rest"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path, store: ObjectStoreServer) -> Iterator[CatalogOptions]:
    if request.param == "sql":
        yield CatalogOptions(f"sqlite:///{tmp_path}/catalog.db", store.properties)
        return
    with RestCatalogServer(tmp_path, store.properties) as server:
        yield CatalogOptions(server.uri, {**store.properties, "token": TOKEN})


def test_a_table_in_an_object_store(
    tmp_path: Path, table: str, catalog: CatalogOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    append(log, flights(0, 100))
    append(log, flights(0, 50), partition=1)
    done = update_table(log, table, topic="flights", catalog=catalog)
    assert (done.table, done.added_records, done.records, done.files, done.behind) == (table, 150, 150, 1, 0)
    assert update_table(log, table, topic="flights", catalog=catalog).commits == 0
    monkeypatch.setattr(small_files, "FAN_IN", 3)
    for number in range(2):
        append(log, flights(100 + number, 1))
        done = update_table(log, table, topic="flights", catalog=catalog)
    assert (done.rewritten_files, done.files) == (3, 1)
    append(log, flights(102, 1))
    update_table(log, table, topic="flights", catalog=catalog)
    assert stored(table, catalog).equals(scanned(log))
    with LogDir.open(log) as directory:
        for partition, end in ((0, 102), (1, 50)):
            directory.log("flights", partition).delete_records(end)
    done = update_table(log, table, topic="flights", catalog=catalog, retention=Retention(as_log=True))
    assert (done.expired_files, done.records) == (1, 1)


def test_files_without_a_name_are_swept(tmp_path: Path, store: ObjectStoreServer, table: str) -> None:
    catalog = CatalogOptions(f"sqlite:///{tmp_path}/catalog.db", store.properties)
    log, clock = tmp_path / "log", ManualClock()
    append(log, flights(0, 10))
    update_table(log, table, topic="flights", catalog=catalog)
    with store.file_system().open_output_stream(f"{table.removeprefix('s3://')}/data/orphan.parquet") as stream:
        stream.write(b"of a job that died")
    with LogTable.open(table, catalog=catalog) as opened:
        assert sweep(opened.files, opened, clock) == 0
        clock.advance(DATA_GRACE_MS)
        assert sweep(opened.files, opened, clock) == 1
        assert not opened.files.exists(f"{table}/data/orphan.parquet")
    assert stored(table, catalog).equals(scanned(log))


def test_of_two_jobs_the_catalog_lets_one_commit(
    tmp_path: Path, table: str, catalog: CatalogOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    append(log, flights(0, 10))
    commit = LogTable.append

    def late(self: LogTable, *arguments: Any) -> None:
        monkeypatch.setattr(LogTable, "append", commit)
        update_table(log, table, topic="flights", catalog=catalog)
        commit(self, *arguments)

    monkeypatch.setattr(LogTable, "append", late)
    with pytest.raises(TableInUseError, match=r"has changed the table .* first; nothing was added"):
        update_table(log, table, topic="flights", catalog=catalog)
    assert update_table(log, table, topic="flights", catalog=catalog).added_records == 0
    assert stored(table, catalog).equals(scanned(log))


def test_a_commit_whose_answer_is_lost_is_not_made_twice(tmp_path: Path, store: ObjectStoreServer, table: str) -> None:
    log = tmp_path / "log"
    append(log, flights(0, 10))
    with RestCatalogServer(tmp_path, store.properties) as server:
        catalog = CatalogOptions(server.uri, {**store.properties, "token": TOKEN})
        with LogTable.open_or_create(table, catalog=catalog):
            server.lost_answers = 1
        with pytest.raises(CatalogError, match="did not say whether it has committed; the next run asks it"):
            update_table(log, table, topic="flights", catalog=catalog)
        assert update_table(log, table, topic="flights", catalog=catalog).added_records == 0
        assert stored(table, catalog).equals(scanned(log))


def test_a_store_needs_a_catalog(tmp_path: Path, store: ObjectStoreServer, table: str) -> None:
    append(tmp_path / "log", flights(0, 1))
    with pytest.raises(InvalidConfigError, match="is in an object store: name its catalog"):
        update_table(tmp_path / "log", table, topic="flights")
    catalog = CatalogOptions(f"sqlite:///{tmp_path}/catalog.db", store.properties)
    with pytest.raises(UnknownTableError, match="there is no table 'flights' in s3://"):
        LogTable.open(table, catalog=catalog)
    update_table(tmp_path / "log", table, topic="flights", catalog=catalog)
    with pytest.raises(InvalidConfigError, match=r"table logs.flights of the catalog is s3://.*, not s3://other"):
        LogTable.open("s3://other/flights", catalog=catalog)
    with pytest.raises(InvalidConfigError, match="Delta log is for a warehouse in a directory"):
        update_table(tmp_path / "log", table, topic="flights", catalog=catalog, delta=True)


@pytest.mark.parametrize(
    ("uri", "error", "said"),
    [
        ("http://127.0.0.1:9/", CatalogError, "127.0.0.1"),
        ("nonsense://me:hunter2@host/db", InvalidConfigError, "catalog"),
        ("oracle+none://me:hunter2@host/db", InvalidConfigError, "catalog"),
        ("sqlite:////nowhere/at/all/catalog.db", CatalogError, "unable to open database file"),
    ],
)
def test_errors_name_the_catalog_and_keep_secrets(uri: str, error: type[Exception], said: str, table: str) -> None:
    catalog = CatalogOptions(uri, {"s3.secret-access-key": SECRET, "token": TOKEN})
    with pytest.raises(error, match=said) as raised:
        LogTable.open_or_create(table, catalog=catalog)
    assert "hunter2" not in f"{raised.value} {catalog}"


def test_a_wrong_token_and_a_bucket_that_is_not_there(tmp_path: Path, store: ObjectStoreServer, table: str) -> None:
    with RestCatalogServer(tmp_path, store.properties) as server:
        wrong = CatalogOptions(server.uri, {**store.properties, "token": "hunter2-guessed"})
        with pytest.raises(CatalogError, match="no such token") as refused:
            LogTable.open_or_create(table, catalog=wrong)
    catalog = CatalogOptions(f"sqlite:///{tmp_path}/catalog.db", store.properties)
    with pytest.raises(OSError, match=r"NO_SUCH_BUCKET|not exist") as missing:
        LogTable.open_or_create("s3://no-such-bucket/w/flights", catalog=catalog)
    assert "hunter2" not in f"{refused.value} {missing.value}"


def test_spark_reads_it_with_its_tail(
    spark: SparkSession, tmp_path: Path, store: ObjectStoreServer, table: str, capfd: pytest.CaptureFixture[str]
) -> None:
    log, catalog = tmp_path / "log", CatalogOptions(f"sqlite:///{tmp_path}/catalog.db", store.properties)
    append(log, flights(0, 100))
    update_table(log, table, topic="flights", catalog=catalog)
    frame = read_table(spark, table, catalog=catalog)
    assert _rows(frame).equals(scanned(log))
    append(log, flights(100, 5), partition=1)
    assert _rows(read_table(spark, table, catalog=catalog, tail=log)).equals(scanned(log))
    some = read_table(spark, table, catalog=catalog, tail=log, columns=["offset", "key"])
    assert (some.columns, some.count()) == (["offset", "key"], 105)
    frame.explain(mode="extended")
    frame.explain(mode="formatted")
    with LogTable.open(table, catalog=catalog) as opened:
        (file,) = opened.data_files()
        opened.files.unlink(file.file_path)
    with pytest.raises(Exception, match=f"the file {file.file_path} of the table has vanished") as vanished:
        frame.collect()
    assert "hunter2" not in f"{vanished.value} {capfd.readouterr()}"


def test_python_reads_row_groups_of_a_local_table(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_files, "ROW_GROUP_ROWS", 50)
    log, path = tmp_path / "log", tmp_path / "warehouse" / "flights"
    append(log, flights(0, 200))
    update_table(log, path, topic="flights")
    with LogTable.open(path) as opened:
        assert [len(one.split_offsets or ()) for one in opened.data_files()] == [2]
    assert _rows(read_table(spark, path, reader="python")).equals(scanned(log))
    assert _rows(read_table(spark, path, reader="spark", columns=COLUMNS)).equals(scanned(log))


def _rows(frame: DataFrame) -> pa.Table:
    return by_offset(frame.toArrow().select(list(SCHEMA.names)).cast(SCHEMA))


def test_a_snapshot_and_its_files_have_no_secrets(tmp_path: Path, table: str, catalog: CatalogOptions) -> None:
    append(tmp_path / "log", flights(0, 10))
    update_table(tmp_path / "log", table, topic="flights", catalog=catalog)
    with LogTable.open(table, catalog=catalog) as opened:
        assert isinstance(opened.iceberg.io, PyArrowFileIO)
        for directory in (opened.path.metadata, opened.path.own):
            for name in opened.files.listdir(directory):
                assert b"hunter2" not in opened.files.read(f"{directory}/{name}")
