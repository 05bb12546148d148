"""A log directory whose owner remembers what it was promised, and holds it to that after a crash."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from seglog.core.fs import Fs
from seglog.core.ground import Ground
from seglog.core.types import TopicPartition
from seglog.records.record import NewRecord
from seglog.storage.directory.log_dir import LogDir
from tests.kit.manual_clock import ManualClock
from tests.storage.disk import values

DIR = "/logs"
TINY: Mapping[str, object] = {
    "internal.segment.bytes": 900,
    "segment.index.bytes": 240,
    "index.interval.bytes": 150,
    "retention.ms": -1,
    "file.delete.delay.ms": 1_000,
}
DIRECTORY: Mapping[str, object] = {"num.recovery.threads.per.data.dir": 1}


@dataclass
class Promised:
    """The contents that a partition may have after a crash: one of ``histories``, which differ by truncations, at least
    as long as ``flushed`` says, and beginning no later than ``start``.
    """

    histories: list[dict[int, bytes]] = field(default_factory=lambda: [{}])
    flushed: int = 0
    start: int = 0
    exists: bool = False
    may_exist: bool = True


class Witness:
    """Does things to a log directory and writes down, before and after each, what must be true if it crashes."""

    def __init__(self, fs: Fs) -> None:
        self.fs = fs
        self.clock = ManualClock()
        self.promised: dict[TopicPartition, Promised] = {}
        self.directory: LogDir | None = None
        self.keyed: list[tuple[bytes, bytes]] = []
        self.keyed_flushed = 0
        self._generation = 0

    def open(self) -> LogDir:
        self.directory = LogDir.open(
            DIR, ground=Ground(fs=self.fs, clock=self.clock, rng=random.Random(self._generation)), config=DIRECTORY
        )
        return self.directory

    @property
    def here(self) -> LogDir:
        assert self.directory is not None
        return self.directory

    def create(self, topic: str, partitions: int = 1, **config: object) -> None:
        names = [TopicPartition(topic, number) for number in range(partitions)]
        for name in names:
            self.promised[name] = Promised()
        self.here.create_topic(
            topic, partitions, {**TINY, **{key.replace("_", "."): value for key, value in config.items()}}
        )
        for name in names:
            self.promised[name].exists = True

    def delete(self, topic: str) -> None:
        for name, promised in self.promised.items():
            if name.topic == topic:
                promised.exists = False
        self.here.delete_topic(topic)
        for name, promised in self.promised.items():
            if name.topic == topic:
                promised.may_exist = False

    def append(self, topic: str, partition: int, count: int) -> None:
        log = self.here.log(topic, partition)
        current = self.promised[TopicPartition(topic, partition)].histories[-1]
        for _ in range(count):
            self._generation += 1
            offset = log.log_end_offset
            value = f"{offset}:{self._generation}".encode().ljust(60, b".")
            current[offset] = value
            log.append_records([NewRecord(value, timestamp=1_000 + offset)])

    def flush(self, topic: str, partition: int) -> None:
        log = self.here.log(topic, partition)
        log.flush()
        self._flushed(TopicPartition(topic, partition))

    def checkpoint(self) -> None:
        self.here.checkpoint()

    def clock_forward(self, milliseconds: int) -> None:
        """Time goes by, and what is due is done."""
        self.clock.advance(milliseconds)
        self.here.housekeeping()

    def close(self) -> None:
        self.here.close()
        for name, promised in self.promised.items():
            if promised.exists:
                self._flushed(name)

    def _flushed(self, name: TopicPartition) -> None:
        promised = self.promised[name]
        promised.histories = promised.histories[-1:]
        promised.flushed = max([promised.start, *(offset + 1 for offset in promised.histories[-1])])

    def truncate(self, topic: str, partition: int, offset: int) -> None:
        promised = self.promised[TopicPartition(topic, partition)]
        promised.flushed = min(promised.flushed, offset)
        kept = {at: value for at, value in promised.histories[-1].items() if at < offset}
        promised.histories.append(kept)
        self.here.truncate_to(topic, partition, offset)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        promised = self.promised[TopicPartition(topic, partition)]
        promised.start = max(promised.start, before)
        self.here.log(topic, partition).delete_records(before)

    def retain(self) -> None:
        """Retention: what goes is not known before, so all may."""
        for name, promised in self.promised.items():
            if promised.exists:
                log = self.here.log(*name)
                promised.start = max(promised.start, log.high_watermark)
        self.here.run_retention()
        for name, promised in self.promised.items():
            if promised.exists:
                promised.start = self.here.log(*name).log_start_offset

    def append_keyed(self, topic: str, count: int) -> None:
        """Append records with few keys to partition 0; every seventh has a unique key, which old segments keep."""
        log = self.here.log(topic)
        for _ in range(count):
            self._generation += 1
            key = b"k%d" % (self._generation % 5 if self._generation % 7 else self._generation)
            value = b"%d" % self._generation
            self.keyed.append((key, value))
            log.append_records([NewRecord(value, key=key, timestamp=1_000 + log.log_end_offset)])

    def flush_keyed(self, topic: str) -> None:
        self.here.log(topic).flush()
        self.keyed_flushed = len(self.keyed)

    def check_keyed(self, topic: str, opened: LogDir) -> None:
        """Of each key the last record is there that was flushed, or a later one; none came back."""
        if TopicPartition(topic, 0) not in opened.partitions():
            assert not self.keyed_flushed
            return
        log = opened.log(topic)
        offset = log.log_start_offset
        found: dict[bytes | None, bytes | None] = {}
        while offset < log.log_end_offset:
            fetched = log.read(offset)
            found |= {record.key: record.value for record in fetched.records()}
            offset = max([fetched.next_offset, *(header.next_offset for header, _ in fetched.batches())])
        kept = [dict(self.keyed[:count]) for count in range(self.keyed_flushed, len(self.keyed) + 1)]
        assert found in kept, (found, kept[0])

    def check(self, fs: Fs) -> LogDir:
        """Open what the crash has left and hold it to what was promised; the directory stays open."""
        opened = LogDir.open(DIR, ground=Ground(fs=fs, clock=self.clock, rng=random.Random(1)), config=DIRECTORY)
        assert not opened.refused, opened.refused
        there = opened.partitions()
        for name, promised in self.promised.items():
            if name not in there:
                assert not promised.exists, f"{name} is gone"
                continue
            assert promised.may_exist, f"{name} is back"
            log = opened.log(*name)
            log.check()
            found = values(log)
            assert list(found) == list(range(log.log_start_offset, log.log_end_offset)), f"{name} has holes"
            assert log.log_start_offset <= promised.start, f"{name} begins too late"
            assert log.log_end_offset >= promised.flushed, f"{name} lost what was flushed"
            assert any(found.items() <= history.items() for history in promised.histories), (name, found)
        return opened
