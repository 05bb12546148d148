"""Produce that waits: with acks=all the answer is there when everything is committed, or certainly is not, and with
acks=1 when it is flushed, if ``flush.messages`` asks for that; or when the time is over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from seglog.core.error_codes import ErrorCode
from seglog.net.pending_replies import PendingReply
from seglog.protocol.produce import PartitionAnswer, TopicAnswer
from seglog.replication.replica import COMMITTED, Replica

REQUEST_TIMED_OUT: Final = int(ErrorCode.REQUEST_TIMED_OUT)


class PendingAppend(NamedTuple):
    """What was appended in an epoch below ``end``, and its place in the answer. ``needs_all``: with acks=all."""

    topic: int
    place: int
    partition: Replica
    leader_epoch: int
    end: int
    needs_all: bool


class DelayedProduce:
    """One request that waits. It is among those who wait for each of its partitions that is not committed yet."""

    __slots__ = ("_left", "_timer", "_topics", "_write", "answer")

    def __init__(
        self,
        topics: list[TopicAnswer],
        uncommitted: Sequence[PendingAppend],
        seconds: float,
        write: Callable[[], bytes],
    ) -> None:
        """``topics`` have the answers as they are if all goes well; ``write`` makes bytes of them."""
        self.answer: PendingReply[bytes] = PendingReply()
        self._topics = topics
        self._write = write
        self._left = list(uncommitted)
        self._timer = asyncio.get_running_loop().call_later(seconds, self._time_is_up)
        for one in uncommitted:
            one.partition.waiters[self] = None

    def grown(self, size: int) -> None:
        """A partition was committed further, or is led by another broker now."""
        del size
        left = []
        for one in self._left:
            code = one.partition.outcome(one.leader_epoch, one.end, needs_all=one.needs_all)
            if code is None:
                left.append(one)
                continue
            one.partition.waiters.pop(self, None)
            if code != COMMITTED:
                self._failed(one, code)
        self._left = left
        if not left and not self.answer.is_known:
            self._timer.cancel()
            self.answer.set(self._write())

    def _time_is_up(self) -> None:
        for one in self._left:
            one.partition.waiters.pop(self, None)
            self._failed(one, REQUEST_TIMED_OUT)
        self._left = []
        self.answer.set(self._write())

    def _failed(self, one: PendingAppend, code: int) -> None:
        partitions = self._topics[one.topic].partitions
        partitions[one.place] = PartitionAnswer(one.partition.topic_partition.partition, code)
