"""The view ``tasks``: which offsets each task of a query reads, and from where."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

from seglog.core.types import TopicPartition
from seglog.sources.directories.planning import ReadRange
from seglog.sources.mounted.planning import MountedRange, SharedRange
from seglog.sources.ranges import OffsetRange
from seglog.sources.views.rows import rows_of


class PlannedRange(NamedTuple):
    """A row of the view. ``directory`` is None if the offsets are fetched from brokers."""

    task: int
    topic_partition: TopicPartition
    offsets: OffsetRange
    size: int
    directory: str | None


_COLUMNS: Final[Mapping[str, Callable[[PlannedRange], int | str | None]]] = {
    "task": lambda one: one.task,
    "topic": lambda one: one.topic_partition.topic,
    "partition": lambda one: one.topic_partition.partition,
    "startOffset": lambda one: one.offsets.start,
    "endOffset": lambda one: one.offsets.end,
    "size": lambda one: one.size,
    "directory": lambda one: one.directory,
}


def planned_ranges(tasks: Sequence[Sequence[Any]]) -> Iterator[PlannedRange]:
    """The ranges of the tasks of any `RecordSource`."""
    for number, task in enumerate(tasks):
        for one in task:
            for part in one.parts if isinstance(one, SharedRange) else (one,):
                files = part.files if isinstance(part, MountedRange) else part
                directory = files.directory if isinstance(files, ReadRange) else None
                yield PlannedRange(number, part.topic_partition, part.offsets, part.size, directory)


def planned_rows(ranges: Sequence[PlannedRange], arrow: pa.Schema) -> pa.RecordBatch:
    """``ranges`` as one batch of exactly ``arrow``."""

    def build(name: str) -> pa.Array:
        return pa.array([_COLUMNS[name](one) for one in ranges], arrow.field(name).type)

    return rows_of(arrow, build)
