"""What becomes of a job's parts: are they what their tasks said, may these topics take them, and where does each go.

Whatever can be refused is refused here, before the manifest is written.
"""

from __future__ import annotations

import os.path
from collections.abc import Sequence
from typing import Final

from seglog.core.errors import AdoptError, CorruptBatchError, InvalidRecordError, UnknownTopicError
from seglog.core.types import TopicPartition
from seglog.storage.adopt.staging import StagedPart, StagedSegment
from seglog.storage.directory.adoption import STAGING
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.formats.adopt_manifest import Item, Mode, PartitionPlan
from seglog.storage.formats.paths import OWN_DIRECTORY
from seglog.storage.log.log import Log
from seglog.storage.log.rebase import rebase

SMALL_TOTAL: Final = 4
"""A partition's output of less than ``segment.bytes`` by this is appended: many small jobs leave few files."""
SMALL_FILE: Final = 16
"""Of a larger output, files of less than ``segment.bytes`` by this are: many small tasks leave few files too."""


def by_partition(parts: Sequence[StagedPart]) -> dict[TopicPartition, list[StagedPart]]:
    """The parts that have records, in their order."""
    found: dict[TopicPartition, list[StagedPart]] = {}
    for part in parts:
        if part.segments:
            found.setdefault(part.topic_partition, []).append(part)
    return dict(sorted(found.items()))


def log_of(directory: LogDir, partition: TopicPartition, *, allow_foreign: bool) -> Log:
    """The log that is to take a job's records. Raises what it is refused for, or why it should not be written here."""
    try:
        log = directory.log(*partition)
    except UnknownTopicError as error:
        raise UnknownTopicError(
            f"{partition} is not in {directory.path}: was the topic deleted since the job began? "
            "Nothing of the job was adopted"
        ) from error
    if partition.topic not in directory.entries and not allow_foreign:
        raise AdoptError(
            f"topic {partition.topic!r} of {directory.path} was made by a Kafka broker: if this is one of several "
            "replicas, they would differ from now on, and nobody would notice. If it is the only one, allow it "
            "(allow_foreign), or set the topic's configuration here"
        )
    return log


def check_parts(directory: LogDir, job: str, partition: TopicPartition, parts: Sequence[StagedPart], log: Log) -> None:
    """Whether the files are there, as their tasks have said."""
    home = os.path.join(str(partition), OWN_DIRECTORY, STAGING, job)
    for part in parts:
        if os.path.dirname(part.directory) != home or os.path.basename(part.directory) in ("", ".", ".."):
            raise AdoptError(f"a part of job {job} for {partition} lies in {part.directory!r}, not in {home}/<task>")
        if log.config.compact and not part.keyed:
            raise InvalidRecordError(
                f"{part.directory}: {partition.topic!r} is compacted, and nobody has looked whether all of these "
                "records have keys: it was not when they were staged. Write them again"
            )
        relative = 0
        for segment in part.segments:
            path = os.path.join(directory.path, part.directory, segment.name)
            if segment.relative_base != relative or segment.records <= 0:
                raise AdoptError(f"{path} begins at record {segment.relative_base} of its task, not at {relative}")
            if not directory.fs.exists(path):
                raise AdoptError(
                    f"{path} is missing: was the topic deleted and created again since the job began, or the job's "
                    "staging removed? Nothing of the job was adopted; write it again"
                )
            found = directory.fs.stat(path)
            if not found.is_file or found.size != segment.size:
                raise AdoptError(f"{path} has {found.size} bytes, its task has written {segment.size}")
            relative += segment.records


def plan_partition(partition: TopicPartition, parts: Sequence[StagedPart], log: Log) -> PartitionPlan:
    """Where the parts go if nothing else is appended meanwhile."""
    segment_bytes = log.config.segment_bytes
    staged = [(part, segment) for part in parts for segment in part.segments]
    small = sum(segment.size for _, segment in staged) * SMALL_TOTAL < segment_bytes

    def mode(segment: StagedSegment) -> Mode:
        return Mode.APPEND if small or segment.size * SMALL_FILE < segment_bytes else Mode.SEGMENT

    items = tuple(
        Item(os.path.join(part.directory, segment.name), mode(segment), segment.records, segment.size)
        for part, segment in staged
    )
    return PartitionPlan(partition, log.log_end_offset, max(log.epochs.latest, 0), items)


def place_files(directory: LogDir, plan: PartitionPlan) -> None:
    """Rebase the files that become segments, and have everything on the disk that the manifest will speak of."""
    fs = directory.fs
    for item, base, _ in plan.placed():
        if item.mode is not Mode.SEGMENT:
            continue
        path = os.path.join(directory.path, item.file)
        file = fs.open(path)
        try:
            walked = rebase(file, base, plan.epoch)
            if walked.records != item.records:
                raise CorruptBatchError(
                    f"{walked.records} records where its task has written {item.records}", file=path
                )
            file.fsync()
        finally:
            file.close()
    job = os.path.dirname(os.path.dirname(plan.items[0].file))
    for _ in range(4):  # the job, staging, .seglog, the partition: tasks have made them and fsynced their own
        fs.fsync_dir(os.path.join(directory.path, job))
        job = os.path.dirname(job)
