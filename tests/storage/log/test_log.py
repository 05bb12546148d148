"""Small promises of `Log` that the model (test_log_model.py) does not ask for."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from seglog.core.errors import FencedLeaderEpochError, InvalidConfigError, LogClosedError
from seglog.core.ground import Ground
from seglog.records.compression import Codec
from seglog.records.record import NewRecord, encode_batch, end_txn_marker
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.log.admit import Origin
from seglog.storage.log.log import Log
from tests.kit.manual_clock import ManualClock
from tests.kit.memory_fs import MemoryFs


@pytest.fixture
def fs() -> MemoryFs:
    return MemoryFs(clock=ManualClock())


@pytest.fixture
def log(fs: MemoryFs) -> Iterator[Log]:
    with LogDir.open("/data", ground=Ground(fs=fs, clock=ManualClock(), rng=random.Random(1))) as directory:
        directory.create_topic("t")
        yield directory.log("t")


def flush_each_append(log: Log) -> None:
    log.reconfigure(log.config.with_overrides({"flush.messages": 1}))


def test_an_append_is_by_default_in_the_latest_epoch(log: Log) -> None:
    log.assign_epoch(5)
    assert log.append_records([NewRecord(b"v")]).first_offset == 0
    assert next(log.read(0).batches())[0].leader_epoch == 5
    with pytest.raises(FencedLeaderEpochError):
        log.append_records([NewRecord(b"v")], leader_epoch=4)


def test_a_codec_by_name(log: Log) -> None:
    log.append_records([NewRecord(bytes(500))], codec="zstd")
    assert next(log.read(0).batches())[0].codec == Codec.ZSTD
    with pytest.raises(InvalidConfigError, match="compression 'zip' is not one of none, gzip"):
        log.append_records([NewRecord(b"v")], codec="zip")


def test_rolling_an_empty_log_changes_nothing(log: Log) -> None:
    before = log.active
    assert log.roll() is before
    assert len(log.segments) == 1


def test_a_closed_log_says_so(log: Log) -> None:
    log.append_records([NewRecord(b"v")])
    log.close()
    for use in (lambda: log.read(0), lambda: log.append_records([NewRecord(b"v")]), log.roll):
        with pytest.raises(LogClosedError, match="closed"):
            use()


def test_flush_costs_one_fsync_if_only_records_have_come(fs: MemoryFs, log: Log) -> None:
    log.append_records([NewRecord(b"v")])
    log.flush()
    before = fs.calls.copy()
    log.append_records([NewRecord(b"v")])
    log.flush()
    assert (fs.calls - before)["fsync"] == 1
    assert (fs.calls - before)["fsync_dir"] == 0
    log.roll()
    log.append_records([NewRecord(b"v")])
    before = fs.calls.copy()
    log.flush()
    assert (fs.calls - before)["fsync_dir"] == 1, "the new segment has a new name"


def test_new_index_of_aborted_transactions_survives_a_power_cut() -> None:
    for seed in range(8):
        fs, clock = MemoryFs(clock=ManualClock()), ManualClock()
        directory = LogDir.open("/data", ground=Ground(fs=fs, clock=clock, rng=random.Random(1)))
        directory.create_topic("t")
        log = directory.log("t")
        log.append_records([NewRecord(b"v")])
        log.flush()
        log.append(
            encode_batch([NewRecord(b"w")], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
        )
        abort = end_txn_marker(commit=False, coordinator_epoch=0, producer_id=7, producer_epoch=0, timestamp=1)
        log.append(abort, origin=Origin.COORDINATOR)
        log.flush()
        directory.checkpoint()
        fs.crash(random.Random(seed))
        with LogDir.open("/data", ground=Ground(fs=fs, clock=clock, rng=random.Random(1))) as opened:
            (found,) = opened.log("t").active.txn_index.entries
            assert (found.producer_id, found.first_offset, found.last_offset) == (7, 1, 2)


def test_append_flushes_when_flush_messages_asks_for_it(fs: MemoryFs, log: Log) -> None:
    flush_each_append(log)
    before = fs.calls["fsync"]
    log.append_records([NewRecord(b"v")])
    assert fs.calls["fsync"] > before
    assert (log.recovery_point, log.flushed_end, log.needs_flush) == (1, 1, False)


def test_deferred_flush_is_left_to_who_appends(fs: MemoryFs, log: Log) -> None:
    flush_each_append(log)
    log.append_records([NewRecord(b"u")])  # which writes the epoch down
    log.defer_flushes()
    before = fs.calls["fsync"]
    log.append_records([NewRecord(b"v"), NewRecord(b"w")])
    assert fs.calls["fsync"] == before
    assert (log.log_end_offset, log.flushed_end, log.high_watermark, log.needs_flush) == (3, 1, 1, True)
    log.flush()
    assert (log.log_end_offset, log.flushed_end, log.high_watermark, log.needs_flush) == (3, 3, 3, False)


def test_flushed_end_is_the_end_without_flush_messages(log: Log) -> None:
    log.defer_flushes()
    log.append_records([NewRecord(b"v")])
    assert (log.recovery_point, log.flushed_end, log.high_watermark, log.needs_flush) == (0, 1, 1, False)


def test_log_that_begins_anew_beyond_its_end_has_nothing_to_flush(log: Log) -> None:
    flush_each_append(log)
    log.defer_flushes()
    log.truncate_fully_and_start_at(6)
    assert (log.high_watermark, log.flushed_end, log.needs_flush) == (6, 6, False)


def test_flush_counts_nothing_above_a_truncation(log: Log) -> None:
    log.append_records([NewRecord(b"v"), NewRecord(b"w")])
    log.append_records([NewRecord(b"x")])
    log.flush()
    log.truncate_to(2)
    log.append_records([NewRecord(b"y"), NewRecord(b"z")])
    assert (log.recovery_point, log.log_end_offset) == (2, 4)
