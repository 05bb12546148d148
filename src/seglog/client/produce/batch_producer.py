"""Sends ready record batches to the leaders of their partitions (``Sender.java``, ``RecordAccumulator.java``).

Several requests to each broker are under way. A request has at most one batch of a partition, as brokers demand. The
batches of a partition arrive in their order, and with a producer id each of them once, whatever is retried.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from struct import Struct
from typing import Any, Final, NamedTuple

from seglog.client.bootstrap import HostPort
from seglog.client.cluster_connections import ClusterConnections, ClusterMetadata
from seglog.client.connection import describe_code
from seglog.client.leader_offsets import MOVED
from seglog.client.produce.partition_queue import PartitionQueue, QueuedBatch
from seglog.core.clock import SystemClock
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import (
    BrokerUnavailableError,
    InvalidRecordError,
    ProducerFencedError,
    RecordTooLargeError,
    RequestFailedError,
)
from seglog.core.types import NO_PRODUCER_ID, Buffer, ProducerIdAndEpoch, TopicPartition
from seglog.protocol.apis import ApiKey
from seglog.protocol.message_reader import Message
from seglog.records.batch import read_header
from seglog.records.record import NewRecord, decode_records, encode_batch

HELD_BYTES: Final = 32 << 20
"""Bytes that may wait for their acknowledgement before `BatchProducer.add` blocks, as Java's ``buffer.memory``."""
_IMPLICIT_FROM: Final = 12
"""From this version of Produce on the leader adds the partition to the transaction (KIP-890)."""
_OFFSET: Final = Struct(">q")

_RETRIABLE: Final = MOVED | {
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
}
_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
FENCED: Final = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    }
)
"""The producer's transaction is over: by its timeout, or since another producer has its transactional id."""


class ProducerIdentity(NamedTuple):
    """A producer as its requests and batches name it; without idempotence ``producer`` has id -1.

    ``implicit``: brokers add partitions to the transaction by themselves (transaction version 2).
    """

    producer: ProducerIdAndEpoch
    transactional_id: str | None = None
    implicit: bool = False

    @property
    def is_idempotent(self) -> bool:
        return self.producer.producer_id != NO_PRODUCER_ID


class _Request(NamedTuple):
    address: HostPort
    batches: tuple[tuple[TopicPartition, QueuedBatch], ...]


class _Trouble(NamedTuple):
    """Why a partition's last try failed, how many did in a row, and when the next one is."""

    reason: str
    failures: int
    retry_at: float


class BatchProducer:
    """For one thread. `flush` waits for all acknowledgements; `close` in any case.

    ``cluster`` is for this producer only as long as it is open. ``join`` is called with partitions before the first
    batch for them is sent. The memory is bounded by `HELD_BYTES` and the batches of one `add`.

    Every method raises `RequestFailedError` if a batch is refused, or not acknowledged within ``delivery.timeout.ms``:
    `ProducerFencedError` if the producer may not write any more, `RecordTooLargeError`, `InvalidRecordError`. All name
    partition, broker and reason. After that the producer must be closed.
    """

    def __init__(
        self,
        cluster: ClusterConnections,
        identity: ProducerIdentity,
        *,
        join: Callable[[Collection[TopicPartition]], None] | None = None,
    ) -> None:
        self.identity = identity
        self._cluster = cluster
        self._config = cluster.config
        self._join = join
        self._joined: set[TopicPartition] = set()
        self._clock = SystemClock()
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._held = 0
        self._requests: deque[_Request] = deque()
        """Under way, oldest first."""
        self._under_way: dict[HostPort, int] = {}
        self._not_before: dict[HostPort, float] = {}
        """Until when a broker has asked for quiet (KIP-219)."""
        self._metadata: ClusterMetadata | None = None
        self._is_stale = True
        self._trouble: dict[TopicPartition, _Trouble] = {}
        self._names: dict[object, str] = {}

    def add(self, partition: TopicPartition, data: Buffer) -> None:
        """Send one or more whole batches, one after the other in ``data``; returns before they are acknowledged.

        ``data`` must not change afterwards. If it is writable, its batches get base offset 0, as a client sends it.
        """
        queue = self._queues.setdefault(partition, PartitionQueue())
        now = self._clock.monotonic()
        for batch, records in _batches(data):
            if len(batch) > self._config.max_request_size and records == 1:
                raise RecordTooLargeError(
                    f"{partition}: a record of {len(batch)} bytes is above max.request.size="
                    f"{self._config.max_request_size}"
                )
            self._enqueue(queue, batch, records, now)
        self._send()
        while self._held > HELD_BYTES:
            self._wait()

    def flush(self) -> dict[TopicPartition, int]:
        """Wait until all is acknowledged; the records of each partition."""
        while self._held:
            self._wait()
        return {partition: queue.acknowledged for partition, queue in self._queues.items()}

    def close(self) -> None:
        """Give up what is not acknowledged. Connections with open answers are closed: they cannot be used again."""
        for address in {request.address for request in self._requests}:
            self._cluster.forget(address)
        self._requests.clear()
        self._under_way.clear()
        self._queues.clear()
        self._held = 0

    def _enqueue(self, queue: PartitionQueue, batch: Buffer, records: int, since: float) -> None:
        queue.add(QueuedBatch(batch, records, since))
        self._held += len(batch)

    # Requests

    def _send(self) -> None:
        """Send all that brokers take now, without waiting; take the answers that are there."""
        while self._requests and self._cluster.at(self._requests[0].address).has_answer():
            self._receive()
        for address, partitions in self._waiting().items():
            while self._may_send(address) and (chosen := self._choose(partitions)):
                self._request(address, chosen)

    def _waiting(self) -> dict[HostPort, list[TopicPartition]]:
        """The partitions that have batches to send, by the address of their leader."""
        now = self._clock.monotonic()
        waiting = [
            partition
            for partition, queue in self._queues.items()
            if queue.next_batch() is not None and not self._is_pausing(partition, now)
        ]
        if not waiting:
            return {}
        try:
            metadata = self._look_up(waiting)
        except BrokerUnavailableError as error:
            for partition in waiting:
                self._retry_later(partition, str(error))
            return {}
        found: dict[HostPort, list[TopicPartition]] = {}
        for partition in waiting:
            leader = metadata.leader(partition)
            address = None if leader is None else metadata.brokers.get(leader.leader)
            if address is not None:
                found.setdefault(address, []).append(partition)
                continue
            topic = metadata.topics.get(partition.topic)
            code = leader.error if leader is not None else topic.error if topic is not None else 0
            self._fail_if_hopeless(partition, code)
            self._retry_later(partition, describe_code(code) or "the partition has no leader")
        return found

    def _is_pausing(self, partition: TopicPartition, now: float) -> bool:
        trouble = self._trouble.get(partition)
        return trouble is not None and trouble.retry_at > now

    def _look_up(self, partitions: Iterable[TopicPartition]) -> ClusterMetadata:
        known = self._metadata
        topics = {partition.topic for partition in partitions}
        if known is None or self._is_stale or not topics <= known.topics.keys():
            topics |= {partition.topic for partition in self._queues}
            known = self._metadata = self._cluster.metadata(topics)
            self._names = {topic.topic_id: topic.name for topic in known.topics.values()}
            self._is_stale = False
        return known

    def _may_send(self, address: HostPort) -> bool:
        busy = self._under_way.get(address, 0) >= self._config.max_in_flight_requests_per_connection
        return not busy and self._not_before.get(address, 0.0) <= self._clock.monotonic()

    def _choose(self, partitions: Iterable[TopicPartition]) -> list[tuple[TopicPartition, QueuedBatch]]:
        """A batch of each partition that has one, as far as they fit into a request."""
        chosen: list[tuple[TopicPartition, QueuedBatch]] = []
        left = self._config.max_request_size
        for partition in partitions:
            batch = self._queues[partition].next_batch()
            is_waiting = self._is_pausing(partition, self._clock.monotonic())
            if batch is None or is_waiting or (chosen and len(batch.data) > left):
                continue
            chosen.append((partition, batch))
            left -= len(batch.data)
        return chosen

    def _request(self, address: HostPort, chosen: list[tuple[TopicPartition, QueuedBatch]]) -> None:
        new = {partition for partition, _ in chosen} - self._joined
        if new:
            if self._join is not None:
                self._join(new)
            self._joined |= new
        topics: dict[str, list[Mapping[str, Any]]] = {}
        for partition, batch in chosen:
            one = {"index": partition.partition, "records": batch.data}
            topics.setdefault(partition.topic, []).append(one)
        assert self._metadata is not None
        contents = {
            "transactional_id": self.identity.transactional_id,
            "acks": self._config.acks,
            "timeout": round(self._config.timeout * 1000),
            "topic_data": [
                {"name": name, "topic_id": self._metadata.topics[name].topic_id, "partition_data": partitions}
                for name, partitions in topics.items()
            ],
        }
        try:
            connection = self._cluster.at(address)
            connection.send(ApiKey.PRODUCE, contents, most=self._newest_version())
        except BrokerUnavailableError as error:
            for partition, batch in chosen:  # in case the broker has received it
                self._queues[partition].send(batch)
            self._lose(address, _Request(address, tuple(chosen)), error)
            return
        for partition, batch in chosen:
            self._queues[partition].send(batch)
        self._requests.append(_Request(address, tuple(chosen)))
        self._under_way[address] = self._under_way.get(address, 0) + 1

    def _newest_version(self) -> int | None:
        """Below the versions that mean transaction version 2 if that is not what the transaction has."""
        is_old = self.identity.transactional_id is not None and not self.identity.implicit
        assert self._metadata is not None
        has_ids = all(topic.topic_id is not None for topic in self._metadata.topics.values())
        return _IMPLICIT_FROM - 1 if is_old else None if has_ids else _IMPLICIT_FROM

    # Answers

    def _wait(self) -> None:
        """Wait for the oldest answer, or for the time of the next try; then send."""
        self._check_age()
        if self._requests:
            self._receive()
        else:
            now = self._clock.monotonic()
            times = (*(one.retry_at for one in self._trouble.values()), *self._not_before.values())
            waits = [until - now for until in times if until > now]
            if waits:
                self._clock.sleep(min(waits))
        self._send()

    def _receive(self) -> None:
        request = self._requests.popleft()
        try:
            answer = self._cluster.at(request.address).receive()
        except BrokerUnavailableError as error:
            self._lose(request.address, request, error)
            return
        self._under_way[request.address] -= 1
        if answer.throttle_time > 0:
            self._not_before[request.address] = self._clock.monotonic() + answer.throttle_time / 1000
        batches = dict(request.batches)
        for partition, one in self._partitions(answer):
            batch = batches.pop(partition, None)
            if batch is not None:
                self._answered(partition, batch, one, request.address)
        for partition, batch in batches.items():
            self._queues[partition].retry(batch)
            self._retry_later(partition, f"broker {request.address}: its answer lacks the partition")

    def _partitions(self, answer: Message) -> Iterator[tuple[TopicPartition, Message]]:
        for topic in answer.responses:
            name = getattr(topic, "name", None) or self._names.get(topic.topic_id, "")
            for one in topic.partition_responses:
                yield TopicPartition(name, one.index), one

    def _lose(self, address: HostPort, request: _Request, error: BrokerUnavailableError) -> None:
        """A connection has failed: whether its requests were carried out is unknown."""
        lost = [request, *(one for one in self._requests if one.address == address)]
        self._requests = deque(one for one in self._requests if one.address != address)
        self._under_way.pop(address, None)
        self._cluster.forget(address)
        for one in lost:
            for partition, batch in one.batches:
                self._queues[partition].retry(batch)
                self._retry_later(partition, str(error))

    def _answered(self, partition: TopicPartition, batch: QueuedBatch, answer: Message, address: HostPort) -> None:
        queue, code = self._queues[partition], answer.error_code
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            queue.acknowledge(batch)
            self._held -= len(batch.data)
            self._trouble.pop(partition, None)
            return
        reason = f"broker {address}: {describe_code(code)}{_details(answer)}"
        if code in _TOO_LARGE and batch.records > 1:
            queue.replace(batch, parts := _halves(batch))
            self._held += sum(len(part.data) for part in parts) - len(batch.data)
            return
        is_behind = code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and not queue.is_oldest(batch)
        if code in _RETRIABLE or is_behind:
            queue.retry(batch)
            self._retry_later(partition, reason)
            return
        self._fail_if_hopeless(partition, code, reason)
        raise RequestFailedError(f"{partition}: {reason}")

    def _fail_if_hopeless(self, partition: TopicPartition, code: int, reason: str | None = None) -> None:
        if not code or code in _RETRIABLE:
            return
        text = f"{partition}: {reason or describe_code(code)}"
        if code in FENCED:
            raise ProducerFencedError(text)
        if code in _TOO_LARGE:
            raise RecordTooLargeError(f"{text}: the topic's max.message.bytes is smaller than a record")
        if code == ErrorCode.INVALID_RECORD:
            raise InvalidRecordError(text)
        raise RequestFailedError(text)

    def _retry_later(self, partition: TopicPartition, reason: str) -> None:
        """The leader is looked up again, after a pause that grows with each failure in a row."""
        now, before = self._clock.monotonic(), self._trouble.get(partition)
        self._is_stale = True
        if before is not None and before.retry_at > now:
            return
        failures = 0 if before is None else before.failures + 1
        pause = min(self._config.retry_backoff * 2 ** min(failures, 16), self._config.retry_backoff_max)
        self._trouble[partition] = _Trouble(reason, failures, now + pause)

    def _check_age(self) -> None:
        """Raise if a batch has met trouble for too long."""
        now, most = self._clock.monotonic(), self._config.delivery_timeout
        for partition, trouble in self._trouble.items():
            queue = self._queues[partition]
            if queue and now - queue.oldest.since > most:
                raise RequestFailedError(
                    f"{partition}: not written within delivery.timeout.ms={most * 1000:.0f}: {trouble.reason}"
                )


def _batches(data: Buffer) -> Iterator[tuple[memoryview, int]]:
    """Each batch with base offset 0, and its number of records. Writable data is not copied."""
    view = memoryview(data)
    if view.readonly:
        view = memoryview(bytearray(view))
    position = 0
    while position < len(view):
        header = read_header(view, position)
        end = position + header.size
        _OFFSET.pack_into(view, position, 0)
        yield view[position:end], header.records_count
        position = end


def _halves(batch: QueuedBatch) -> list[QueuedBatch]:
    """The records of a batch in two, with the same sequences."""
    header = read_header(batch.data)
    records = decode_records(batch.data, header)
    middle = len(records) // 2
    found = []
    for start, part in ((0, records[:middle]), (middle, records[middle:])):
        data = encode_batch(
            [NewRecord(one.value, one.key, one.timestamp, one.headers) for one in part],
            codec=header.codec,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence if header.base_sequence < 0 else header.base_sequence + start,
            transactional=header.is_transactional,
        )
        found.append(QueuedBatch(bytes(data), len(part), batch.since))
    return found


def _details(answer: Message) -> str:
    """The broker's words, and about which records (KIP-467)."""
    parts = [answer.error_message] if answer.error_message else []
    parts += [f"record {one.batch_index}: {one.batch_index_error_message}" for one in answer.record_errors[:3]]
    return f": {'; '.join(parts)}" if parts else ""
