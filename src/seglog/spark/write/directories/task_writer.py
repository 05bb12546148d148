"""Writes the rows of one task as finished segments into the staging directories of their partitions.

`RowGroups` bounds the memory by `WriteOptions.buffer_bytes`, and `MOST_OPEN` bounds the open files: beyond it, the
writer finishes the files of the partition it has not written to for the longest time; that partition's next rows start
new files.
"""

from __future__ import annotations

import os.path
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

from seglog.core.clock import Clock
from seglog.core.config import LogConfig
from seglog.core.errors import AdoptError, UnknownTopicError
from seglog.core.fs import Fs
from seglog.core.types import TopicPartition
from seglog.records.column_encoding import encode_columns
from seglog.spark.write.directories.commit_client import TopicTarget
from seglog.spark.write.row_groups import RowGroups
from seglog.spark.write.write_options import WriteOptions
from seglog.storage.adopt import StagedPart, StagingWriter, staged_at

MOST_OPEN: Final = 256
"""The most partitions with open files in a task; each has three files."""


@dataclass(frozen=True, kw_only=True)
class WritePlan:
    """The plan of a job for its tasks; ``directory`` is the absolute log directory, ``homes`` has those of partitions
    for which it is another one.

    ``adopted``: the transaction of the options was adopted before, so there is nothing to write.
    """

    job: str
    directory: str
    options: WriteOptions
    targets: Mapping[str, TopicTarget]
    adopted: bool = False
    homes: Mapping[TopicPartition, str] = field(default_factory=dict)

    def home(self, partition: TopicPartition) -> str:
        return self.homes.get(partition, self.directory)


class TaskWriter:
    """Writes one task's rows; ``task`` is a name that no other attempt has. For one thread."""

    def __init__(self, plan: WritePlan, task: str, *, fs: Fs, clock: Clock, rng: np.random.Generator) -> None:
        self._plan = plan
        self._task = task
        self._fs = fs
        self._clock = clock
        self._configs = {topic: LogConfig.from_mapping(target.config) for topic, target in plan.targets.items()}
        self._groups = RowGroups(
            plan.options.topic,
            self._partitions_of,
            batch_size=plan.options.batch_size,
            buffer_bytes=plan.options.buffer_bytes,
            rng=rng,
            is_keyed=lambda topic: self._configs[topic].compact,
        )
        self._open: OrderedDict[TopicPartition, StagingWriter] = OrderedDict()
        self._parts: list[StagedPart] = []
        self._begun = 0

    @property
    def records(self) -> int:
        return self._groups.rows

    def write(self, batches: Iterable[pa.RecordBatch]) -> list[StagedPart]:
        """Write all rows; return the staged parts in order. After an error nothing is left behind.

        Raises the errors of `RowGroups.divide`, `encode_columns` and `StagingWriter.append`.
        """
        try:
            for partition, rows in self._groups.divide(batches):
                self._append(partition, rows)
            while self._open:
                self._finish_oldest()
        except BaseException:
            self._discard()
            raise
        return self._parts

    def _partitions_of(self, topics: Sequence[str]) -> dict[str, int]:
        unknown = [topic for topic in topics if topic not in self._plan.targets]
        if unknown:
            raise UnknownTopicError(
                f"column topic: there is no topic {unknown[0]!r} in {self._plan.directory}: "
                "create it with the option createTopics; a topic that a Kafka broker created needs allowForeign"
            )
        return {topic: self._plan.targets[topic].partitions for topic in topics}

    # Files

    def _append(self, partition: TopicPartition, rows: pa.RecordBatch) -> None:
        config = self._configs[partition.topic]
        codec, level = self._plan.options.codec(config)
        data = encode_columns(
            rows,
            batch_bytes=min(self._plan.options.batch_size, max(config.max_message_bytes, 1)),
            default_timestamp=self._clock.now_ms(),
            codec=codec,
            level=level,
        )
        self._writer(partition, config).append(data)

    def _writer(self, partition: TopicPartition, config: LogConfig) -> StagingWriter:
        writer = self._open.get(partition)
        if writer is not None:
            self._open.move_to_end(partition)
            return writer
        if len(self._open) >= MOST_OPEN:
            self._finish_oldest()
        staged = staged_at(partition, self._plan.job, f"{self._task}-{self._begun}")
        self._begun += 1
        home = self._plan.home(partition)
        if not self._fs.exists(os.path.join(home, str(partition))):
            raise AdoptError(
                f"{home}/{partition} does not exist: the topic was deleted during the job, or this worker "
                "does not see the log directory, which must be on a file system that all workers share"
            )
        writer = self._open[partition] = StagingWriter(
            self._fs, self._clock, os.path.join(home, staged), config, has_keys=config.compact
        )
        return writer

    def _finish_oldest(self) -> None:
        partition, writer = next(iter(self._open.items()))
        segments = writer.finish()
        del self._open[partition]
        directory = os.path.relpath(writer.directory, self._plan.home(partition))
        self._parts.append(StagedPart.of(partition, directory, segments, keyed=writer.keyed))

    def _discard(self) -> None:
        for writer in self._open.values():
            writer.discard()
        self._open.clear()
