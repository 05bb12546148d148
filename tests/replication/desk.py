"""What clients of a simulated world ask of a node: to write with acks=all, to read what is committed, to delete."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from seglog.core.errors import (
    LogDirFullError,
    LogDirOfflineError,
    NotEnoughReplicasError,
    NotLeaderError,
    OffsetOutOfRangeError,
    SeglogError,
)
from seglog.records.record import NewRecord, encode_batch
from tests.replication.store import SESSION_MS

if TYPE_CHECKING:
    from tests.replication.node import Node

_PATIENCE_MS = 5_000
Outcome = Callable[[str, int, int], None]
"""Told "ok", "failed" (nothing was written) or "unknown", with the leader epoch and the first offset."""


class Waiting(NamedTuple):
    """A producer that waits until everything below ``end`` is committed."""

    leader_epoch: int
    end: int
    tell: Callable[[str], None]


class Found(NamedTuple):
    """What a consumer got: records (offset, value), where the log begins, and the high watermark, in the epoch in which
    this log was last known to be the leader's."""

    leader_epoch: int
    start: int
    high_watermark: int
    records: Sequence[tuple[int, int]]


class Desk:
    """Of each partition, who waits for the high watermark."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.waiting: dict[int, list[Waiting]] = {}
        self.asked_in_doubt = 0
        """How often it was answered what is committed while the session was in doubt."""

    def produce(self, number: int, values: Sequence[int], times: Sequence[int], answer: Outcome) -> None:
        """With acks=all."""
        node = self.node
        partition = node.partitions.get(number)
        if partition is None:
            answer("failed", -1, -1)
            return
        records = [NewRecord(b"%d" % value, timestamp=time) for value, time in zip(values, times, strict=True)]
        try:
            appended = partition.append(encode_batch(records), needs_all=True)
        except (NotLeaderError, NotEnoughReplicasError, LogDirFullError):
            answer("failed", -1, -1)
            return
        except LogDirOfflineError:
            answer("unknown", -1, -1)
            return
        epoch, offset = partition.leader_epoch, appended.first_offset
        node.world.note("append", node.node_id, number, offset, *values)
        waiting = self.waiting.setdefault(number, [])
        waiting.append(Waiting(epoch, appended.last_offset + 1, lambda outcome: answer(outcome, epoch, offset)))
        node.leadership.advanced(number)

    def produce_one(self, number: int, value: int, time: int) -> None:
        """With acks=1. P18: it is answered only by a leader whose session the store has confirmed within its time; one
        that was paused may answer once before it finds out."""
        node, now = self.node, self.node.world.now
        partition = node.partitions.get(number)
        if partition is None:
            return
        try:
            partition.append(encode_batch([NewRecord(b"%d" % value, timestamp=time)]))
        except (NotLeaderError, LogDirFullError, LogDirOfflineError):
            return
        node.world.note("append", node.node_id, number, value)
        is_late = now - node.renewed_ms > SESSION_MS and now - node.woken_ms > SESSION_MS
        assert not is_late, f"P18: {node.node_id} answers acks=1 {now - node.renewed_ms} ms after the store was there"
        node.leadership.advanced(number)

    def newest(self, number: int) -> None:
        """As OffsetFetch asks a coordinator: what is committed, if nobody can have committed more meanwhile."""
        node, world = self.node, self.node.world
        partition = node.partitions.get(number)
        if partition is None or not partition.leads or not partition.knows_committed:
            return
        asked_ms, least, epoch = world.now, world.history.newest(number), partition.leader_epoch

        def look() -> None:
            if not partition.leads or partition.leader_epoch != epoch or not partition.in_doubt:
                return
            if partition.is_followed_since(asked_ms):
                self.asked_in_doubt += 1
                world.history.answered_newest(number, epoch, least, partition.log.high_watermark)
            elif world.now - asked_ms < _PATIENCE_MS:
                node.later(20, look)

        look()

    def answer(self, number: int) -> None:
        """Tell those of whom it can be said what became of their records."""
        partition = self.node.partitions[number]
        waiting = self.waiting.get(number, [])
        while waiting:
            code = partition.outcome(waiting[0].leader_epoch, waiting[0].end)
            if code is None:
                return
            waiting.pop(0).tell("ok" if code == 0 else "unknown")

    def give_up(self, number: int) -> None:
        """Nobody knows what becomes of the records that wait."""
        for waiting in self.waiting.pop(number, []):
            waiting.tell("unknown")

    def consume(self, number: int, offset: int, answer: Callable[[Found], None]) -> None:
        """Records up to the high watermark, from the leader or a follower (KIP-392)."""
        partition = self.node.partitions.get(number)
        if partition is None or not partition.is_placed:
            return
        log = partition.log
        try:
            records = list(log.read(offset, 1_000).records())
        except (OffsetOutOfRangeError, LogDirOfflineError):
            records = []
        found = [(record.offset, int(record.value or b"")) for record in records]
        if partition.leads and partition.knows_committed:
            self.node.world.rules.shown(number, partition.leader_epoch, log.high_watermark)
        epoch = partition.leader_epoch if partition.leads else self.node.agreeing.get(number, -1)
        answer(Found(epoch, log.log_start_offset, log.high_watermark, found))

    def delete_records(self, number: int, before: int) -> None:
        """As DeleteRecords does: up to the high watermark, no further."""
        partition = self.node.partitions.get(number)
        if partition is None or not partition.leads:
            return
        before = min(before, partition.log.high_watermark)
        self.node.world.history.deletes(number, before)
        try:
            partition.directory.delete_records(*partition.topic_partition, before)
        except SeglogError:
            return
