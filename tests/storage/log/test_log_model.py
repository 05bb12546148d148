"""A whole log against a dumb list: whatever is done to it, and wherever the power is cut."""

from __future__ import annotations

import bisect
import os
import random
from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from seglog.core.config import LogConfig
from seglog.core.errors import OffsetOutOfRangeError
from seglog.core.ground import Ground
from seglog.core.types import Buffer, TopicPartition
from seglog.records.compression import Codec
from seglog.records.record import NewRecord, encode_batch
from seglog.storage.log.dir_health import DirHealth
from seglog.storage.log.log import Log
from seglog.storage.log.reads import EARLIEST, LATEST, MAX_TIMESTAMP, UpTo
from seglog.storage.log.recovery import LogCheckpoint, load_log
from tests.cases import case
from tests.kit.manual_clock import ManualClock
from tests.kit.memory_fs import MemoryFs

_PATH = "/data/t-0"
_START_MS = 1_790_000_000_000


class _Kept(NamedTuple):
    offset: int
    timestamp: int
    value: Buffer | None
    batch_end: int


class LogMachine(RuleBasedStateMachine):
    """``kept`` is every record the log has had and not truncated, also those below its start."""

    def __init__(self) -> None:
        super().__init__()
        case()
        self.clock = ManualClock(_START_MS)
        self.fs = MemoryFs(clock=self.clock)
        self.fs.mkdir("/data")
        self.fs.mkdir(_PATH)
        self.fs.fsync_dir("/data")
        self.fs.fsync_dir("/")
        self.config = LogConfig.from_mapping(
            {
                "internal.segment.bytes": "2000",
                "index.interval.bytes": "100",
                "segment.index.bytes": "240",
                "retention.bytes": "8000",
                "retention.ms": "3600000",
                "file.delete.delay.ms": "0",
                "message.timestamp.after.max.ms": str(2**63 - 1),
            }
        )
        self.kept: list[_Kept] = []
        self.known = LogCheckpoint()
        self.epochs: list[tuple[int, int]] = []
        self.log = self._open()

    def _open(self) -> Log:
        return load_log(
            ground=Ground(fs=self.fs, clock=self.clock),
            path=_PATH,
            topic_partition=TopicPartition("t", 0),
            config=self.config,
            health=DirHealth(_PATH),
            known=self.known,
        ).log

    def _checkpoint(self, *, clean: bool = False) -> None:
        log = self.log
        self.known = LogCheckpoint(clean, log.recovery_point, log.log_start_offset, 0)

    @rule(
        sizes=st.lists(st.integers(0, 200), min_size=1, max_size=6),
        back=st.integers(0, 10_000),
        codec=st.sampled_from(Codec),
    )
    def append(self, sizes: list[int], back: int, codec: Codec) -> None:
        base = self.log.log_end_offset
        now = self.clock.now_ms()
        records = [
            NewRecord(value=None if size == 0 else os.urandom(size), key=b"k", timestamp=now - back + at)
            for at, size in enumerate(sizes)
        ]
        done = self.log.append(encode_batch(records, codec=codec), leader_epoch=max(self._epoch(), 0))
        assert (done.first_offset, done.last_offset) == (base, base + len(sizes) - 1)
        self.kept += [
            _Kept(base + at, record.timestamp, record.value, base + len(sizes)) for at, record in enumerate(records)
        ]

    def _epoch(self) -> int:
        return self.log.epochs.latest

    @rule(later=st.integers(1, 1_000_000))
    def time_goes_by(self, later: int) -> None:
        self.clock.advance(later)

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule()
    def new_leader(self) -> None:
        self.log.assign_epoch(self._epoch() + 1)

    @rule()
    def flush(self) -> None:
        self.log.flush()
        assert self.log.recovery_point == self.log.log_end_offset

    @rule()
    def checkpoint(self) -> None:
        self._checkpoint()

    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        start, end = self.log.log_start_offset, self.log.log_end_offset
        target = start + int((end - start) * share)
        boundary = max((record.batch_end for record in self.kept if record.batch_end <= target), default=0)
        self.known = self.known._replace(recovery_point=min(self.known.recovery_point or 0, boundary))
        self.log.truncate_to(target)
        self.kept = [record for record in self.kept if record.batch_end <= target]
        assert self.log.log_end_offset <= target
        if self.kept and self.kept[-1].offset >= self.log.segments[0].base_offset:
            assert self.log.log_end_offset == self.kept[-1].batch_end
        self.log.flush()

    @rule(ahead=st.integers(0, 1000))
    @precondition(lambda self: self.log.log_end_offset > 0)
    def start_anew(self, ahead: int) -> None:
        self.known = self.known._replace(recovery_point=0)
        self.log.truncate_fully_and_start_at(self.log.log_end_offset + ahead)
        self.kept = []
        self.log.flush()
        self._checkpoint()

    @rule(share=st.floats(0, 1))
    def delete_records(self, share: float) -> None:
        start, end = self.log.log_start_offset, self.log.high_watermark
        target = start + int((end - start) * share)
        assert self.log.delete_records(target) == target
        with pytest.raises(OffsetOutOfRangeError):
            self.log.delete_records(end + 1)

    @rule()
    def retention(self) -> None:
        before = self.log.log_start_offset
        gone = self.log.delete_old_segments()
        assert self.log.log_start_offset >= before
        assert self.log.size <= 8000 + 2000 or not gone
        self._checkpoint()

    @rule()
    def restart(self) -> None:
        end, start = self.log.log_end_offset, self.log.log_start_offset
        self.log.close()
        self._checkpoint(clean=True)
        self.log = self._open()
        assert (self.log.log_start_offset, self.log.log_end_offset) == (start, end)
        self.known = self.known._replace(clean=False)

    @rule(seed=st.integers(0, 2**32))
    def crash(self, seed: int) -> None:
        flushed, end = self.log.recovery_point, self.log.log_end_offset
        self.fs.crash(random.Random(seed))
        self.log = self._open()
        assert flushed <= self.log.log_end_offset <= max(end, self.known.log_start_offset)
        self.kept = [record for record in self.kept if record.offset < self.log.log_end_offset]
        self.log.flush()

    @rule(share=st.floats(0, 1), max_bytes=st.integers(1, 5000))
    def read(self, share: float, max_bytes: int) -> None:
        start, end = self.log.log_start_offset, self.log.log_end_offset
        offset = start + int((end - start) * share)
        fetched = self.log.read(offset, max_bytes, up_to=UpTo.LOG_END)
        found = list(fetched.records())
        expected = [record for record in self.kept if record.offset >= offset]
        if expected:
            assert found, "the first batch always comes whole"
        assert [(r.offset, r.timestamp, r.value) for r in found] == [r[:3] for r in expected[: len(found)]]
        with pytest.raises(OffsetOutOfRangeError):
            self.log.read(end + 1)

    @rule(back=st.integers(-1000, 1_000_000))
    def look_up_by_time(self, back: int) -> None:
        log = self.log
        timestamp = self.clock.now_ms() - back
        there = [record for record in self.kept if record.offset >= log.log_start_offset]
        expected = next((record for record in there if record.timestamp >= timestamp), None)
        found = log.offset_for_timestamp(timestamp)
        assert (found and found[:2]) == (expected and (expected.timestamp, expected.offset))
        earliest, latest = log.offset_for_timestamp(EARLIEST), log.offset_for_timestamp(LATEST)
        assert earliest is not None
        assert latest is not None
        assert (earliest.offset, latest.offset) == (log.log_start_offset, log.log_end_offset)
        newest = log.offset_for_timestamp(MAX_TIMESTAMP)
        if newest is not None:
            assert newest.timestamp == max(record.timestamp for record in there)

    @invariant()
    def whole(self) -> None:
        log = self.log
        log.check()
        if log.closed:
            return
        sizes = [segment.size for segment in log.segments]
        assert all(size > 0 for size in sizes[:-1])
        for segment in log.segments:
            slots = [segment.offset_index.entry(slot) for slot in range(segment.offset_index.count)]
            assert slots == sorted(set(slots))
            bounds = {position: header.last_offset for header, position, _ in segment.headers()}
            assert all(bounds[position] == offset for offset, position in slots)

    @invariant()
    def everything_is_there(self) -> None:
        log = self.log
        there = self.kept[bisect.bisect_left(self.kept, (log.log_start_offset,)) :]
        found = []
        offset = log.log_start_offset
        while offset < log.log_end_offset:
            fetched = log.read(offset, 4096, up_to=UpTo.LOG_END)
            records = list(fetched.records())
            if not records:
                break
            found += [(record.offset, record.timestamp, record.value) for record in records]
            offset = records[-1].offset + 1
        assert found == [record[:3] for record in there]


TestLog = LogMachine.TestCase
TestLog.settings = settings(stateful_step_count=40)
