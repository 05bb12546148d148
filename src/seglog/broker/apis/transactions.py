"""Transactions: what producers, brokers and ``kafka-transactions`` ask their coordinator, and markers for partitions
that this broker leads (KIP-98, 447, 664, 890)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from seglog.broker.apis.marker_permission import MarkerPermission
from seglog.broker.apis.producers import ProducerIds
from seglog.broker.apis.transaction_markers import MarkerAppends
from seglog.broker.offload import in_turns
from seglog.broker.produce.transaction_verification import verified
from seglog.broker.requests import Answer, ApiHandler, RequestContext
from seglog.broker.topics.topics import Topics
from seglog.cluster.store import StoreError
from seglog.coordinators.consumer.patterns import check_pattern, resolve_patterns
from seglog.coordinators.coordinator_error import CoordinatorError
from seglog.coordinators.group_coordinator import GroupCoordinator
from seglog.coordinators.transactions.coordinator import TransactionCoordinator
from seglog.coordinators.transactions.markers import MarkerRequest, TransactionMarker
from seglog.coordinators.transactions.transaction import Transaction, TransactionState
from seglog.core.clock import Clock
from seglog.core.error_codes import ErrorCode
from seglog.core.topic_names import INTERNAL_TOPICS, OFFSETS_TOPIC
from seglog.core.types import ProducerIdAndEpoch, TopicPartition
from seglog.protocol.apis import ApiKey
from seglog.protocol.messages import Message

_NO_EPOCH: Final = -1
_NO_ID: Final = -1
_IMPLICIT: Final = 2
"""The transaction version of clients whose partitions the broker adds when they produce."""
_ADD_OF_VERSION_2: Final = 4
_END_OF_VERSION_2: Final = 5
_SAYS_FENCED_FROM: Final = {
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.ADD_PARTITIONS_TO_TXN: 2,
    ApiKey.ADD_OFFSETS_TO_TXN: 2,
    ApiKey.END_TXN: 2,
}
"""From which version a client knows PRODUCER_FENCED; before, it gets INVALID_PRODUCER_EPOCH (KIP-588)."""
_LABELS: Final = {state.label: state for state in TransactionState}


class _Codes(NamedTuple):
    """The codes of many partitions: ``usual``, but for the ``others``."""

    usual: ErrorCode
    others: Mapping[TopicPartition, ErrorCode] = MappingProxyType({})

    def of(self, topic: str, number: int) -> int:
        return int(self.others.get(TopicPartition(topic, number), self.usual) if self.others else self.usual)


class TransactionApis:
    def __init__(
        self,
        coordinator: TransactionCoordinator,
        groups: GroupCoordinator,
        topics: Topics,
        ids: ProducerIds,
        markers: MarkerAppends,
        permission: MarkerPermission,
        clock: Clock,
    ) -> None:
        self._coordinator = coordinator
        self._groups = groups
        self._topics = topics
        self._ids = ids
        self._markers = markers
        self._permission = permission
        self._clock = clock

    def handlers(self) -> Mapping[int, ApiHandler]:
        return {
            ApiKey.INIT_PRODUCER_ID: self.init_producer_id,
            ApiKey.ADD_PARTITIONS_TO_TXN: self.add_partitions,
            ApiKey.ADD_OFFSETS_TO_TXN: self.add_offsets,
            ApiKey.END_TXN: self.end,
            ApiKey.WRITE_TXN_MARKERS: self.write_markers,
            ApiKey.DESCRIBE_TRANSACTIONS: self.describe,
            ApiKey.LIST_TRANSACTIONS: self.list,
        }

    # Producers

    async def init_producer_id(self, request: Message, context: RequestContext) -> Answer:
        if (request.producer_id == _NO_ID) != (request.producer_epoch == _NO_EPOCH):
            return _no_producer(ErrorCode.INVALID_REQUEST)
        try:
            if request.transactional_id is None:
                return {"producer_id": await self._ids.next(), "producer_epoch": 0}
            expected = _producer(request) if request.producer_id != _NO_ID else None
            found = await self._coordinator.init_producer_id(
                request.transactional_id, request.transaction_timeout, expected
            )
        except CoordinatorError as error:
            return _no_producer(_code(error, context))
        except StoreError:
            return _no_producer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return {"producer_id": found.producer_id, "producer_epoch": found.epoch}

    async def add_partitions(self, request: Message, context: RequestContext) -> Answer:
        """From version 4 on brokers ask, for several transactions at once, also only to verify (KIP-890)."""
        return {"results_by_transaction": [await self._add(one, context) for one in request.transactions]}

    async def _add(self, asked: Message, context: RequestContext) -> dict[str, Any]:
        version = _IMPLICIT if context.version >= _ADD_OF_VERSION_2 else 0
        try:
            codes = await self._add_all(asked, version, may_be_internal=version == _IMPLICIT)
        except CoordinatorError as error:
            codes = _Codes(_code(error, context))
        return {
            "transactional_id": asked.transactional_id,
            "topic_results": [
                {
                    "name": topic.name,
                    "results_by_partition": [
                        {"partition_index": number, "partition_error_code": codes.of(topic.name, number)}
                        async for number in in_turns(topic.partitions)
                    ],
                }
                async for topic in in_turns(asked.topics)
            ],
        }

    async def _add_all(self, asked: Message, version: int, *, may_be_internal: bool) -> _Codes:
        """All of them, or none: then those that can be added are OPERATION_NOT_ATTEMPTED."""
        if not asked.transactional_id:
            raise CoordinatorError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
        there: dict[TopicPartition, None] = {}
        refused: dict[TopicPartition, ErrorCode] = {}
        named = (TopicPartition(topic.name, number) for topic in asked.topics for number in topic.partitions)
        async for one in in_turns(named):
            if one.topic in INTERNAL_TOPICS and not may_be_internal:
                refused[one] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif not self._topics.has(*one):
                refused[one] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                there[one] = None
        if refused:
            return _Codes(ErrorCode.OPERATION_NOT_ATTEMPTED, refused)
        partitions = tuple(there)
        if asked.verify_only:
            added = self._coordinator.verify_partitions(asked.transactional_id, _producer(asked), partitions)
            return _Codes(ErrorCode.NONE, dict(verified(partitions, added)))
        if version != _IMPLICIT:
            await self._coordinator.until_completed(asked.transactional_id)
        await self._coordinator.add_partitions(asked.transactional_id, _producer(asked), partitions, version)
        return _Codes(ErrorCode.NONE)

    async def add_offsets(self, request: Message, context: RequestContext) -> Answer:
        """The partition that the group's offsets are in becomes a part of the transaction."""
        if not request.transactional_id:
            return {"error_code": int(ErrorCode.INVALID_REQUEST)}
        partition = TopicPartition(OFFSETS_TOPIC, self._groups.partition_of(request.group_id))
        try:
            await self._coordinator.until_completed(request.transactional_id)
            await self._coordinator.add_partitions(request.transactional_id, _producer(request), (partition,), 0)
        except CoordinatorError as error:
            return {"error_code": int(_code(error, context))}
        return {"error_code": 0}

    async def end(self, request: Message, context: RequestContext) -> Answer:
        has_producer = context.version >= _END_OF_VERSION_2
        if not request.transactional_id:
            return {"error_code": int(ErrorCode.INVALID_REQUEST)}
        try:
            found = await self._coordinator.end(
                request.transactional_id,
                _producer(request),
                commit=request.committed,
                version=_IMPLICIT if has_producer else 0,
            )
        except CoordinatorError as error:
            return {"error_code": int(_code(error, context)), "producer_id": _NO_ID, "producer_epoch": _NO_EPOCH}
        except StoreError:
            code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            return {"error_code": int(code), "producer_id": _NO_ID, "producer_epoch": _NO_EPOCH}
        return {"error_code": 0, "producer_id": found.producer_id, "producer_epoch": found.epoch}

    # Markers

    async def write_markers(self, request: Message, context: RequestContext) -> Answer:
        """From coordinators, and from administrators that end a hanging transaction (KIP-664)."""
        asked = [
            MarkerRequest(
                TransactionMarker(
                    one.producer_id,
                    one.producer_epoch,
                    one.transaction_result,
                    one.coordinator_epoch,
                    one.transaction_version,
                ),
                [
                    TopicPartition(*named)
                    async for named in in_turns(
                        (topic.name, number) for topic in one.topics for number in topic.partition_indexes
                    )
                ],
            )
            async for one in in_turns(request.markers)
        ]
        refused = await self._permission.refusals(asked, context)
        allowed = [
            MarkerRequest(one.marker, [partition for partition in one.partitions if partition not in codes])
            async for one, codes in in_turns(zip(asked, refused, strict=True))
        ]
        appended = await self._markers.append(allowed)
        results = [{**codes, **refusals} for codes, refusals in zip(appended, refused, strict=True)]
        return {
            "markers": [
                {
                    "producer_id": one.producer_id,
                    "topics": [
                        {
                            "name": topic.name,
                            "partitions": [
                                {
                                    "partition_index": number,
                                    "error_code": int(codes[TopicPartition(topic.name, number)]),
                                }
                                async for number in in_turns(topic.partition_indexes)
                            ],
                        }
                        async for topic in in_turns(one.topics)
                    ],
                }
                async for one, codes in in_turns(zip(request.markers, results, strict=True))
            ]
        }

    # Administrators

    def describe(self, request: Message, _: RequestContext) -> Answer:
        return {"transaction_states": [self._describe(one) for one in request.transactional_ids]}

    def _describe(self, transactional_id: str) -> dict[str, Any]:
        if not transactional_id:
            return {"transactional_id": "", "error_code": int(ErrorCode.INVALID_REQUEST)}
        try:
            found = self._coordinator.describe(transactional_id)
        except CoordinatorError as error:
            return {"transactional_id": transactional_id, "error_code": int(error.code)}
        topics: dict[str, list[int]] = {}
        for topic, number in sorted(found.partitions):
            topics.setdefault(topic, []).append(number)
        return {
            "transactional_id": transactional_id,
            "producer_id": found.producer_id,
            "producer_epoch": found.epoch,
            "transaction_state": found.state.label,
            "transaction_timeout": found.timeout_ms,
            "transaction_start_time": found.start_ms,
            "topics": [{"topic": topic, "partitions": numbers} for topic, numbers in topics.items()],
        }

    def list(self, request: Message, _: RequestContext) -> Answer:
        pattern = request.transactional_id_pattern
        try:
            found = list(self._coordinator.transactions())
            if pattern:
                check_pattern(pattern)
        except CoordinatorError as error:
            return {"error_code": int(error.code), "transaction_states": []}
        unknown = [state for state in request.state_filters if state not in _LABELS]
        found = [one for one in found if self._is_listed(one, request)]
        if pattern:
            named = resolve_patterns((pattern,), {one.transactional_id for one in found})[pattern]
            found = [one for one in found if one.transactional_id in named]
        return {
            "error_code": 0,
            "unknown_state_filters": unknown,
            "transaction_states": [
                {
                    "transactional_id": one.transactional_id,
                    "producer_id": one.producer_id,
                    "transaction_state": one.state.label,
                }
                for one in found
            ],
        }

    def _is_listed(self, transaction: Transaction, request: Message) -> bool:
        if request.producer_id_filters and transaction.producer_id not in request.producer_id_filters:
            return False
        if request.state_filters and transaction.state.label not in request.state_filters:
            return False
        if request.duration_filter < 0:
            return True
        # An id without a transaction began at -1, so it is listed, as in ``TransactionStateManager``.
        return bool(self._clock.now_ms() - transaction.start_ms > request.duration_filter)


def _producer(request: Message) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(request.producer_id, request.producer_epoch)


def _no_producer(code: ErrorCode) -> Answer:
    return {"error_code": int(code), "producer_id": _NO_ID, "producer_epoch": _NO_EPOCH}


def _code(error: CoordinatorError, context: RequestContext) -> ErrorCode:
    """The error's code in a version that the client knows."""
    if error.code is ErrorCode.PRODUCER_FENCED and context.version < _SAYS_FENCED_FROM[ApiKey(context.key)]:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error.code
