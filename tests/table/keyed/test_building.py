"""A keyed table has what a dictionary has that a consumer fills, or the run refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seglog.core.errors import DataLossError, InvalidConfigError, InvalidRecordError, TableInUseError
from seglog.records.record import NewRecord, encode_batch, end_txn_marker
from seglog.storage.log.admit import Origin
from seglog.table.building import update_table
from seglog.table.iceberg.key_buckets import bucket_of
from seglog.table.iceberg.log_table import LogTable
from seglog.table.keyed.building import update_keyed_table
from tests import golden
from tests.cases import case
from tests.kafka.jars import KafkaVersion
from tests.kafka.records import ConsumedRecord
from tests.sources.latest import latest_reading
from tests.table.keyed import killed_keyed_runs
from tests.table.keyed.keyed_log import DAY_MS, KeyedLog, by_dictionary, said, stored
from tests.table.tables import without_a_lock

KEYS = st.sampled_from([b"", *(b"key %d" % number for number in range(9))])
WRITES = st.lists(st.tuples(KEYS, st.none() | st.binary(min_size=1, max_size=30)), min_size=1, max_size=12)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 1), WRITES),
        st.tuples(st.just("write"), st.integers(0, 1), WRITES),
        st.tuples(st.just("compact"), st.integers(0, 1)),
        st.tuples(st.just("wait"), st.sampled_from([1, 3_600_000, DAY_MS + 1])),
        st.tuples(st.just("run")),
    ),
    min_size=4,
    max_size=12,
)


@settings(max_examples=max(settings().max_examples // 12, 1), deadline=None)
@given(STEPS, st.sampled_from([1, 3, 16]), st.sampled_from(["700", "128m"]))
def test_is_the_dictionary_whatever_is_written_and_compacted_between_runs(
    steps: list[tuple[object, ...]], buckets: int, memory: str
) -> None:
    with TemporaryDirectory() as root:
        log = KeyedLog(Path(root), delete_retention_ms=DAY_MS)
        for step in [*steps, ("run",)]:
            match step:
                case ("write", int(partition), list(values)):
                    log.write(values, partition=partition)
                case ("compact", int(partition)):
                    log.compact(partition=partition)
                case ("wait", int(ms)):
                    log.clock.advance(ms)
                case _:
                    _run(log, buckets, memory)


def _run(log: KeyedLog, buckets: int, memory: str) -> None:
    given = {"buckets": buckets, "options": {"maxMemoryPerTask": memory}}
    try:
        done = log.update(**given)
    except DataLossError:  # tombstones may be gone
        done = log.update(**given, rebuild=True)
        case()
    assert stored(log.table) == log.newest
    assert (done.records, done.split_keys, done.behind) == (len(log.newest), log.split, 0)


@pytest.mark.parametrize("version", ["4.4.0", "2.8.2"])
def test_kafkas_directories_have_what_its_consumer_has_in_a_dictionary(tmp_path: Path, version: KafkaVersion) -> None:
    """Formats v0 to v2, transactions, tombstones, compacted topics."""
    root = golden.unpack(tmp_path, version)
    log, compacted = golden.log_dir(root), 0
    for topic in sorted({name.rsplit("-", 1)[0] for name in golden.partitions(root)}):
        partitions = [name for name in golden.partitions(root) if name.rsplit("-", 1)[0] == topic]
        records = [one for name in partitions for one in _consumed(root, name)]
        table = tmp_path / "warehouse" / topic
        if any(one.key is None for one in records):
            with pytest.raises(InvalidRecordError, match="a record without a key"):
                update_keyed_table(log, table, topic=topic)
            continue
        update_keyed_table(log, table, topic=topic, buckets=2)
        wanted = latest_reading.by_dictionary(records)
        assert stored(table) == {(place.partition, key): row for (place, key), row in wanted.items()}, topic
        compacted += "compacted" in topic and bool(wanted)
        case()
    assert compacted


def _consumed(root: Path, partition: str) -> Sequence[ConsumedRecord]:
    """Only partitions with transactions have two answers."""
    try:
        return golden.expected_records(root, partition, isolation="read_committed")
    except FileNotFoundError:
        return golden.expected_records(root, partition)


def test_a_run_rewrites_only_the_buckets_of_keys_that_changed(tmp_path: Path) -> None:
    log = KeyedLog(tmp_path)
    log.write((b"key %d" % number, b"old") for number in range(90))
    first = log.update()
    assert (first.changed_keys, first.rewritten_buckets, first.files, first.commits) == (90, 16, 16, 1)
    before = _files(log)
    log.write([(b"key 7", b"new"), (b"key 8", None), (b"only in the log", None)])
    done = log.update()
    after = _files(log)
    assert (done.changed_keys, done.commits, done.records) == (3, 1, 89)
    assert len(after.items() - before.items()) == len(before.items() - after.items()) == done.rewritten_buckets <= 3
    assert stored(log.table) == log.newest
    assert all(path.exists() for path in (log.table / "data" / name for name in before.values()))  # for a day
    again = log.update()
    assert (again.commits, again.rewritten_buckets, again.snapshot) == (0, 0, done.snapshot)


def _files(log: KeyedLog) -> dict[int, str]:
    with LogTable.open(log.table) as opened:
        found = {bucket_of(one): Path(one.file_path).name for one in opened.data_files()}
        assert len(found) == len(opened.data_files())
    return found


def test_a_snapshot_says_its_offsets_and_source(tmp_path: Path) -> None:
    log = KeyedLog(tmp_path)
    log.write([(b"a", b"1"), (b"b", b"1")])
    log.write([(b"b", b"2")], partition=1)
    assert log.update().split_keys == 1
    log.write([(b"b", None)])
    log.update()
    summary = said(log.table)
    with log.open() as directory:
        epoch = directory.log("t", 0).epochs.latest
        topic_id = directory.topic_id("t")
    assert json.loads(summary["seglog.changed"]) == {"0": [2, 3, epoch]}
    assert summary["seglog.split-keys"] == "0"
    assert summary["seglog.surveyed-ms"] == str(log.clock.now_ms())
    with LogTable.open(log.table) as opened:
        positions = opened.positions()
    assert positions is not None
    assert topic_id is not None
    assert positions.topic_id == summary["seglog.topic-id"]
    assert {number: at.upto for number, at in positions.partitions.items()} == {0: 3, 1: 1}


def test_memory_is_bounded_by_spilling(tmp_path: Path) -> None:
    log = KeyedLog(tmp_path, partitions=1)
    log.write((b"key %d" % (number % 90), b"value %d" % number) for number in range(400))
    log.update(buckets=2, options={"maxMemoryPerTask": "1k"})
    log.write((b"key %d" % number, b"value" if number % 3 else None) for number in range(50, 120))
    log.update(options={"maxMemoryPerTask": "1k"})
    assert stored(log.table) == log.newest


def test_only_committed_records_count(tmp_path: Path) -> None:
    log = KeyedLog(tmp_path, partitions=1)
    log.write([(b"a", b"1"), (b"b", b"1")])
    with log.open() as directory:
        partition = directory.log("t", 0)
        for producer, value in ((1, b"aborted"), (2, b"open")):
            records = [NewRecord(value, b"a", log.clock.now_ms()), NewRecord(None, b"b", log.clock.now_ms())]
            partition.append(
                encode_batch(records, producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True)
            )
            if producer == 1:
                partition.append(_marker(producer, commit=False), origin=Origin.COORDINATOR)
    done = log.update()
    assert (stored(log.table), done.behind) == (log.newest, 2)
    with log.open() as directory:
        directory.log("t", 0).append(_marker(2, commit=True), origin=Origin.COORDINATOR)
    log.update()
    assert stored(log.table) == by_dictionary(log.path)
    assert [value for _, value in stored(log.table).values()] == [b"open"]


def _marker(producer: int, *, commit: bool) -> bytearray:
    return end_txn_marker(commit=commit, coordinator_epoch=0, producer_id=producer, producer_epoch=0, timestamp=0)


def test_a_record_without_key_is_refused_with_its_place(tmp_path: Path) -> None:
    log = KeyedLog(tmp_path, cleanup_policy="delete")
    log.write([(b"a", b"1")])
    log.update()
    with log.open() as directory:
        directory.log("t", 1).append_records([NewRecord(b"x", b"k", 1), NewRecord(b"x", None, 1)])
    with pytest.raises(InvalidRecordError, match="t-1, offset 1: a record without a key"):
        log.update()
    assert stored(log.table) == log.newest


def test_tombstones_that_compaction_may_have_removed_are_refused(tmp_path: Path) -> None:
    log = KeyedLog(tmp_path, partitions=1, delete_retention_ms=DAY_MS)
    log.write([(b"a", b"1"), (b"b", b"1")])
    log.update()
    log.write([(b"a", None)])
    for hours in (1, 24):  # the first round finds the tombstone, the second one removes it
        log.clock.advance(hours * 3_600_000)
        log.write([(b"c", b"%d" % hours)])
        log.compact()
    assert (b"a", None) not in _records(log)
    with pytest.raises(DataLossError, match=r"compacted up to offset \d+, 90000 s after .* so tombstones may be gone"):
        log.update()
    assert b"a" in [key for _, key in stored(log.table)]
    done = log.update(rebuild=True)
    assert stored(log.table) == log.newest
    assert (done.commits, done.records) == (1, 2)


def _records(log: KeyedLog) -> list[tuple[bytes | None, bytes | None]]:
    with log.open() as directory:
        return [(record.key, record.value) for record in directory.log("t").records()]


def test_compaction_in_time_is_no_obstacle(tmp_path: Path) -> None:
    log = KeyedLog(tmp_path, partitions=1, delete_retention_ms=DAY_MS)
    log.write([(b"a", b"1"), (b"b", b"1")])
    log.update()
    log.write([(b"a", None)])
    for _ in range(3):
        log.write([(b"c", b"1")])
        log.compact()
    log.clock.advance(23 * 3_600_000)
    log.update()
    assert stored(log.table) == log.newest


def test_runs_without_news_renew_the_time(tmp_path: Path) -> None:
    log = KeyedLog(tmp_path, partitions=1, delete_retention_ms=DAY_MS)
    log.write([(b"a", b"1")])
    log.update()
    for _ in range(4):
        log.clock.advance(DAY_MS // 2)
        assert log.update().commits == 1
        assert log.update().commits == 0
    log.write([(b"a", None), (b"b", b"1")])
    log.compact()
    log.update()
    assert stored(log.table) == log.newest


def test_a_log_that_does_not_tell_its_delete_retention_needs_it_given(tmp_path: Path) -> None:
    log = KeyedLog(tmp_path, partitions=1)
    log.write([(b"a", b"1")])
    log.update()
    log.write([(b"a", None), (b"b", b"1")])
    log.compact()
    with pytest.raises(DataLossError, match=r"does not tell its delete.retention.ms, so .* or give --delete-retention"):
        log.update()
    log.update(delete_retention_ms=DAY_MS)
    assert stored(log.table) == log.newest


def test_retention_that_passed_the_table_is_refused(tmp_path: Path) -> None:
    log = KeyedLog(tmp_path, partitions=1)
    log.write([(b"a", b"1"), (b"b", b"1")])
    log.update()
    log.write([(b"a", None), (b"c", b"1"), (b"d", b"1")])
    with log.open() as directory:
        directory.log("t", 0).delete_records(4)
    with pytest.raises(DataLossError, match="up to offset 2, and the log begins at 4; build the table anew"):
        log.update()
    log.update(rebuild=True)
    assert [key for _, key in stored(log.table)] == [b"d"]


def test_a_topic_that_was_created_again_can_be_rebuilt(tmp_path: Path) -> None:
    log = KeyedLog(tmp_path, partitions=1)
    log.write([(b"a", b"1"), (b"b", b"1")])
    log.update()
    with log.open() as directory:
        directory.delete_topic("t")
        directory.create_topic("t", 1)
    log.newest.clear()
    log.write([(b"c", b"1")])
    with pytest.raises(InvalidConfigError, match="was created again"):
        log.update()
    log.update(rebuild=True)
    assert stored(log.table) == log.newest


def test_kinds_of_tables_do_not_mix(tmp_path: Path) -> None:
    log = KeyedLog(tmp_path, partitions=1)
    log.write([(b"a", b"1")])
    log.update(buckets=4)
    with pytest.raises(InvalidConfigError, match=r"warehouse/t has the newest value of each key, .* give --latest"):
        update_table(log.path, log.table, topic="t")
    with pytest.raises(InvalidConfigError, match="has 4 buckets, which never changes, not 8"):
        log.update(buckets=8)
    other = tmp_path / "other" / "t"
    update_table(log.path, other, topic="t")
    with pytest.raises(InvalidConfigError, match=r"other/t has all records of its topic, .* leave out --latest"):
        update_keyed_table(log.path, other, topic="t")
    with pytest.raises(InvalidConfigError, match="this table does not take option startingOffsets"):
        log.update(options={"startingOffsets": "earliest"})


def test_of_two_jobs_one_fails_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = KeyedLog(tmp_path, partitions=1)
    log.write([(b"a", b"1"), (b"b", b"1")])
    log.update()
    log.write([(b"a", None), (b"b", b"2")])
    with LogTable.open(log.table) as other, other.locked(), pytest.raises(TableInUseError, match="another job writes"):
        log.update()
    commit = LogTable.exchange

    def late(table: LogTable, *arguments: Any) -> None:
        monkeypatch.setattr(LogTable, "exchange", commit)
        log.update()  # another job, between this one's files and its commit
        commit(table, *arguments)

    with without_a_lock(monkeypatch):
        monkeypatch.setattr(LogTable, "exchange", late)
        with pytest.raises(TableInUseError, match=r"has changed the table .* first; nothing was added"):
            log.update()
    assert stored(log.table) == log.newest


def test_killed_at_each_step_is_old_or_new(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", killed_keyed_runs.__name__, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    runs = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(runs) == len(killed_keyed_runs.STEPS)
    for run in runs:
        assert run["killed"], run
        assert run["is_new"] == run["step"].endswith(("commit_table", "LogTable.exchange")), run
        assert run["is_old"] != run["is_new"], run
        assert run["is_whole"], run
