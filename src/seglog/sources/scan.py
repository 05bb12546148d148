"""`seglog.scan`: the records of any Kafka, or of its files, as Arrow; without Spark and without a JVM."""

from __future__ import annotations

import json
import os
import re
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, time
from types import MappingProxyType
from typing import Any, Final

from seglog.client.client_config import is_known, names_of_properties
from seglog.core.errors import InvalidConfigError
from seglog.core.fs import Fs, OsFs
from seglog.core.suggestions import did_you_mean
from seglog.sources.arrow_scan import Scan
from seglog.sources.directories.partitions import find_partitions
from seglog.sources.options.read_options import OPTIONS, Assign, ReadOptions, parse_options
from seglog.sources.options.rules import KAFKA
from seglog.sources.planning import INTERNAL_TOPICS
from seglog.sources.scan_columns import ScanColumns
from seglog.sources.scan_logs import Bounds, LogFiles, QueriedLogs, ScannedLogs, SeveralLogs
from seglog.storage.formats.paths import partition_at
from seglog.values.value_options import NAMES as VALUE_OPTIONS

Path = str | os.PathLike[str]
Time = str | date | datetime
"""ISO 8601 text, a date, or a datetime that has a time zone. Text without a zone, and a date, are in UTC."""

_BROKERS: Final = re.compile(r"[^/,\s]+:\d{1,5}(\s*,\s*[^/,\s]+:\d{1,5})*")
_ISOLATION_LEVELS: Final = ("read_uncommitted", "read_committed")
_MOST_THREADS: Final = 3
"""Each thread holds an answer, a batch and its columns: more would need more memory than a scan may have."""
_DECODED_BYTES: Final = 6 << 20
"""Bytes of the batches that all threads decode at a time, so that memory does not grow with their number."""
_PART_BYTES: Final = 8 << 20
"""Bytes of a part that a thread reads: enough to make its start cheap, and few enough to keep all threads near."""
_ARGUMENTS: Final = MappingProxyType(
    {
        "path": "the first argument",
        "paths": "the first argument",
        "kafka.bootstrap.servers": "the first argument",
        "columns": "the argument columns",
        "includeHeaders": "the argument columns",
        "includeControl": "the argument include_control",
        "parallelism": "the argument threads",
    }
)
"""Options of the Spark source that an argument of `scan` stands for."""
_NOT_HERE: Final = frozenset(
    {"view", "maxMemoryPerTask", "minPartitions", "maxRecordsPerPartition", "maxBytesPerPartition", "commitToGroup"}
)
_ENGINES: Final = frozenset({"duckdb", "polars", "pyarrow.dataset"})
"""Modules that make use of a dataset: DuckDB pushes filters only into one, and `polars.from_arrow` makes one column of
other streams."""
_NOTHING: Final[Mapping[str, object]] = MappingProxyType({})


def scan(
    source: Path | Sequence[Path],
    *,
    topics: str | Iterable[str] | None = None,
    partitions: Mapping[str, Iterable[int]] | None = None,
    columns: Sequence[str] | None = None,
    since: Time | None = None,
    until: Time | None = None,
    start: Bounds | None = None,
    end: Bounds | None = None,
    directory: Path | Sequence[Path] | None = None,
    isolation_level: str = "read_uncommitted",
    include_control: bool = False,
    value_format: str | None = None,
    key_format: str | None = None,
    format_options: Mapping[str, object] = _NOTHING,
    permissive: bool = False,
    options: Mapping[str, object] = _NOTHING,
    threads: int | None = None,
    batch_rows: int = 65536,
    batch_bytes: int | None = None,
    progress: bool = True,
    dataset: bool | None = None,
    fs: Fs | None = None,
) -> Scan:
    """The records of topics as Arrow record batches: by topic, by partition, by offset.

    ``source``: brokers of any Kafka (``host:9092``, or several with commas); or a log directory, a partition's
    directory (``<topic>-<partition>``), a glob, a ``.log`` file, or several of these. ``directory`` names log
    directories that are mounted here: records that brokers and files certainly have in common are read from files.

    A scan ends where the logs ended when `scan` was called: at the high watermark of a broker, at the last stable
    offset with ``read_committed``, at the last whole batch of a directory, which may be in use. Nothing is read before
    the result is used, and each use reads again. The result is an Arrow stream, which pandas, Polars, DuckDB,
    DataFusion and pyarrow take as it is; `Scan` has the rest.

    ``topics``, ``partitions`` (``{topic: [0, 1]}``): what is read; without both, all topics but Kafka's internal ones.

    ``columns``: of key, value, topic, partition, offset, timestamp, timestampType, headers (the default, the schema of
    Spark's Kafka source); also isTombstone (the record has no value), isControl, isTransactional, producerId,
    producerEpoch, sequence, leaderEpoch. Columns that are not named are not decoded.

    ``since`` and ``until`` (exclusive): times. A time stands for the first offset of a partition whose record has that
    timestamp or a later one, as a consumer's ``offsetsForTimes`` finds it: where timestamps do not rise, records before
    it may be later, and records after it earlier. ``start`` and ``end`` (exclusive) are offsets, or datetimes, for all
    partitions or as ``{topic: {partition: bound}}``. A bound outside of a log is not an error.

    ``isolation_level="read_committed"`` leaves out aborted and open transactions; ``include_control`` gives transaction
    markers as rows too.

    ``value_format`` and ``key_format``: ``json``, ``avro`` or ``protobuf``, by a schema that ``format_options`` name
    (``valueSchema``, ``schema.registry.url``, …: docs/values.md). The first value that cannot be decoded raises
    `UndecodableValueError`, and the first timestamp that is out of range `TimestampRangeError`. ``permissive`` makes
    both null, adds the bytes of such values as ``valueBytes``, leaves out damaged batches, and logs their number.

    ``options``: any other option of the Spark source for a batch query, by its name (docs/spark.md), such as
    ``startingOffsets``, ``keyEquals`` or ``failOnDataLoss``; and properties of Kafka's clients, such as
    ``security.protocol``.

    ``threads`` read parts of partitions at the same time; by default as many as there are cores, up to three. A batch
    has at most ``batch_rows`` rows and ``batch_bytes`` (by default 6 MiB divided by ``threads``), unless one record is
    larger. ``progress`` shows a bar on stderr after two seconds, if that is a terminal. ``dataset``: whether the
    result is a pyarrow Dataset too, into which DuckDB pushes columns and filters; by default, if duckdb, polars or
    pyarrow.dataset has been imported. Otherwise it is not, because pyarrow's datasets import pandas, which takes longer
    than a small scan.

    Raises what is wrong with the arguments at once: `InvalidConfigError`, `UnknownTopicError`, `RequestFailedError`,
    OSError. Reading raises `DataLossError` where records are deleted before they are read, `CorruptError` with file or
    broker, position and offset for damage, and `RequestFailedError` if a leader stays away.
    """
    if isolation_level not in _ISOLATION_LEVELS:
        raise InvalidConfigError(f"isolation_level is {' or '.join(_ISOLATION_LEVELS)}, not {isolation_level!r}")
    if batch_rows < 1 or (batch_bytes is not None and batch_bytes < 1):
        raise InvalidConfigError(f"batch_rows and batch_bytes are at least 1, not {batch_rows} and {batch_bytes}")
    if threads is not None and threads < 1:
        raise InvalidConfigError(f"threads is at least 1, not {threads}")
    fs = fs or OsFs()
    begin, stop = _bounds("start", start, "since", since), _bounds("end", end, "until", until)
    given = _spark_options(options)
    given |= {name: _text(value) for name, value in _checked_format_options(format_options).items()}
    given |= {f"{column}Format": name for column, name in (("value", value_format), ("key", key_format)) if name}
    given |= _selected(given, topics, partitions)
    if isolation_level != _ISOLATION_LEVELS[0]:
        given["isolationLevel"] = isolation_level
    if permissive:
        given["mode"] = "permissive"
    if include_control:
        given["includeControl"] = "true"
    cores = threads or min(os.cpu_count() or 1, _MOST_THREADS)
    most_bytes = batch_bytes or max(_DECODED_BYTES // cores, 1)

    def parsed(**where: str) -> ReadOptions:
        made = parse_options(given | where)
        return replace(made, parallelism=cores, max_bytes=_PART_BYTES, batch_rows=batch_rows, batch_bytes=most_bytes)

    logs: ScannedLogs
    if is_brokers(source, fs):
        where = {"kafka.bootstrap.servers": re.sub(r"\s", "", str(source))}
        if directory is not None:
            where["paths"] = json.dumps(_paths(directory))
        made = parsed(**where)
        logs = QueriedLogs(made, begin, stop, fs)
    else:
        if directory is not None:
            raise InvalidConfigError("directory is for files beside brokers: name them in the first argument")
        made, logs = _files(fs, _paths(source), parsed, given, begin, stop)
    for note in made.notes:
        warnings.warn(f"seglog: {note}", stacklevel=2)
    shown = ScanColumns(
        columns, made.formats, lambda: logs.topics, fs, permissive=made.permissive, dead_letters=made.dead_letters
    )
    kind = Scan
    if dataset or (dataset is None and _ENGINES & sys.modules.keys()):
        from seglog.sources.scan_dataset import ScanDataset

        kind = ScanDataset
    return kind(logs, shown, threads=cores, shows_progress=progress)


def is_brokers(source: Path | Sequence[Path], fs: Fs) -> bool:
    """Whether a scan's source is brokers: text such as ``host:9092,other:9092``, unless a file has that name."""
    return isinstance(source, str) and _BROKERS.fullmatch(source.strip()) is not None and not fs.exists(source)


def _paths(source: Path | Sequence[Path]) -> list[str]:
    several = [source] if isinstance(source, str | os.PathLike) else source
    return [os.fspath(one) for one in several]


def _files(
    fs: Fs, paths: Sequence[str], parsed: Any, given: Mapping[str, str], start: Bounds | None, end: Bounds | None
) -> tuple[ReadOptions, ScannedLogs]:
    """Directories as one set of partitions, and ``.log`` files each by itself."""
    if not paths:
        raise InvalidConfigError("there is nothing to scan: name brokers, a directory or a file")
    files = [path for path in paths if fs.exists(path) and not fs.stat(os.path.realpath(path)).is_dir]
    directories = [os.path.realpath(path) if fs.exists(path) else path for path in paths if path not in files]
    found: list[ScannedLogs] = []
    made = parsed(paths=json.dumps(directories or files), **({} if "until" in given else {"until": "logEnd"}))
    if directories:
        found.append(QueriedLogs(_with_internal(made, directories, fs), start, end, fs))
    if files:
        found.append(LogFiles(fs, files, made, start, end))
    if len(found) == 1:
        return made, found[0]
    return made, SeveralLogs(found)


def _with_internal(options: ReadOptions, paths: Sequence[str], fs: Fs) -> ReadOptions:
    """A partition's directory is read although its topic is internal: it was named."""
    named = [found.topic_partition for path in paths if (found := partition_at(os.path.realpath(path))) is not None]
    internal = {one for one in named if one.topic in INTERNAL_TOPICS}
    if options.selection is not None or not internal:
        return options
    there = (one.topic_partition for one in find_partitions(fs, options.paths))
    chosen = {one for one in there if one in internal or one.topic not in INTERNAL_TOPICS}
    return replace(options, selection=Assign(partitions=tuple(sorted(chosen))))


# Arguments


def _bounds(name: str, bounds: Bounds | None, time_name: str, moment: Time | None) -> Bounds | None:
    if moment is None:
        return bounds
    if bounds is not None:
        raise InvalidConfigError(f"{name} and {time_name} exclude each other: give one of them")
    if isinstance(moment, datetime):
        return moment
    if isinstance(moment, date):
        return datetime.combine(moment, time(), UTC)
    try:
        found = datetime.fromisoformat(moment)
    except (TypeError, ValueError):
        raise InvalidConfigError(
            f"{time_name} is {moment!r}: it must be a time, as in 2013-07-04 or 2013-07-04T12:30:00+02:00"
        ) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _spark_options(options: Mapping[str, object]) -> dict[str, str]:
    """The options by the names of the Spark source; properties of clients may lack the prefix ``kafka.``."""
    found: dict[str, str] = {}
    for name, value in options.items():
        option = OPTIONS.find(name)
        if option is None and not name.lower().startswith(KAFKA):
            if not is_known(name.lower()):
                known = [*OPTIONS, *names_of_properties()]
                raise InvalidConfigError(f"options: there is no {name!r}{did_you_mean(name, known, cutoff=0.0)}")
            name = f"{KAFKA}{name}"
        key = option.name if option is not None else name
        if key in _ARGUMENTS:
            raise InvalidConfigError(f"options: {key}: give {_ARGUMENTS[key]} instead")
        if key in _NOT_HERE or (option is not None and option.use == "stream"):
            raise InvalidConfigError(f"options: {key} is for Spark: it has no effect on a scan")
        found[key] = _text(value)
    return found


def _checked_format_options(options: Mapping[str, object]) -> Mapping[str, object]:
    known = {name.lower() for name in VALUE_OPTIONS}
    for name in options:
        if name.lower() not in known:
            raise InvalidConfigError(
                f"format_options: there is no option {name!r}; there are {', '.join(VALUE_OPTIONS)}"
            )
    return options


def _selected(
    given: Mapping[str, str], topics: str | Iterable[str] | None, partitions: Mapping[str, Iterable[int]] | None
) -> dict[str, str]:
    chosen = [name for name in ("subscribe", "subscribePattern", "assign") if name in given]
    if topics is not None and partitions is not None:
        raise InvalidConfigError("topics and partitions exclude each other: give one of them")
    if topics is None and partitions is None:
        return {}
    if chosen:
        raise InvalidConfigError(f"options: {chosen[0]}: give it, or the argument topics or partitions, but not both")
    if partitions is not None:
        return {"assign": json.dumps({topic: sorted(numbers) for topic, numbers in partitions.items()})}
    names = [topics] if isinstance(topics, str) else list(topics or ())
    if not names:
        raise InvalidConfigError("topics is empty: it names no topic")
    return {"subscribe": ",".join(names)}


__all__ = ["Scan", "is_brokers", "scan"]
