"""A Produce request that waits: with acks=all until every batch is committed or certainly lost, with acks=1 until it is
flushed if ``flush.messages`` requires it; and no longer than the request's timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from seglog.core.error_codes import ErrorCode
from seglog.net.pending_replies import Caught, PendingReply
from seglog.protocol.produce import PartitionAnswer, TopicAnswer
from seglog.replication.replica import COMMITTED, Replica

REQUEST_TIMED_OUT: Final = int(ErrorCode.REQUEST_TIMED_OUT)


class PendingAppend(NamedTuple):
    """A batch that ends below ``end``, appended in ``leader_epoch``, and the place of its answer. ``needs_all``:
    acks=all."""

    topic: int
    place: int
    partition: Replica
    leader_epoch: int
    end: int
    needs_all: bool


class DelayedProduce:
    """One request that waits. It is a waiter of each partition that has not committed its batch."""

    __slots__ = ("_left", "_timer", "_topics", "_write", "answer")

    def __init__(
        self,
        topics: list[TopicAnswer],
        uncommitted: Sequence[PendingAppend],
        seconds: float,
        write: Callable[[], bytes],
    ) -> None:
        """``topics`` are the answers if every batch is committed; ``write`` encodes them."""
        self.answer: PendingReply[bytes] = PendingReply()
        self._topics = topics
        self._write = write
        self._left = list(uncommitted)
        self._timer = asyncio.get_running_loop().call_later(seconds, self._time_is_up)
        for one in uncommitted:
            one.partition.waiters[self] = None

    def grown(self, size: int) -> None:
        """A partition has committed more, or has another leader. An error is this request's own: the partition has
        other waiters."""
        del size
        if self.answer.is_known:
            return
        with Caught(self._fail):
            self._left = [one for one in self._left if not self._is_settled(one)]
            if not self._left:
                self._end()
                self.answer.set(self._write())

    def _is_settled(self, one: PendingAppend) -> bool:
        code = one.partition.outcome(one.leader_epoch, one.end, needs_all=one.needs_all)
        if code is None:
            return False
        one.partition.waiters.pop(self, None)
        if code != COMMITTED:
            self._failed(one, code)
        return True

    def _time_is_up(self) -> None:
        for one in self._left:
            self._failed(one, REQUEST_TIMED_OUT)
        self._end()
        with self.answer.or_fails():
            self.answer.set(self._write())

    def _fail(self, error: Exception) -> None:
        self._end()
        self.answer.fail(error)

    def _end(self) -> None:
        """Wait for nothing more."""
        self._timer.cancel()
        for one in self._left:
            one.partition.waiters.pop(self, None)
        self._left = []

    def _failed(self, one: PendingAppend, code: int) -> None:
        partitions = self._topics[one.topic].partitions
        partitions[one.place] = PartitionAnswer(one.partition.topic_partition.partition, code)
