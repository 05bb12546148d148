"""Markers that end a transaction, written to the leaders of its partitions until each has one.

Markers of all transactions that go to one broker share its requests: one is under way, and all that come meanwhile go
with the next (``TransactionMarkerChannelManager``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from seglog.core.error_codes import ErrorCode
from seglog.core.types import TopicPartition

_BACKOFF_SECONDS: Final = 0.02
_MAX_BACKOFF_SECONDS: Final = 1.0
_FENCED: Final = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED})
"""The log has seen a later coordinator, or a later epoch of the producer: this marker must not be written any more."""


class TransactionMarker(NamedTuple):
    """``version`` is the transaction version: from 2 on the log takes only a higher producer epoch (KIP-890)."""

    producer_id: int
    producer_epoch: int
    commit: bool
    coordinator_epoch: int
    version: int


class MarkerRequest(NamedTuple):
    """One marker for some partitions that a broker leads."""

    marker: TransactionMarker
    partitions: Sequence[TopicPartition]


Results = Mapping[TopicPartition, ErrorCode]
WriteMarkers = Callable[[int, Sequence[MarkerRequest]], Awaitable[Sequence[Results]]]
"""Write markers at a broker: results in the order of the requests. It does not raise; a broker that cannot be reached
gives a retriable error."""


class MarkersFencedError(Exception):
    """Another coordinator has ended this transaction, or its producer id went on without it."""


class MarkerWriter:
    """``leader`` gives the broker that leads a partition, -1 where none does now, None where the topic was deleted."""

    def __init__(self, leader: Callable[[TopicPartition], int | None], write: WriteMarkers) -> None:
        self._leader = leader
        self._write = write
        self._waiting: dict[int, list[tuple[MarkerRequest, asyncio.Future[Results]]]] = {}
        self._senders: dict[int, asyncio.Task[None]] = {}

    async def write(self, marker: TransactionMarker, partitions: Iterable[TopicPartition]) -> None:
        """Return when the marker is committed in each partition, or its topic deleted; until then it is tried again.
        `MarkersFencedError`."""
        left = set(partitions)
        backoff = _BACKOFF_SECONDS
        while True:
            left -= await self._try(marker, left)
            if not left:
                return
            await asyncio.sleep(backoff)
            backoff = min(2 * backoff, _MAX_BACKOFF_SECONDS)

    async def _try(self, marker: TransactionMarker, partitions: set[TopicPartition]) -> set[TopicPartition]:
        """Where nothing is left to do."""
        done: set[TopicPartition] = set()
        by_leader: dict[int, list[TopicPartition]] = {}
        for partition in sorted(partitions):
            leader = self._leader(partition)
            if leader is None:
                done.add(partition)
            elif leader >= 0:
                by_leader.setdefault(leader, []).append(partition)
        asked = [self._send(leader, MarkerRequest(marker, here)) for leader, here in by_leader.items()]
        for results in await asyncio.gather(*asked):
            if not _FENCED.isdisjoint(results.values()):
                raise MarkersFencedError(f"producer {marker.producer_id} epoch {marker.producer_epoch}: {results}")
            done.update(partition for partition, code in results.items() if code is ErrorCode.NONE)
        return done

    def _send(self, leader: int, request: MarkerRequest) -> asyncio.Future[Results]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Results] = loop.create_future()
        self._waiting.setdefault(leader, []).append((request, answer))
        sender = self._senders.get(leader)
        if sender is None or sender.done():
            self._senders[leader] = loop.create_task(self._drain(leader))
        return answer

    async def _drain(self, leader: int) -> None:
        while waiting := self._waiting.pop(leader, None):
            try:
                results = await self._write(leader, [request for request, _ in waiting])
            except BaseException as error:  # who waits must learn of it, or its transaction is never completed
                for _, answer in waiting:
                    if not answer.done():
                        answer.set_exception(error) if isinstance(error, Exception) else answer.cancel()
                raise
            for (_, answer), result in zip(waiting, results, strict=True):
                if not answer.done():  # its transaction's coordinator was replaced
                    answer.set_result(result)

    async def close(self) -> None:
        senders = list(self._senders.values())
        for sender in senders:
            sender.cancel()
        await asyncio.gather(*senders, return_exceptions=True)
        self._senders.clear()
        self._waiting.clear()
