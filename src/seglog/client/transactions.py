"""Transactions of a cluster over Kafka's protocol: what kafka-transactions asks and does (KIP-664)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

from seglog.client.cluster import ClusterAdmin
from seglog.client.cluster_connections import TRANSACTION
from seglog.client.connection import check_answer
from seglog.client.retries import Retries
from seglog.cluster.reassignment_plan import Place
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import RequestFailedError
from seglog.protocol.apis import ApiKey

_OPEN: Final = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort"})
_NO_START: Final = -1
_NONE: Final = -1
_FENCE_TIMEOUT_MS: Final = 1
"""The transaction timeout with which Kafka's clients fence a producer: nothing is to be written with the new epoch."""
_NOT_YET: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


class TransactionListing(NamedTuple):
    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


class TransactionDescription(NamedTuple):
    """``start_ms`` is -1 without a transaction; it is milliseconds since 1970."""

    transactional_id: str
    coordinator: int
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    start_ms: int
    partitions: tuple[Place, ...]


class ActiveProducer(NamedTuple):
    """A producer as the leader of a partition knows it. ``transaction_start`` is the first offset of its open
    transaction, None without one."""

    place: Place
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    last_sequence: int
    last_timestamp: int
    transaction_start: int | None


class TransactionAdmin(ClusterAdmin):
    """Use as a context manager, in one thread. `RequestFailedError` names the broker or transactional id."""

    def list_transactions(
        self,
        *,
        states: Sequence[str] = (),
        longer_than_ms: int = -1,
        pattern: str | None = None,
    ) -> list[TransactionListing]:
        """Those of all brokers that match every filter."""
        asked = {
            "state_filters": states,
            "duration_filter": longer_than_ms,
            "transactional_id_pattern": pattern,
        }
        found = []
        for node in sorted(self._brokers()):
            answer = self._at(self._address(node)).ask(ApiKey.LIST_TRANSACTIONS, asked)
            check_answer(answer.error_code, f"transactions of broker {node}")
            if answer.unknown_state_filters:
                raise RequestFailedError(f"{', '.join(answer.unknown_state_filters)}: no such state of a transaction")
            found += [
                TransactionListing(one.transactional_id, node, one.producer_id, one.transaction_state)
                for one in answer.transaction_states
            ]
        return found

    def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        coordinator = self._cluster.coordinator(TRANSACTION, transactional_id)
        answer = self._at(coordinator.address).ask(
            ApiKey.DESCRIBE_TRANSACTIONS, {"transactional_ids": (transactional_id,)}
        )
        (one,) = answer.transaction_states
        check_answer(one.error_code, f"transactional id {transactional_id}")
        return TransactionDescription(
            transactional_id,
            coordinator.node_id,
            one.producer_id,
            one.producer_epoch,
            one.transaction_state,
            one.transaction_timeout,
            one.transaction_start_time,
            tuple(sorted((topic.topic, number) for topic in one.topics for number in topic.partitions)),
        )

    def producers(self, places: Iterable[Place], broker: int | None = None) -> list[ActiveProducer]:
        """The producers of partitions, as their leaders know them, or ``broker``."""
        wanted = set(places)
        by_node: dict[int, dict[str, list[int]]] = {}
        for one in self._partitions(sorted({topic for topic, _ in wanted})):
            if one.place in wanted:
                wanted.discard(one.place)
                node = one.leader if broker is None else broker
                if node is None:
                    raise RequestFailedError(f"topic {one.topic}, partition {one.number} has no leader now")
                by_node.setdefault(node, {}).setdefault(one.topic, []).append(one.number)
        if wanted:
            topic, number = min(wanted)
            raise RequestFailedError(f"there is no partition {number} of topic {topic}")
        found = []
        for node, topics in sorted(by_node.items()):
            asked = [{"name": name, "partition_indexes": numbers} for name, numbers in sorted(topics.items())]
            answer = self._at(self._address(node)).ask(ApiKey.DESCRIBE_PRODUCERS, {"topics": asked})
            for topic in answer.topics:
                for partition in topic.partitions:
                    check_answer(partition.error_code, f"topic {topic.name}, partition {partition.partition_index}")
                    found += [
                        ActiveProducer(
                            (topic.name, partition.partition_index),
                            one.producer_id,
                            one.producer_epoch,
                            one.coordinator_epoch,
                            one.last_sequence,
                            one.last_timestamp,
                            None if one.current_txn_start_offset == _NO_START else one.current_txn_start_offset,
                        )
                        for one in partition.active_producers
                    ]
        return found

    def hanging(self, places: Iterable[Place], *, older_than_ms: int, now_ms: int) -> list[ActiveProducer]:
        """Open transactions whose producer was last heard of so long ago, and which no coordinator will end: it has no
        open transaction of this producer with this partition."""
        late = [
            one
            for one in self.producers(places)
            if one.transaction_start is not None and now_ms - one.last_timestamp > older_than_ms
        ]
        if not late:
            return []
        ids = {one.producer_id: one.transactional_id for one in self.list_transactions()}
        return [one for one in late if not self._is_coordinated(one, ids.get(one.producer_id))]

    def _is_coordinated(self, producer: ActiveProducer, transactional_id: str | None) -> bool:
        if transactional_id is None:
            return False
        found = self.describe_transaction(transactional_id)
        is_same = found.producer_id == producer.producer_id and found.state in _OPEN
        return is_same and producer.place in found.partitions

    def abort(self, producer: ActiveProducer) -> None:
        """Write the marker that ends the producer's hanging transaction in this partition. A transaction that a
        coordinator knows is refused: the marker would end it in this partition only."""
        topic, number = producer.place
        ids = {one.producer_id: one.transactional_id for one in self.list_transactions()}
        transactional_id = ids.get(producer.producer_id)
        if transactional_id is not None and self._is_coordinated(producer, transactional_id):
            raise RequestFailedError(
                f"topic {topic}, partition {number}: the transaction does not hang: transactional id "
                f"{transactional_id} has it open, and its coordinator will end it. Nothing was written. "
                f"seglog transactions force-terminate {transactional_id} aborts it in all of its partitions"
            )
        leaders = {one.place: one.leader for one in self._partitions([topic])}
        leader = leaders.get(producer.place)
        if leader is None:
            raise RequestFailedError(f"topic {topic}, partition {number} has no leader now")
        marker = {
            "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch,
            "coordinator_epoch": max(producer.coordinator_epoch, 0),
            "transaction_result": False,
            "topics": [{"name": topic, "partition_indexes": [number]}],
            "transaction_version": 0,
        }
        answer = self._at(self._address(leader)).ask(ApiKey.WRITE_TXN_MARKERS, {"markers": [marker]})
        for found in answer.markers[0].topics[0].partitions:
            check_answer(found.error_code, f"topic {topic}, partition {number}")

    def force_terminate(self, transactional_id: str) -> TransactionDescription:
        """Abort the open transaction of an id in all of its partitions, and fence its producer, as Kafka's
        ``Admin.forceTerminateTransaction``: InitProducerId. Return the transaction as it was before."""
        before = self.describe_transaction(transactional_id)
        request = {
            "transactional_id": transactional_id,
            "transaction_timeout": _FENCE_TIMEOUT_MS,
            "producer_id": _NONE,
            "producer_epoch": _NONE,
        }
        retries = Retries(self._cluster.config, self._cluster.config.timeout)
        while True:
            coordinator = self._cluster.coordinator(TRANSACTION, transactional_id)
            answer = self._at(coordinator.address).ask(ApiKey.INIT_PRODUCER_ID, request)
            if answer.error_code not in _NOT_YET:
                break
            retries.wait(f"the transaction of {transactional_id} is still being aborted", is_busy=True)
        check_answer(answer.error_code, f"transactional id {transactional_id}")
        return before

    def all_places(self, topics: Collection[str] | None, broker: int | None) -> list[Place]:
        """The partitions of topics, or of all, that have a leader; only those that ``broker`` leads."""
        return [
            one.place
            for one in self._partitions(topics)
            if one.leader is not None and (broker is None or one.leader == broker)
        ]
