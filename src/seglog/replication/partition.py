"""A partition as the broker sees it: its log, who leads it in which epoch, and who waits for it.

One writer: everything here runs on the broker's event loop, and between two awaits nothing else does, so that an append
is atomic without a lock of its own.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Final
from uuid import UUID

from seglog.core.types import MAX_INT32, Buffer, TopicPartition
from seglog.replication.leader_epochs import LeaderEpochChecks
from seglog.replication.waiters import Waiting
from seglog.storage.log.admit import Origin
from seglog.storage.log.log import Appended, Log
from seglog.storage.log.reads import Fetched, UpTo

NOT_PUBLISHED: Final = memoryview(array("q", (0, 0)))
"""Where a partition leaves what nobody is to see."""
COMMITTED: Final = 0
KAFKA_STORAGE_ERROR: Final = 56


def flush_now(partition: Partition) -> None:
    """The flush that ``flush.messages`` asks for, while whoever appends waits."""
    partition.log.flush()
    partition.flushed()


class Partition(LeaderEpochChecks):
    """The leader of a partition that has no other replica. ``leader_epoch`` is above all epochs that its log has seen
    before this start. `seglog.replication.replica.Replica` has the same face, and may lead or follow.

    What went in and out since the start is counted for `seglog.broker.metrics`: appends, records, bytes. ``mark`` is
    where readers of the directory see the high watermark and the last stable offset, two int64. ``waiters`` wait for
    what consumers may see to grow.

    ``flush_due`` is told when ``flush.messages`` asks for a flush; it flushes the log, in a thread perhaps, and then
    calls `flushed`. Until then nothing above `Log.flushed_end` is answered, committed or shown.
    """

    __slots__ = (
        "_flush_due",
        "_unseen",
        "appends",
        "bytes_in",
        "bytes_out",
        "in_doubt",
        "leader_epoch",
        "log",
        "mark",
        "messages_in",
        "topic_id",
        "topic_partition",
        "waiters",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id: UUID,
        log: Log,
        *,
        flush_due: Callable[[Partition], None] = flush_now,
    ) -> None:
        log.defer_flushes()
        self._flush_due = flush_due
        self._unseen = 0
        """Bytes that were appended since the high watermark moved."""
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.log = log
        # A start may have cut what was not on the disk: a new epoch tells consumers that the end is another one.
        self.leader_epoch = log.epochs.latest + 1
        self.waiters: dict[Waiting, None] = {}  # in the order in which they came: a run can be repeated
        self.mark = NOT_PUBLISHED
        self.in_doubt = False
        """Another broker may lead it, and the metadata store, which would know, cannot be asked."""
        self.appends = self.messages_in = self.bytes_in = self.bytes_out = 0

    @property
    def leads(self) -> bool:
        """Whether it may be written, and asked for what is newest."""
        return True

    @property
    def is_placed(self) -> bool:
        """Whether it leads or follows, so that what it shows is a part of what is committed."""
        return True

    @property
    def knows_committed(self) -> bool:
        """Whether the high watermark is what is committed, and not less: a new leader does not know at once."""
        return True

    def is_followed_since(self, asked_ms: int) -> bool:
        """Whether no other leader had committed anything at ``asked_ms``, on the clock of the broker, for all replicas
        that could have been elected followed this one later than that."""
        del asked_ms
        return True

    def wake_followers(self) -> None:
        """Answer followers that wait for records, so that each asks again."""

    def check_leads(self) -> None:
        """`NotLeaderError` if another broker leads it, or nobody."""

    def append(self, records: Buffer, origin: Origin = Origin.CLIENT, *, needs_all: bool = False) -> Appended:
        """Append batches as the leader; with ``needs_all`` only if there are enough replicas to commit them. Raises
        what `Log.append` raises."""
        del needs_all
        return self._append(records, origin)

    def _append(self, records: Buffer, origin: Origin) -> Appended:
        self.appends += 1
        appended = self.log.append(records, leader_epoch=self.leader_epoch, origin=origin)
        self.messages_in += appended.last_offset - appended.first_offset + 1
        size = len(records)
        self.bytes_in += size
        self._grown(size)
        if self.log.needs_flush:
            self._flush_due(self)
        return appended

    def _grown(self, size: int) -> None:
        """So many bytes more are in the log, and can be seen unless they have to be flushed first."""
        self._unseen += size
        if not self.log.needs_flush:
            self._show_all()

    def _show_all(self) -> None:
        log, mark = self.log, self.mark
        mark[0] = log.high_watermark
        mark[1] = log.last_stable_offset
        size, self._unseen = self._unseen, 0
        if self.waiters:
            for waiter in tuple(self.waiters):
                waiter.grown(size)

    def flushed(self) -> None:
        """What was appended before the last flush began may be told."""
        self._show_all()

    def outcome(self, leader_epoch: int, end: int, *, needs_all: bool = True) -> int | None:
        """What became of what was appended in an epoch below ``end``, for acks=all, or for acks=1, which waits for the
        flush only: `COMMITTED`, the code of an error, or None while nobody can say; ``waiters`` are woken when that may
        have changed."""
        del leader_epoch
        log = self.log
        if (log.high_watermark if needs_all else log.flushed_end) >= end:
            return COMMITTED
        return KAFKA_STORAGE_ERROR if log.has_failed else None

    def wake(self) -> None:
        """Have everyone who waits look again: the partition is going away, or is led elsewhere."""
        for waiter in tuple(self.waiters):
            waiter.grown(MAX_INT32)

    def read(self, offset: int, max_bytes: int, up_to: UpTo, *, min_one: bool) -> Fetched:
        """A slice for a consumer; above what it may see the offset is out of range only if the log ends before."""
        return self.log.read(offset, max_bytes, up_to=up_to, min_one=min_one)
