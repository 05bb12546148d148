"""The tasks of a run give the same table in threads, in processes, and through brokers in several processes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

import seglog.table
from seglog.client.kept_connections import close_all
from seglog.core.errors import InvalidConfigError, TimestampRangeError, UndecodableValueError
from seglog.core.types import MAX_INT64
from seglog.records.record import NewRecord
from seglog.storage.directory.log_dir import LogDir
from seglog.table import TableUpdate, continuation, update_table
from seglog.table.files.file_task import FileTask, TaskResult
from seglog.testing import Broker
from tests.table.tables import append, flights, scanned, stored


@pytest.fixture(scope="module", params=["threads", "processes"])
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    context = multiprocessing.get_context("forkserver")
    with ThreadPoolExecutor(2) if request.param == "threads" else ProcessPoolExecutor(2, context) as pool:
        yield pool


@pytest.fixture(autouse=True)
def one_range_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(continuation, "WORTH_A_FILE", 1)


def test_has_all_records_and_counts_them(executor: Executor, tmp_path: Path) -> None:
    log, table = tmp_path / "log", tmp_path / "warehouse" / "flights"
    append(log, flights(0, 100))
    append(log, flights(0, 50), partition=1)
    done = update_table(log, table, topic="flights", workers=2, executor=executor)
    assert (done.added_records, done.added_files) == (150, 2)
    assert stored(table).equals(scanned(log))
    append(log, flights(100, 10))
    assert update_table(log, table, topic="flights").added_records == 10  # a run of the other kind goes on
    assert stored(table).equals(scanned(log))


def test_counts_of_all_tasks_are_added_up(executor: Executor, tmp_path: Path) -> None:
    log, table = tmp_path / "log", tmp_path / "warehouse" / "t"
    with LogDir.open(log) as directory:
        directory.create_topic("t", partitions=2, config={"message.timestamp.after.max.ms": MAX_INT64})
        for number in (0, 1):
            times = (1_357_034_400_000, 1_357_034_400_000_000)
            directory.log("t", number).append_records([NewRecord(b'{"n": 1}', timestamp=at) for at in times])
            directory.log("t", number).append_records([NewRecord(b"no", timestamp=times[0])])
    json = {"valueFormat": "json", "valueSchema": "n int"}

    def run(**more: str) -> TableUpdate:
        return update_table(log, table, topic="t", options={**json, **more}, workers=2, executor=executor)

    with pytest.raises((UndecodableValueError, TimestampRangeError), match=r"t-[01]|topic t"):
        run()
    done = run(mode="permissive")
    assert (done.records, done.undecodable, done.null_timestamps, done.commits) == (6, 2, 2, 1)


def test_processes_read_brokers_at_the_same_time(tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    with Broker() as broker, ProcessPoolExecutor(2, context, initializer=close_all) as pool:
        broker.create_topic("t", 4)
        producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        for number in range(200):
            producer.produce("t", b"%d" % number, partition=number % 4)
        producer.flush(60)
        done = update_table(broker.bootstrap, tmp_path / "w" / "t", topic="t", workers=2, executor=pool)
        assert (done.records, done.partitions, done.behind) == (200, 4, 0)
        close_all()
    values = stored(tmp_path / "w" / "t").column("value").to_pylist()
    assert sorted(map(int, values)) == list(range(200))


def test_a_worker_that_does_not_see_the_warehouse_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, table = tmp_path / "log", tmp_path / "warehouse" / "flights"
    append(log, flights(0, 10))
    run = FileTask.__call__

    def elsewhere(self: FileTask, ranges: Sequence[Any]) -> TaskResult:
        table.joinpath("data").rename(tmp_path / "data")
        try:
            return run(self, ranges)
        finally:
            tmp_path.joinpath("data").rename(table / "data")

    monkeypatch.setattr(FileTask, "__call__", elsewhere)
    with pytest.raises(InvalidConfigError, match=r"flights/data does not exist on host .*: mount the warehouse"):
        update_table(log, table, topic="flights")
    monkeypatch.undo()
    assert update_table(log, table, topic="flights").records == 10


def test_public_names() -> None:
    for name in seglog.table.__all__:
        assert getattr(seglog.table, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'update_tabel'"):
        getattr(seglog.table, "_".join(("update", "tabel")))
