"""Markers that end transactions, in the partitions that this broker leads and, through their leaders, in all others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from seglog.broker.offload import in_turns
from seglog.broker.requests import FAILURES, code_of
from seglog.broker.topics.topics import Topics
from seglog.coordinators.group_coordinator import GroupCoordinator
from seglog.coordinators.transactions.markers import MarkerRequest, Results, TransactionMarker
from seglog.core.clock import Clock
from seglog.core.error_codes import ErrorCode
from seglog.core.topic_names import OFFSETS_TOPIC
from seglog.core.types import TopicPartition
from seglog.records.record import end_txn_marker
from seglog.replication.replica import Replica
from seglog.replication.waiters import GrowthWaiter
from seglog.storage.log.admit import Origin

_TIMEOUT_SECONDS: Final = 30.0
"""How long a marker may take to be committed (``request.timeout.ms`` of the coordinator in Kafka)."""


class MarkerAppends:
    """Appends markers to the logs that this broker leads. A marker in a partition of ``__consumer_offsets`` decides the
    offsets that the transaction has committed there."""

    def __init__(self, topics: Topics, groups: GroupCoordinator, clock: Clock) -> None:
        self._topics = topics
        self._groups = groups
        self._clock = clock

    async def append(self, requests: Sequence[MarkerRequest]) -> list[Results]:
        """Per request the code of each partition, when all markers are committed or refused."""
        appended = [
            (marker, partition, self._append(marker, partition))
            async for marker, partition in in_turns(
                (marker, partition) for marker, partitions in requests for partition in partitions
            )
        ]
        refused = [one[2] if isinstance(one[2], ErrorCode) else None for one in appended]
        settled = iter(
            await asyncio.gather(
                *(self._settle(*one) for one, code in zip(appended, refused, strict=True) if code is None)
            )
        )
        codes = iter([next(settled) if code is None else code for code in refused])
        return [{partition: next(codes) for partition in partitions} for _, partitions in requests]

    async def _settle(
        self, marker: TransactionMarker, partition: TopicPartition, appended: ErrorCode | tuple[Replica, int, int]
    ) -> ErrorCode:
        """The code of a marker that is committed, or refused. It counts at once, whatever becomes of the others."""
        code = await _committed(appended)
        if partition.topic == OFFSETS_TOPIC and code is ErrorCode.NONE and not isinstance(appended, ErrorCode):
            _, _, end = appended
            self._groups.end_transaction(partition.partition, marker.producer_id, end - 1, commit=marker.commit)
        return code

    def _append(self, marker: TransactionMarker, partition: TopicPartition) -> ErrorCode | tuple[Replica, int, int]:
        replica = self._topics.partition(*partition)
        if replica is None:
            has = self._topics.has(*partition)
            return ErrorCode.NOT_LEADER_OR_FOLLOWER if has else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        batch = end_txn_marker(
            commit=marker.commit,
            coordinator_epoch=marker.coordinator_epoch,
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            timestamp=self._clock.now_ms(),
        )
        try:
            appended = replica.append(batch, Origin.COORDINATOR, needs_all=True, transaction_version=marker.version)
        except FAILURES as error:
            return code_of(error)
        return replica, replica.leader_epoch, appended.last_offset + 1


async def _committed(appended: ErrorCode | tuple[Replica, int, int]) -> ErrorCode:
    if isinstance(appended, ErrorCode):
        return appended
    replica, epoch, end = appended
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _TIMEOUT_SECONDS
    while (code := replica.outcome(epoch, end)) is None:
        left = deadline - loop.time()
        if left <= 0:
            return ErrorCode.REQUEST_TIMED_OUT
        waiter = GrowthWaiter(1, left)
        replica.waiters[waiter] = None
        try:
            await waiter.wait()
        finally:
            replica.waiters.pop(waiter, None)
    return ErrorCode(code)


SendMarkers = Callable[[int, Sequence[MarkerRequest]], Awaitable[Sequence[Results]]]


def routed(here: MarkerAppends, node_id: int, send: SendMarkers | None) -> SendMarkers:
    """Writes markers at a broker: at this one without the network. ``send`` is None for a broker that is alone."""

    async def write(broker: int, requests: Sequence[MarkerRequest]) -> Sequence[Results]:
        if broker == node_id or send is None:
            return await here.append(requests)
        return await send(broker, requests)

    return write
