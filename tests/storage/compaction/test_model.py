"""Readers see the same values with and without compaction, whatever happens to the log between rounds."""

from __future__ import annotations

import random
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from seglog.core.types import MAX_INT64
from seglog.records.record import Record, parse_control
from seglog.storage.compaction.log_cleaner import cleanable, compact
from seglog.storage.compaction.round import COMPILED, PLAIN
from seglog.storage.log.log import Log
from seglog.storage.log.producers import ProducerEntry, Producers
from seglog.storage.log.reads import AbortedFilter, UpTo
from tests.cases import case
from tests.kit.manual_clock import ManualClock
from tests.storage.compaction.compacted import START_MS, Batch, Fact, Producer, Writer, batches, config, facts, newest
from tests.storage.disk import load, new_disk

_RETENTION_MS = 10_000


def consume(log: Log, up_to: UpTo) -> list[Record]:
    """The records that a consumer gets from the log's start, fetch by fetch."""
    found: list[Record] = []
    offset = log.log_start_offset
    while True:
        fetched = log.read(offset, 700, up_to=up_to)
        if not fetched.size:
            return found
        ends = [header.next_offset for header, _ in fetched.batches()]
        found += fetched.records()
        assert ends
        assert ends[-1] > offset
        offset = ends[-1]


class Known(NamedTuple):
    """A producer's state, as the batches of the log show it."""

    epoch: int
    last_sequence: int
    open_since: int | None


_UNKNOWN = Known(-1, -1, None)


def producers_of(log: Log) -> dict[int, Known]:
    """The producers that a start without a snapshot would find: it replays the log from its start."""
    producers = Producers()
    for header, records, _ in batches(log):
        if header.producer_id >= 0 and header.last_offset >= log.log_start_offset:
            control = parse_control(records[0]) if header.is_control and records else None
            completed = producers.replay(header, control)
            if completed is not None:
                producers.complete(completed)
    return {producer: _known(entry) for producer, entry in producers.entries.items()}


def _known(entry: ProducerEntry) -> Known:
    return Known(entry.epoch, entry.last_sequence, entry.current_txn_first_offset)


class CompactedLog(RuleBasedStateMachine):
    """``cleaned_ms`` is when a round first met a tombstone that stayed, ``checkpoint`` where the next one begins."""

    def __init__(self) -> None:
        super().__init__()
        case()
        self.clock = ManualClock(START_MS)
        self.log = load(new_disk(), config=config(delete_retention_ms=_RETENTION_MS), clock=self.clock).log
        self.writer = Writer(self.log, random.Random(0))
        self.checkpoint = 0
        self.cleaned_ms: dict[int, int] = {}
        self.next_producer = 2000

    @rule(seed=st.integers(0, 2**32), steps=st.integers(1, 25), legacy=st.booleans())
    def write(self, seed: int, steps: int, legacy: bool) -> None:
        self.writer.rng = random.Random(seed)
        self.writer.write(steps, legacy=legacy)

    @rule(commit=st.booleans(), seed=st.integers(0, 100))
    def end_transaction(self, commit: bool, seed: int) -> None:
        self.writer.rng = random.Random(seed)
        self.writer.marker(commit=commit)

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule(ms=st.sampled_from([1, 5_000, _RETENTION_MS, 60_000]))
    def pass_time(self, ms: int) -> None:
        self.clock.advance(ms)

    @precondition(lambda self: self.log.log_end_offset > self.log.log_start_offset)
    @rule(share=st.floats(0.3, 1))
    def truncate(self, share: float) -> None:
        target = int(self.log.log_end_offset * share)
        self.log.truncate_to(target)
        self.writer.sync()
        self.checkpoint = min(self.checkpoint, self.log.active.base_offset)
        self.cleaned_ms = {offset: ms for offset, ms in self.cleaned_ms.items() if offset < self.log.log_end_offset}

    @rule(share=st.floats(0, 0.3))
    def delete_records(self, share: float) -> None:
        start, end = self.log.log_start_offset, self.log.last_stable_offset
        self.log.delete_records(start + int((end - start) * share))
        self.log.delete_old_segments()

    @rule()
    def retire_a_producer(self) -> None:
        """The log remembers it; it writes no more."""
        self.writer.producers.append(Producer(self.next_producer))
        self.next_producer += 1
        if not self.writer.producers[0].in_txn:
            del self.writer.producers[0]

    @rule(
        map_keys=st.sampled_from([2, 8, 64, 5000]),
        engine=st.sampled_from([PLAIN, PLAIN, PLAIN, COMPILED]),
        roll_before=st.booleans(),
    )
    def compact(self, map_keys: int, engine: str, roll_before: bool) -> None:
        if roll_before:
            self.log.roll()
        self._compact(map_keys, engine)

    @rule(rounds=st.integers(1, 3))
    def compact_all_again(self, rounds: int) -> None:
        """From the start, with time enough in between for tombstones and markers to go."""
        self.log.roll()
        for _ in range(rounds):
            self.checkpoint = self.log.log_start_offset
            self._compact(5000, PLAIN)
            self.clock.advance(_RETENTION_MS)

    def _compact(self, map_keys: int, engine: str) -> None:
        part = cleanable(self.log, self.checkpoint)
        before = facts(self.log)
        held = batches(self.log)
        producers = producers_of(self.log)
        committed = newest_values(consume(self.log, UpTo.LAST_STABLE))
        stats = compact(
            self.log,
            first_dirty=part.first_dirty,
            first_uncleanable=part.first_uncleanable,
            map_bytes=map_keys * 24,
            engine=engine,
        )
        assert not stats.aborted
        assert stats.end_offset > part.first_dirty or part.first_uncleanable <= part.first_dirty
        assert stats.end_offset <= max(part.first_uncleanable, part.first_dirty)
        self.checkpoint = stats.end_offset
        after = facts(self.log)
        self._check_records(before, after, stats.end_offset, part.first_uncleanable)
        self._check_nothing_old_is_left(before, after, part.first_dirty, stats.end_offset)
        if stats.segments_after:
            self._check_batches(held, stats.end_offset, part.first_uncleanable)
        assert newest_values(consume(self.log, UpTo.LAST_STABLE)) == committed
        self._check_producers(producers)
        if stats.end_offset >= part.first_uncleanable:
            self._check_clean_stays_clean()

    def _check_records(self, before: list[Fact], after: list[Fact], end: int, bound: int) -> None:
        old = {fact.record.offset: fact for fact in before}
        offsets = [fact.record.offset for fact in after]
        assert offsets == sorted(set(offsets))
        for fact in after:
            assert fact.record == old[fact.record.offset].record
            assert fact.aborted == old[fact.record.offset].aborted
        missing = old.keys() - set(offsets)
        assert all(offset < bound for offset in missing)
        newest_before = newest(before)
        for offset in missing:
            record, aborted, _ = old[offset]
            assert offset < end or aborted
            if not aborted and record.key is not None and newest_before[record.key].offset == offset:
                self._check_expired_tombstone(record)
        for header, records, _ in batches(self.log):
            if header.delete_horizon_ms is not None:
                for record in records:
                    self.cleaned_ms.setdefault(record.offset, self.clock.now_ms())

    def _check_nothing_old_is_left(self, before: list[Fact], after: list[Fact], start: int, end: int) -> None:
        """A key with a record in the part that was mapped has no older one."""
        mapped = newest(fact for fact in before if start <= fact.record.offset < end)
        for record, _, _ in after:
            if record.key in mapped:
                assert record.offset >= mapped[record.key].offset

    def _check_batches(self, held: list[Batch], end: int, bound: int) -> None:
        """Of the segments that were written: tombstones and markers have a time to go, and do not go before."""
        now_ms = self.clock.now_ms()
        here = {batch.header.last_offset: batch for batch in batches(self.log)}
        assert not {batch.header.next_offset for batch in held} & {bound} or bound - 1 in here
        for header, records, _ in here.values():
            if header.last_offset < end and not header.is_control:
                assert header.delete_horizon_ms is not None or all(record.value is not None for record in records)
            assert header.delete_horizon_ms is None or header.delete_horizon_ms <= now_ms + _RETENTION_MS
        for header, records, _ in held:
            left = here.get(header.last_offset)
            if header.is_control and records and (left is None or not left.records):
                assert header.delete_horizon_ms is not None
                assert header.delete_horizon_ms <= now_ms

    def _check_expired_tombstone(self, record: Record) -> None:
        """A consumer that is no slower than delete.retention.ms gets to see it."""
        assert record.value is None
        assert self.clock.now_ms() >= self.cleaned_ms.get(record.offset, MAX_INT64) + _RETENTION_MS

    def _check_producers(self, before: dict[int, Known]) -> None:
        """Each keeps the batch with its last sequence.

        One whose epoch wrote markers only may be forgotten, since an emptied marker tells nothing; and one whose last
        batch was truncated away after a round took the one before: as in Kafka these are in snapshots alone.
        """
        after = producers_of(self.log)
        for producer, entry in self.log.producers.entries.items():
            if entry.batches and before.get(producer, _UNKNOWN).last_sequence == entry.last_sequence:
                assert after[producer] == before[producer]

    def _check_clean_stays_clean(self) -> None:
        fs = self.log.fs
        held = {name: fs.read(f"{self.log.path}/{name}") for name in fs.listdir(self.log.path)}
        part = cleanable(self.log, self.checkpoint)
        assert part.cleanable_bytes == 0
        stats = compact(self.log, first_dirty=self.checkpoint, engine=PLAIN)
        assert (stats.end_offset, stats.segments_before) == (self.checkpoint, 0)
        assert {name: fs.read(f"{self.log.path}/{name}") for name in fs.listdir(self.log.path)} == held

    @invariant()
    def readers_are_served(self) -> None:
        log = self.log
        log.check()
        here = [fact for fact in facts(log) if fact.record.offset >= log.log_start_offset]
        assert consume(log, UpTo.HIGH_WATERMARK) == [fact.record for fact in here]
        stable = log.last_stable_offset
        expected = [fact.record for fact in here if not fact.aborted and fact.record.offset < stable]
        assert consume(log, UpTo.LAST_STABLE) == expected

    @invariant()
    def aborted_transactions_are_those_with_records(self) -> None:
        """From the log's start on: a transaction that ended below it is forgotten when producers are counted again."""
        start = self.log.log_start_offset
        entries = [txn for segment in self.log.segments for txn in segment.txn_index.entries]
        skips = AbortedFilter(entries)
        seen = {
            record.offset
            for header, records, _ in batches(self.log)
            if not header.is_control and skips.skips(header)
            for record in records
            if record.offset >= start
        }
        assert seen == {fact.record.offset for fact in facts(self.log) if fact.aborted and fact.record.offset >= start}


def newest_values(records: list[Record]) -> dict[bytes, bytes]:
    """Key -> last value of what a consumer got, without deleted keys."""
    found = {record.key: record for record in records if record.key is not None}
    return {key: record.value for key, record in found.items() if record.value is not None}


TestCompactedLog = CompactedLog.TestCase
TestCompactedLog.settings = settings(max_examples=settings().max_examples // 2, stateful_step_count=30)
