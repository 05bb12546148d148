"""Small promises of `Log` that the model (test_log_model.py) does not ask for."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from seglog.core.errors import FencedLeaderEpochError, InvalidConfigError, LogClosedError
from seglog.records.compression import Codec
from seglog.records.record import NewRecord
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.log.log import Log
from seglog.testing.clock import ManualClock
from seglog.testing.memory_fs import MemoryFs


@pytest.fixture
def log() -> Iterator[Log]:
    clock = ManualClock()
    with LogDir.open("/data", fs=MemoryFs(clock=clock), clock=clock, rng=random.Random(1)) as directory:
        directory.create_topic("t")
        yield directory.log("t")


def test_an_append_is_by_default_in_the_latest_epoch(log: Log) -> None:
    log.assign_epoch(5)
    assert log.append_records([NewRecord(b"v")]).first_offset == 0
    assert next(log.read(0).batches())[0].leader_epoch == 5
    with pytest.raises(FencedLeaderEpochError):
        log.append_records([NewRecord(b"v")], leader_epoch=4)


def test_a_codec_by_name(log: Log) -> None:
    log.append_records([NewRecord(bytes(500))], codec="zstd")
    assert next(log.read(0).batches())[0].codec == Codec.ZSTD
    with pytest.raises(InvalidConfigError, match="compression 'zip' is none of none, gzip"):
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
