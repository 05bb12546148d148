"""A task of the sink: its rows through brokers, idempotent, or in a transaction that the driver ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final

import numpy as np

from seglog.client.bootstrap import HostPort
from seglog.client.kept_connections import connections
from seglog.client.produce.batch_producer import BatchProducer, ProducerIdentity
from seglog.client.produce.group_mark import GroupMark
from seglog.client.produce.mark_topic import MarkTopic
from seglog.client.produce.transaction import Transaction, idempotent_producer
from seglog.core.clock import SystemClock
from seglog.core.errors import ProducerFencedError, RequestFailedError
from seglog.core.types import NO_PRODUCER_ID, ProducerIdAndEpoch, TopicPartition
from seglog.spark.write.brokers.batch_mark import (
    BatchMark,
    BatchMarkError,
    TaskTransaction,
    generation_for,
    is_decided,
    missing_before,
    read_mark,
)
from seglog.spark.write.brokers.names import SinkNames
from seglog.spark.write.brokers.process_ids import take
from seglog.spark.write.brokers.task_writer import BrokerTaskWriter
from seglog.spark.write.write_options import BrokerOptions, WriteOptions

if TYPE_CHECKING:
    import pyarrow as pa

NO_PRODUCER: Final = ProducerIdentity(ProducerIdAndEpoch(NO_PRODUCER_ID, -1))
PRODUCE: Final = "produce"
"""The lane of a task's producer; its other requests have connections of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchId:
    """A batch of a query or application, which a mark remembers; ``names.query`` says of which.

    ``consecutive``: a stream's, whose batches are 0, 1, 2 …
    """

    names: SinkNames
    batch: int
    run: str
    consecutive: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """A task's message to the driver. ``transaction`` is None if it has written nothing, or without transactions.

    ``decided``: the batch had been decided before.
    """

    records: int = 0
    transaction: TaskTransaction | None = None
    coordinator: HostPort | None = None
    generation: int = 0
    decided: bool = False


def mark_of(brokers: BrokerOptions, names: SinkNames) -> GroupMark:
    assert brokers.mark_topic is not None
    cluster = connections(brokers.client)
    versions = None if brokers.txn_topic is None else MarkTopic(cluster, brokers.txn_topic)
    place = TopicPartition(brokers.mark_topic, 0)
    return GroupMark(cluster, names.group, names.committer, place, topic=versions)


def write_idempotently(options: WriteOptions, batches: Iterable[pa.RecordBatch]) -> TaskResult:
    """Produce the rows; they are visible as they arrive."""
    brokers = _brokers(options)
    control = connections(brokers.client)
    identity = idempotent_producer(control) if brokers.client.enable_idempotence else NO_PRODUCER
    producer = BatchProducer(connections(brokers.client, PRODUCE), identity)
    try:
        return TaskResult(records=_writer(options, brokers, producer).write(batches))
    finally:
        producer.close()


def write_in_transaction(
    options: WriteOptions,
    batches: Iterable[pa.RecordBatch],
    *,
    task: int,
    job: str,
    names: SinkNames,
    id_: BatchId | None,
) -> TaskResult:
    """Produce the rows in a transaction and leave it open; the driver ends it. A task without rows has none.

    ``id_`` is None for a job that no mark remembers. `ProducerFencedError` names the timeout of transactions if that is
    the reason.
    """
    brokers = _brokers(options)
    generation, run = 0, job
    if id_ is not None:
        mark = read_mark(mark_of(brokers, names).read())
        if is_decided(mark, id_.batch, consecutive=id_.consecutive):
            return TaskResult(decided=True)
        check_before(mark, id_, brokers)
        generation, run = generation_for(mark, id_.run), id_.run
    filled = _filled(batches)
    first = next(filled, None)
    if first is None:
        return TaskResult(generation=generation)
    process = take(names, run, generation, job)
    transaction = Transaction(connections(brokers.client), names.task(generation, *process))
    clock = SystemClock()
    transaction.begin()
    since = clock.monotonic()
    producer = BatchProducer(connections(brokers.client, PRODUCE), transaction.identity, join=transaction.join)
    try:
        records = _writer(options, brokers, producer).write(chain((first,), filled))
    except BaseException as error:
        producer.close()
        elapsed = clock.monotonic() - since
        if isinstance(error, ProducerFencedError) and elapsed >= brokers.client.transaction_timeout:
            raise ProducerFencedError(
                f"the task has written for {elapsed:.0f} seconds. {timeout_hint(brokers)}: {error}"
            ) from error
        with suppress(RequestFailedError):
            transaction.abort()
        raise
    producer.close()
    return TaskResult(
        records=records,
        transaction=TaskTransaction(task, *process, transaction.handle.producer, transaction.handle.implicit, records),
        coordinator=transaction.coordinator,
        generation=generation,
    )


def timeout_hint(brokers: BrokerOptions) -> str:
    most = round(brokers.client.transaction_timeout * 1000)
    return (
        f"Brokers abort a transaction after kafka.transaction.timeout.ms={most}: use smaller batches, or raise it and "
        "transaction.max.timeout.ms of the brokers"
    )


def check_before(mark: BatchMark | None, id_: BatchId, brokers: BrokerOptions) -> str | None:
    """`BatchMarkError` if batches before this one may be missing, or with ``failOnDataLoss=false`` the warning."""
    problem = missing_before(mark, id_.batch) if id_.consecutive else None
    if problem is not None and brokers.fail_on_data_loss:
        raise BatchMarkError(problem)
    return problem


def _filled(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return (batch for batch in batches if batch.num_rows)


def _brokers(options: WriteOptions) -> BrokerOptions:
    assert options.brokers is not None
    return options.brokers


def _writer(options: WriteOptions, brokers: BrokerOptions, producer: BatchProducer) -> BrokerTaskWriter:
    return BrokerTaskWriter(
        options,
        brokers,
        connections(brokers.client),
        producer,
        clock=SystemClock(),
        rng=np.random.default_rng(),
    )
