"""A full disk is not a broken one: what was acknowledged stays, what makes room goes on, and so do appends after that.

Random appends, rolls, retention, compaction, truncation and topics on a disk of some kilobytes, which is filled and
freed at random; a power cut at the end. Every record that was acknowledged is there, and nothing is taken for damage.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from seglog.core.errors import LogDirFullError, SeglogError
from seglog.core.ground import Ground
from seglog.core.types import TopicPartition
from seglog.records.record import NewRecord, encode_batch, end_txn_marker
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.log.admit import Origin
from seglog.storage.log.dir_health import Reserve, is_short, reserve_size
from seglog.storage.log.log import Log
from seglog.storage.log.recovery import LogCheckpoint
from tests.cases import case
from tests.kit.manual_clock import ManualClock
from tests.kit.memory_fs import MemoryFs
from tests.storage.directories import DIR, TINY, flushed_log, open_dir
from tests.storage.disk import SMALL, fill, load, new_disk, prefix, values


def full(room: int = 0) -> tuple[MemoryFs, LogDir, Log]:
    """A directory with 30 records whose disk has so much room."""
    fs, opened, log = flushed_log()
    fs.capacity = fs.used + room
    return fs, opened, log


def make_room(fs: MemoryFs, opened: LogDir) -> None:
    fs.capacity = fs.used + 100_000
    assert isinstance(opened.clock, ManualClock)
    opened.clock.advance(1_000)


@pytest.mark.parametrize("room", [0, 1, 17, 60, 61, 100, 500, 1500, 3000])
def test_append_that_does_not_fit_leaves_nothing_behind(room: int) -> None:
    fs, opened, log = full(room)
    with pytest.raises(LogDirFullError, match="No space left on device: '/logs/t-0"):
        fill(log, 200)
    end = log.log_end_offset
    assert log.active.size == fs.stat(log.active.paths.log).size, "no torn batch"
    log.check()
    with pytest.raises(LogDirFullError):
        fill(log, 1)
    assert opened.health.failure is None
    assert values(log) == prefix(end)
    make_room(fs, opened)
    fill(log, 50)
    assert values(log) == prefix(end + 50)
    opened.close()
    assert fs.exists(f"{DIR}/.kafka_cleanshutdown")
    again = open_dir(fs)
    assert not again.refused
    assert values(again.log("t")) == prefix(end + 50)


def test_truncation_without_room_forgets_nothing_that_is_committed() -> None:
    """A follower of a leader that has deleted all of it: it would cut the committed records without asking next."""
    fs, opened, log = full()
    log.lower_high_watermark(20)
    for _ in range(2):
        with pytest.raises(LogDirFullError):
            opened.truncate_fully_and_start_at("t", 0, 100)
        assert (log.high_watermark, log.log_end_offset, values(log)) == (20, 30, prefix(30))
    make_room(fs, opened)
    opened.truncate_fully_and_start_at("t", 0, 100)
    assert (log.log_start_offset, log.log_end_offset) == (100, 100)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("operation", ["pwrite", "open", "truncate", "write", "rename"])
def test_any_write_may_be_the_first_without_room(operation: str, code: int) -> None:
    """Also half-way through a roll: the segment stays the active one, and the next append rolls."""
    for nth in range(1, 12):
        case()
        fs, opened, log = flushed_log()
        fs.fail_at(operation, nth, error=code, path="/t-0")
        refused = 0
        for _ in range(40):
            end = log.log_end_offset
            try:
                fill(log, 1)
            except LogDirFullError:
                refused += 1
                assert opened.clock is not None
                assert log.log_end_offset == end
                log.check()
                assert isinstance(opened.clock, ManualClock)
                opened.clock.advance(1_000)
        assert opened.health.failure is None
        assert values(log) == prefix(70 - refused)
        for seed in range(3):
            again = open_dir(fs.after_crash(random.Random(seed)))
            assert not again.refused
            found = again.log("t").log_end_offset
            assert found >= 30
            assert values(again.log("t")) == prefix(found)
        opened.close()
        assert values(open_dir(fs).log("t")) == prefix(70 - refused)


def test_an_fsync_without_room_is_a_broken_disk() -> None:
    fs, opened, log = flushed_log()
    fill(log, 1)
    fs.fail_at("fsync", 1, error=errno.ENOSPC)
    with pytest.raises(SeglogError, match="out of use"):
        log.flush()
    assert opened.health.failure is not None
    assert opened.health.full is None


def test_records_whose_index_has_no_room_are_flushed() -> None:
    fs, _, log = flushed_log(24)
    log.reconfigure(log.config.with_overrides({"flush.messages": 1}))
    log.defer_flushes()
    fs.fail_at("pwrite", 1, error=errno.ENOSPC, path="index", times=100)
    fill(log, 5)
    with pytest.raises(LogDirFullError):
        log.flush()
    assert (log.recovery_point, log.flushed_end, log.high_watermark, log.needs_flush) == (24, 29, 29, True)
    for seed in range(5):
        assert values(open_dir(fs.after_crash(random.Random(seed))).log("t")) == prefix(29)
    log.truncate_to(27)
    fs.heal()
    fill(log, 2)
    assert (log.recovery_point, log.flushed_end, log.needs_flush) == (24, 27, True)
    log.flush()
    assert (log.recovery_point, log.flushed_end, log.needs_flush) == (29, 29, False)


def test_a_start_on_a_full_disk_shows_only_flushed_records() -> None:
    """The recovery point on the disk may be old. Recovery flushes the log, but its index has no room. The simulator of
    transactions found it at seed 5003221."""
    fs, known = new_disk(), LogCheckpoint(recovery_point=1, high_watermark=19)
    config = SMALL.with_overrides({"flush.messages": 1})
    log = load(fs, config=config, hw_follows_end=False).log
    log.defer_flushes()
    fill(log, 20)
    fs.fail_at("pwrite", 1, error=errno.ENOSPC, path="index", times=100)
    again = load(fs, known, config, hw_follows_end=False).log
    assert len(again.segments) == 2
    assert (again.recovery_point, again.high_watermark, again.flushed_end, again.log_end_offset) == (1, 19, 20, 20)
    for seed in range(5):
        assert values(load(fs.after_crash(random.Random(seed)), known).log) == prefix(20)


@pytest.fixture
def reserved() -> tuple[MemoryFs, LogDir, Log]:
    """A full disk on which room was kept back."""
    fs = MemoryFs(clock=ManualClock(), capacity=200_000)
    opened = open_dir(fs)
    opened.create_topic("t", 1, {**TINY, "file.delete.delay.ms": 0})
    opened.create_topic("other", 2)
    log = opened.log("t")
    with pytest.raises(LogDirFullError):
        fill(log, 5_000)
    assert fs.used <= 200_000
    return fs, opened, log


Reserved = tuple[MemoryFs, LogDir, Log]


def advance(opened: LogDir, milliseconds: int) -> None:
    assert isinstance(opened.clock, ManualClock)
    opened.clock.advance(milliseconds)


def test_records_are_deleted_on_a_full_disk(reserved: Reserved) -> None:
    fs, opened, log = reserved
    end, used = log.log_end_offset, fs.used
    assert opened.delete_records("t", 0, end - 10) == end - 10
    opened.run_retention()
    assert fs.used < used / 2, "at once: nothing waits for file.delete.delay.ms"
    again = open_dir(fs.after_crash(random.Random(1)))
    assert again.log("t").log_start_offset == end - 10
    advance(opened, 1_000)
    fill(log, 5)
    assert opened.health.full is None
    assert log.log_end_offset == end + 5


def test_a_topic_is_deleted_on_a_full_disk(reserved: Reserved) -> None:
    fs, opened, _ = reserved
    used = fs.used
    opened.delete_topic("t")
    opened.housekeeping()
    assert fs.used < used / 2
    assert opened.partitions() == [TopicPartition("other", 0), TopicPartition("other", 1)]
    advance(opened, 1_000)
    fill(opened.log("other"), 5)
    assert open_dir(fs.after_crash(random.Random(1))).topic_names() == {"other"}


def test_retention_by_size_works_on_a_full_disk(reserved: Reserved) -> None:
    fs, opened, log = reserved
    used = fs.used
    opened.alter_config("t", {"retention.bytes": 5_000})
    opened.run_retention()
    assert fs.used < used / 2
    assert log.log_start_offset > 0


def test_a_log_is_cut_on_a_full_disk(reserved: Reserved) -> None:
    """A follower must be able to, when another broker leads."""
    fs, opened, log = reserved
    end = log.log_end_offset
    opened.truncate_to("t", 0, end - 3)
    assert values(log) == prefix(end - 3)
    assert opened.health.failure is None
    again = open_dir(fs.after_crash(random.Random(3)))
    assert not again.refused


def test_a_full_disk_is_closed_and_opened(reserved: Reserved) -> None:
    fs, opened, log = reserved
    end = log.log_end_offset
    opened.close()
    again = open_dir(fs)
    assert again.was_clean
    assert values(again.log("t")) == prefix(end)
    again.close()
    fs.crash(random.Random(2))
    again = open_dir(fs)
    assert values(again.log("t")) == prefix(end)


def test_a_topic_that_does_not_fit_is_not_made(reserved: Reserved) -> None:
    fs, opened, _ = reserved
    fs.capacity = fs.used
    with pytest.raises(LogDirFullError):
        opened.create_topic("many", 20)
    assert "many" not in opened.topic_names()
    assert not [name for name in fs.listdir(DIR) if name.startswith("many-") and not name.endswith("-delete")]
    assert "many" not in open_dir(fs.after_crash(random.Random(1))).topic_names()


def test_full_and_room_again_are_logged_once_each(reserved: Reserved, caplog: pytest.LogCaptureFixture) -> None:
    fs, opened, log = reserved
    opened.housekeeping()
    caplog.clear()
    for _ in range(20):
        with pytest.raises(LogDirFullError):
            fill(log, 1)
        advance(opened, 1_000)
    assert caplog.messages == []
    fs.capacity = 400_000
    advance(opened, 5_000)
    opened.housekeeping()
    assert [message for message in caplog.messages if "has space again" in message] != []
    assert opened.health.full is None


def test_the_size_of_the_reserve() -> None:
    assert reserve_size(20 << 20) == 320 << 10
    assert is_short(0, 1 << 40)
    assert is_short((2 << 20) - 1, 1 << 40)
    assert not is_short(2 << 20, 1 << 40)
    fs = MemoryFs(capacity=1 << 20)
    fs.mkdir(DIR)
    reserve = Reserve(fs, DIR)
    assert reserve.take()
    assert fs.used == 16 << 10
    assert reserve.give_up()
    assert not reserve.give_up()
    fs.capacity = 100
    assert reserve.take(), "a disk so small has nothing to keep back"


# Everything at once


@dataclass
class Story:
    """One log of values, one of keys, and what was acknowledged; the disk is filled and freed by others."""

    rng: random.Random
    fs: MemoryFs = field(default_factory=lambda: MemoryFs(clock=ManualClock(), capacity=60_000))

    def __post_init__(self) -> None:
        self.opened = self.open()
        config = {**TINY, "flush.messages": self.rng.choice(["1", "7", "9223372036854775807"])}
        self.opened.create_topic("t", 1, {**config, "preallocate": self.rng.random() < 0.2})
        self.opened.create_topic("keys", 1, {**TINY, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
        self.acked: dict[int, bytes] = {}
        self.latest: dict[bytes, bytes] = {}
        self.start = 0
        self.count = 0

    def open(self) -> LogDir:
        return LogDir.open(DIR, ground=Ground(fs=self.fs, clock=ManualClock(), rng=random.Random(self.rng.random())))

    @property
    def log(self) -> Log:
        return self.opened.log("t")

    def append(self) -> None:
        self.count += 1
        value = b"%d-" % self.count + bytes(self.rng.randrange(400))
        end = self.log.log_end_offset
        try:
            appended = self.log.append_records([NewRecord(value)])
        except LogDirFullError:
            if self.log.log_end_offset > end:  # written, and not flushed
                self.acked[end] = value
            return
        self.acked[appended.first_offset] = value

    def append_key(self) -> None:
        self.count += 1
        key, value = b"k%d" % self.rng.randrange(6), b"%d" % self.count * 20
        try:
            self.opened.log("keys").append_records([NewRecord(value, key=key)])
        except LogDirFullError:
            return
        self.latest[key] = value

    def abort(self) -> None:
        """A transaction that is aborted: its marker, and what the index of them says."""
        producer = 1_000 + self.count
        self.count += 1
        begun = encode_batch(
            [NewRecord(b"aborted")], producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True
        )
        try:
            self.acked[self.log.append(begun).first_offset] = b"aborted"
        except LogDirFullError:
            return
        marker = end_txn_marker(
            commit=False, coordinator_epoch=0, producer_id=producer, producer_epoch=0, timestamp=1_700_000_000_000
        )
        while True:
            end = self.log.log_end_offset
            try:
                self.log.append(marker, origin=Origin.COORDINATOR)
                return
            except LogDirFullError:
                if self.log.log_end_offset > end:
                    return
                self.free()

    def retain(self) -> None:
        log = self.log
        before = self.rng.randint(log.log_start_offset, log.high_watermark)
        try:
            self.opened.delete_records("t", 0, before)
        except LogDirFullError:
            return
        self.start = before
        self.opened.run_retention()

    def truncate(self) -> None:
        log = self.log
        offset = self.rng.randint(max(log.log_start_offset, log.log_end_offset - 5), log.log_end_offset)
        try:
            self.opened.truncate_to("t", 0, offset)
        except LogDirFullError:
            return
        self.acked = {at: value for at, value in self.acked.items() if at < log.log_end_offset}

    def quietly(self, act: Callable[[], object]) -> None:
        try:
            act()
        except LogDirFullError:
            return

    def fill(self) -> None:
        self.fs.capacity = self.fs.used + self.rng.choice([0, 10, 200, 2_000])

    def free(self) -> None:
        self.fs.capacity = self.fs.used + self.rng.choice([3_000, 20_000])
        self.tick(2_000)

    def tick(self, milliseconds: int) -> None:
        assert isinstance(self.opened.clock, ManualClock)
        self.opened.clock.advance(milliseconds)

    def topic(self) -> None:
        name = f"topic-{self.count}"
        self.count += 1
        try:
            self.opened.create_topic(name, 2, TINY)
        except LogDirFullError:
            assert name not in self.opened.topic_names()
            return
        self.quietly(lambda: self.opened.delete_topic(name))

    def step(self) -> None:
        opened = self.opened
        acts: list[tuple[int, Callable[[], object]]] = [
            (30, self.append),
            (8, self.append_key),
            (3, self.abort),
            (2, self.retain),
            (1, self.truncate),
            (2, lambda: self.quietly(self.log.roll)),
            (3, lambda: self.quietly(opened.flush)),
            (2, lambda: self.quietly(opened.run_compaction)),
            (2, lambda: self.quietly(opened.housekeeping)),
            (2, self.fill),
            (2, self.free),
            (3, lambda: self.tick(self.rng.randrange(100_000))),
            (1, self.topic),
        ]
        (act,) = self.rng.choices([act for _, act in acts], [weight for weight, _ in acts])
        act()
        for log in opened.logs.values():
            log.check()
        assert opened.health.failure is None

    def check(self, opened: LogDir, *, durable: int) -> None:
        assert not opened.refused, opened.refused
        log = opened.log("t")
        found = values(log)
        expected = {at: value for at, value in self.acked.items() if at >= log.log_start_offset}
        assert log.log_start_offset <= max(self.start, 0)
        if durable < 0:
            assert found == expected
        else:
            assert {at: value for at, value in expected.items() if at < durable}.items() <= found.items()


@pytest.mark.parametrize("seed", range(40))
def test_nothing_acknowledged_is_lost_on_a_disk_that_fills_up(seed: int) -> None:
    case()
    rng = random.Random(seed)
    story = Story(rng)
    for _ in range(3):
        for _ in range(rng.randrange(150)):
            story.step()
        story.check(story.opened, durable=-1)
        cut = story.fs.after_crash(random.Random(seed))
        cut.capacity = None
        story.check(open_dir(cut), durable=story.log.recovery_point)
        story.opened.close()
        if rng.random() < 0.7:
            story.free()
        try:
            story.opened = story.open()
        except LogDirFullError:  # what recovery must write has no room either
            story.free()
            story.opened = story.open()
    story.check(story.opened, durable=-1)


@pytest.mark.parametrize("torn", [b"", b"version: 0\ntopic", bytes(43)])
def test_a_torn_topic_id_without_room_for_a_whole_one_is_removed(torn: bytes) -> None:
    """A power cut leaves such a file. Kafka does not start with it, but makes its own where there is none."""
    fs, opened, _ = flushed_log()
    topic_id = opened.topic_id("t")
    opened.close()
    path = f"{DIR}/t-0/partition.metadata"
    whole = fs.read(path)
    fs.write(path, torn)
    fs.capacity = fs.used
    with open_dir(fs) as again:
        assert again.topic_id("t") == topic_id
        assert not fs.exists(path)
        fs.capacity = fs.used + 100_000
    with open_dir(fs):
        assert fs.read(path) == whole
