"""Requests to other brokers of the cluster for transactions: write markers, add or verify partitions. Each broker gets
one connection, opened with the first request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from seglog.cluster.model import BrokerRegistration
from seglog.coordinators.coordinator_error import CoordinatorError
from seglog.coordinators.transactions.markers import MarkerRequest, Results
from seglog.core.addresses import parse_host_port
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import InvalidRequestError, SeglogError
from seglog.core.ground import Ground
from seglog.core.types import ProducerIdAndEpoch, TopicPartition
from seglog.net.peer_connection import PeerConnection
from seglog.protocol.apis import APIS, ApiKey
from seglog.protocol.messages import Message, read_answer, write_request

_log: Final = logging.getLogger("seglog.broker")
_TIMEOUT_SECONDS: Final = 30.0
"""``request.timeout.ms`` of a broker's own requests."""
_LARGEST: Final = 16 << 20


class PeerRequests:
    """``brokers`` are those of the cluster; ``listener`` is the one by which brokers reach each other, and ``proof``
    tells them who asks."""

    def __init__(
        self,
        node_id: int,
        brokers: Callable[[], Mapping[int, BrokerRegistration]],
        listener: str,
        proof: str,
        *,
        ground: Ground,
    ) -> None:
        self._name = f"broker-{node_id}-transactions"
        self._brokers = brokers
        self._listener = listener
        self._proof = proof
        self._dial = ground.dial
        self._links: dict[int, asyncio.Task[PeerConnection]] = {}

    async def write_markers(self, broker: int, requests: Sequence[MarkerRequest]) -> Sequence[Results]:
        """WriteTxnMarkers; as `seglog.coordinators.transactions.markers.WriteMarkers`."""
        try:
            answer = await self._ask(
                broker, ApiKey.WRITE_TXN_MARKERS, {"markers": [_marker(request) for request in requests]}
            )
            return [_results(one) for one in answer.markers]
        except (SeglogError, OSError) as error:
            _log.info("markers for broker %d are not written yet: %s", broker, error)
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            return [dict.fromkeys(request.partitions, code) for request in requests]

    async def add_partitions(
        self,
        broker: int,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Sequence[TopicPartition],
        verify_only: bool,
    ) -> Results:
        """AddPartitionsToTxn; as `seglog.broker.produce.transaction_verification.AskCoordinator`."""
        transaction = {
            "transactional_id": transactional_id,
            "producer_id": producer.producer_id,
            "producer_epoch": producer.epoch,
            "verify_only": verify_only,
            "topics": [{"name": name, "partitions": numbers} for name, numbers in _by_topic(partitions).items()],
        }
        try:
            answer = await self._ask(broker, ApiKey.ADD_PARTITIONS_TO_TXN, {"transactions": [transaction]})
        except (SeglogError, OSError) as error:
            _log.info("broker %d does not say whether partitions are in a transaction: %s", broker, error)
            return dict.fromkeys(partitions, ErrorCode.NETWORK_EXCEPTION)
        if answer.error_code:
            return dict.fromkeys(partitions, ErrorCode(answer.error_code))
        return {
            TopicPartition(topic.name, one.partition_index): ErrorCode(one.partition_error_code)
            for topic in answer.results_by_transaction[0].topic_results
            for one in topic.results_by_partition
        }

    async def open_transactions(
        self, broker: int, producer_ids: Collection[int]
    ) -> Mapping[int, Collection[TopicPartition]]:
        """The partitions of the open transactions of these producers that the broker coordinates. `CoordinatorError` if
        it cannot tell."""
        try:
            listed = await self._ask(broker, ApiKey.LIST_TRANSACTIONS, {"producer_id_filters": list(producer_ids)})
            code, states = listed.error_code, listed.transaction_states
            if not code and states:
                ids = [one.transactional_id for one in states]
                described = await self._ask(broker, ApiKey.DESCRIBE_TRANSACTIONS, {"transactional_ids": ids})
                states = described.transaction_states
                code = max([one.error_code for one in states])
        except (SeglogError, OSError) as error:
            reason = f"broker {broker} does not tell its transactions: {error}"
            raise CoordinatorError(ErrorCode.COORDINATOR_NOT_AVAILABLE, reason) from error
        if code:
            raise CoordinatorError(ErrorCode(code), f"broker {broker} does not tell its transactions")
        return {
            one.producer_id: [
                TopicPartition(topic.topic, number) for topic in one.topics for number in topic.partitions
            ]
            for one in states
        }

    async def _ask(self, broker: int, key: ApiKey, request: Mapping[str, Any]) -> Message:
        version = APIS[key].high
        link = await self._link(broker)
        body = await link.ask(key, version, write_request(key, version, request), timeout=_TIMEOUT_SECONDS)
        try:
            return read_answer(key, version, body)
        except InvalidRequestError:
            link.close()
            raise

    async def _link(self, broker: int) -> PeerConnection:
        """The connection to a broker; who asks while it is being opened waits for the same one."""
        task = self._links.get(broker)
        if task is None or (task.done() and (task.cancelled() or task.exception() or task.result().is_closed)):
            task = self._links[broker] = asyncio.get_running_loop().create_task(self._open(broker))
        return await asyncio.shield(task)

    async def _open(self, broker: int) -> PeerConnection:
        registered = self._brokers().get(broker)
        where = None if registered is None else registered.listeners.get(self._listener)
        if where is None:
            raise ConnectionError(f"broker {broker} has no listener {self._listener} now")
        address = parse_host_port(where)
        return await PeerConnection.open(
            address.host,
            address.port,
            client_id=self._name,
            timeout=_TIMEOUT_SECONDS,
            largest=_LARGEST,
            proof=self._proof,
            dial=self._dial,
        )

    async def close(self) -> None:
        tasks = list(self._links.values())
        self._links.clear()
        for task in tasks:
            task.cancel()
        for found in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(found, PeerConnection):
                found.close()


def _by_topic(partitions: Sequence[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)
    return topics


def _marker(request: MarkerRequest) -> dict[str, Any]:
    marker, partitions = request
    return {
        "producer_id": marker.producer_id,
        "producer_epoch": marker.producer_epoch,
        "transaction_result": marker.commit,
        "topics": [{"name": name, "partition_indexes": numbers} for name, numbers in _by_topic(partitions).items()],
        "coordinator_epoch": marker.coordinator_epoch,
        "transaction_version": marker.version,
    }


def _results(answer: Message) -> Results:
    return {
        TopicPartition(topic.name, one.partition_index): ErrorCode(one.error_code)
        for topic in answer.topics
        for one in topic.partitions
    }
