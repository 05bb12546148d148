"""A table has each committed record of its log once, whatever happens between two runs or inside of one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from seglog.core.clock import SystemClock
from seglog.core.errors import DataLossError, InvalidConfigError, TableInUseError, UnknownTopicError
from seglog.records.record import encode_batch, end_txn_marker
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.log.admit import Origin
from seglog.table import building
from seglog.table.building import Retention, update_table
from seglog.table.iceberg.log_table import LogTable
from tests import golden
from tests.kafka.jars import KafkaVersion
from tests.table import killed_runs
from tests.table.tables import TIME_MS, append, flights, scanned, stored, without_a_lock


def test_each_run_adds_new_records_only(tmp_path: Path) -> None:
    log, table = tmp_path / "log", tmp_path / "warehouse" / "flights"
    append(log, flights(0, 300))
    append(log, flights(300, 200), partition=1)
    first = update_table(log, table, topic="flights")
    assert (first.added_records, first.records, first.partitions, first.behind, first.commits) == (500, 500, 2, 0, 1)
    assert stored(table).equals(scanned(log))
    again = update_table(log, table, topic="flights")
    assert (again.added_records, again.commits, again.snapshot) == (0, 0, first.snapshot)
    append(log, flights(500, 50), partition=1)
    second = update_table(log, table, topic="flights")
    assert (second.added_records, second.added_files, second.records) == (50, 1, 550)
    assert stored(table).equals(scanned(log))


def test_small_partitions_share_a_file_and_it_is_sorted(tmp_path: Path) -> None:
    log, table = tmp_path / "log", tmp_path / "warehouse" / "flights"
    for partition in range(12):
        append(log, flights(partition * 10, 10), partition=partition, partitions=12)
    done = update_table(log, table, topic="flights", workers=4)
    assert (done.added_files, done.partitions) == (1, 12)
    assert stored(table).equals(scanned(log))


def test_a_snapshot_says_which_offsets_it_added(tmp_path: Path) -> None:
    log, table = tmp_path / "log", tmp_path / "warehouse" / "flights"
    append(log, flights(0, 30))
    update_table(log, table, topic="flights")
    append(log, flights(30, 10))
    update_table(log, table, topic="flights")
    with LogTable.open(table) as opened:
        current = opened.iceberg.current_snapshot()
        assert current is not None
        assert current.summary is not None
        said = current.summary.additional_properties
        positions = opened.positions()
    assert positions is not None
    with LogDir.open(log) as directory:
        epoch = directory.log("flights", 0).epochs.latest
    assert json.loads(said["seglog.changed"]) == {"0": [30, 40, epoch]}
    assert (said["seglog.topic"], positions.partitions[0].upto) == ("flights", 40)
    assert said["seglog.topic-id"] == positions.topic_id


_GOLDEN: dict[KafkaVersion, Sequence[str]] = {
    "4.4.0": ("codec-zstd", "txn-open", "txn-rolled", "deleted-part", "deleted-all", "empty", "compacted-purged"),
    "2.8.2": ("v0-gzip", "v1-append-time", "v1-compacted", "mixed", "v2-txn"),
}


@pytest.mark.parametrize("version", _GOLDEN)
def test_holds_what_kafka_wrote(tmp_path: Path, version: KafkaVersion) -> None:
    """Formats 0 to 2, compressed, compacted and deleted parts, transactions."""
    root = golden.unpack(tmp_path, version)
    log = golden.log_dir(root)
    for topic in _GOLDEN[version]:
        table = tmp_path / "warehouse" / topic
        update_table(log, table, topic=topic)
        assert stored(table).equals(scanned(log, topic)), topic


def test_aborted_transactions_and_open_ones_are_left_out(tmp_path: Path) -> None:
    log, table = tmp_path / "log", tmp_path / "warehouse" / "flights"
    append(log, flights(0, 5))
    with LogDir.open(log) as directory:
        partition = directory.log("flights", 0)

        for producer in (1, 2):
            partition.append(
                encode_batch(flights(0, 2), producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True)
            )
            if producer == 1:
                partition.append(_marker(producer, commit=False), origin=Origin.COORDINATOR)
    done = update_table(log, table, topic="flights")
    assert (done.records, done.behind) == (5, 2)
    with LogDir.open(log) as directory:
        directory.log("flights", 0).append(_marker(2, commit=True), origin=Origin.COORDINATOR)
    done = update_table(log, table, topic="flights")
    assert (done.added_records, done.behind) == (2, 0)
    assert stored(table).equals(scanned(log))


def _marker(producer: int, *, commit: bool) -> bytearray:
    return end_txn_marker(commit=commit, coordinator_epoch=0, producer_id=producer, producer_epoch=0, timestamp=TIME_MS)


def test_retention_that_passed_the_table_is_an_error(tmp_path: Path) -> None:
    log, table = tmp_path / "log", tmp_path / "warehouse" / "flights"
    append(log, flights(0, 100))
    update_table(log, table, topic="flights")
    append(log, flights(100, 100))
    with LogDir.open(log) as directory:
        directory.log("flights", 0).delete_records(150)
    with pytest.raises(DataLossError, match="up to offset 100, and the log begins at 150; set option failOnDataLoss"):
        update_table(log, table, topic="flights")
    done = update_table(log, table, topic="flights", options={"failOnDataLoss": "false"})
    assert (done.added_records, len(done.losses)) == (50, 1)


def test_retention_does_not_touch_the_table(tmp_path: Path) -> None:
    log, table = tmp_path / "log", tmp_path / "warehouse" / "flights"
    append(log, flights(0, 100))
    before = scanned(log)
    update_table(log, table, topic="flights")
    with LogDir.open(log) as directory:
        directory.log("flights", 0).delete_records(100)
    assert update_table(log, table, topic="flights").records == 100
    assert stored(table).equals(before)


def test_a_topic_that_was_created_again_is_refused(tmp_path: Path) -> None:
    log, table = tmp_path / "log", tmp_path / "warehouse" / "flights"
    append(log, flights(0, 10))
    update_table(log, table, topic="flights")
    with LogDir.open(log) as directory:
        directory.delete_topic("flights")
    append(log, flights(0, 20))
    with pytest.raises(InvalidConfigError, match="topic 'flights' was created again"):
        update_table(log, table, topic="flights")


def test_another_topic_is_refused(tmp_path: Path) -> None:
    log, table = tmp_path / "log", tmp_path / "warehouse" / "flights"
    append(log, flights(0, 10))
    update_table(log, table, topic="flights")
    with LogDir.open(log) as directory:
        directory.create_topic("other")
    with pytest.raises(InvalidConfigError, match="records of topic 'flights', not of 'other'"):
        update_table(log, table, topic="other")
    with pytest.raises(UnknownTopicError):
        update_table(log, tmp_path / "warehouse" / "none", topic="none")


def test_a_second_job_is_refused_while_one_runs(tmp_path: Path) -> None:
    log, table = tmp_path / "log", tmp_path / "warehouse" / "flights"
    append(log, flights(0, 10))
    with (
        LogTable.open_or_create(table) as held,
        held.locked(),
        pytest.raises(TableInUseError, match="another job writes to the table"),
    ):
        update_table(log, table, topic="flights")
    assert update_table(log, table, topic="flights").records == 10


def test_the_loser_of_a_race_says_so_and_adds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, table = tmp_path / "log", tmp_path / "warehouse" / "flights"
    append(log, flights(0, 10))
    commit = LogTable.append

    def late(self: LogTable, *arguments: Any) -> None:
        monkeypatch.setattr(LogTable, "append", commit)
        update_table(log, table, topic="flights")  # another job, between this one's files and its commit
        commit(self, *arguments)

    with without_a_lock(monkeypatch):
        monkeypatch.setattr(LogTable, "append", late)
        with pytest.raises(TableInUseError, match=r"has changed the table .* first; nothing was added"):
            update_table(log, table, topic="flights")
    assert stored(table).equals(scanned(log))
    assert update_table(log, table, topic="flights").added_records == 0


def test_killed_at_each_step_leaves_each_record_once(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", killed_runs.__name__, str(tmp_path / "log"), str(tmp_path / "warehouse/flights")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    runs = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(runs) == len(killed_runs.STEPS)
    for run in runs:
        assert run["killed"], run
        assert run["is_added"] == run["step"].endswith(("commit_table", "LogTable.append")), run
        assert run["is_whole"], run


def test_a_run_that_dies_between_rounds_keeps_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, table = tmp_path / "log", tmp_path / "warehouse" / "flights"
    append(log, flights(0, 2000))
    append(log, flights(0, 2000), partition=1)
    monkeypatch.setattr(building, "ROUND_BYTES", 1)
    monkeypatch.setattr("seglog.table.continuation.WORTH_A_FILE", 1)
    commit, left = LogTable.append, [1]

    def dies(self: LogTable, *arguments: Any) -> None:
        if not left:
            raise OSError("no more")
        left.pop()
        commit(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(LogTable, "append", dies)
        with pytest.raises(OSError, match="no more"):
            update_table(log, table, topic="flights")
    assert 0 < stored(table).num_rows < 4000
    done = update_table(log, table, topic="flights")
    assert done.records == 4000
    assert stored(table).equals(scanned(log))


def test_lets_files_go_by_age_or_as_the_log_does(tmp_path: Path) -> None:
    log, table = tmp_path / "log", tmp_path / "warehouse" / "flights"
    for number in range(3):  # three files, the first of one partition, the others of both
        append(log, flights(number * 10, 10))
        if number:
            append(log, flights(number * 10, 10), partition=1)
        update_table(log, table, topic="flights")
    with LogDir.open(log) as directory:
        directory.log("flights", 0).delete_records(25)
        directory.log("flights", 1).delete_records(5)
    done = update_table(log, table, topic="flights", retention=Retention(as_log=True))
    assert (done.expired_files, done.records) == (1, 40)  # the second one has records that partition 1 still has
    with LogDir.open(log) as directory:
        directory.log("flights", 1).delete_records(10)
    done = update_table(log, table, topic="flights", retention=Retention(as_log=True))
    assert (done.expired_files, done.records, done.added_records) == (1, 20, 0)
    age = SystemClock().now_ms() - TIME_MS
    assert update_table(log, table, topic="flights", retention=Retention(keep_ms=age + 3_600_000)).expired_files == 0
    done = update_table(log, table, topic="flights", retention=Retention(keep_ms=age - 3_600_000))
    assert (done.expired_files, done.records) == (1, 0)
    append(log, flights(30, 5))
    assert update_table(log, table, topic="flights").records == 5


def test_many_small_runs_leave_few_files(tmp_path: Path) -> None:
    log, table = tmp_path / "log", tmp_path / "warehouse" / "flights"
    rewritten = 0
    for number in range(18):
        append(log, flights(number, 1))
        rewritten += update_table(log, table, topic="flights").rewritten_files
    assert rewritten == 16
    assert update_table(log, table, topic="flights").files == 3
    assert stored(table).equals(scanned(log))


def test_bloom_filters_are_in_files_from_then_on(tmp_path: Path) -> None:
    log, table = tmp_path / "log", tmp_path / "warehouse" / "flights"

    def filters() -> set[bool]:
        with LogTable.open(table) as opened:
            snapshot = opened.snapshot()
        assert snapshot is not None
        chunks = [pq.read_metadata(file).row_group(0).column(0) for file in snapshot.files]
        return {chunk.bloom_filter_length is not None for chunk in chunks}

    append(log, flights(0, 10))
    update_table(log, table, topic="flights")
    assert filters() == {False}
    append(log, flights(10, 10))
    update_table(log, table, topic="flights", bloom=["key"])
    assert filters() == {False, True}
    for number in range(14):
        append(log, flights(20 + number, 1))
        update_table(log, table, topic="flights")
    assert filters() == {True}  # rewriting keeps them
    assert stored(table).equals(scanned(log))
    with pytest.raises(InvalidConfigError, match="no Bloom filter of 'headers'"):
        update_table(log, table, topic="flights", bloom=["headers"])
