"""Append files to a topic, all or nothing and exactly once: CSV, JSON lines, Parquet and text.

No row passes through the JVM: each task reads a range of bytes or some row groups, encodes records and stages segments;
the driver then has all of them adopted in one step. Each partition gets its records in the order of the files and of
their lines. Workers and the driver must see the files and the log directory under the same paths.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from seglog.core.clock import SystemClock
from seglog.core.errors import InvalidConfigError
from seglog.core.fs import OsFs
from seglog.spark.jobs.driver import Paths, Progress, listed, watched
from seglog.spark.jobs.ingest.columns import LINE, Columns, names_of
from seglog.spark.jobs.ingest.json_rows import NotAnObjectError, parse_objects
from seglog.spark.jobs.ingest.marks import NewInput, select_new
from seglog.spark.jobs.ingest.rows import PATTERNS, Format, Recipe, SplitRows, kept_groups
from seglog.spark.jobs.ingest.splits import (
    Split,
    first_line,
    list_files,
    parquet_schema,
    sample,
    split_parquet,
    split_text,
)
from seglog.spark.options.write_options import WriteOptions, parse_write_options
from seglog.spark.runtime.worker_gc import freeze_imports
from seglog.spark.write.directories.commit_client import CommitClient, directory_of
from seglog.spark.write.directories.task_writer import Target, TaskWriter, WritePlan
from seglog.storage.adopt import StagedPart, check_digest, read_ledger
from seglog.storage.formats.checkpoints import read_partition_metadata

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = ["Columns", "IngestResult", "Input", "ingest"]

_TASKS_PER_CORE: Final = 2
_SMALLEST_TASK: Final = 8 << 20
_LARGEST_TASK: Final = 512 << 20
_PREVIEW: Final = 3
_SUFFIXES: Final[Mapping[str, Format]] = {
    "csv": "csv",
    "tsv": "csv",
    "json": "json",
    "jsonl": "json",
    "ndjson": "json",
    "parquet": "parquet",
}


@dataclass(frozen=True, kw_only=True)
class Input:
    """How to read files. Without ``format`` the name of the first file decides; an unknown ending means text.

    ``names`` are the columns of CSV without a ``header``; ``multiline`` allows quoted values to span lines. ``types``
    gives JSON fields a type (by Arrow's name) if the first lines suggest a wrong one. ``pattern`` splits text into
    columns: a regular expression (RE2) with named groups, or ``common`` or ``combined``; the column ``line`` is the
    whole line. ``bad_lines`` is ``error``, or ``skip`` to skip and count them.
    """

    format: Format | None = None
    header: bool = True
    names: Sequence[str] = ()
    delimiter: str | None = None
    quote: str | None = '"'
    multiline: bool = False
    null_value: str | None = None
    types: Mapping[str, str] | None = None
    pattern: str | None = None
    bad_lines: Literal["error", "skip"] = "error"


@dataclass(frozen=True, kw_only=True)
class IngestResult:
    """The result of a job. ``already``: its input or its transaction was ingested before, and nothing was written.

    The job read ``files`` with ``bytes``; ``known`` files had nothing new. ``unfinished`` is the size of each file's
    last line without a line end, which is left for the next job. ``bad_examples`` shows some of the ``bad_lines`` that
    were skipped. In a dry run ``records`` is 0, and ``preview`` has the first records.
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
    nothing of one that has not (`seglog.spark.jobs.ingest.marks`). ``again`` reads everything once more. A last line
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
        return _with_preview(_replace(request.result(work), dry_run=True), work)
    if not work.selected.intake.marks and not work.selected.new:
        request.check_version(work)
        return _replace(request.result(work), already=True)
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
    def directory(self) -> str:
        return directory_of(self.options.path)

    @property
    def topic(self) -> str:
        return str(self.options.topic)

    def work(self) -> _IngestPlan:
        """As the ledger is now. Raises `InvalidConfigError` where files lack what is asked for."""
        format_ = self.source.format or _format_of(self.files[0])
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
        path = os.path.join(self.directory, f"{self.topic}-0")
        found = read_partition_metadata(self.fs, path) if self.fs.exists(path) else None
        return "" if found is None else str(found)

    def check_version(self, work: _IngestPlan) -> None:
        """Raise `AdoptError` if the user's transaction was adopted with other input."""
        transaction = self.options.transaction
        if transaction is not None:
            ledger = read_ledger(self.fs, self.directory)
            check_digest(ledger, transaction.key, transaction.version, work.selected.intake.digest)

    def result(self, work: _IngestPlan) -> IngestResult:
        return IngestResult(
            topic=self.topic,
            files=len(work.selected.new),
            bytes=work.size,
            tasks=len(work.planned.splits),
            known=work.selected.known,
            unfinished=work.selected.unfinished,
        )


class PlannedInput(NamedTuple):
    """How rows become records, and what each task reads."""

    recipe: Recipe
    splits: Sequence[Split]


def plan_input(
    fs: OsFs,
    files: Sequence[str],
    source: Input,
    columns: Columns,
    share: int,
    ranges: Mapping[str, tuple[int, int]] | None = None,
) -> PlannedInput:
    """Divide ``files``, or ``ranges`` of them, among tasks of about ``share`` bytes.

    Raises `InvalidConfigError` where they lack what is asked for.
    """
    recipe = _recipe(fs, files, source, columns)
    if recipe.format == "parquet":
        return PlannedInput(recipe, split_parquet(fs, files, share))
    splits = split_text(fs, files, share, whole=recipe.multiline, ranges=ranges)
    return PlannedInput(recipe, _with_names(fs, files, splits, recipe, source.names))


def _run(spark: SparkSession, request: _IngestRequest, work: _IngestPlan, progress: Progress | None) -> IngestResult:
    job = uuid.uuid4().hex
    options, directory = request.options, request.directory
    client = CommitClient(directory, linger=options.linger_seconds or 0)
    application, version = f"job:{job}", 0
    if options.transaction is not None:
        application, version = options.transaction.key, options.transaction.version
    opened = client.begin(
        job,
        owner=os.getpid(),
        topic=options.topic,
        create={request.topic: options.num_partitions},
        config=options.topic_config,
        application=application,
        version=version,
        allow_foreign=options.allow_foreign,
    )
    try:
        # Opening the directory may have completed the commit of a job that was killed; and the topic has its id now.
        work = request.work()
        if opened.adopted or not (work.selected.new or work.selected.intake.marks):
            request.check_version(work)
            client.abort(job)
            return _replace(request.result(work), already=True)
        targets = {name: Target(*target) for name, target in opened.topics.items()}
        plan = WritePlan(job=job, directory=directory, options=options, targets=targets)
        answers = _stage(spark, work.planned, plan, work.size, progress)
        parts = [StagedPart.from_json(part) for answer in answers for part in json.loads(answer)["parts"]]
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
    told = [json.loads(answer) for answer in answers]
    return _replace(
        request.result(work),
        records=done.records,
        already=done.already,
        bad_lines=sum(answer["bad"] for answer in told),
        bad_examples=tuple(example for answer in told for example in answer["examples"])[:_PREVIEW],
    )


def _stage(
    spark: SparkSession, planned: PlannedInput, plan: WritePlan, size: int, progress: Progress | None
) -> list[str]:
    """What each task says of its parts, in the order of the splits."""
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
    """In a worker: one split, as a name that no other attempt has."""
    import numpy as np

    fs = OsFs()
    for split in splits:
        rows = SplitRows(fs, recipe, split)
        task = f"{index}-{uuid.uuid4().hex[:12]}"
        writer = TaskWriter(plan, task, fs=fs, clock=SystemClock(), rng=np.random.default_rng())
        parts = writer.write(rows.records())
        freeze_imports()
        yield json.dumps({"parts": [part.to_json() for part in parts], "bad": rows.bad, "examples": rows.examples})


def _replace(result: IngestResult, **changes: Any) -> IngestResult:
    from dataclasses import replace

    return replace(result, **changes)


def _with_preview(result: IngestResult, work: _IngestPlan) -> IngestResult:
    recipe, splits = work.planned
    shown: list[Mapping[str, Any]] = []
    bad = SplitRows(OsFs(), recipe, splits[0]) if splits else None
    for batch in bad.records() if bad is not None else ():
        shown += batch.slice(0, _PREVIEW - len(shown)).to_pylist()
        if len(shown) == _PREVIEW:
            break
    return _replace(result, preview=tuple(shown))


# What is in the files


def _recipe(fs: OsFs, files: Sequence[str], source: Input, columns: Columns) -> Recipe:
    """Look at the first file, and check that it has what is asked for."""
    format_ = source.format or _format_of(files[0])
    needed = tuple(dict.fromkeys(name for expression in columns.expressions() for name in names_of(expression)))
    if columns.value is None and (format_ == "parquet" or source.multiline):
        needed = (*needed, "*")
    recipe = Recipe(
        format=format_,
        columns=columns,
        needed=needed,
        header=source.header,
        delimiter=source.delimiter or ("\t" if files[0].endswith((".tsv", ".tsv.gz")) else ","),
        quote=source.quote,
        multiline=source.multiline and format_ == "csv",
        null_value=source.null_value,
        skip_bad=source.bad_lines == "skip",
    )
    if format_ == "csv":
        names = tuple(source.names) or _header(fs, files[0], recipe)
        _check(needed, names, files[0])
        return _replace_recipe(recipe, names=names)
    if format_ == "json":
        schema = _json_schema(fs, files[0], needed, source.types or {})
        return _replace_recipe(recipe, schema=schema, is_typed=bool(source.types))
    if format_ == "parquet":
        _check(needed, parquet_schema(fs, files[0]).names, files[0])
        return recipe
    if source.pattern is None:
        _check(needed, [LINE], files[0])
        return recipe
    pattern = PATTERNS.get(source.pattern, source.pattern)
    try:
        groups = list(re.compile(pattern).groupindex)
    except re.error as error:
        raise InvalidConfigError(f"pattern {pattern!r} is not a regular expression: {error}") from error
    _check(needed, [*groups, LINE], files[0])
    return _replace_recipe(recipe, pattern=kept_groups(pattern, needed))


def _replace_recipe(recipe: Recipe, **changes: Any) -> Recipe:
    from dataclasses import replace

    return replace(recipe, **changes)


def _format_of(path: str) -> Format:
    name = os.path.basename(path).lower()
    for ending in (".gz", ".zst", ".bz2"):
        name = name.removesuffix(ending)
    return _SUFFIXES.get(name.rpartition(".")[2], "text")


def _check(needed: Sequence[str], there: Sequence[str], file: str) -> None:
    for name in needed:
        if name != "*" and name not in there and name.split(".", maxsplit=1)[0] not in there:
            raise InvalidConfigError(f"{file} has no column {name!r}; it has {', '.join(there) or 'none'}")


def _header(fs: OsFs, file: str, recipe: Recipe) -> tuple[str, ...]:
    import csv

    first = first_line(fs, file).decode(errors="replace").removeprefix("\ufeff")
    if not recipe.header:
        count = len(next(csv.reader([first], delimiter=recipe.delimiter), []))
        return tuple(f"f{number}" for number in range(count))
    names = next(csv.reader([first], delimiter=recipe.delimiter, quotechar=recipe.quote), [])
    if not names:
        raise InvalidConfigError(f"{file} has no header line with column names")
    for name in names:
        if names.count(name) > 1:
            raise InvalidConfigError(f"{file} has more than one column {name!r}")
    return tuple(names)


def _with_names(
    fs: OsFs, files: Sequence[str], splits: Sequence[Split], recipe: Recipe, given: Sequence[str]
) -> Sequence[Split]:
    """Splits of CSV with the names in the header of each one's own file; `InvalidConfigError` where they do not fit."""
    if recipe.format != "csv" or not recipe.header:
        return splits
    first = _header(fs, files[0], recipe)
    found = {}
    for file in files:
        names = _header(fs, file, recipe) if fs.stat(os.path.realpath(file)).size else first
        if names != first and (given or not recipe.needed or _is_line(recipe)):
            _check_equal(file, names, files[0], first)
        _check([name for name in recipe.needed if name not in given], names, file)
        if recipe.wants_all and set(names) != set(first):
            _check(first, names, file)
            _check(names, first, files[0])
        found[file] = tuple(given) or names
    return [split._replace(names=found[split.path]) for split in splits]


def _is_line(recipe: Recipe) -> bool:
    return recipe.columns.value is None and not recipe.multiline


def _check_equal(file: str, names: Sequence[str], first_file: str, first: Sequence[str]) -> None:
    """Of files whose lines become records as they are, or whose columns were named for all of them."""
    for name, expected in zip_longest(names, first):
        if name != expected:
            raise InvalidConfigError(
                f"{file} has column {name!r} where {first_file} has {expected!r}: their lines have different "
                "columns. Ingest them separately, or set an expression for the value, such as *"
            )


_EXACT: Final = ("string", "int64", "bool", "null")
"""Arrow's types of JSON whose values come out as the texts that went in; times are texts here."""


def _json_schema(fs: OsFs, file: str, needed: Sequence[str], types: Mapping[str, str]) -> pa.Schema | None:
    """The fields that are asked for, with the types that the first lines of the first file have.

    None where a type would change a value, as that of a number with a fraction, unless the ``types`` are given.
    """
    import pyarrow as pa
    import pyarrow.json as pjson

    data = sample(fs, file)
    if not needed or not data.strip():
        return pa.schema([])
    try:
        options = pjson.ReadOptions(use_threads=False, block_size=len(data) + 1)
        found = pjson.read_json(pa.BufferReader(data), read_options=options).schema
    except pa.ArrowInvalid:
        if not types:
            _check(needed, _fields_of_good_lines(data), file)
            return None
        found = _schema_of_good_lines(data)
    known = dict.fromkeys(found.names) | dict.fromkeys(types)
    _check(needed, list(known), file)
    exact = all(
        name in found.names and (str(kind := found.field(name).type) in _EXACT or pa.types.is_timestamp(kind))
        for name in needed
        if name != "*"
    )
    if not exact and not types:
        return None
    top = dict.fromkeys(name.split(".", maxsplit=1)[0] if name not in known else name for name in needed if name != "*")
    try:
        return pa.schema(
            [
                (name, pa.type_for_alias(types[name]) if name in types else _settled(found.field(name).type))
                for name in top
            ]
        )
    except ValueError as error:
        raise InvalidConfigError(f"types: {error}") from error


def _fields_of_good_lines(data: bytes) -> list[str]:
    fields: dict[str, None] = {}
    for line in data.split(b"\n")[:1000]:
        with suppress(NotAnObjectError):
            for one in parse_objects([line]):
                fields |= dict.fromkeys(one)
    return list(fields)


def _schema_of_good_lines(data: bytes) -> pa.Schema:
    """As far as lines can be read one by one and agree with those before."""
    import pyarrow as pa
    import pyarrow.json as pjson

    fields: dict[str, pa.DataType] = {}
    for line in data.split(b"\n")[:1000]:
        try:
            found = pjson.read_json(pa.BufferReader(line)).schema
        except pa.ArrowInvalid:
            continue
        for one in found:
            if one.name not in fields or pa.types.is_null(fields[one.name]):
                fields[one.name] = one.type
    return pa.schema(list(fields.items()))


def _settled(type_: pa.DataType) -> Any:
    """Texts stay texts, though they look like times; what was always null may be a text."""
    import pyarrow as pa

    if pa.types.is_timestamp(type_) or pa.types.is_null(type_):
        return pa.string()
    if pa.types.is_struct(type_):
        inner: Any = type_
        return pa.struct([(field.name, _settled(field.type)) for field in inner])
    if pa.types.is_list(type_):
        listed: Any = type_
        return pa.list_(_settled(listed.value_type))
    return type_
