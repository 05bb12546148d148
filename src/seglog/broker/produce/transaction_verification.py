"""Verifies with the coordinator that a partition is in the producer's open transaction, before the first batch of the
transaction is appended. Without it a late write of a dead producer opens a transaction that never ends (KIP-890)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final

from seglog.coordinators.coordinator_error import CoordinatorError
from seglog.coordinators.transactions.coordinator import TransactionCoordinator
from seglog.coordinators.transactions.transaction import EPOCH_BUMPS_FROM
from seglog.core.error_codes import ErrorCode
from seglog.core.types import ProducerIdAndEpoch, TopicPartition

Codes = Mapping[TopicPartition, ErrorCode]
AskCoordinator = Callable[[int, str, ProducerIdAndEpoch, Sequence[TopicPartition], bool], Awaitable[Codes]]
"""Ask another broker to add partitions to a transaction, or with True only to verify. It does not raise."""

_FIRST_RETRY_SECONDS: Final = 0.0025
_RETRY_SECONDS: Final = 0.02
"""``add.partitions.to.txn.retry.backoff.ms``. The first retries come sooner: most markers are written within some
milliseconds."""
_RETRY_UP_TO_SECONDS: Final = 0.1
"""``add.partitions.to.txn.retry.backoff.max.ms``"""
_IN_PROGRESS: Final = frozenset({ErrorCode.CONCURRENT_TRANSACTIONS})
_RETRIABLE: Final = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


class TransactionVerifier:
    """``ask`` is None for a broker that is alone."""

    def __init__(
        self,
        coordinator: TransactionCoordinator,
        node_id: int,
        ask: AskCoordinator | None,
        *,
        is_enabled: Callable[[], bool],
    ) -> None:
        """``is_enabled``: ``transaction.partition.verification.enable`` as it is now."""
        self._coordinator = coordinator
        self._node_id = node_id
        self._ask = ask
        self.is_enabled = is_enabled

    async def check_produce(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Sequence[TopicPartition],
        *,
        adds: bool,
        knows_abortable: bool,
    ) -> dict[TopicPartition, ErrorCode]:
        """As `check`, with the codes for a producer's batches. Where the broker adds partitions, the last transaction
        may be about to complete: ask again for 0.1 s."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _RETRY_UP_TO_SECONDS
        backoff = _FIRST_RETRY_SECONDS
        while True:
            codes = await self.check(transactional_id, producer, partitions, adds=adds, knows_abortable=knows_abortable)
            if not adds or _IN_PROGRESS.isdisjoint(codes.values()) or loop.time() >= until:
                return {one: _of_produce(code, adds=adds) for one, code in codes.items()}
            await asyncio.sleep(backoff)
            backoff = min(2 * backoff, _RETRY_SECONDS)

    async def check(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Sequence[TopicPartition],
        *,
        adds: bool,
        knows_abortable: bool,
    ) -> dict[TopicPartition, ErrorCode]:
        """The code with which each partition is refused, NONE where it may be written.

        ``adds``: the client expects the broker to add the partitions to its transaction. ``knows_abortable``: it knows
        TRANSACTION_ABORTABLE.
        """
        codes = await self._once(transactional_id, producer, partitions, adds=adds)
        return {one: _of_version(codes[one], knows_abortable=knows_abortable) for one in partitions}

    async def _once(
        self, transactional_id: str, producer: ProducerIdAndEpoch, partitions: Sequence[TopicPartition], *, adds: bool
    ) -> Codes:
        coordinator = self._coordinator
        leader = await coordinator.locate(transactional_id)
        if leader != self._node_id:
            if leader < 0 or self._ask is None:
                return dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return await self._ask(leader, transactional_id, producer, partitions, not adds)
        try:
            if adds:
                await coordinator.until_completed(transactional_id)
                await coordinator.add_partitions(transactional_id, producer, partitions, EPOCH_BUMPS_FROM)
                return dict.fromkeys(partitions, ErrorCode.NONE)
            return verified(partitions, coordinator.verify_partitions(transactional_id, producer, partitions))
        except CoordinatorError as error:
            return dict.fromkeys(partitions, error.code)


def verified(partitions: Sequence[TopicPartition], there: Collection[TopicPartition]) -> Codes:
    return {one: ErrorCode.NONE if one in there else ErrorCode.TRANSACTION_ABORTABLE for one in partitions}


def _of_version(code: ErrorCode, *, knows_abortable: bool) -> ErrorCode:
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and not knows_abortable:
        return ErrorCode.INVALID_TXN_STATE
    return code


def _of_produce(code: ErrorCode, *, adds: bool) -> ErrorCode:
    """A producer retries on NOT_ENOUGH_REPLICAS, and on CONCURRENT_TRANSACTIONS only from Produce 12 on."""
    if code in _RETRIABLE or (code in _IN_PROGRESS and not adds):
        return ErrorCode.NOT_ENOUGH_REPLICAS
    return code
