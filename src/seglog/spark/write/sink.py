"""The sinks behind ``df.write.format("seglog")`` and ``df.writeStream.format("seglog")``.

Spark creates a writer in a planning process, pickles it into the tasks, and commits the job in another process: with
the same writer in a batch job, with a new one in a stream. All they share must travel in the commit messages. The job
of a stream is identified by query and batch, which only the tasks know (from their local properties).
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
from seglog.spark.write.directories.commit_coordinator import JobRequest
from seglog.storage.adopt import StagedPart
from seglog.values.batch_encoder import BatchEncoder, resolve_write_formats

if TYPE_CHECKING:
    import pyarrow as pa

    from seglog.spark.write.directories.task_writer import WritePlan

QUERY_ID: Final = "sql.streaming.queryId"
"""The same after a query restarts from its checkpoint."""
BATCH_ID: Final = "streaming.sql.batchId"
"""Local properties of a stream's tasks (``StreamExecution.scala``, ``MicroBatchExecution.scala``)."""


@dataclass(frozen=True, kw_only=True)
class TaskCommit(WriterCommitMessage):
    """A task's message to the commit: its parts as JSON, and in a stream also query and batch."""

    job: str
    parts: str
    query: str | None = None
    batch: int | None = None


class _Sink:
    """The common part of both sinks. It is sent to the workers, so it has plain values only."""

    def __init__(self, schema: StructType, options: Mapping[str, str], *, overwrite: bool, stream: bool) -> None:
        """Begin a job: check options and columns, open the directory and create its topics."""
        self._options = parse_write_options(options)
        self._is_stream = stream
        if not stream:
            check_mode(overwrite=overwrite)
        elif self._options.transaction is not None:
            raise InvalidConfigError(
                "options txnAppId and txnVersion: the sink of a stream sets them from the query and the batch id"
            )
        columns = {field.name: field.dataType.simpleString() for field in schema.fields}
        self._formats = resolve_write_formats(self._options.formats, self._options.topic, OsFs())
        check_columns(columns, self._options.topic, self._formats.names)
        _warn(schema, self._options)
        # The options are all that the planner and the commit of a stream have in common.
        self.plan = self._begin(json.dumps(sorted(options.items())) if stream else None)

    def _begin(self, stream: str | None) -> WritePlan:
        from seglog.spark.write.directories.task_writer import WritePlan

        options, job = self._options, uuid.uuid4().hex
        create: dict[str, int | None] = {
            name: partitions or options.num_partitions for name, partitions in options.create_topics.items()
        }
        if options.topic is not None:
            create.setdefault(options.topic, options.num_partitions)
        application, version = options.ledger_entry(job)
        request = JobRequest(
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
        opened = self._client().begin(request)
        return WritePlan(
            job=job,
            directory=self._directory(),
            options=options,
            targets=opened.topics,
            adopted=opened.adopted,
        )

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
            parts = writer.write(BatchEncoder(self._formats).encode_all(batches))
        return TaskCommit(
            job=self.plan.job,
            parts=json.dumps([part.to_json() for part in parts]),
            query=query,
            batch=None if batch is None else int(batch),
        )

    def _adopt(self, messages: Sequence[TaskCommit], application: str, version: int) -> None:
        """Adopt the parts of all tasks, in the order of the tasks."""
        parts = [StagedPart.from_json(part) for message in messages for part in json.loads(message.parts)]
        (job,) = {message.job for message in messages} or {self.plan.job}
        self._client().commit(
            job, application, version, parts, also=[self.plan.job], allow_foreign=self._options.allow_foreign
        )

    def _abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        jobs = {message.job for message in messages if isinstance(message, TaskCommit)}
        self._client().abort(*sorted(jobs | {self.plan.job}))


class SeglogWriter(_Sink, DataSourceArrowWriter):
    """The sink of a batch job: after its commit all rows are in the log, otherwise none."""

    def __init__(self, schema: StructType, options: Mapping[str, str], *, overwrite: bool) -> None:
        super().__init__(schema, options, overwrite=overwrite, stream=False)

    def write(self, iterator: Iterator[Any]) -> TaskCommit:
        return self._stage(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._adopt(_whole(messages), *self._options.ledger_entry(self.plan.job))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._abort(messages)


class SeglogStreamWriter(_Sink, DataSourceStreamArrowWriter):
    """The sink of a stream: each micro-batch is in the log once. In output mode complete it repeats all rows."""

    def __init__(self, schema: StructType, options: Mapping[str, str], *, overwrite: bool) -> None:
        super().__init__(schema, options, overwrite=overwrite, stream=True)

    def write(self, iterator: Iterator[Any]) -> TaskCommit:
        return self._stage(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batch_id: int) -> None:
        whole = _whole(messages)
        known = {(message.query, message.batch) for message in whole}
        if len(known) != 1 or (query := whole[0].query) is None or whole[0].batch != batch_id:
            raise InvalidConfigError(
                f"batch {batch_id} cannot be identified: its tasks report query and batch as {known}, from the "
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
    """Warn of options that are ignored and of columns that are slow."""
    if options.ignored:
        warnings.warn(
            f"seglog writes files and connects to no broker: it ignores {', '.join(options.ignored)}", stacklevel=2
        )
    for field in schema.fields:
        if field.name == "headers" and field.nullable and field.dataType.simpleString() != "array<void>":
            warnings.warn(
                "column headers may be NULL, and Spark needs quadratic time to hand over NULL arrays: write "
                "coalesce(headers, array()) instead, as seglog.spark.to_log(df, path) does, or use small batches: "
                "spark.sql.execution.arrow.maxRecordsPerBatch=1000",
                stacklevel=2,
            )
