"""The sinks behind ``df.write.format("seglog")`` and ``df.writeStream.format("seglog")``.

`make_writer` and `make_stream_writer` choose by the options: the classes here write to directories, those of
`seglog.spark.write.brokers.sink` through brokers.

Spark creates a writer in a planning process, pickles it into the tasks, and commits the job in another process: with
the same writer in a batch job, with a new one in a stream. All they share must travel in the commit messages. The job
of a stream is identified by query and batch, which only the tasks know (from their local properties).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from seglog.core.clock import SystemClock
from seglog.core.errors import InvalidConfigError
from seglog.core.fs import OsFs
from seglog.spark.runtime.error_sentences import ErrorSentences
from seglog.spark.runtime.processes import driver_pid, freeze_imports
from seglog.spark.write.checked_frame import BATCH_ID, QUERY_ID, check_all_known, check_frame
from seglog.spark.write.directories.broker_client import BrokerCommitClient, commit_client
from seglog.spark.write.directories.commit_client import CommitClient, directories_of
from seglog.spark.write.directories.commit_coordinator import JobRequest
from seglog.spark.write.write_options import STREAM_LINGER_SECONDS, check_mode, parse_write_options
from seglog.storage.adopt import StagedPart
from seglog.values.batch_encoder import BatchEncoder

if TYPE_CHECKING:
    import pyarrow as pa

    from seglog.spark.write.directories.task_writer import WritePlan


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
        frame = check_frame(schema, options, overwrite=overwrite, stream=stream)
        self._options, self._formats = frame.options, frame.formats
        self._is_stream = stream
        # The options are all that the planner and the commit of a stream have in common.
        self.plan = self._begin(json.dumps(sorted(options.items())) if stream else None)

    def _begin(self, stream: str | None) -> WritePlan:
        from seglog.spark.write.directories.task_writer import WritePlan

        client, owner = self._client(), driver_pid()
        options = self._options
        if isinstance(client, BrokerCommitClient):
            options = self._options = options.for_broker()
        job = f"{uuid.uuid4().hex}-{owner}"
        create: dict[str, int | None] = {
            name: partitions or options.num_partitions for name, partitions in (options.create_topics or {}).items()
        }
        if options.topic is not None:
            create.setdefault(options.topic, options.num_partitions)
        application, version = options.ledger_entry(job)
        request = JobRequest(
            job,
            owner=owner,
            topic=options.topic,
            create=create,
            config=options.topic_config,
            application=application,
            version=version,
            allow_foreign=options.allow_foreign,
            stream=stream,
        )
        opened = client.begin(request)
        return WritePlan(
            job=job,
            directory=client.directory,
            options=options,
            targets=opened.topics,
            adopted=opened.adopted,
            homes=dict(opened.homes),
        )

    def _client(self) -> CommitClient | BrokerCommitClient:
        linger = self._options.linger_seconds
        if linger is None:
            linger = STREAM_LINGER_SECONDS if self._is_stream else 0
        return commit_client(directories_of(self._options.path), self._options, linger=linger)

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
        freeze_imports()
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
        freeze_imports()

    def _abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        jobs = {message.job for message in messages if isinstance(message, TaskCommit)}
        self._client().abort(*sorted(jobs | {self.plan.job}))


class SeglogWriter(ErrorSentences, _Sink, DataSourceArrowWriter):
    """The sink of a batch job: after its commit all rows are in the log, otherwise none."""

    def __init__(self, schema: StructType, options: Mapping[str, str], *, overwrite: bool) -> None:
        super().__init__(schema, options, overwrite=overwrite, stream=False)

    def write(self, iterator: Iterator[Any]) -> TaskCommit:
        return self._stage(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._adopt(_whole(messages), *self._options.ledger_entry(self.plan.job))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._abort(messages)


class SeglogStreamWriter(ErrorSentences, _Sink, DataSourceStreamArrowWriter):
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
    check_all_known(len(found), len(messages))
    return found


def make_writer(schema: StructType, options: Mapping[str, str], *, overwrite: bool) -> DataSourceArrowWriter:
    """The sink of a batch job."""
    check_mode(overwrite=overwrite)
    if parse_write_options(options).brokers is None:
        return SeglogWriter(schema, options, overwrite=overwrite)
    from seglog.spark.write.brokers.sink import BrokerWriter

    return BrokerWriter(schema, options, overwrite=overwrite)


def make_stream_writer(
    schema: StructType, options: Mapping[str, str], *, overwrite: bool
) -> DataSourceStreamArrowWriter:
    """The sink of a stream."""
    if parse_write_options(options).brokers is None:
        return SeglogStreamWriter(schema, options, overwrite=overwrite)
    from seglog.spark.write.brokers.sink import BrokerStreamWriter

    return BrokerStreamWriter(schema, options, overwrite=overwrite)
