"""A topic that gets more partitions, on a disk that stops at each of its changes."""

from __future__ import annotations

import random

import pytest

from seglog.core.errors import UnknownTopicError
from seglog.core.ground import Ground
from seglog.records.record import NewRecord
from seglog.storage.directory.log_dir import LogDir
from tests.kit.crash_fs import CrashFs, SimulatedCrash
from tests.kit.manual_clock import ManualClock
from tests.kit.memory_fs import MemoryFs


def opened(fs: MemoryFs | CrashFs) -> LogDir:
    return LogDir.open("/log", ground=Ground(fs=fs, clock=ManualClock(1_000_000), rng=random.Random(1)))


def grow(crash_at: int | None) -> tuple[CrashFs, MemoryFs]:
    """From 2 to 5 partitions; the disk stops at change number ``crash_at`` of that."""
    memory = MemoryFs()
    fs = CrashFs(memory)
    directory = opened(fs)
    directory.create_topic("t", 2, {"segment.index.bytes": 96})
    directory.log("t", 1).append_records([NewRecord(b"v")])
    directory.flush()
    start = len(fs.trace)
    fs.crash_at = None if crash_at is None else start + crash_at
    try:
        directory.add_partitions("t", 5)
    except SimulatedCrash:
        assert crash_at is not None
    else:
        assert crash_at is None
        del fs.trace[:start]
    return fs, memory


def test_it_has_all_of_them_or_those_of_before() -> None:
    changes = len(grow(None)[0].trace)
    assert changes > 10
    counts = set()
    for crash_at in range(1, changes + 1):
        _, memory = grow(crash_at)
        for seed in range(2):
            with opened(memory.after_crash(random.Random(seed))) as directory:
                assert directory.refused == {}
                partitions = directory.topics()["t"].partitions
                counts.add(partitions)
                assert len(directory.partitions()) == partitions
                assert len({directory.topic_id("t")}) == 1
                assert directory.log("t", 1).log_end_offset == 1
    assert counts == {2, 5}


def test_only_more_can_be_asked_for() -> None:
    with opened(MemoryFs()) as directory:
        directory.create_topic("t", 2, {"segment.index.bytes": 96})
        for count in (2, 1, 0, -1, 100_001):
            with pytest.raises(ValueError, match="2 partitions"):
                directory.add_partitions("t", count)
        with pytest.raises(UnknownTopicError):
            directory.add_partitions("none", 3)
        assert directory.add_partitions("t", 3).partitions == 3
