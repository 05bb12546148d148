"""`seglog ls`: the topics, partitions and segments of a log directory, or of one partition."""

from __future__ import annotations

import os.path
from typing import Annotated, Final

import typer

from seglog.cli.offline.files import expand_partitions, partition_of
from seglog.cli.options import JsonDocument
from seglog.cli.output import DAMAGE, FINE, Out, count, fail, format_size, format_time, show_table, warn
from seglog.core.errors import CorruptError
from seglog.core.fs import Fs, OsFs
from seglog.core.progress import progress
from seglog.core.topic_names import INTERNAL_TOPICS
from seglog.records.compression import Codec
from seglog.storage.formats.checkpoints import encode_id
from seglog.storage.formats.paths import LOG, is_set_aside, list_segments
from seglog.storage.offline.survey import PartitionSurvey, SegmentSurvey, survey_partition

_FACTS: Final = ("NEXT", "RECORDS", "BATCHES", "SIZE", "FIRST", "LAST", "FORMAT", "CODECS")
_COLUMNS: Final = ("PARTITION", "SEGMENT", *_FACTS)
_SUMMARY_COLUMNS: Final = ("PARTITION", "SEGS", "OFFSETS", "RECORDS", "SIZE", "LAST", "CODEC")
"""They fit 80 columns."""
_NUMBERS: Final = ("SEGMENT", "SEGS", "OFFSETS", "NEXT", "RECORDS", "BATCHES", "SIZE")


def ls(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="A log directory or a partition.")] = ".",
    partitions: Annotated[bool, typer.Option("--partitions", "-p", help="One line per partition.")] = False,
    exclude_internal: Annotated[
        bool, typer.Option("--exclude-internal", help="Leave out Kafka's internal topics.")
    ] = False,
    json: JsonDocument = False,
) -> int:
    """List topics, partitions and segments, Kafka's internal topics last. Offsets run from SEGMENT to NEXT (exclusive);
    times are in UTC."""
    fs = OsFs()
    if not os.path.isdir(directory):
        return fail(f"{directory}: {'not a directory' if os.path.exists(directory) else 'No such file or directory'}")
    found, damage = _survey(fs, directory, exclude_internal=exclude_internal)
    with Out() as out:
        if json:
            out.json(_document(directory, found, _set_aside(fs, directory)))
        else:
            shown = sorted(found, key=lambda one: _is_internal(one.path))
            rows = [row for partition in shown for row in (_summary if partitions else _rows)(partition)]
            if rows:
                show_table(out, _SUMMARY_COLUMNS if partitions else _COLUMNS, rows, right=_NUMBERS)
            out.line(_totals(found))
    for error in damage:
        warn(f"seglog: {error}")
    return DAMAGE if damage else FINE


def _survey(fs: Fs, directory: str, *, exclude_internal: bool) -> tuple[list[PartitionSurvey], list[CorruptError]]:
    """The partitions and their damage. An incomplete tail is not damage: a writer may be about to complete it."""
    paths = expand_partitions(fs, directory)
    if exclude_internal:
        paths = [path for path in paths if not _is_internal(path)]
    sizes = [fs.stat(segment.log).size for path in paths for segment in list_segments(fs, path)]
    found: list[PartitionSurvey] = []
    damage: list[CorruptError] = []
    with progress("reading", sum(sizes)) as advance:
        for path in paths:
            partition = partition_of(path)
            facts = survey_partition(fs, path, partition.topic_partition if partition else None, advance)
            found.append(facts)
            for segment in facts.segments:
                if segment.error is not None:
                    damage.append(segment.error)
                elif segment.trailing and segment is not facts.segments[-1]:
                    file = os.path.join(path, f"{segment.base_offset:020d}{LOG}")
                    at = segment.size - segment.trailing
                    damage.append(
                        CorruptError(
                            f"{segment.trailing} bytes at the end are not a whole batch", position=at, file=file
                        )
                    )
    return found, damage


def _is_internal(path: str) -> bool:
    partition = partition_of(path)
    found = partition.topic_partition if partition else None
    return found is not None and found.topic in INTERNAL_TOPICS


def _set_aside(fs: Fs, directory: str) -> list[str]:
    return [name for name in fs.listdir(directory) if is_set_aside(name)]


def _rows(partition: PartitionSurvey) -> list[list[object]]:
    name = _name(partition)
    return [[name, segment.base_offset, *_cells(segment)] for segment in partition.segments]


def _summary(partition: PartitionSurvey) -> list[list[object]]:
    total = partition.total
    _, records, _, size, _, last, _, codecs = _cells(total)
    codec, *others = str(codecs).split(",")
    offsets = f"{total.base_offset}-{total.next_offset}"
    return [
        [
            _name(partition),
            len(partition.segments),
            offsets,
            records,
            size,
            str(last).partition("T")[0],
            f"{codec}+{len(others)}" if others else codec,
        ]
    ]


def _name(partition: PartitionSurvey) -> str:
    return str(partition.topic_partition or os.path.basename(partition.path))


def _cells(segment: SegmentSurvey) -> list[object]:
    return [
        segment.next_offset,
        "?" if segment.records is None else segment.records,
        segment.batches,
        format_size(segment.size),
        format_time(segment.first_timestamp),
        format_time(segment.max_timestamp),
        ",".join(f"v{magic}" for magic in segment.formats) or "-",
        ",".join(_codec_name(codec) for codec in segment.codecs) or "-",
    ]


def _totals(found: list[PartitionSurvey]) -> str:
    topics = len({partition.topic_partition.topic for partition in found if partition.topic_partition})
    segments = sum(len(partition.segments) for partition in found)
    size = sum(partition.total.size for partition in found)
    return ", ".join(
        (count(topics, "topic"), count(len(found), "partition"), count(segments, "segment"), format_size(size))
    )


def _document(directory: str, found: list[PartitionSurvey], set_aside: list[str]) -> dict[str, object]:
    return {
        "directory": directory,
        "topics": len({partition.topic_partition.topic for partition in found if partition.topic_partition}),
        "segments": sum(len(partition.segments) for partition in found),
        "size": sum(partition.total.size for partition in found),
        "partitions": [
            {
                "topic": partition.topic_partition.topic if partition.topic_partition else None,
                "partition": partition.topic_partition.partition if partition.topic_partition else None,
                "topicId": encode_id(partition.topic_id) if partition.topic_id else None,
                "path": partition.path,
                **_segment_fields(partition.total),
                "segments": [_segment_fields(segment) for segment in partition.segments],
            }
            for partition in found
        ],
        "setAside": set_aside,
    }


def _segment_fields(segment: SegmentSurvey) -> dict[str, object]:
    return {
        "baseOffset": segment.base_offset,
        "nextOffset": segment.next_offset,
        "records": segment.records,
        "batches": segment.batches,
        "size": segment.size,
        "indexSize": segment.index_size,
        "firstTimestamp": segment.first_timestamp,
        "maxTimestamp": segment.max_timestamp,
        "formats": list(segment.formats),
        "codecs": [_codec_name(codec) for codec in segment.codecs],
        "trailing": segment.trailing,
    }


def _codec_name(codec: int) -> str:
    return Codec(codec).name.lower() if codec <= max(Codec) else f"codec{codec}"
