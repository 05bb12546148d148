"""Append files to a topic, all or nothing and exactly once: CSV, JSON lines, Parquet and text.

No row passes through the JVM: each task reads a range of bytes or some row groups, encodes records and stages segments.
The driver then has all of them adopted in one step; if a broker has the directory open, in one transaction. Each
partition gets its records in the order of the files and of their lines. Workers and the driver must see the files and
the log directory under the same paths.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from seglog.core.clock import SystemClock
from seglog.core.fs import OsFs
from seglog.spark.jobs.driver import Paths, Progress, listed, watched
from seglog.spark.jobs.input.columns import Columns
from seglog.spark.jobs.input.marks import NewInput, select_new
from seglog.spark.jobs.input.recipe import Input, PlannedInput, Recipe, format_of, plan_input
from seglog.spark.jobs.input.split_reader import SplitReader
from seglog.spark.jobs.input.splits import Split, list_files
from seglog.spark.runtime.processes import freeze_imports
from seglog.spark.write.directories.broker_client import BrokerCommitClient, commit_client
from seglog.spark.write.directories.commit_client import directories_of
from seglog.spark.write.directories.commit_coordinator import JobRequest
from seglog.spark.write.directories.task_writer import TaskWriter, WritePlan
from seglog.spark.write.write_options import WriteOptions, parse_write_options
from seglog.storage.adopt import StagedPart, check_digest, read_ledger
from seglog.storage.formats.checkpoints import read_partition_metadata

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Columns", "IngestResult", "Input", "ingest"]

_TASKS_PER_CORE: Final = 2
_SMALLEST_TASK: Final = 8 << 20
_LARGEST_TASK: Final = 512 << 20
_PREVIEW: Final = 3


@dataclass(frozen=True, kw_only=True)
class IngestResult:
    """The result of a job. ``already``: its input or its transaction was ingested before, and it wrote nothing.

    The job read ``files`` with ``bytes``; ``known`` files had nothing new. ``unfinished`` is the size of each file's
    last line without a line end, which is left for the next job. ``bad_examples`` describes some of the skipped
    ``bad_lines``. In a dry run ``records`` is 0, and ``preview`` has the first records.
    """

    topic: str
    files: int
    bytes: int
    tasks: int
    records: int = 0
    bad_lines: int = 0
    bad_examples: tuple[str, ...] = ()
    known: int = 0
    unfinished: Mapping[str, int] = field(default_factory=dict)
    already: bool = False
    dry_run: bool = False
    preview: tuple[Mapping[str, Any], ...] = ()


def ingest(
    spark: SparkSession,
    paths: Paths,
    log_dir: str | os.PathLike[str],
    topic: str,
    *,
    columns: Columns | None = None,
    source: Input | None = None,
    partitions: int | None = None,
    options: Mapping[str, str] | None = None,
    again: bool = False,
    take_unfinished: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> IngestResult:
    """Append the records of ``paths`` (files, directories, globs; in this order) to ``topic`` of ``log_dir``.

    The job skips what an earlier job has read into the topic: it reads only the new lines of a file that has grown, and
    nothing of one that has not (`seglog.spark.jobs.input.marks`). ``again`` reads everything once more. A last line
    without a line end is left for the next job, unless ``take_unfinished``.

    If the topic does not exist, it is created with ``partitions``. ``options`` are those of the sink:
    ``compression.type``, ``batch.size``, ``topic.<configuration>``, and ``txnAppId`` with ``txnVersion``: a job that
    repeats them does nothing, or raises `AdoptError` if its input differs. ``progress`` is called with the number of
    further bytes that were read.

    Raises `BadLineError` with file and line, `InvalidConfigError`, `LogDirInUseError` and the errors of the sink; after
    an error the log has nothing of the job.
    """
    fs = OsFs()
    given: dict[str, str] = {"path": os.fspath(log_dir), "topic": topic, **dict(options or {})}
    if partitions is not None:
        given["numPartitions"] = str(partitions)
    request = _IngestRequest(
        fs=fs,
        files=list_files(fs, listed(paths)),
        source=source or Input(),
        columns=columns or Columns(),
        options=parse_write_options(given),
        cores=spark.sparkContext.defaultParallelism,
        again=again,
        take_unfinished=take_unfinished,
    )
    work = request.work()
    if dry_run:
        return request.result(work, dry_run=True, preview=_preview(work.planned))
    if not work.selected.intake.marks and not work.selected.new:
        request.check_version(work)
        return request.result(work, already=True)
    return _run(spark, request, work, progress)


@dataclass(frozen=True, kw_only=True)
class _IngestPlan:
    """The new parts of the files, and how to read them."""

    selected: NewInput
    planned: PlannedInput

    @property
    def size(self) -> int:
        return sum(new.end - new.start for new in self.selected.new)


@dataclass(frozen=True, kw_only=True)
class _IngestRequest:
    """A call of `ingest`."""

    fs: OsFs
    files: Sequence[str]
    source: Input
    columns: Columns
    options: WriteOptions
    cores: int
    again: bool
    take_unfinished: bool

    @property
    def directories(self) -> list[str]:
        """The one that the options name, or several that brokers have open."""
        return sorted(directories_of(self.options.path))

    @property
    def directory(self) -> str:
        """That of the ledger with the marks of files."""
        return self.directories[0]

    @property
    def topic(self) -> str:
        return str(self.options.topic)

    def work(self) -> _IngestPlan:
        """The work that is left according to the ledger. Raises `InvalidConfigError` if a file lacks a column."""
        format_ = self.source.format or format_of(self.files[0])
        selected = select_new(
            self.fs,
            self.files,
            read_ledger(self.fs, self.directory).inputs,
            topic=self.topic,
            topic_id=self._topic_id(),
            whole=format_ == "parquet" or (format_ == "csv" and self.source.multiline),
            again=self.again,
            take_unfinished=self.take_unfinished,
        )
        size = sum(new.end - new.start for new in selected.new)
        share = min(max(size // (self.cores * _TASKS_PER_CORE), _SMALLEST_TASK), _LARGEST_TASK)
        planned = plan_input(
            self.fs,
            [new.path for new in selected.new] or self.files,
            self.source,
            self.columns,
            share,
            {new.path: (new.start, new.end) for new in selected.new},
        )
        return _IngestPlan(selected=selected, planned=planned if selected.new else planned._replace(splits=()))

    def _topic_id(self) -> str:
        """Of the topic, by any of its partitions; empty if there is none."""
        for directory in filter(self.fs.exists, self.directories):
            for name in self.fs.listdir(directory):
                topic, _, number = name.rpartition("-")
                if topic == self.topic and number.isdecimal():
                    found = read_partition_metadata(self.fs, os.path.join(directory, name))
                    return "" if found is None else str(found)
        return ""

    def check_version(self, work: _IngestPlan) -> None:
        """Raise `AdoptError` if the user's transaction was adopted with other input."""
        transaction = self.options.transaction
        if transaction is not None:
            ledger = read_ledger(self.fs, self.directory)
            check_digest(ledger, transaction.key, transaction.version, work.selected.intake.digest)

    def result(self, work: _IngestPlan, **more: Any) -> IngestResult:
        return IngestResult(
            topic=self.topic,
            files=len(work.selected.new),
            bytes=work.size,
            tasks=len(work.planned.splits),
            known=work.selected.known,
            unfinished=work.selected.unfinished,
            **more,
        )


def _run(spark: SparkSession, request: _IngestRequest, work: _IngestPlan, progress: Progress | None) -> IngestResult:
    client = commit_client(request.directories, request.options, linger=request.options.linger_seconds or 0)
    broker = client if isinstance(client, BrokerCommitClient) else None
    options = request.options if broker is None else request.options.for_broker()
    job = f"{uuid.uuid4().hex}-{os.getpid()}"
    application, version = options.ledger_entry(job)
    begun = JobRequest(
        job,
        owner=os.getpid(),
        topic=options.topic,
        create={request.topic: options.num_partitions},
        config=options.topic_config,
        application=application,
        version=version,
        allow_foreign=options.allow_foreign,
    )
    opened = client.begin(begun)
    try:
        if broker is not None:
            broker.settle_intakes(request.topic)
        # Now the commit of a job that was killed is complete, or never will be; and the topic has an id.
        work = request.work()
        if opened.adopted or not (work.selected.new or work.selected.intake.marks):
            request.check_version(work)
            client.abort(job)
            return request.result(work, already=True)
        plan = WritePlan(
            job=job,
            directory=client.directory,
            options=options,
            targets=opened.topics,
            homes=dict(opened.homes),
        )
        answers = [json.loads(answer) for answer in _stage(spark, work.planned, plan, work.size, progress)]
        parts = [StagedPart.from_json(part) for answer in answers for part in answer["parts"]]
        done = client.commit(
            job,
            application,
            version,
            parts,
            allow_foreign=options.allow_foreign,
            intake=work.selected.intake,
        )
    except BaseException:
        client.abort(job)
        raise
    return request.result(
        work,
        records=done.records,
        already=done.already,
        bad_lines=sum(answer["bad"] for answer in answers),
        bad_examples=tuple(example for answer in answers for example in answer["examples"])[:_PREVIEW],
    )


def _stage(
    spark: SparkSession, planned: PlannedInput, plan: WritePlan, size: int, progress: Progress | None
) -> list[str]:
    """The answer of each task, in the order of the splits."""
    recipe, splits = planned
    if not splits:
        return []

    def stage(index: int, given: Iterable[Split]) -> Iterable[str]:
        return _stage_splits(recipe, plan, index, given)

    with watched(spark, size, len(splits), progress):
        rows = spark.sparkContext.parallelize(splits, len(splits)).mapPartitionsWithIndex(stage)
        answers: list[str] = rows.collect()
    return answers


def _stage_splits(recipe: Recipe, plan: WritePlan, index: int, splits: Iterable[Split]) -> Iterator[str]:
    """Write each split, in a worker, under a name that no other attempt has."""
    import numpy as np

    fs = OsFs()
    for split in splits:
        rows = SplitReader(fs, recipe, split)
        task = f"{index}-{uuid.uuid4().hex[:12]}"
        writer = TaskWriter(plan, task, fs=fs, clock=SystemClock(), rng=np.random.default_rng())
        parts = writer.write(rows.records())
        freeze_imports()
        yield json.dumps({"parts": [part.to_json() for part in parts], "bad": rows.bad, "examples": rows.examples})


def _preview(planned: PlannedInput) -> tuple[Mapping[str, Any], ...]:
    shown: list[Mapping[str, Any]] = []
    for split in planned.splits[:1]:
        for batch in SplitReader(OsFs(), planned.recipe, split).records():
            shown += batch.slice(0, _PREVIEW - len(shown)).to_pylist()
            if len(shown) == _PREVIEW:
                break
    return tuple(shown)
