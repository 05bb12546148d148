"""Decides which offsets of a partition a mounted replica has exactly as the leader has them. Pure.

The facts (KIP-101, KIP-279):

- In a leader epoch one leader writes each offset once. So an offset and its epoch name one record of a topic id, in
  whatever replica, stale copy or diverged log they are found.
- The leader of a partition answers OffsetsForLeaderEpoch with the end of an epoch in its own log. The end of the epoch
  before is its start. An epoch that it does not have is answered with a lower one, or, if all of its epochs are later,
  as if it ended where the first of them starts: then start and end are equal.
- A replica rolls a segment before it writes the next one. So all files but the last are complete, as long as the log is
  not truncated.

So an offset counts if it lies in a sealed segment, in the same epoch in both logs. The leader is asked about records
below its high watermark only, which no replica truncates. A compacted log is different: cleaners run in each broker by
itself, so a replica may still have, or no longer have, a record that the leader has removed, or kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from seglog.core.types import NO_EPOCH
from seglog.sources.ranges import OffsetRange
from seglog.storage.formats.checkpoints import EpochEntry
from seglog.storage.log.epochs import EpochEnd
from seglog.storage.log.transaction_index import AbortedTxn


@dataclass(frozen=True, slots=True, kw_only=True)
class MountedReplica:
    """A replica as its files describe it. ``cluster_id`` and ``topic_id`` are None if no file has them.

    ``segment_starts`` are the base offsets of all its segments, rising; the last one is still written to.
    """

    directory: str
    cluster_id: str | None
    topic_id: UUID | None
    epochs: tuple[EpochEntry, ...]
    segment_starts: tuple[int, ...]

    @property
    def sealed(self) -> OffsetRange:
        """The offsets of its sealed segments; empty if it has none."""
        starts = self.segment_starts
        return OffsetRange(starts[0], starts[-1]) if starts else OffsetRange(0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderLog:
    """The same partition as the cluster describes it. ``topic_id`` is None before Kafka 2.8.

    ``is_compacted`` is None if the cluster does not say. ``epoch_ends`` has the leader's answers by the epoch that was
    asked for; None if it gave none.
    """

    cluster_id: str
    topic_id: UUID | None
    is_compacted: bool | None
    epoch_ends: Mapping[int, EpochEnd] | None


class EpochSpan(NamedTuple):
    """Offsets ``start`` to before ``end`` that were written in a leader epoch."""

    epoch: int
    start: int
    end: int


class Coverage(NamedTuple):
    """The ``spans`` that both logs share, adjacent and rising. None: ``reason`` says why."""

    spans: tuple[EpochSpan, ...]
    reason: str = ""

    @property
    def offsets(self) -> OffsetRange:
        return OffsetRange(self.spans[0].start, self.spans[-1].end) if self.spans else OffsetRange(0, 0)

    def below(self, offset: int) -> Coverage:
        """The part below ``offset``."""
        return Coverage(tuple(_clipped(self.spans, OffsetRange(0, offset))), self.reason)


def questions(replica: MountedReplica, wanted: OffsetRange) -> tuple[int, ...]:
    """The epochs whose ends the leader has to tell: those that the replica has for ``wanted``, and for each the one
    before, whose end is its start."""
    asked = set()
    for span in _clipped(_spans(replica), wanted):
        asked |= {span.epoch, span.epoch - 1}
    return tuple(sorted(asked - {NO_EPOCH}))


def refusal(replica: MountedReplica, *, cluster_id: str, topic_id: UUID | None) -> str:
    """Why no record of the replica counts, whatever its leader says; empty if that is not so."""
    if replica.cluster_id is None:
        return "its log directory names no cluster"
    if replica.cluster_id != cluster_id:
        return f"it belongs to cluster {replica.cluster_id}, and the brokers to {cluster_id or 'a nameless one'}"
    if topic_id is None:
        return "the brokers have no topic ids"
    if replica.topic_id is None:
        return "it has no topic id"
    if replica.topic_id != topic_id:
        return "it is of a topic of the same name with another id"
    return ""


def cover(replica: MountedReplica, leader: LeaderLog, wanted: OffsetRange) -> Coverage:
    """The longest run of offsets in ``wanted`` that the replica has in sealed segments, exactly as the leader.

    ``wanted`` lies between the leader's log start and its high watermark, or last stable offset.
    """
    reason = refusal(replica, cluster_id=leader.cluster_id, topic_id=leader.topic_id)
    if reason:
        return Coverage((), reason)
    if leader.is_compacted is not False:
        known = "the topic is compacted" if leader.is_compacted else "the brokers do not say whether it is compacted"
        return Coverage((), known)
    if leader.epoch_ends is None:
        return Coverage((), "the leader does not answer about its epochs")
    ours = list(_clipped(_spans(replica), wanted))
    runs: list[list[EpochSpan]] = []
    for span in ours:
        for shared in _clipped([span], _leaders_span(span.epoch, leader.epoch_ends)):
            if runs and runs[-1][-1].end == shared.start:
                runs[-1].append(shared)
            else:
                runs.append([shared])
    longest = max(runs, key=_size, default=None)
    if longest is None:
        return Coverage((), "the leader has other leader epochs there" if ours else "")
    return Coverage(tuple(longest))


def _size(run: Sequence[EpochSpan]) -> int:
    return run[-1].end - run[0].start


def _spans(replica: MountedReplica) -> Iterator[EpochSpan]:
    """The epochs of the sealed segments."""
    ends = [*(entry.start_offset for entry in replica.epochs[1:]), replica.sealed.end]
    spans = [EpochSpan(entry.epoch, entry.start_offset, end) for entry, end in zip(replica.epochs, ends, strict=False)]
    return _clipped(spans, replica.sealed)


def _clipped(spans: Iterable[EpochSpan], bounds: OffsetRange) -> Iterator[EpochSpan]:
    """The parts of ``spans`` within ``bounds``, without empty ones."""
    for span in spans:
        start, end = max(span.start, bounds.start), min(span.end, bounds.end)
        if start < end:
            yield EpochSpan(span.epoch, start, end)


def _leaders_span(epoch: int, ends: Mapping[int, EpochEnd]) -> OffsetRange:
    """The offsets that the leader has in ``epoch``, as its answers tell; empty if it does not have it."""
    end = ends.get(epoch)
    if end is None or end.epoch != epoch:
        return OffsetRange(0, 0)
    if epoch == 0:
        return OffsetRange(0, end.end_offset)
    before = ends.get(epoch - 1)
    return (
        OffsetRange(0, 0)
        if before is None or before.epoch == NO_EPOCH
        else OffsetRange(before.end_offset, end.end_offset)
    )


class TransactionsBelow(NamedTuple):
    """The transactions of a replica's log below ``boundary``, as its files tell: those that were aborted there, and the
    first offset of the first that was open there, None if none was."""

    boundary: int
    first_open: int | None
    aborted: tuple[AbortedTxn, ...]


def boundary_of(replica: MountedReplica, coverage: Coverage) -> int | None:
    """The last start of a segment up to which the replica's log is the leader's; None if there is none."""
    upto = coverage.offsets.end
    return max((start for start in replica.segment_starts if start <= upto), default=None) if coverage.spans else None


def committed(coverage: Coverage, transactions: TransactionsBelow | None) -> Coverage:
    """The part of which all transactions have ended below the boundary, so that the aborted ones are known."""
    if transactions is None:
        return Coverage((), "it has no snapshot of its transactions")
    stable = transactions.boundary if transactions.first_open is None else transactions.first_open
    return coverage.below(min(stable, transactions.boundary))
