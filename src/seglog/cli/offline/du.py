"""`seglog du`: the space that topics take, by partition, age, codec, producer and key, and what could be saved."""

from __future__ import annotations

import os.path
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Annotated, Any, Final

import typer

from seglog.cli.offline.du_report import (
    SpaceReport,
    codec_name,
    codec_sentence,
    key_text,
    keys_sentence,
    savings_sentences,
)
from seglog.cli.offline.files import expand_partitions, partition_of
from seglog.cli.options import JsonDocument, check_choice
from seglog.cli.output import DAMAGE, FINE, Out, count, fail, format_size, format_time, json_bytes, show_table, warn
from seglog.core.clock import SystemClock
from seglog.core.fs import Fs, OsFs, write_atomically
from seglog.core.progress import ProgressCallback, progress
from seglog.records.compression import Codec
from seglog.storage.formats.paths import is_partition, list_segments
from seglog.storage.offline.space.keys import MOST_KEYS, KeyCount, KeySpace, read_keys
from seglog.storage.offline.space.recompression import estimate_codecs
from seglog.storage.offline.space.usage import (
    AGES,
    NO_TIME,
    OLDER,
    SAMPLED,
    Reservoir,
    Usage,
    measure_partition,
    measure_set_aside,
    total_of,
)

VIEWS: Final = ("topic", "partition", "age", "codec", "producer")
_COLUMNS: Final = ("SIZE", "SHARE", "RECORDS", "B/RECORD", "OVERHEAD", "OTHER", "OLDEST", "CODECS")
_NUMBERS: Final = ("PARTS", *_COLUMNS[:6])


def du(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH...", help="Log directories or partitions.", show_default=False),
    ],
    topics: Annotated[
        list[str] | None, typer.Option("--topic", "-t", metavar="TOPIC", help="Only these.", show_default="all")
    ] = None,
    by: Annotated[str, typer.Option(metavar="|".join(VIEWS), help="What the table has a row for.")] = "topic",
    tree: Annotated[bool, typer.Option("--tree", help="Draw directories, topics and partitions as a tree.")] = False,
    keys: Annotated[
        bool, typer.Option("--keys", help="Read all records: largest keys, duplicates, savings by compaction.")
    ] = False,
    codecs: Annotated[
        bool, typer.Option("--codecs", help="Compress a sample of batches again, to estimate other codecs.")
    ] = False,
    top: Annotated[int, typer.Option(metavar="N", min=1, help="Number of keys to show.")] = 10,
    most_keys: Annotated[
        int, typer.Option(metavar="N", min=16, help="Distinct keys that are counted exactly.")
    ] = MOST_KEYS,
    html: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write a picture as one HTML file.", show_default=False)
    ] = None,
    json: JsonDocument = False,
) -> int:
    """Show where space goes. It reads the headers of batches only, unless --keys or --codecs ask for records.

    OVERHEAD is the share of batch headers. OTHER are indexes, snapshots and deleted files that are still there. The
    exit code is 1 if a log is damaged; its readable part is counted.
    """
    check_choice("--by", by, VIEWS)
    fs = OsFs()
    for path in paths:
        if not path or not os.path.isdir(path):
            return fail(f"{path or 'the path'} is not a directory")
    report = measure(fs, paths, topics, reads_keys=keys, reads_codecs=codecs, most_keys=most_keys)
    if not report.partitions:
        return fail(f"no partition {'of the topics ' if topics else ''}is in {', '.join(paths)}")
    if html is not None:
        from seglog.cli.offline.du_page import page

        write_atomically(fs, os.path.realpath(html), page(report, top).encode(errors="backslashreplace"))
    with Out() as out:
        if json:
            out.json(document(report, top))
        elif tree:
            _show_tree(out, report)
        else:
            _show_rows(out, report, by, fs)
        if not json:
            _show_rest(out, report, top)
            if html is not None:
                out.line(f"wrote {html}")
    damaged = [one for one in report.partitions if one.damage is not None]
    for one in damaged:
        warn(f"seglog: {one.damage}")
    return DAMAGE if damaged else FINE


def measure(
    fs: Fs,
    paths: Sequence[str],
    topics: Sequence[str] | None,
    *,
    reads_keys: bool,
    reads_codecs: bool = False,
    most_keys: int = MOST_KEYS,
    progress: Callable[[str, int], AbstractContextManager[ProgressCallback]] = progress,
) -> SpaceReport:
    now_ms = SystemClock().now_ms()
    found = []
    for path in paths:
        for partition in expand_partitions(fs, path):
            known = partition_of(partition)
            if topics is None or (known is not None and known.topic_partition.topic in topics):
                found.append(partition)
    size = sum(fs.stat(segment.log).size for partition in found for segment in list_segments(fs, partition))
    sample = Reservoir(SAMPLED) if reads_codecs else None
    with progress("reading headers", size) as advance:
        usages = [measure_partition(fs, partition, now_ms, sample, advance) for partition in found]
    keys = None
    if reads_keys:
        keys = KeySpace(most_keys)
        with progress("reading records", size) as advance:
            for partition in found:
                read_keys(fs, partition, keys, advance)
    aside: dict[str, int] = {}
    for path in paths:
        if topics is None and not is_partition(fs, path):
            aside |= {os.path.join(path, name): taken for name, taken in measure_set_aside(fs, path).items()}
    estimates = estimate_codecs(fs, sample, list(Codec)) if sample is not None else []
    return SpaceReport(paths, usages, total_of(usages, ", ".join(paths)), aside, keys, estimates)


# Tables


def _show_rows(out: Out, report: SpaceReport, by: str, fs: Fs) -> None:
    total = report.total
    if by in ("topic", "partition"):
        summed = report.topics() if by == "topic" else [(one.name, one, 1) for one in _largest_first(report.partitions)]
        rows = [
            [name, *([parts] if by == "topic" else []), *_cells(usage, total.total)] for name, usage, parts in summed
        ]
        columns = ("TOPIC", "PARTS", *_COLUMNS) if by == "topic" else ("PARTITION", *_COLUMNS)
        show_table(out, columns, rows, right=_NUMBERS)
        return
    views: dict[str, tuple[Mapping[Any, int], list[Any]]] = {
        "age": (total.ages, [*(name for name, _ in AGES), OLDER, NO_TIME]),
        "codec": (total.codecs, sorted(total.codecs, key=lambda codec: -total.codecs[codec])),
        "producer": (total.producers, sorted(total.producers, key=lambda one: -total.producers[one])),
    }
    sizes, order = views[by]
    holders = _holder_names(fs, report) if by == "producer" else {}
    rows = [
        [_label(by, name, holders), format_size(sizes[name]), _percent(sizes[name], total.bytes)]
        for name in order
        if sizes.get(name)
    ]
    show_table(out, (by.upper(), "SIZE", "SHARE"), rows, right=("SIZE", "SHARE"))


def _label(by: str, name: Any, holders: Mapping[int, str]) -> str:
    if by == "codec":
        return codec_name(name)
    if by == "producer":
        known = f" ({holders[name]})" if name in holders else ""
        return "none" if name < 0 else f"{name}{known}"
    return str(name)


def _holder_names(fs: Fs, report: SpaceReport) -> dict[int, str]:
    """Transactional ids by producer id, where a directory has ``__transaction_state``."""
    from seglog.cli.offline.coordinator_state import read_holders

    parents = {os.path.dirname(os.path.abspath(one.path)) for one in report.partitions}
    return {
        producer: holder.transactional_id
        for parent in sorted(parents)
        for producer, holder in read_holders(fs, parent).items()
    }


def _cells(usage: Usage, total: int) -> list[object]:
    other = usage.trailing + sum(usage.other.values())
    records = usage.records
    return [
        format_size(usage.bytes),
        _percent(usage.total, total),
        "?" if records is None else records,
        round(usage.bytes / records) if records else "-",
        _percent(usage.overhead, usage.bytes),
        format_size(other),
        format_time(usage.oldest).partition("T")[0],
        ",".join(codec_name(codec) for codec in sorted(usage.codecs)) or "-",
    ]


def _show_tree(out: Out, report: SpaceReport) -> None:
    out.line(f"{format_size(report.total.total):>10}  {', '.join(report.paths)}")
    topics = report.topics()
    for number, (name, usage, _) in enumerate(topics):
        is_last = number + 1 == len(topics)
        share = _percent(usage.total, report.total.total)
        out.line(f"{format_size(usage.total):>10}  {'└─' if is_last else '├─'} {name} ({share})")
        partitions = [one for one in _largest_first(report.partitions) if _topic(one) == name]
        for at, one in enumerate(partitions):
            stem = "   " if is_last else "│  "
            branch = "└─" if at + 1 == len(partitions) else "├─"
            segments = count(one.segments, "segment")
            out.line(f"{format_size(one.total):>10}  {stem}{branch} {one.name} ({segments})")


def _topic(usage: Usage) -> str:
    return usage.topic_partition.topic if usage.topic_partition else usage.name


def _largest_first(usages: Sequence[Usage]) -> list[Usage]:
    return sorted(usages, key=lambda one: (-one.total, one.name))


def _show_rest(out: Out, report: SpaceReport, top: int) -> None:
    total = report.total
    other = ", ".join(f"{format_size(size)} {kind}" for kind, size in sorted(total.other.items()) if size)
    out.line(
        f"{count(len(report.partitions), 'partition')}, {count(total.segments, 'segment')}: {format_size(total.bytes)} "
        f"of batches{f', {other}' if other else ''}"
        f"{f', {format_size(total.trailing)} after the last batches' if total.trailing else ''}"
    )
    for path, size in sorted(report.aside.items()):
        out.line(f"set aside: {format_size(size)} in {path}; `seglog undelete` brings it back")
    if report.keys is not None:
        _show_keys(out, report.keys, top)
    for one in report.codecs:
        out.line(codec_sentence(one, total.bytes))


def _show_keys(out: Out, keys: KeySpace, top: int) -> None:
    out.line("")
    out.line(keys_sentence(keys))
    for title, found in (("largest keys", keys.largest(top)), ("most frequent keys", keys.most_frequent(top))):
        if found:
            out.line("")
            rows = [[key_text(one.key), one.records, format_size(one.bytes)] for one in found]
            show_table(out, (title.upper(), "RECORDS", "SIZE"), rows, right=("RECORDS", "SIZE"))
    out.line("")
    for line in savings_sentences(keys):
        out.line(line)


def _percent(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"


# JSON


def document(report: SpaceReport, top: int) -> dict[str, Any]:
    return {
        "paths": list(report.paths),
        "total": _usage_document(report.total),
        "topics": [
            {"topic": name, "partitions": parts, **_usage_document(usage)} for name, usage, parts in report.topics()
        ],
        "partitions": [
            {
                "topic": one.topic_partition.topic if one.topic_partition else None,
                "partition": one.topic_partition.partition if one.topic_partition else None,
                "path": one.path,
                **_usage_document(one),
            }
            for one in report.partitions
        ],
        "setAside": dict(report.aside),
        "keys": _keys_document(report.keys, top) if report.keys is not None else None,
        "codecs": [
            {
                "codec": one.codec.name.lower(),
                "bytes": round(one.ratio * report.total.bytes),
                "error": round(one.error * report.total.bytes),
                "sampledBatches": one.batches,
                "batches": one.population,
            }
            for one in report.codecs
        ],
    }


def _usage_document(usage: Usage) -> dict[str, object]:
    return {
        "size": usage.total,
        "segments": usage.segments,
        "bytes": usage.bytes,
        "batches": usage.batches,
        "records": usage.records,
        "overhead": usage.overhead,
        "control": usage.control,
        "trailing": usage.trailing,
        "oldest": usage.oldest,
        "newest": usage.newest,
        "byCodec": {codec_name(codec): size for codec, size in sorted(usage.codecs.items())},
        "byProducer": {str(producer): size for producer, size in sorted(usage.producers.items())},
        "byAge": dict(usage.ages),
        "other": dict(usage.other),
        "damage": str(usage.damage) if usage.damage is not None else None,
    }


def _keys_document(keys: KeySpace, top: int) -> dict[str, object]:
    def shown(found: Sequence[KeyCount]) -> list[dict[str, object]]:
        return [{"key": json_bytes(one.key), "records": one.records, "bytes": one.bytes} for one in found]

    compaction, duplicates = keys.compaction, keys.duplicates
    return {
        "records": keys.records,
        "bytes": keys.size,
        "keyless": {"records": keys.keyless.records, "bytes": keys.keyless.bytes},
        "tombstones": keys.tombstones,
        "isExact": keys.is_exact,
        "distinct": keys.distinct,
        "missingRecords": keys.lost_records,
        "missingBytes": keys.lost_bytes,
        "largest": shown(keys.largest(top)),
        "mostFrequent": shown(keys.most_frequent(top)),
        "compactionSaves": {"share": compaction.share, "error": compaction.error, "isExact": compaction.is_exact},
        "duplicateValues": {"share": duplicates.share, "error": duplicates.error, "isExact": duplicates.is_exact},
    }
