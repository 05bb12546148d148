"""``kill -9`` of a process that appends and flushes: nothing that was flushed is lost, everything opens."""

from __future__ import annotations

import os
import random
import select
import signal
import struct
import time
from collections.abc import Iterator, Mapping

import pytest

from seglog.records.record import NewRecord
from seglog.storage.directory.log_dir import LogDir
from tests.cases import case, is_long
from tests.kit.memory import directory_in_memory
from tests.storage.disk import values

KILLS = 200 if is_long() else 40
PARTITIONS = 2
_FLUSHED = struct.Struct(">iq")
"""partition, offset up to which it is flushed"""
TINY: Mapping[str, object] = {
    "internal.segment.bytes": 20_000,
    "segment.index.bytes": 4_000,
    "retention.ms": -1,
    "retention.bytes": 100_000,
    "file.delete.delay.ms": 0,
}


@pytest.fixture
def fast_path() -> Iterator[str]:
    """A directory in memory where there is one: what a killed process has written is there without any fsync."""
    with directory_in_memory() as path:
        yield str(path)


def write_until_killed(path: str, report: int, seed: int) -> None:
    """The child's life: append to both partitions, flush now and then and say so, delete what is old, checkpoint."""
    rng = random.Random(seed)
    opened = LogDir.open(path, background=bool(seed % 2))
    while True:
        number = rng.randrange(PARTITIONS)
        log = opened.log("t", number)
        for _ in range(rng.randrange(1, 20)):
            offset = log.log_end_offset
            log.append_records([NewRecord(f"{offset}:".encode().ljust(rng.randrange(20, 900), b"."))])
        act = rng.randrange(6)
        if act < 3:
            log.flush()
            os.write(report, _FLUSHED.pack(number, log.recovery_point))
        elif act == 3:
            opened.checkpoint()
        elif act == 4:
            opened.run_retention()


def life_and_death(path: str, seed: int, after: float) -> dict[int, int]:
    """Fork a writer, kill it ``after`` seconds from its first word, and return what it said that was flushed."""
    receive, report = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(receive)
            write_until_killed(path, report, seed)
        finally:
            os._exit(1)
    os.close(report)
    said = b""
    try:
        assert select.select([receive], [], [], 30)[0], "the writer says nothing"
        deadline = time.monotonic() + after
        while (left := deadline - time.monotonic()) > 0:
            if select.select([receive], [], [], left)[0]:
                data = os.read(receive, 1 << 16)
                if not data:
                    break
                said += data
    finally:
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    while data := os.read(receive, 1 << 16):
        said += data
    os.close(receive)
    assert os.WTERMSIG(status) == signal.SIGKILL, f"the writer ended by itself: {status}"
    return dict(_FLUSHED.iter_unpack(said[: len(said) // _FLUSHED.size * _FLUSHED.size]))


# The runner may have threads; of what they hold, the child needs nothing
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_process_is_killed_again_and_again(fast_path: str) -> None:
    path = fast_path
    with LogDir.open(path) as opened:
        opened.create_topic("t", PARTITIONS, TINY)
    flushed = dict.fromkeys(range(PARTITIONS), 0)
    rng = random.Random(7)
    for kill in range(KILLS):
        case()
        flushed |= life_and_death(path, kill, rng.random() * 0.03)
        if kill % 10 and kill != KILLS - 1:
            continue  # the next child opens what this one left
        with LogDir.open(path) as opened:
            assert not opened.refused
            for number in range(PARTITIONS):
                log = opened.log("t", number)
                log.check()
                assert log.log_end_offset >= flushed[number]
                found = values(log)
                assert list(found) == list(range(log.log_start_offset, log.log_end_offset))
                assert all(value.startswith(b"%d:" % offset) for offset, value in found.items())
    assert min(flushed.values()) > 3 * KILLS, flushed
