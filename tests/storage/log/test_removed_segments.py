"""Files of removed segments are closed by their last reader, whoever else still refers to the segment or its log."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from seglog.core.errors import LogClosedError
from seglog.core.types import ProducerIdAndEpoch
from seglog.records.record import NewRecord
from seglog.storage.compaction.log_cleaner import compact
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.log.finished_segment import read_finished, stamp
from seglog.storage.log.log import Log
from seglog.storage.log.reads import UpTo, fetch, offset_for_timestamp
from seglog.storage.log.segment import Segment
from tests.kit.memory import directory_in_memory
from tests.storage.adopt.adopting import stage, texts
from tests.storage.directories import TINY

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
RECORDS = 300
CONFIG = {**TINY, "segment.index.bytes": 240, "file.delete.delay.ms": 0}


@pytest.fixture
def opened() -> Iterator[LogDir]:
    """A directory on a disk in memory, in a process that collects no garbage."""
    gc.disable()
    try:
        with directory_in_memory() as path, LogDir.open(path / "logs") as directory:
            directory.create_topic("t", 1, CONFIG)
            yield directory
    finally:
        gc.enable()


def deleted_files(opened: LogDir) -> list[str]:
    """Open files of the directory that have no name any more."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # the descriptor of the listing
            continue
        if path.startswith(f"{opened.path}/") and path.endswith(" (deleted)"):
            found.append(path)
    return found


def compacted(_: LogDir, log: Log) -> None:
    compact(log, first_dirty=0, in_child=False, engine="plain")


def expired(directory: LogDir, log: Log) -> None:
    directory.delete_records("t", 0, RECORDS - 2)
    log.delete_old_segments()


def truncated(_: LogDir, log: Log) -> None:
    log.truncate_to(3)


def started_over(_: LogDir, log: Log) -> None:
    log.truncate_fully_and_start_at(7)


def started_over_at_the_same_offset(_: LogDir, log: Log) -> None:
    log.truncate_fully_and_start_at(0)


def topic_deleted(directory: LogDir, _: Log) -> None:
    directory.delete_topic("t")


def topic_created_again(directory: LogDir, _: Log) -> None:
    directory.delete_topic("t")
    directory.create_topic("t", 1, CONFIG)


REMOVALS = [compacted, expired, truncated, started_over, started_over_at_the_same_offset]
GONE = [topic_deleted, topic_created_again]
Removal = Callable[[LogDir, Log], None]


def written(directory: LogDir) -> Log:
    log = directory.log("t")
    for value in range(RECORDS):
        log.append_records([NewRecord(b"%d" % value, key=b"%d" % (value % 5))])
    assert len(log.segments) > 5
    for segment in log.segments:  # each is open now
        log.read(segment.base_offset, 1).read()
    return log


@pytest.mark.parametrize("remove", [*REMOVALS, *GONE])
def test_file_without_a_reader_is_closed_at_once(opened: LogDir, remove: Removal) -> None:
    log = written(opened)
    pinned = log.segments  # as a reference cycle would
    remove(opened, log)
    opened.housekeeping()
    assert deleted_files(opened) == []
    assert len(pinned) > 5


@pytest.mark.parametrize("remove", REMOVALS)
def test_last_reader_closes_the_file(opened: LogDir, remove: Removal) -> None:
    log = written(opened)
    pinned = log.segments
    at = pinned[1].base_offset
    held = [log.read(at, 400), log.read(at, 400)]
    expected = held[0].read()
    remove(opened, log)
    opened.housekeeping()
    assert len(deleted_files(opened)) == 1
    assert held[0].read() == expected
    del held[0]
    assert held[0].read() == expected
    held.clear()
    assert deleted_files(opened) == []
    assert pinned[1].base_offset == at


@pytest.mark.parametrize("remove", GONE)
def test_deleted_topic_is_closed_under_its_readers(opened: LogDir, remove: Removal) -> None:
    log = written(opened)
    held = log.read(0, 400)
    remove(opened, log)
    opened.housekeeping()
    assert deleted_files(opened) == []
    with pytest.raises(LogClosedError):
        held.read()


def test_reader_of_a_segment_that_became_active_again_closes_it(opened: LogDir) -> None:
    """A truncation makes a sealed segment active; a reader that came before has opened it for itself."""
    log = written(opened)
    at = log.segments[2].base_offset
    held = log.read(at, 1)
    log.truncate_to(log.segments[2].base_offset + 1)
    assert held.read()
    log.truncate_to(0)
    assert len(deleted_files(opened)) == 1
    del held
    assert deleted_files(opened) == []


def test_active_segment_whose_name_another_file_took_is_closed(opened: LogDir) -> None:
    """A segment of a Spark job takes the place of an empty active segment."""
    log = opened.log("t")
    part = stage(opened, texts("new", 9), job="job", task="0", partition=log.topic_partition)
    path = os.path.join(opened.path, part.directory, part.segments[0].name)
    producer = ProducerIdAndEpoch(7, 3)
    stamp(opened.fs, path, producer, 0)
    before = log.segments
    log.append_segment(read_finished(opened.fs, path), 4)
    assert log.log_end_offset == 9
    assert log.segments[0] is not before[0]
    assert deleted_files(opened) == []


class _LateReader:
    """A log for a reader whose thread stood still: it looks at the segments first as they were."""

    def __init__(self, log: Log, before: tuple[Segment, ...]) -> None:
        self._log = log
        self._looks = iter([before])

    @property
    def segments(self) -> tuple[Segment, ...]:
        return next(self._looks, self._log.segments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


@pytest.mark.parametrize("remove", [compacted, truncated, started_over_at_the_same_offset])
def test_read_that_meets_a_removal_begins_again(opened: LogDir, remove: Removal) -> None:
    log = written(opened)
    before = log.segments
    remove(opened, log)
    opened.housekeeping()
    offset = min(1, log.log_end_offset)
    found = fetch(_LateReader(log, before), offset, 400, UpTo.LOG_END, min_one=True)
    assert found.read() == log.read(offset, 400, up_to=UpTo.LOG_END).read()
    late = _LateReader(log, before)
    assert offset_for_timestamp(late, 0) == log.offset_for_timestamp(0)
