"""A transaction of one producer, and the end of transactions that another process has begun (KIP-98, KIP-890).

With transaction version 2 the leader of a partition adds it to the transaction when the first batch arrives, and the
end of the transaction raises the producer's epoch. Without it the client adds partitions itself. Whoever ends a
transaction must use the version with which it was begun, so that is a part of `TransactionHandle`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from seglog.client.bootstrap import HostPort
from seglog.client.cluster_connections import GROUP, TRANSACTION, ClusterConnections
from seglog.client.connection import check_answer, describe_code
from seglog.client.produce.batch_producer import FENCED, ProducerIdentity
from seglog.client.produce.coordinator import BUSY, MOVED, CoordinatorRequests, may_move
from seglog.client.retries import Retries, ask_patiently
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import BrokerUnavailableError, InvalidConfigError, ProducerFencedError, RequestFailedError
from seglog.core.types import NO_PRODUCER_ID, ProducerIdAndEpoch, TopicPartition
from seglog.protocol.apis import ApiKey
from seglog.protocol.message_reader import Message

FEATURE: Final = "transaction.version"
IMPLICIT: Final = 2
"""From this level of the feature on leaders add partitions."""
_ADD_OF_CLIENTS: Final = 3
"""Newer versions of AddPartitionsToTxn are for brokers."""
_END_OF_VERSION_1: Final = 4
_OFFSETS_OF_VERSION_1: Final = 4
_OFFSETS_BY_NAME: Final = 5
"""Newer versions of TxnOffsetCommit name topics by their ids."""


class TransactionHandle(NamedTuple):
    """All that is needed to end a transaction from another process."""

    transactional_id: str
    producer: ProducerIdAndEpoch
    implicit: bool

    @property
    def named(self) -> dict[str, Any]:
        producer_id, epoch = self.producer
        return {"transactional_id": self.transactional_id, "producer_id": producer_id, "producer_epoch": epoch}


def idempotent_producer(cluster: ClusterConnections) -> ProducerIdentity:
    """A producer without transactions, new each time."""
    contents = {
        "transactional_id": None,
        "transaction_timeout": round(cluster.config.transaction_timeout * 1000),
        "producer_id": NO_PRODUCER_ID,
        "producer_epoch": -1,
    }
    patience = cluster.config.delivery_timeout
    retries = Retries(cluster.config, patience)

    def ask() -> Message:
        return cluster.ask_any(ApiKey.INIT_PRODUCER_ID, contents)

    while (answer := ask_patiently(cluster.config, patience, ask)).error_code in MOVED:
        retries.wait(f"producer id of an idempotent producer: {describe_code(answer.error_code)}")
    check_answer(answer.error_code, "producer id of an idempotent producer")
    return ProducerIdentity(ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch))


class Transaction:
    """A transaction that begins with the first batch or offset. For one thread.

    ``timeout``: seconds until the coordinator aborts it; by default ``transaction.timeout.ms``.

    `begin` ends what its transactional id has left open and fences every other user of the id. All methods raise
    `RequestFailedError`: `ProducerFencedError` if the transaction is over.
    """

    def __init__(self, cluster: ClusterConnections, transactional_id: str, *, timeout: float | None = None) -> None:
        self._cluster = cluster
        self._id = transactional_id
        self._timeout = cluster.config.transaction_timeout if timeout is None else timeout
        self._requests = CoordinatorRequests(
            cluster, TRANSACTION, transactional_id, patience=cluster.config.delivery_timeout
        )
        self._handle: TransactionHandle | None = None

    @property
    def handle(self) -> TransactionHandle:
        assert self._handle is not None, "begin() comes first"
        return self._handle

    @property
    def identity(self) -> ProducerIdentity:
        return ProducerIdentity(self.handle.producer, self._id, self.handle.implicit)

    @property
    def coordinator(self) -> HostPort:
        return self._requests.locate()

    def begin(self) -> None:
        timeout = round(self._timeout * 1000)
        contents = {
            "transactional_id": self._id,
            "transaction_timeout": timeout,
            "producer_id": NO_PRODUCER_ID,
            "producer_epoch": -1,
        }
        answer = self._requests.ask(ApiKey.INIT_PRODUCER_ID, contents)
        if answer.error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT:
            raise InvalidConfigError(
                f"transaction.timeout.ms={timeout} is above transaction.max.timeout.ms of broker {self.coordinator}: "
                "lower the one, or raise the other"
            )
        self._check({answer.error_code}, "InitProducerId")
        config = self._cluster.config
        level = ask_patiently(config, config.delivery_timeout, self._feature_level)
        producer = ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)
        self._handle = TransactionHandle(self._id, producer, level >= IMPLICIT)

    def _feature_level(self) -> int:
        try:
            return self._cluster.at(self.coordinator).feature(FEATURE)
        except BrokerUnavailableError:
            self._cluster.forget(self.coordinator)
            raise

    def join(self, partitions: Collection[TopicPartition]) -> None:
        """Add partitions, before the first batch for them; nothing to do if leaders add them."""
        handle = self.handle
        if handle.implicit:
            return
        topics: dict[str, list[int]] = {}
        for topic, number in sorted(partitions):
            topics.setdefault(topic, []).append(number)
        contents = {
            "v3_and_below_transactional_id": self._id,
            "v3_and_below_producer_id": handle.producer.producer_id,
            "v3_and_below_producer_epoch": handle.producer.epoch,
            "v3_and_below_topics": [{"name": name, "partitions": numbers} for name, numbers in topics.items()],
        }
        answer = self._requests.ask(
            ApiKey.ADD_PARTITIONS_TO_TXN, contents, codes=_partition_codes, most=_ADD_OF_CLIENTS
        )
        self._check(_partition_codes(answer), "AddPartitionsToTxn")

    def commit_offset(self, group: str, partition: TopicPartition, offset: int, metadata: str) -> None:
        """An offset of a group, visible with the transaction's records."""
        handle = self.handle
        if not handle.implicit:
            answer = self._requests.ask(ApiKey.ADD_OFFSETS_TO_TXN, {**handle.named, "group_id": group})
            self._check({answer.error_code}, f"AddOffsetsToTxn of group {group}")
        one = {
            "partition_index": partition.partition,
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": metadata,
        }
        contents = {
            **handle.named,
            "group_id": group,
            "generation_id": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": [{"name": partition.topic, "partitions": [one]}],
        }
        requests = CoordinatorRequests(self._cluster, GROUP, group, patience=self._cluster.config.delivery_timeout)
        answer = requests.ask(
            ApiKey.TXN_OFFSET_COMMIT,
            contents,
            codes=_offset_codes,
            most=_OFFSETS_BY_NAME if handle.implicit else _OFFSETS_OF_VERSION_1,
        )
        self._check(_offset_codes(answer), f"TxnOffsetCommit of group {group} for {partition}")

    def commit(self) -> None:
        known = {self._id: self.coordinator}
        for reason in end_transactions(self._cluster, [self.handle], commit=True, coordinators=known).values():
            raise ProducerFencedError(reason)

    def abort(self) -> None:
        """End the transaction and fence what may still be under way: a later batch of this epoch is refused."""
        self.begin()

    def _check(self, codes: set[int], what: str) -> None:
        bad = sorted(codes - {ErrorCode.NONE})
        if bad:
            text = f"transactional id {self._id}: {what}: {', '.join(describe_code(code) or '' for code in bad)}"
            raise (ProducerFencedError if set(bad) & FENCED else RequestFailedError)(text)


def end_transactions(
    cluster: ClusterConnections,
    transactions: Sequence[TransactionHandle],
    *,
    commit: bool,
    coordinators: Mapping[str, HostPort] | None = None,
) -> dict[TransactionHandle, str]:
    """End them all, many requests at a time. To end one again in the same way changes nothing.

    ``coordinators`` by transactional id, where they are known. When it returns, each end is decided and durable, and
    readers see it milliseconds later. It returns those that had been ended otherwise before, with the reasons.
    """
    left = list(transactions)
    known = dict(coordinators or {})
    refused: dict[TransactionHandle, str] = {}
    retries = Retries(cluster.config, cluster.config.delivery_timeout)
    while left:
        again: list[TransactionHandle] = []
        is_busy = True
        for handle, outcome in _end_each(cluster, left, known, commit=commit):
            if outcome == ErrorCode.NONE:
                continue
            reason = outcome if isinstance(outcome, str) else describe_code(outcome)
            text = f"transactional id {handle.transactional_id}: EndTxn: {reason}"
            if not isinstance(outcome, str) and outcome not in MOVED | BUSY:
                refused[handle] = text
                continue
            again.append(handle)
            if outcome not in BUSY:
                known.pop(handle.transactional_id, None)
                is_busy = False
            problem = text
        left = again
        if left:
            retries.wait(problem, is_busy=is_busy)
    return refused


def _end_each(
    cluster: ClusterConnections,
    transactions: Iterable[TransactionHandle],
    known: dict[str, HostPort],
    *,
    commit: bool,
) -> Iterator[tuple[TransactionHandle, int | str]]:
    """Ask for each end once; the code of the answer, or the reason why there is none."""
    by_address, homeless = _by_coordinator(cluster, transactions, known)
    yield from homeless.items()
    for address, handles in by_address.items():
        answered = 0
        try:
            connection = cluster.at(address)
            for handle in handles:
                most = None if handle.implicit else _END_OF_VERSION_1
                connection.send(ApiKey.END_TXN, {**handle.named, "committed": commit}, most=most)
            for handle in handles:
                code = connection.receive().error_code
                answered += 1
                yield handle, code
        except BrokerUnavailableError as error:
            for handle in handles[answered:]:
                yield handle, str(error)
        finally:
            if answered < len(handles):
                cluster.forget(address)


def _by_coordinator(
    cluster: ClusterConnections, transactions: Iterable[TransactionHandle], known: dict[str, HostPort]
) -> tuple[dict[HostPort, list[TransactionHandle]], dict[TransactionHandle, str]]:
    """The transactions of each coordinator, and the reasons why others have none now. ``known`` gets those found."""
    by_address: dict[HostPort, list[TransactionHandle]] = {}
    homeless = {}
    for handle in transactions:
        try:
            address = known.get(handle.transactional_id)
            if address is None:
                address = cluster.coordinator(TRANSACTION, handle.transactional_id).address
                known[handle.transactional_id] = address
            by_address.setdefault(address, []).append(handle)
        except RequestFailedError as error:
            if not error.retriable and not may_move(str(error)):
                raise
            homeless[handle] = str(error)
    return by_address, homeless


def _partition_codes(answer: Message) -> set[int]:
    return {
        one.partition_error_code for topic in answer.results_by_topic_v3_and_below for one in topic.results_by_partition
    }


def _offset_codes(answer: Message) -> set[int]:
    return {one.error_code for topic in answer.topics for one in topic.partitions}


def open_transactions(cluster: ClusterConnections, prefix: str) -> list[TransactionHandle]:
    """The transactions that are open now, of the transactional ids that begin with ``prefix``.

    Empty if brokers do not tell (before Kafka 3.0). `RequestFailedError` if one does not answer.
    """
    found: list[TransactionHandle] = []
    asked = {"state_filters": ("Ongoing",), "producer_id_filters": (), "duration_filter": -1}
    for address in cluster.metadata(()).brokers.values():
        connection = cluster.at(address)
        if not connection.has(ApiKey.LIST_TRANSACTIONS) or not connection.has(ApiKey.DESCRIBE_TRANSACTIONS):
            continue
        answer = cluster.ask_at(address, ApiKey.LIST_TRANSACTIONS, {**asked, "transactional_id_pattern": None})
        check_answer(answer.error_code, f"{address}: ListTransactions")
        names = [one.transactional_id for one in answer.transaction_states if one.transactional_id.startswith(prefix)]
        if not names:
            continue
        implicit = connection.feature(FEATURE) >= IMPLICIT
        for one in cluster.ask_at(
            address, ApiKey.DESCRIBE_TRANSACTIONS, {"transactional_ids": names}
        ).transaction_states:
            if not one.error_code and one.transaction_state == "Ongoing":
                producer = ProducerIdAndEpoch(one.producer_id, one.producer_epoch)
                found.append(TransactionHandle(one.transactional_id, producer, implicit))
    return found


def endangered_transactions(
    cluster: ClusterConnections,
    transactions: Sequence[TransactionHandle],
    coordinators: Mapping[str, HostPort],
    *,
    now_ms: int,
    margin_ms: int,
) -> dict[TransactionHandle, str]:
    """Those that are not open any more, or that time out within ``margin_ms``, with the reasons.

    Empty if brokers do not tell (before Kafka 3.0). The time is the caller's; it may differ from the brokers'. A
    coordinator that moves or dies is waited for.
    """
    found: dict[TransactionHandle, str] = {}
    known = dict(coordinators)
    retries = Retries(cluster.config, cluster.config.delivery_timeout)
    left = list(transactions)
    while left:
        by_address, again = _by_coordinator(cluster, left, known)
        for address, handles in by_address.items():
            try:
                described = _describe(cluster, address, handles)
            except BrokerUnavailableError as error:
                again |= dict.fromkeys(handles, str(error))
                continue
            for handle, one in described.items():
                time_left = one.transaction_start_time + one.transaction_timeout - now_ms
                if one.error_code in MOVED:
                    again[handle] = f"transactional id {handle.transactional_id}: {describe_code(one.error_code)}"
                elif one.error_code:
                    found[handle] = describe_code(one.error_code) or ""
                elif one.transaction_state != "Ongoing" or (one.producer_id, one.producer_epoch) != handle.producer:
                    found[handle] = f"its state is {one.transaction_state}"
                elif time_left < margin_ms:
                    found[handle] = f"it times out in {time_left} ms"
        left = list(again)
        for handle in left:
            known.pop(handle.transactional_id, None)
        if left:
            retries.wait(again[left[0]])
    return found


def _describe(
    cluster: ClusterConnections, address: HostPort, transactions: Sequence[TransactionHandle]
) -> dict[TransactionHandle, Message]:
    """The coordinator's descriptions; empty if it cannot describe any."""
    if not cluster.at(address).has(ApiKey.DESCRIBE_TRANSACTIONS):
        return {}
    by_name = {handle.transactional_id: handle for handle in transactions}
    answer = cluster.ask_at(address, ApiKey.DESCRIBE_TRANSACTIONS, {"transactional_ids": list(by_name)})
    return {by_name[one.transactional_id]: one for one in answer.transaction_states}
