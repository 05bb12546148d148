"""Explanations against the engine: what `seglog explain` foretells is what retention and the cleaner then do.

`make test-long`, or `python -m tests.cli.explain.test_model 10000`, tries many more logs.
"""

from __future__ import annotations

import sys
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from seglog.cli.explain.sentences import Forecast, cleaning_due_ms, cleaning_part, segment_verdicts
from seglog.core.config import LogConfig
from seglog.records.record import NewRecord, encode_batch, end_txn_marker
from seglog.storage.compaction.log_cleaner import cleanable
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.log.admit import Origin
from seglog.storage.log.log import Log
from seglog.storage.offline.log_state import LogState, read_log_state
from tests.cases import case, is_long
from tests.storage.directories import DIR, Disk, T

_HOUR = 3_600_000
_PATH = f"{DIR}/t-0"


def _config(random: Random) -> dict[str, object]:
    low = random.choice([0, 0, _HOUR, 20 * _HOUR])
    return {
        "cleanup.policy": random.choice(["delete", "delete", "compact", "compact,delete", ""]),
        "retention.ms": random.choice([-1, 0, _HOUR, 24 * _HOUR, 100 * _HOUR]),
        "retention.bytes": random.choice([-1, -1, 0, 1500, 4000]),
        "internal.segment.bytes": random.choice([600, 1000, 3000]),
        "segment.ms": random.choice([_HOUR, 1000 * _HOUR]),
        "segment.index.bytes": random.choice([240, 1200]),
        "index.interval.bytes": random.choice([0, 200, 4096]),
        "min.cleanable.dirty.ratio": random.choice([0, 0.3, 0.5, 0.9]),
        "min.compaction.lag.ms": low,
        "max.compaction.lag.ms": random.choice([max(low, 1), 30 * _HOUR, 2**63 - 1]),
        "message.timestamp.type": random.choice(["CreateTime", "CreateTime", "LogAppendTime"]),
        "message.timestamp.after.max.ms": 2**62,
    }


class _Writer:
    """Appends what producers, transactions, retention, the cleaner and DeleteRecords leave in a log."""

    def __init__(self, random: Random, disk: Disk, opened: LogDir) -> None:
        self._random = random
        self._disk = disk
        self._opened = opened
        self._open: dict[int, int] = {}
        self._sequences: dict[int, int] = {}

    @property
    def _log(self) -> Log:
        return self._opened.log("t")

    def step(self) -> None:
        random = self._random
        choice = random.randrange(24)
        if choice < 15:
            self._batch()
        elif choice < 17:
            self._transaction()
        elif choice == 17:
            self._marker()
        elif choice == 18:
            start, end = self._log.log_start_offset, self._log.high_watermark
            self._opened.delete_records("t", 0, random.randint(start, end))
        elif choice == 19:
            self._opened.run_compaction()
        elif choice == 20:
            self._opened.run_retention()
        else:
            self._disk.clock.advance(random.choice([1, _HOUR, 30 * _HOUR]))

    def _records(self) -> list[NewRecord]:
        random, now = self._random, self._disk.clock.now_ms()
        ahead = random.choice([0, 0, 0, -_HOUR, -200 * _HOUR, 50 * _HOUR])
        return [
            NewRecord(bytes(random.randrange(120)), b"%d" % random.randrange(6), now + ahead + random.randrange(_HOUR))
            for _ in range(random.randrange(1, 4))
        ]

    def _batch(self) -> None:
        self._log.append(encode_batch(self._records(), codec=self._random.choice([0, 1])), origin=Origin.CLIENT)

    def _transaction(self) -> None:
        producer = self._random.randrange(3)
        records = self._records()
        sequence = self._sequences.get(producer, 0)
        data = encode_batch(records, producer_id=producer, producer_epoch=0, base_sequence=sequence, transactional=True)
        self._log.append(data, origin=Origin.CLIENT)
        self._sequences[producer] = sequence + len(records)
        self._open[producer] = 1

    def _marker(self) -> None:
        if not self._open:
            return
        producer = self._random.choice(list(self._open))
        del self._open[producer]
        marker = end_txn_marker(
            commit=self._random.random() < 0.5,
            coordinator_epoch=0,
            producer_id=producer,
            producer_epoch=0,
            timestamp=self._disk.clock.now_ms(),
        )
        self._log.append(marker, origin=Origin.COORDINATOR)


def check(seed: int) -> None:
    """One random log: what is foretold from its files, at once and for a later time, and what is done then."""
    random = Random(seed)
    disk = Disk()
    config = _config(random)
    log_config = LogConfig.from_mapping(config)
    opened = disk.open({"log.cleaner.backoff.ms": 1})
    opened.create_topic("t", 1, config)
    writer = _Writer(random, disk, opened)
    for _ in range(random.randrange(60)):
        writer.step()
    if random.random() < 0.7:
        opened.close()
    else:  # the files of a running broker, whose indexes are not complete
        opened.flush()
    told = read_log_state(disk.fs, _PATH)
    now = disk.clock.now_ms()
    later = now + random.choice([0, 1, _HOUR, 23 * _HOUR, 110 * _HOUR, 1000 * _HOUR])
    verdicts = segment_verdicts(told, log_config, Forecast(now, later))
    foretold = [(one.fate.base_offset, one.fate.reason) for one in verdicts if one.fate.is_due(later)]
    due = cleaning_due_ms(told, log_config, now) if log_config.compact else None

    disk.clock.set_wall(later)
    if opened.closed:
        opened = disk.open({"log.cleaner.backoff.ms": 1})
    log = opened.log("t")
    _check_state(told, log)
    done = opened.run_retention().get(T, [])
    assert [(one.base_offset, one.reason) for one in done] == foretold
    for one in verdicts:  # a time that is named is the first at which it goes
        if one.fate.reason is not None and one.goes_ms is not None:
            assert one.fate.is_due(one.goes_ms)
            assert one.goes_ms == now or not one.fate.is_due(one.goes_ms - 1)
    if not log_config.compact:
        assert not opened.run_compaction()
        return
    opened.flush()
    opened.checkpoint()
    before = read_log_state(disk.fs, _PATH)
    part = cleaning_part(before, log_config, later)
    assert part == cleanable(log, opened.checkpoints.cleaner_offsets.get(T))
    is_due = part.is_due(log_config.min_cleanable_dirty_ratio)
    if not done:
        assert is_due == (due is not None and due <= later)
    rounds = opened.run_compaction()
    assert bool(rounds) == is_due
    if rounds:
        assert (rounds[0].first_dirty, rounds[0].first_uncleanable) == (part.first_dirty, part.first_uncleanable)


def _check_state(told: LogState, log: Log) -> None:
    """The files say of the log what the engine knows of it."""
    assert (told.log_start_offset, told.log_end_offset) == (log.log_start_offset, log.log_end_offset)
    assert (told.high_watermark, told.last_stable_offset) == (log.high_watermark, log.last_stable_offset)
    assert [(one.base_offset, one.size, one.largest_timestamp) for one in told.segments] == [
        (one.base_offset, one.size, one.largest_timestamp()) for one in log.segments
    ]
    assert [one.first_timestamp for one in told.segments] == [one.rolling_timestamp() for one in log.segments]


@settings(max_examples=10_000 if is_long() else 200)
@given(st.integers(0, 2**40))
def test_what_is_foretold_is_what_retention_and_the_cleaner_do(seed: int) -> None:
    case()
    check(seed)


if __name__ == "__main__":
    for number in range(int(sys.argv[1])):
        check(number)
    print(f"{sys.argv[1]} logs: each was treated as it was foretold")
