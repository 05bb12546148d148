"""Attributes that several threads see change under their locks: by the comments, and in a storm of threads."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from seglog.core.errors import OffsetOutOfRangeError
from seglog.core.lru import Lru
from seglog.core.types import TopicPartition
from seglog.core.worker import Worker
from seglog.records.record import NewRecord, encode_batch, end_txn_marker
from seglog.storage.directory.catalog import Catalog
from seglog.storage.directory.log_changes import BeginEpoch, Cut, MoveStart
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.directory.log_dirs import LogDirs
from seglog.storage.directory.offset_checkpoints import OffsetCheckpoints
from seglog.storage.log.admit import Origin
from seglog.storage.log.dir_health import DirHealth
from seglog.storage.log.epoch_file import EpochFile
from seglog.storage.log.epochs import LeaderEpochs
from seglog.storage.log.log import Log
from seglog.storage.log.manifest import Manifest
from seglog.storage.log.producers import Producers
from seglog.storage.log.segment import Segment
from seglog.storage.log.segment_files import DerivedFile, SealedFile
from seglog.storage.log.segments import Segments
from tests.storage.directory.test_log_dir_threads import in_threads
from tests.storage.guards import DIRECTORYS_LOCK, LOGS_LOCK, changed_later, guards, watch

CLASSES: Final = [
    Log, Segments, Segment, Producers, LeaderEpochs, EpochFile, DirHealth, LogDir, Catalog, OffsetCheckpoints, Manifest,
    SealedFile, DerivedFile, Lru, Worker,
]  # fmt: skip
"""Watched in the storm."""
SEVERAL: Final = [LogDirs]
"""Of several directories."""
SMALL: Final = {"internal.segment.bytes": 2000, "segment.index.bytes": 1200, "retention.ms": -1}


@pytest.mark.parametrize("cls", [*CLASSES, *SEVERAL])
def test_each_attribute_that_changes_names_its_guard(cls: type) -> None:
    known = guards(cls)
    assert not changed_later(cls) - known.keys()
    locks = {LOGS_LOCK, DIRECTORYS_LOCK, None}
    for name, guard in known.items():
        assert guard in locks or f"self.{guard} = threading." in _source(cls), (name, guard)


def _source(cls: type) -> str:
    return Path(sys.modules[cls.__module__].__file__ or "").read_text()


class Storm:
    """A directory with threads, and who holds which lock when an attribute of it changes."""

    def __init__(self, path: Path, patch: pytest.MonkeyPatch) -> None:
        self.directory = LogDir.open(path, background=True, config={"log.flush.offset.checkpoint.interval.ms": 1})
        self.directory.create_topic("t", 2, {**SMALL, "flush.messages": 3, "flush.ms": 1})
        self.logs = [self.directory.log("t", number) for number in range(2)]
        self.wrong = watch(patch, CLASSES, self._owners_lock)

    def _owners_lock(self, one: object, guard: str) -> Any:
        if guard == DIRECTORYS_LOCK:
            return self.directory._lock
        for log in self.logs:
            if any(one is part for part in (log.producers, log._segments, log.epochs, *log.segments)):
                return log.lock
        return None  # a segment that is not in its place yet, or not any more


def test_no_attribute_changes_without_its_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storm = Storm(tmp_path, monkeypatch)
    directory, (log, other) = storm.directory, storm.logs
    rounds, sequences = 60, itertools.count()

    def append() -> None:
        for epoch in range(rounds):
            log.append_records([NewRecord(bytes(200))], leader_epoch=epoch // 10)
            producer: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "transactional": True}
            batch = encode_batch([NewRecord(b"x")], base_sequence=next(sequences), **producer)
            log.append(batch, leader_epoch=epoch // 10)
            marker = end_txn_marker(
                commit=bool(epoch % 2), coordinator_epoch=0, producer_id=7, producer_epoch=0, timestamp=1
            )
            log.append(marker, leader_epoch=epoch // 10, origin=Origin.COORDINATOR)

    def flush() -> None:
        for _ in range(rounds):
            log.flush()
            directory.checkpoint()

    def roll() -> None:
        for _ in range(rounds):
            log.roll()
            log.delete_old_segments()
            directory._housekeeping._expire_producers()

    def delete() -> None:
        for _ in range(rounds // 4):
            try:
                directory.carry_out([MoveStart(TopicPartition("t", 0), log.high_watermark)])
            except OffsetOutOfRangeError:
                continue

    def cut() -> None:
        for epoch in range(rounds // 4):
            other.append_records([NewRecord(bytes(100)) for _ in range(5)])
            end = other.log_end_offset
            partition = other.topic_partition
            assert directory.carry_out([Cut(partition, end - 2, end - 2, end, saves=epoch % 5 == 0)])
            assert directory.carry_out([BeginEpoch(partition, epoch)]) == [None]

    def change() -> None:
        for number in range(rounds // 6):
            directory.alter_config("t", {"flush.messages": 2 + number % 3})
            directory.create_topic("short-lived")
            directory.delete_topic("short-lived")

    assert in_threads(append, flush, roll, delete, cut, change) == []
    log.check()
    other.check()
    directory.close()
    assert not storm.wrong


class Stepped:
    """A lock of a log; before ``thread`` takes it from outside, ``between`` is called once."""

    def __init__(self, lock: Any, between: Callable[[], object]) -> None:
        self._lock = lock
        self._between: Callable[[], object] | None = between
        self._thread = threading.get_ident()

    def __enter__(self) -> None:
        between = self._between
        if between is not None and threading.get_ident() == self._thread and not self._lock._is_owned():
            self._between = None
            in_threads(between)
        self._lock.__enter__()

    def __exit__(self, *error: object) -> None:
        self._lock.__exit__(*error)


FLUSH_MESSAGES: Final = (2, 3, 7)


@pytest.fixture(params=FLUSH_MESSAGES)
def deferred(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Log, int]]:
    """A log as a lone broker has it, and its ``flush.messages``."""
    with LogDir.open(tmp_path) as directory:
        directory.create_topic("t", 1, {"flush.messages": request.param})
        log = directory.log("t")
        log.defer_flushes()
        yield log, request.param


def _flush_with_an_append_before_the_lock(log: Log, flush_messages: int) -> int:
    """The high watermark after a flush that was due, and an append between its fsync and its last step."""
    for _ in range(flush_messages):
        log.append_records([NewRecord(b"x")])
    assert log.high_watermark < log.log_end_offset
    lock = log.lock
    log.lock = Stepped(lock, lambda: log.append_records([NewRecord(b"y")]))  # type: ignore[assignment]  # as one
    try:
        log.flush()
    finally:
        log.lock = lock
    assert log.log_end_offset == flush_messages + 1
    return log.high_watermark


def test_an_append_while_a_flush_ends_stays_visible(deferred: tuple[Log, int]) -> None:
    log, flush_messages = deferred
    assert _flush_with_an_append_before_the_lock(log, flush_messages) == log.log_end_offset


def test_that_finds_a_flush_that_decides_without_the_lock(
    deferred: tuple[Log, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def flush(log: Log) -> None:
        log._flush(None)
        shown = log.flushed_end  # decided here
        with log.lock:
            log.high_watermark = shown  # and written here

    monkeypatch.setattr(Log, "flush", flush)
    log, flush_messages = deferred
    assert _flush_with_an_append_before_the_lock(log, flush_messages) < log.log_end_offset


def test_the_high_watermark_never_goes_back_while_threads_append_and_flush(deferred: tuple[Log, int]) -> None:
    log, flush_messages = deferred
    seen: list[int] = []
    is_over = threading.Event()

    def append() -> None:
        for _ in range(40 * flush_messages):
            log.append_records([NewRecord(b"x")])
        is_over.set()

    def flush() -> None:
        while not is_over.is_set():
            log.flush()
            seen.append(log.high_watermark)

    def read() -> None:
        while not is_over.is_set():
            seen_now = log.last_stable_offset
            assert seen_now <= log.log_end_offset

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        assert in_threads(append, flush, read) == []
    finally:
        sys.setswitchinterval(interval)
    assert seen == sorted(seen)
    log.flush()
    assert log.high_watermark == log.log_end_offset


def test_a_marker_that_a_flush_shows_ends_its_transaction_for_readers(deferred: tuple[Log, int]) -> None:
    """The last stable offset follows the high watermark also if an append without a producer raises that."""
    log, flush_messages = deferred
    producer: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "transactional": True, "base_sequence": 0}
    for _ in range(flush_messages - 2):
        log.append_records([NewRecord(b"x")])
    log.append(encode_batch([NewRecord(b"x")], **producer), leader_epoch=0)
    marker = end_txn_marker(commit=True, coordinator_epoch=0, producer_id=7, producer_epoch=0, timestamp=1)
    log.append(marker, leader_epoch=0, origin=Origin.COORDINATOR)
    assert log.high_watermark <= flush_messages - 1, "held back until the flush"
    _flush_only(log)
    log.append_records([NewRecord(b"y")])  # raises the high watermark before the flush does
    assert log.last_stable_offset == log.high_watermark == log.log_end_offset


def _flush_only(log: Log) -> None:
    """A flush up to its last step, which waits for the lock."""
    with log._flushing:
        log._flush(None)
