"""Producers' state against a model that knows nothing but the list of all batches, and reads all of it each time."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.core.errors import (
    AppendError,
    InvalidProducerEpochError,
    InvalidTransactionStateError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from seglog.core.types import MAX_INT32
from seglog.records.batch import BatchHeader
from seglog.records.record import ControlRecord
from seglog.storage.log.producers import (
    Origin,
    Producers,
    decode_snapshot,
    encode_snapshot,
)
from tests.cases import case
from tests.storage.log.producer_log import batch, control, marker


class Event(NamedTuple):
    header: BatchHeader
    said: ControlRecord | None


def of_producer(log: list[Event], pid: int) -> list[Event]:
    return [event for event in log if event.header.producer_id == pid]


def epoch_of(events: list[Event]) -> int:
    return events[-1].header.producer_epoch if events else -1


def kept_batches(events: list[Event]) -> list[BatchHeader]:
    """Data batches since the epoch last changed, the last five."""
    kept: list[BatchHeader] = []
    epoch = -1
    for event in events:
        if event.header.producer_epoch != epoch:
            kept, epoch = [], event.header.producer_epoch
        if event.said is None:
            kept.append(event.header)
    return kept[-5:]


def open_since(events: list[Event]) -> int | None:
    since = None
    for event in events:
        if event.said is not None:
            since = None
        elif since is None and event.header.is_transactional:
            since = event.header.base_offset
    return since


def verdict(log: list[Event], event: Event) -> type[AppendError] | None:
    header, said = event
    events = of_producer(log, header.producer_id)
    if header.producer_epoch < epoch_of(events):
        return InvalidProducerEpochError
    if said is not None:
        seen = [past.said.coordinator_epoch or 0 for past in events if past.said is not None]
        return TransactionCoordinatorFencedError if seen and (said.coordinator_epoch or 0) < seen[-1] else None
    if events:
        kept = kept_batches(events) if header.producer_epoch == epoch_of(events) else []
        expected = (kept[-1].base_sequence + kept[-1].records_count) % 2**31 if kept else 0
        if header.base_sequence != expected:
            return OutOfOrderSequenceError
    elif not log and header.base_sequence:
        return OutOfOrderSequenceError
    return InvalidTransactionStateError if open_since(events) is not None and not header.is_transactional else None


def state_of(log: list[Event]) -> dict[int, tuple[int, list[int], int, int | None, int]]:
    found = {}
    for pid in {event.header.producer_id for event in log}:
        events = of_producer(log, pid)
        marks = [event.said.coordinator_epoch or 0 for event in events if event.said is not None]
        found[pid] = (
            epoch_of(events),
            [header.last_offset for header in kept_batches(events)],
            marks[-1] if marks else -1,
            open_since(events),
            events[-1].header.max_timestamp,
        )
    return found


def state(producers: Producers) -> dict[int, tuple[int, list[int], int, int | None, int]]:
    return {
        pid: (
            entry.epoch,
            [one.last_offset for one in entry.batches],
            entry.coordinator_epoch,
            entry.current_txn_first_offset,
            entry.last_timestamp,
        )
        for pid, entry in producers.entries.items()
    }


class Wish(NamedTuple):
    """A batch to try: relative to what its producer would do next."""

    pid: int
    kind: int
    epoch_step: int
    sequence_step: int
    records: int
    coordinator_epoch: int


WISHES = st.lists(
    st.builds(
        Wish,
        pid=st.integers(1, 3),
        kind=st.sampled_from([0, 0, 1, 1, 1, 2]),  # plain, transactional, marker
        epoch_step=st.sampled_from([0, 0, 0, 0, 0, 1, -1]),
        sequence_step=st.sampled_from([0, 0, 0, 0, 0, 1, -1, 7]),
        records=st.integers(1, 3),
        coordinator_epoch=st.sampled_from([0, 0, 1]),
    ),
    max_size=40,
)


def wanted(log: list[Event], wish: Wish, offset: int, start: int) -> Event:
    events = of_producer(log, wish.pid)
    epoch = max(max(epoch_of(events), 0) + wish.epoch_step, 0)
    if wish.kind == 2:
        return Event(marker(offset, epoch, wish.pid), control(coordinator_epoch=wish.coordinator_epoch))
    kept = kept_batches(events) if wish.epoch_step == 0 else []
    follows = kept[-1].base_sequence + kept[-1].records_count if kept else 0 if events else start
    sequence = (follows + wish.sequence_step) % 2**31
    timestamp = 1000 + offset
    return Event(
        batch(
            sequence, wish.records, at=offset, epoch=epoch, pid=wish.pid, txn=wish.kind == 1, timestamp=timestamp
        ),
        None,
    )  # fmt: skip


@given(WISHES, st.sampled_from([0, 5, MAX_INT32 - 4]), st.integers(0, 40))
def test_against_the_whole_log(wishes: list[Wish], start: int, restart_at: int) -> None:
    """Refusals and states equal the model's: after each batch, after a replay, and after a snapshot and the rest."""
    case()
    log: list[Event] = []
    producers = Producers()
    offset = 0
    snapshot, from_snapshot = b"", 0
    for at, wish in enumerate(wishes):
        event = wanted(log, wish, offset, start)
        expected = verdict(log, event)
        origin = Origin.CLIENT if event.said is None else Origin.COORDINATOR
        duplicate = producers.find_duplicate(event.header)
        same = [
            header
            for header in kept_batches(of_producer(log, wish.pid))
            if header[10:] == event.header[10:] and event.said is None
        ]
        assert (duplicate and duplicate.last_offset) == (same[0].last_offset if same else None)
        if expected is not None:
            with pytest.raises(expected):
                producers.prepare((event.header,), origin, controls=(event.said,))
        else:
            updates = producers.prepare((event.header,), origin, controls=(event.said,))
            assert updates is not None
            for completed in producers.apply(updates):
                others = [
                    since
                    for pid in range(1, 4)
                    if pid != wish.pid and (since := open_since(of_producer(log, pid))) is not None
                ]
                assert producers.last_stable_offset(completed) == min(others, default=completed.last_offset + 1)
                producers.complete(completed)
            log.append(event)
            offset = event.header.next_offset
        assert state(producers) == state_of(log)
        still_open = [since for pid in range(1, 4) if (since := open_since(of_producer(log, pid))) is not None]
        assert list(producers.ongoing) == sorted(still_open)
        producers.on_high_watermark(offset)
        assert producers.first_unstable_offset() == min(still_open, default=None)
        if at == restart_at:
            snapshot, from_snapshot = encode_snapshot(producers), len(log)
    assert state(replayed(Producers(), log)) == state_of(log)
    if snapshot:
        resumed = replayed(decode_snapshot(snapshot), log[from_snapshot:])
        assert encode_snapshot(resumed) == encode_snapshot(producers)
        assert list(resumed.ongoing) == list(producers.ongoing)


def replayed(producers: Producers, log: list[Event]) -> Producers:
    for event in log:
        completed = producers.replay(event.header, event.said)
        if completed is not None:
            producers.complete(completed)
        assert producers.map_end_offset == event.header.next_offset
    return producers
