"""A compacted topic that remembers marks longer than brokers keep offsets of groups.

A mark is a record: its key is the name of the mark's group. It is written in the transaction that sets the group's
offset, so both say the same. Brokers delete the offset when it has not changed for ``offsets.retention.minutes``;
compaction keeps the newest record of each key.
"""

from __future__ import annotations

from typing import Final

from seglog.client.cluster_connections import ClusterConnections, TopicMetadata
from seglog.client.connection import describe_code
from seglog.client.leader_offsets import EARLIEST, LATEST, list_offsets
from seglog.client.produce.batch_producer import BatchProducer
from seglog.client.produce.mark_value import MarkValue
from seglog.client.produce.transaction import Transaction
from seglog.client.range_fetcher import FetchTarget, RangeFetcher, readable_batches
from seglog.client.retries import Retries, ask_patiently
from seglog.client.topics import create_topic, topic_config
from seglog.core.clock import SystemClock
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import CorruptError, InvalidConfigError, RequestFailedError
from seglog.core.types import TopicPartition
from seglog.records import any_magic
from seglog.records.compression import Codec
from seglog.records.record import NewRecord, encode_batch

_POLICY: Final = "cleanup.policy"
_COMPACT: Final = "compact"
CONFIG: Final = {_POLICY: _COMPACT, "segment.bytes": str(16 << 20)}
"""How the topic is created. Only closed segments are compacted, so they are small."""
_UNKNOWN_SIZE: Final = 1 << 30


class MarkTopic:
    """Partition 0 of the topic ``name``. For one thread; ``cluster`` is not used by others during a call.

    All methods raise `RequestFailedError`.
    """

    def __init__(self, cluster: ClusterConnections, name: str) -> None:
        self._cluster = cluster
        self._partition = TopicPartition(name, 0)

    def prepare(self) -> None:
        """Create the topic if it does not exist. `InvalidConfigError` if it exists and would forget marks;
        `RequestFailedError` if it cannot be created, or may not be read and written."""
        name = self._partition.topic
        config = self._cluster.config
        error = ask_patiently(config, config.delivery_timeout, self._describe).error
        if error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            try:
                create_topic(self._cluster, name, 1, CONFIG)
            except RequestFailedError as refusal:
                raise RequestFailedError(
                    f"{refusal}: the topic of versions cannot be created. Create {name} with {_POLICY}={_COMPACT}, or "
                    "name another one that exists (txnTopic)"
                ) from refusal
        elif error not in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE):
            raise RequestFailedError(
                f"topic {name}: {describe_code(error)}: the topic of versions (txnTopic) must be open to this user for "
                "READ, WRITE and DESCRIBE"
            )
        policy = ask_patiently(config, config.delivery_timeout, self._policy)
        if policy != _COMPACT:
            raise InvalidConfigError(
                f"topic {name} has {_POLICY}={policy}, so it would forget which versions are written: it must be "
                f"{_COMPACT}"
            )

    def write(self, transaction: Transaction, key: str, value: MarkValue) -> None:
        """Make ``value`` the mark of ``key`` when the transaction commits. Once in a transaction."""
        identity = transaction.identity
        record = NewRecord(value.to_bytes(), key.encode(), SystemClock().now_ms())
        batch = encode_batch(
            [record],
            codec=Codec.GZIP,
            producer_id=identity.producer.producer_id,
            producer_epoch=identity.producer.epoch,
            base_sequence=0,
            transactional=True,
        )
        producer = BatchProducer(self._cluster, identity, join=transaction.join)
        try:
            producer.add(self._partition, batch)
            producer.flush()
        finally:
            producer.close()

    def read(self, key: str) -> MarkValue | None:
        """The committed mark of ``key``; None if there is none.

        A transaction that is open in the topic is waited for, because marks after it are not stable yet.
        """
        first, end = self._stable_range()
        target = FetchTarget(self._partition, self._describe().topic_id, first, end, _UNKNOWN_SIZE)
        patience = self._cluster.config.delivery_timeout
        fetcher = RangeFetcher(self._cluster, [target], read_committed=True, patience=patience, lose=self._lose)
        wanted, newest = key.encode(), None
        try:
            for fetched in fetcher:
                upto = fetched.position
                for header, entry in readable_batches(fetched):
                    upto = header.next_offset
                    for record in () if entry is None else any_magic.decode(fetched.records, entry):
                        newest = record.value if record.key == wanted else newest
                fetcher.advance(fetched, upto)
        except CorruptError as error:
            raise RequestFailedError(f"{self._partition}: {error}") from error
        return None if newest is None else MarkValue.from_bytes(newest)

    def _policy(self) -> str:
        """The topic's cleanup policy; the right one if it may not be described."""
        return topic_config(self._cluster, [self._partition.topic], _POLICY).get(self._partition.topic, _COMPACT)

    def _describe(self) -> TopicMetadata:
        return self._cluster.metadata([self._partition.topic]).topics[self._partition.topic]

    def _stable_range(self) -> tuple[int, int]:
        """From the log start to the high watermark, once no transaction is open below it."""
        retries = Retries(self._cluster.config, self._cluster.config.delivery_timeout)
        end = self._offset(LATEST)
        while (stable := self._offset(LATEST, read_committed=True)) < end:
            retries.wait(f"{self._partition}: the transaction at offset {stable} stays open", is_busy=True)
        return self._offset(EARLIEST), end

    def _offset(self, which: int, *, read_committed: bool = False) -> int:
        return list_offsets(self._cluster, {self._partition: which}, read_committed=read_committed)[self._partition]

    def _lose(self, what: str) -> None:
        raise RequestFailedError(f"marks may be lost: {what}")
