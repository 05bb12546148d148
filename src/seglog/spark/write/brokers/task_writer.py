"""Encodes the rows of a task with the compiled loops, and produces them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from seglog.client.cluster_connections import ClusterConnections
from seglog.client.connection import describe_code
from seglog.client.produce.batch_producer import BatchProducer
from seglog.client.retries import ask_patiently
from seglog.core.clock import Clock
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import RequestFailedError, UnknownTopicError
from seglog.core.suggestions import did_you_mean
from seglog.core.types import MAX_INT32, NO_SEQUENCE, TopicPartition
from seglog.records.column_encoding import encode_columns
from seglog.records.compression import Codec
from seglog.spark.write.row_groups import RowGroups
from seglog.spark.write.write_options import BrokerOptions, WriteOptions

_AT_ONCE: Final = 1 << 20
"""Bytes of rows that are encoded before they are sent: the broker writes them while the next are encoded."""


def topic_partitions(cluster: ClusterConnections, topics: Sequence[str], *, patience: float) -> dict[str, int]:
    """The number of partitions of each topic. `UnknownTopicError` names one that does not exist.

    While no broker can be reached, it is asked for again, up to ``patience`` seconds.
    """
    found = {}
    for name, topic in ask_patiently(cluster.config, patience, lambda: cluster.metadata(topics)).topics.items():
        where = ",".join(map(str, cluster.config.bootstrap))
        if topic.error in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION):
            near = did_you_mean(name, cluster.metadata().topics, cutoff=0.7)
            raise UnknownTopicError(f"{where}: there is no topic {name!r}: create it first{near}")
        if topic.error not in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE):
            raise RequestFailedError(f"{where}: topic {name}: {describe_code(topic.error)}")
        found[name] = len(topic.partitions)
    return found


class BrokerTaskWriter:
    """For one task, in one thread. ``producer`` is the task's own."""

    def __init__(
        self,
        options: WriteOptions,
        brokers: BrokerOptions,
        cluster: ClusterConnections,
        producer: BatchProducer,
        *,
        clock: Clock,
        rng: np.random.Generator,
    ) -> None:
        self._options = options
        self._producer = producer
        self._clock = clock
        self._most = min(options.batch_size, max(brokers.client.max_request_size, 1))
        self._sequences: dict[TopicPartition, int] = {}
        self._groups = RowGroups(
            options.topic,
            lambda topics: topic_partitions(cluster, topics, patience=brokers.client.delivery_timeout),
            batch_size=self._most,
            buffer_bytes=options.buffer_bytes,
            rng=rng,
            ignore_keys=brokers.client.partitioner_ignore_keys,
        )

    def write(self, batches: Iterable[pa.RecordBatch]) -> int:
        """Produce all rows, and wait until they are acknowledged; their number.

        Raises the errors of `RowGroups.divide`, `encode_columns`, `topic_partitions` and `BatchProducer`.
        """
        for partition, rows in self._groups.divide(batches):
            pieces = max(1, rows.nbytes // _AT_ONCE)
            step = -(-rows.num_rows // pieces)
            for start in range(0, rows.num_rows, step):
                self._produce(partition, rows.slice(start, step))
        acknowledged = sum(self._producer.flush().values())
        if acknowledged != self._groups.rows:
            raise RequestFailedError(f"{acknowledged} of {self._groups.rows} records were acknowledged")
        return acknowledged

    def _produce(self, partition: TopicPartition, rows: pa.RecordBatch) -> None:
        identity = self._producer.identity
        sequence = self._sequences.get(partition, 0)
        data = encode_columns(
            rows,
            batch_bytes=self._most,
            default_timestamp=self._clock.now_ms(),
            codec=self._options.compression or Codec.NONE,
            level=self._options.level,
            producer_id=identity.producer.producer_id,
            producer_epoch=identity.producer.epoch,
            base_sequence=sequence if identity.is_idempotent else NO_SEQUENCE,
            transactional=identity.transactional_id is not None,
        )
        self._sequences[partition] = (sequence + rows.num_rows) & MAX_INT32
        self._producer.add(partition, data)
