"""`LogDir` as people use it: many threads at once, closing in the middle, arguments that make no sense."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from seglog.core.errors import InvalidLogDirError, LogClosedError
from seglog.core.types import MAX_INT64
from seglog.records.record import NewRecord
from seglog.storage.directory.log_dir import LogDir

SECONDS = 300
"""For what needs thousands of fsyncs, on a disk that is slow and busy with others."""
SMALL = {"internal.segment.bytes": 2000, "segment.index.bytes": 1200, "retention.ms": -1}


def in_threads(*acts: Callable[[], object]) -> list[BaseException]:
    """Do all at once; what they raised."""
    with ThreadPoolExecutor(len(acts)) as pool:
        errors = [future.exception(SECONDS) for future in [pool.submit(act) for act in acts]]
    return [error for error in errors if error is not None]


def test_checkpoints_are_written_by_many_threads(tmp_path: Path) -> None:
    """The thread in the background, a truncation and the deletion of a topic write the same files."""
    with LogDir.open(tmp_path, background=True, config={"log.flush.offset.checkpoint.interval.ms": 1}) as opened:
        opened.create_topic("web", 4, SMALL)

        def append(partition: int) -> None:
            log = opened.log("web", partition)
            for _ in range(40):
                log.append_records([NewRecord(b"x")])
                log.flush()
                opened.checkpoint()
                opened.truncate_to("web", partition, log.log_end_offset - 1)

        def churn() -> None:
            for _ in range(20):
                opened.create_topic("short-lived")
                opened.delete_topic("short-lived")

        assert in_threads(*(lambda partition=partition: append(partition) for partition in range(4)), churn) == []
        assert opened.health.failure is None


def test_closing_does_not_wait_for_those_who_go_on_appending(tmp_path: Path) -> None:
    opened = LogDir.open(tmp_path, background=True)
    opened.create_topic("web", 1, SMALL)
    log = opened.log("web")
    rolled = threading.Event()

    def append() -> None:
        while True:
            log.append_records([NewRecord(bytes(900))])
            if len(log.segments) > 20:
                rolled.set()

    def close() -> None:
        assert rolled.wait(SECONDS)
        opened.close()

    failed = in_threads(append, append, close)
    assert [type(error) for error in failed] == [LogClosedError, LogClosedError]
    assert log.closed
    with LogDir.open(tmp_path) as again:
        assert again.log("web").log_end_offset == log.log_end_offset
        assert not again.refused


def test_a_slice_of_a_closed_log_says_so(tmp_path: Path) -> None:
    with LogDir.open(tmp_path) as opened:
        opened.create_topic("web")
        opened.log("web").append_records([NewRecord(b"x")])
        fetched = opened.log("web").read(0)
        assert len(list(fetched.records())) == 1
    with pytest.raises(LogClosedError, match=r"00000\.log is closed"):
        fetched.read()


def test_a_deleted_log_is_read_to_its_end_until_the_directory_is_closed(tmp_path: Path) -> None:
    with LogDir.open(tmp_path) as opened:
        opened.create_topic("web")
        log = opened.log("web")
        log.append_records([NewRecord(b"x")])
        fetched = log.read(0)
        opened.delete_topic("web")
        assert len(list(fetched.records())) == 1
    with pytest.raises(LogClosedError):
        fetched.read()


def test_a_directory_that_cannot_be_one_of_logs_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "home" / "photos").mkdir(parents=True)
    with pytest.raises(InvalidLogDirError, match="photos is neither"):
        LogDir.open(tmp_path / "home")
    assert os.listdir(tmp_path / "home") == ["photos"]
    with LogDir.open(tmp_path / "logs") as opened:
        opened.create_topic("web")
    before = sorted(os.listdir(tmp_path / "logs" / "web-0"))
    with pytest.raises(InvalidLogDirError, match="web-0 is the directory of a partition"):
        LogDir.open(tmp_path / "logs" / "web-0")
    assert sorted(os.listdir(tmp_path / "logs" / "web-0")) == before
    with pytest.raises(InvalidLogDirError, match="path of a log directory is empty"):
        LogDir.open("")


def test_what_makes_no_sense_is_not_written_down(tmp_path: Path) -> None:
    with LogDir.open(tmp_path) as opened:
        partitions: Any = 2.5
        with pytest.raises(TypeError):
            opened.create_topic("web", partitions)
        opened.create_topic("web")
        for offset in (-1, MAX_INT64 + 1):
            with pytest.raises(ValueError, match="cannot start at offset"):
                opened.truncate_fully_and_start_at("web", 0, offset)
    with LogDir.open(tmp_path) as opened:
        assert opened.log("web").log_end_offset == 0
