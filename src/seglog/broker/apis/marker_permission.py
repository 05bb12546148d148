"""Which markers a WriteTxnMarkers request may write.

A marker decides a transaction: who writes one commits or aborts the records of any producer. Kafka asks its authorizer
for CLUSTER_ACTION; without ACLs, the sender decides. A broker may write every marker. Anybody else may only abort what
hangs (KIP-664): an open transaction in a log that no coordinator will ever end. ``kafka-transactions abort`` and
``seglog transactions abort`` send such markers to the partition's leader.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from seglog.broker.requests import RequestContext
from seglog.coordinators.coordinator_error import CoordinatorError
from seglog.coordinators.transactions.coordinator import TransactionCoordinator
from seglog.coordinators.transactions.markers import MarkerRequest
from seglog.core.error_codes import ErrorCode
from seglog.core.types import TopicPartition

OpenTransactions = Callable[[int, Collection[int]], Awaitable[Mapping[int, Collection[TopicPartition]]]]
"""Ask a broker: see `seglog.broker.peer_requests.PeerRequests.open_transactions`."""


class MarkerPermission:
    """``others`` are the ids of the other brokers, which ``ask`` asks for their transactions."""

    def __init__(
        self,
        coordinator: TransactionCoordinator,
        is_broker: Callable[[RequestContext], bool],
        others: Callable[[], Collection[int]],
        ask: OpenTransactions | None,
    ) -> None:
        self._coordinator = coordinator
        self._is_broker = is_broker
        self._others = others
        self._ask = ask

    async def refusals(
        self, requests: Sequence[MarkerRequest], context: RequestContext
    ) -> list[dict[TopicPartition, ErrorCode]]:
        """Per request the partitions that get no marker, with their codes."""
        if self._is_broker(context):
            return [{} for _ in requests]
        aborted = {marker.producer_id for marker, _ in requests if not marker.commit}
        try:
            known = await self._open_transactions(aborted) if aborted else {}
        except CoordinatorError as error:
            return [dict.fromkeys(partitions, error.code) for _, partitions in requests]
        refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return [
            {one: refused for one in partitions if marker.commit or one in known.get(marker.producer_id, ())}
            for marker, partitions in requests
        ]

    async def _open_transactions(self, producer_ids: Collection[int]) -> Mapping[int, Collection[TopicPartition]]:
        """The partitions of these producers' transactions that a coordinator knows. `CoordinatorError` if one of them
        cannot tell."""
        found: dict[int, set[TopicPartition]] = {}
        for transaction in self._coordinator.transactions():
            if transaction.producer_id in producer_ids:
                found.setdefault(transaction.producer_id, set()).update(transaction.partitions)
        if self._ask is not None:
            for broker in self._others():
                for producer_id, partitions in (await self._ask(broker, producer_ids)).items():
                    found.setdefault(producer_id, set()).update(partitions)
        return found
