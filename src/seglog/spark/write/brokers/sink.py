"""The sinks through brokers, as Spark calls them.

The writer in a stream's commit is another object than the one in its tasks, and knows neither query nor batch: all that
it needs is in the messages of the tasks. Making a writer only checks: it changes nothing at the brokers, but that it
creates the topic of versions.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from seglog.client.kept_connections import connections
from seglog.client.produce.mark_topic import MarkTopic
from seglog.core.errors import InvalidConfigError
from seglog.spark.runtime.error_sentences import ErrorSentences
from seglog.spark.runtime.processes import freeze_imports
from seglog.spark.write.brokers.commit import JobCommit
from seglog.spark.write.brokers.names import SinkNames
from seglog.spark.write.brokers.task import BatchId, TaskResult, write_idempotently, write_in_transaction
from seglog.spark.write.brokers.task_writer import topic_partitions
from seglog.spark.write.checked_frame import BATCH_ID, QUERY_ID, check_all_known, check_frame
from seglog.spark.write.write_options import WriteOptions
from seglog.values.batch_encoder import BatchEncoder

RUN_ID: Final = "spark.jobGroup.id"
"""The local property that has the id of a stream's run (``StreamExecution.scala``)."""


@dataclass(frozen=True, kw_only=True)
class BrokerTaskCommit(WriterCommitMessage):
    """A task's message to the commit. ``id_`` is None for a batch job without an application."""

    job: str
    id_: BatchId | None
    result: TaskResult


class _BrokerSink:
    """The common part of both. It is sent to the workers, so it has plain values only."""

    def __init__(self, schema: StructType, options: Mapping[str, str], *, overwrite: bool, stream: bool) -> None:
        frame = check_frame(schema, options, overwrite=overwrite, stream=stream)
        assert frame.options.brokers is not None
        self._frame = frame
        self._brokers = frame.options.brokers
        self._job = uuid.uuid4().hex
        topics = {frame.options.topic, self._brokers.mark_topic if self._brokers.exactly_once else None}
        named = sorted(name for name in topics if name is not None)
        # Spark makes the writer of a stream for each micro-batch, which must survive a broker that starts again.
        patience = self._brokers.client.delivery_timeout if stream else 0
        cluster = connections(self._brokers.client)
        topic_partitions(cluster, named, patience=patience)
        if self._brokers.txn_topic is not None:
            MarkTopic(cluster, self._brokers.txn_topic).prepare()

    @property
    def _options(self) -> WriteOptions:
        return self._frame.options

    def _write(self, batches: Iterator[Any], task: int, id_: BatchId | None) -> BrokerTaskCommit:
        encoded = BatchEncoder(self._frame.formats).encode_all(batches)
        if self._brokers.exactly_once:
            names = self._names(id_, self._job)
            result = write_in_transaction(self._options, encoded, task=task, job=self._job, names=names, id_=id_)
        else:
            result = write_idempotently(self._options, encoded)
        freeze_imports()
        return BrokerTaskCommit(job=self._job, id_=id_, result=result)

    def _names(self, id_: BatchId | None, job: str) -> SinkNames:
        return SinkNames(self._brokers.prefix, f"job-{job}") if id_ is None else id_.names

    def _job_commit(self, messages: Sequence[BrokerTaskCommit]) -> JobCommit | None:
        """None if there is nothing to end."""
        if not self._brokers.exactly_once or not messages:
            return None
        first = messages[0]
        if any((message.job, message.id_) != (first.job, first.id_) for message in messages):
            raise InvalidConfigError(f"tasks of several jobs in one commit: {messages}")
        return JobCommit(self._brokers, self._names(first.id_, first.job), first.id_, first.job)

    def _commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        whole = _known(messages)
        check_all_known(len(whole), len(messages))
        if (commit := self._job_commit(whole)) is not None:
            commit.commit([message.result for message in whole])
        freeze_imports()

    def _abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        known = _known(messages)
        if (commit := self._job_commit(known)) is not None:
            commit.abort(message.result for message in known)


class BrokerWriter(ErrorSentences, _BrokerSink, DataSourceArrowWriter):
    """The sink of a batch job."""

    def __init__(self, schema: StructType, options: Mapping[str, str], *, overwrite: bool) -> None:
        super().__init__(schema, options, overwrite=overwrite, stream=False)

    def write(self, iterator: Iterator[Any]) -> BrokerTaskCommit:
        application = self._options.transaction
        id_ = None
        if application is not None:
            names = SinkNames(self._brokers.prefix, f"txn-{application.application}")
            id_ = BatchId(names=names, batch=application.version, run=self._job, consecutive=False)
        return self._write(iterator, _task().partitionId(), id_)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._abort(messages)
        is_alone = messages.count(None) == 1  # only the task that has failed
        if self._brokers.exactly_once and self._options.transaction is None and not is_alone:
            JobCommit(self._brokers, self._names(None, self._job), None, self._job).abort_unfinished()


class BrokerStreamWriter(ErrorSentences, _BrokerSink, DataSourceStreamArrowWriter):
    """The sink of a stream."""

    def __init__(self, schema: StructType, options: Mapping[str, str], *, overwrite: bool) -> None:
        super().__init__(schema, options, overwrite=overwrite, stream=True)

    def write(self, iterator: Iterator[Any]) -> BrokerTaskCommit:
        task = _task()
        query, batch, run = (task.getLocalProperty(name) for name in (QUERY_ID, BATCH_ID, RUN_ID))
        if not query or not batch or not run:
            raise InvalidConfigError(
                f"the batch cannot be identified by the local properties {QUERY_ID}, {BATCH_ID} and {RUN_ID}"
            )
        names = SinkNames(self._brokers.prefix, query)
        id_ = BatchId(names=names, batch=int(batch), run=run, consecutive=True)
        return self._write(iterator, task.partitionId(), id_)

    def commit(self, messages: list[WriterCommitMessage | None], batch_id: int) -> None:
        self._check(messages, batch_id)
        self._commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batch_id: int) -> None:
        self._check(messages, batch_id)
        self._abort(messages)

    def _check(self, messages: list[WriterCommitMessage | None], batch_id: int) -> None:
        for message in _known(messages):
            if message.id_ is None or message.id_.batch != batch_id:
                raise InvalidConfigError(f"a task of batch {message.id_} in the commit of batch {batch_id}")


def _known(messages: Sequence[WriterCommitMessage | None]) -> list[BrokerTaskCommit]:
    return [message for message in messages if isinstance(message, BrokerTaskCommit)]


def _task() -> Any:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return context
