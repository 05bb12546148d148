"""A partition as the broker sees it: its log, who leads it in which epoch, and who waits for it.

One writer: everything here runs on the broker's event loop, and between two awaits nothing else does, so that an append
is atomic without a lock of its own.
"""

from __future__ import annotations

from array import array
from typing import Final
from uuid import UUID

from seglog.core.errors import FencedLeaderEpochError, OffsetOutOfRangeError, UnknownLeaderEpochError
from seglog.core.types import MAX_INT32, NO_EPOCH, Buffer, TopicPartition
from seglog.replication.waiters import Waiter
from seglog.storage.admit import Origin
from seglog.storage.epochs import EpochEnd
from seglog.storage.log import Appended, Log
from seglog.storage.reads import Fetched, UpTo

NOT_PUBLISHED: Final = memoryview(array("q", (0, 0)))
"""Where a partition leaves what nobody is to see."""


class Partition:
    """The leader of a partition. ``leader_epoch`` is above all epochs that its log has seen before this start.

    What went in and out since the start is counted for `seglog.broker.metrics`: appends, records, bytes. ``mark`` is
    where readers of the directory see the high watermark and the last stable offset, two int64.
    """

    __slots__ = (
        "appends",
        "bytes_in",
        "bytes_out",
        "leader_epoch",
        "log",
        "mark",
        "messages_in",
        "topic_id",
        "topic_partition",
        "waiters",
    )

    def __init__(self, topic_partition: TopicPartition, topic_id: UUID, log: Log) -> None:
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.log = log
        # A start may have cut what was not on the disk: a new epoch tells consumers that the end is another one.
        self.leader_epoch = log.epochs.latest + 1
        self.waiters: dict[Waiter, None] = {}  # in the order in which they came: a run can be repeated
        self.mark = NOT_PUBLISHED
        self.appends = self.messages_in = self.bytes_in = self.bytes_out = 0

    def append(self, records: Buffer, origin: Origin = Origin.CLIENT) -> Appended:
        """Append batches as the leader. Raises what `Log.append` raises."""
        log = self.log
        self.appends += 1
        appended = log.append(records, leader_epoch=self.leader_epoch, origin=origin)
        self.messages_in += appended.last_offset - appended.first_offset + 1
        self.bytes_in += len(records)
        mark = self.mark
        mark[0] = log.high_watermark
        mark[1] = log.last_stable_offset
        if self.waiters:
            for waiter in tuple(self.waiters):
                waiter.grown(len(records))
        return appended

    def wake(self) -> None:
        """Have everyone who waits look again: the partition is going away."""
        for waiter in tuple(self.waiters):
            waiter.grown(MAX_INT32)

    def read(self, offset: int, max_bytes: int, up_to: UpTo, *, min_one: bool) -> Fetched:
        """A slice for a consumer; above what it may see the offset is out of range only if the log ends before."""
        return self.log.read(offset, max_bytes, up_to=up_to, min_one=min_one)

    def check_epoch(self, current_epoch: int) -> None:
        """Refuse a client whose metadata are older or newer than ours (KIP-320)."""
        if current_epoch == NO_EPOCH or current_epoch == self.leader_epoch:
            return
        if current_epoch < self.leader_epoch:
            raise FencedLeaderEpochError(f"{self.topic_partition} has leader epoch {self.leader_epoch}")
        raise UnknownLeaderEpochError(f"{self.topic_partition} has leader epoch {self.leader_epoch}")

    def end_offset_for(self, epoch: int) -> EpochEnd:
        """Where the largest epoch at or below ``epoch`` ends (KIP-101)."""
        if epoch == self.leader_epoch:
            return EpochEnd(epoch=epoch, end_offset=self.log.log_end_offset)
        return self.log.end_offset_for_epoch(epoch)

    def diverging_epoch(self, last_fetched_epoch: int, fetch_offset: int) -> EpochEnd | None:
        """Where the reader's log goes apart from this one, if it does (KIP-595)."""
        if last_fetched_epoch == NO_EPOCH:
            return None
        end = self.end_offset_for(last_fetched_epoch)
        if end.epoch == NO_EPOCH or end.end_offset < 0:
            raise OffsetOutOfRangeError(f"{self.topic_partition} knows nothing of epoch {last_fetched_epoch}")
        return end if end.epoch < last_fetched_epoch or end.end_offset < fetch_offset else None
