"""The sinks behind ``df.write.format("seglog")`` and ``df.writeStream.format("seglog")``.

Spark makes a writer in a planning process, pickles it into the tasks, and has the job committed in another process: by
the same writer in a batch job, by one newly made in a stream. What they share goes through the commit messages. A job
of a stream is known by query and batch, which only tasks are told (as local properties of theirs).
"""

from __future__ import annotations

import json
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from seglog.core.clock import SystemClock
from seglog.core.errors import InvalidConfigError
from seglog.core.fs import OsFs
from seglog.spark.options.write_options import (
    STREAM_LINGER_SECONDS,
    WriteOptions,
    check_columns,
    check_mode,
    parse_write_options,
)
from seglog.spark.runtime.processes import driver_pid
from seglog.spark.write.directories.commit_client import CommitClient, directory_of
from seglog.storage.adopt import StagedPart

if TYPE_CHECKING:
    import pyarrow as pa

    from seglog.spark.write.directories.task_writer import WritePlan

QUERY_ID: Final = "sql.streaming.queryId"
"""Stays the same when a query goes on from its checkpoint."""
BATCH_ID: Final = "streaming.sql.batchId"
"""Local properties of a stream's tasks (``StreamExecution.scala``, ``MicroBatchExecution.scala``)."""


@dataclass(frozen=True, kw_only=True)
class TaskCommit(WriterCommitMessage):
    """What a task tells the commit: its parts as JSON, and in a stream query and batch."""

    job: str
    parts: str
    query: str | None = None
    batch: int | None = None


class _Sink:
    """What both sinks do; of plain values only, since it goes to the workers."""

    def __init__(self, schema: StructType, options: Mapping[str, str], *, overwrite: bool, stream: bool) -> None:
        """Begin a job: open the directory and create its topics. Raises what that raises, `InvalidConfigError` else."""
        self._options = parse_write_options(options)
        self._is_stream = stream
        if not stream:
            check_mode(overwrite=overwrite)
        elif self._options.transaction is not None:
            raise InvalidConfigError("options txnAppId and txnVersion: a stream's batches have their own, by the query")
        check_columns({field.name: field.dataType.simpleString() for field in schema.fields}, self._options.topic)
        _warn(schema, self._options)
        # A stream's planner and its commit have the same options, and nothing else that both would know.
        self.plan = self._begin(json.dumps(sorted(options.items())) if stream else None)

    def _begin(self, stream: str | None) -> WritePlan:
        from seglog.spark.write.directories.task_writer import Target, WritePlan

        options, job = self._options, uuid.uuid4().hex
        create: dict[str, int | None] = {
            name: partitions or options.num_partitions for name, partitions in options.create_topics.items()
        }
        if options.topic is not None:
            create.setdefault(options.topic, options.num_partitions)
        application, version = self._transaction(job)
        opened = self._client().begin(
            job,
            owner=driver_pid(),
            topic=options.topic,
            create=create,
            config=options.topic_config,
            application=application,
            version=version,
            allow_foreign=options.allow_foreign,
            stream=stream,
        )
        return WritePlan(
            job=job,
            directory=self._directory(),
            options=options,
            targets={name: Target(*target) for name, target in opened.topics.items()},
            adopted=opened.adopted,
        )

    def _transaction(self, job: str) -> tuple[str, int]:
        """What a batch job is called in the ledger."""
        transaction = self._options.transaction
        return (f"job:{job}", 0) if transaction is None else (transaction.key, transaction.version)

    def _directory(self) -> str:
        return directory_of(self._options.path)

    def _client(self) -> CommitClient:
        linger = self._options.linger_seconds
        if linger is None:
            linger = STREAM_LINGER_SECONDS if self._is_stream else 0
        return CommitClient(self._directory(), linger=linger)

    def _stage(self, batches: Iterator[pa.RecordBatch]) -> TaskCommit:
        """Write one task's rows, in a worker."""
        import numpy as np
        from pyspark import TaskContext

        from seglog.spark.write.directories.task_writer import TaskWriter

        context = TaskContext.get()
        assert context is not None
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        parts: list[StagedPart] = []
        if not self.plan.adopted:
            task = f"{context.partitionId()}-{context.attemptNumber()}-{uuid.uuid4().hex[:12]}"
            writer = TaskWriter(self.plan, task, fs=OsFs(), clock=SystemClock(), rng=np.random.default_rng())
            parts = writer.write(batches)
        return TaskCommit(
            job=self.plan.job,
            parts=json.dumps([part.to_json() for part in parts]),
            query=query,
            batch=None if batch is None else int(batch),
        )

    def _adopt(self, messages: Sequence[TaskCommit], application: str, version: int) -> None:
        """Adopt what the tasks wrote, in their order."""
        parts = [StagedPart.from_json(part) for message in messages for part in json.loads(message.parts)]
        (job,) = {message.job for message in messages} or {self.plan.job}
        self._client().commit(
            job, application, version, parts, also=[self.plan.job], allow_foreign=self._options.allow_foreign
        )

    def _abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        jobs = {message.job for message in messages if isinstance(message, TaskCommit)}
        self._client().abort(*sorted(jobs | {self.plan.job}))


class SeglogWriter(_Sink, DataSourceArrowWriter):
    """A batch job's sink: all rows are in the log behind its commit, or none."""

    def __init__(self, schema: StructType, options: Mapping[str, str], *, overwrite: bool) -> None:
        super().__init__(schema, options, overwrite=overwrite, stream=False)

    def write(self, iterator: Iterator[Any]) -> TaskCommit:
        return self._stage(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._adopt(_whole(messages), *self._transaction(self.plan.job))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._abort(messages)


class SeglogStreamWriter(_Sink, DataSourceStreamArrowWriter):
    """A stream's sink: each micro-batch is in the log once. In output mode complete all of it again, as in Kafka's."""

    def __init__(self, schema: StructType, options: Mapping[str, str], *, overwrite: bool) -> None:
        super().__init__(schema, options, overwrite=overwrite, stream=True)

    def write(self, iterator: Iterator[Any]) -> TaskCommit:
        return self._stage(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batch_id: int) -> None:
        whole = _whole(messages)
        known = {(message.query, message.batch) for message in whole}
        if len(known) != 1 or (query := whole[0].query) is None or whole[0].batch != batch_id:
            raise InvalidConfigError(
                f"batch {batch_id} cannot be told from others: its tasks know query and batch as {known}, from the "
                f"local properties {QUERY_ID} and {BATCH_ID}"
            )
        self._adopt(whole, f"query:{query}", batch_id)

    def abort(self, messages: list[WriterCommitMessage | None], _batch_id: int) -> None:
        self._abort(messages)


def _whole(messages: Sequence[WriterCommitMessage | None]) -> list[TaskCommit]:
    found = [message for message in messages if isinstance(message, TaskCommit)]
    assert len(found) == len(messages)
    return found


def _warn(schema: StructType, options: WriteOptions) -> None:
    """Say once in each process what costs time, and what counts for nothing."""
    if options.ignored:
        warnings.warn(f"seglog writes files, to no broker: ignored {', '.join(options.ignored)}", stacklevel=2)
    for field in schema.fields:
        if field.name == "headers" and field.nullable and field.dataType.simpleString() != "array<void>":
            warnings.warn(
                "column headers may be NULL, and Spark takes quadratic time to hand over NULL arrays: write "
                "coalesce(headers, array()) instead, as seglog.spark.to_log(df, path) does; or have batches small "
                "with spark.sql.execution.arrow.maxRecordsPerBatch=1000",
                stacklevel=2,
            )
