"""Writes the rows of one task as finished segments into the staging directories of their partitions.

The writer holds rows up to `WriteOptions.buffer_bytes`, for any number of partitions, and then encodes and writes those
of each partition. So that size bounds the memory, and `MOST_OPEN` the open files: beyond it, the writer finishes the
files of the partition it has not written to for the longest time; that partition's next rows start new files.
"""

from __future__ import annotations

import os.path
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seglog.core.clock import Clock
from seglog.core.config import LogConfig
from seglog.core.errors import AdoptError, InvalidConfigError, InvalidRecordError, UnknownTopicError
from seglog.core.fs import Fs
from seglog.core.types import TopicPartition
from seglog.records.column_encoding import ByteColumn, byte_column, encode_columns
from seglog.records.intrinsics import I64
from seglog.records.partition_kernels import NO_PARTITION, SlotAssignment, assign_slots, group_rows, new_sticky
from seglog.spark.options.write_options import WriteOptions
from seglog.spark.write.directories.commit_client import TopicTarget
from seglog.storage.adopt import StagedPart, StagingWriter, staged_at

MOST_OPEN: Final = 256
"""The most partitions with open files in a task; each has three files."""
_ENCODED: Final = ("key", "value", "timestamp", "headers")
_COLUMNS: Final = frozenset({*_ENCODED, "topic", "partition"})
_OVERHEAD: Final = 8
"""Approximate bytes of a record beside its key and value, as Java's sticky partitioner counts them."""


@dataclass(frozen=True, kw_only=True)
class WritePlan:
    """The plan of a job for its tasks; ``directory`` is the absolute log directory.

    ``adopted``: the transaction of the options was adopted before, so there is nothing to write.
    """

    job: str
    directory: str
    options: WriteOptions
    targets: Mapping[str, TopicTarget]
    adopted: bool = False


class _Slots:
    """Numbers the partitions of all topics of a plan, and keeps their configuration."""

    def __init__(self, targets: Mapping[str, TopicTarget]) -> None:
        self.topics = list(targets)
        self.index = {topic: number for number, topic in enumerate(self.topics)}
        self.configs = [LogConfig.from_mapping(targets[topic].config) for topic in self.topics]
        counts = [targets[topic].partitions for topic in self.topics]
        self.first: I64 = np.array([0, *np.cumsum(counts)], np.int64)
        self.compacted: npt.NDArray[np.bool_] = np.array([config.compact for config in self.configs], np.bool_)

    @property
    def count(self) -> int:
        return int(self.first[-1])

    def of(self, slot: int) -> tuple[int, TopicPartition]:
        """A slot's topic by number, and its partition."""
        topic = int(np.searchsorted(self.first, slot, side="right")) - 1
        return topic, TopicPartition(self.topics[topic], slot - int(self.first[topic]))


class TaskWriter:
    """Writes one task's rows; ``task`` is a name that no other attempt has. For one thread."""

    def __init__(self, plan: WritePlan, task: str, *, fs: Fs, clock: Clock, rng: np.random.Generator) -> None:
        self._plan = plan
        self._task = task
        self._fs = fs
        self._clock = clock
        self._rng = rng
        self._slots = _Slots(plan.targets)
        self._sticky = new_sticky(len(self._slots.topics))
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._open: OrderedDict[int, StagingWriter] = OrderedDict()
        self._parts: list[StagedPart] = []
        self._begun = 0
        self.records = 0

    def write(self, batches: Iterable[pa.RecordBatch]) -> list[StagedPart]:
        """Write all rows; return the staged parts in order. After an error nothing is left behind.

        Raises the errors of `encode_columns` and `StagingWriter.append`, `InvalidConfigError` for an unknown partition,
        `UnknownTopicError`, and `InvalidRecordError` for a row without a topic, or without a key for a compacted topic.
        """
        try:
            for batch in batches:
                self._add(batch)
            self._write_held()
            while self._open:
                self._finish_oldest()
        except BaseException:
            self._discard()
            raise
        return self._parts

    def _add(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        batch = batch.select([name for name in batch.schema.names if name in _COLUMNS])
        size = batch.nbytes
        if self._held_bytes + size > self._plan.options.buffer_bytes:
            self._write_held()
        self._held.append(batch)
        self._held_bytes += size

    def _write_held(self) -> None:
        """Write the rows held so far to the files of their partitions."""
        if not self._held:
            return
        rows = _one_batch(self._held)
        self._held, self._held_bytes = [], 0
        slots = self._assign(rows)
        starts: I64 = np.zeros(self._slots.count + 1, np.int64)
        order: I64 = np.empty(len(slots), np.int64)
        group_rows(slots, starts, order)
        rows = rows.select([name for name in rows.schema.names if name in _ENCODED])
        filled = np.flatnonzero(np.diff(starts))
        if len(filled) > 1:
            rows = rows.take(pa.array(order))
        for slot in filled.tolist():
            start, end = int(starts[slot]), int(starts[slot + 1])
            self._append(slot, rows.slice(start, end - start))
        self.records += len(slots)

    # Which partition

    def _assign(self, rows: pa.RecordBatch) -> I64:
        topics = self._topics(rows)
        keys = byte_column("key", _column(rows, "key"), rows.num_rows)
        self._check_keys(keys, topics)
        given = _given(_column(rows, "partition"), rows.num_rows)
        values = byte_column("value", _column(rows, "value"), rows.num_rows)
        sizes: I64 = np.maximum(values.spans[1], 0) + np.maximum(keys.spans[1], 0) + _OVERHEAD
        slots: I64 = np.zeros(rows.num_rows, np.int64)
        batch_size = self._plan.options.batch_size
        numbers = int(sizes.sum()) // batch_size + 2 * len(self._slots.topics)
        done = assign_slots(
            keys.data,
            keys.spans,
            sizes,
            given,
            topics,
            self._slots.first,
            batch_size,
            self._rng.integers(0, 1 << 62, numbers, np.int64),
            self._sticky,
            slots,
        )
        row = SlotAssignment(*done).bad_row
        if row >= 0:
            topic = self._slots.topics[int(topics[row])]
            raise InvalidConfigError(
                f"column partition: there is no partition {given[row]} of topic {topic}, which has "
                f"{self._plan.targets[topic].partitions}, numbered from 0"
            )
        return slots

    def _topics(self, rows: pa.RecordBatch) -> I64:
        """Each row's topic by its number."""
        if self._plan.options.topic is not None:
            numbers: I64 = np.zeros(rows.num_rows, np.int64)
            return numbers
        column = rows.column("topic")
        if column.null_count:
            raise InvalidRecordError("column topic is null in a row: fill it, or set the option topic for all rows")
        encoded = column.dictionary_encode()
        names = encoded.dictionary.to_pylist()
        unknown = sorted(name for name in names if name not in self._slots.index)
        if unknown:
            raise UnknownTopicError(
                f"column topic: there is no topic {unknown[0]!r} in {self._plan.directory}: "
                "create it with the option createTopics; a topic that a Kafka broker created needs allowForeign"
            )
        table: I64 = np.array([self._slots.index[name] for name in names], np.int64)
        found: I64 = table[encoded.indices.to_numpy(zero_copy_only=False)]
        return found

    def _check_keys(self, keys: ByteColumn, topics: I64) -> None:
        if not self._slots.compacted.any():
            return
        without = np.flatnonzero((keys.spans[1] < 0) & self._slots.compacted[topics])
        if len(without):
            topic = self._slots.topics[int(topics[without[0]])]
            raise InvalidRecordError(f"column key is null in a row for topic {topic}, which is compacted by key")

    # Files

    def _append(self, slot: int, rows: pa.RecordBatch) -> None:
        topic, partition = self._slots.of(slot)
        config = self._slots.configs[topic]
        codec, level = self._plan.options.codec(config)
        data = encode_columns(
            rows,
            batch_bytes=min(self._plan.options.batch_size, max(config.max_message_bytes, 1)),
            default_timestamp=self._clock.now_ms(),
            codec=codec,
            level=level,
        )
        self._writer(slot, partition, config).append(data)

    def _writer(self, slot: int, partition: TopicPartition, config: LogConfig) -> StagingWriter:
        writer = self._open.get(slot)
        if writer is not None:
            self._open.move_to_end(slot)
            return writer
        if len(self._open) >= MOST_OPEN:
            self._finish_oldest()
        staged = staged_at(partition, self._plan.job, f"{self._task}-{self._begun}")
        self._begun += 1
        if not self._fs.exists(os.path.join(self._plan.directory, str(partition))):
            raise AdoptError(
                f"{self._plan.directory}/{partition} does not exist: the topic was deleted meanwhile, or this worker "
                "does not see the log directory, which must be on a file system that all workers share"
            )
        writer = self._open[slot] = StagingWriter(
            self._fs, self._clock, os.path.join(self._plan.directory, staged), config, has_keys=config.compact
        )
        return writer

    def _finish_oldest(self) -> None:
        slot, writer = next(iter(self._open.items()))
        segments = writer.finish()
        del self._open[slot]
        _, partition = self._slots.of(slot)
        directory = os.path.relpath(writer.directory, self._plan.directory)
        self._parts.append(StagedPart.of(partition, directory, segments, keyed=writer.keyed))

    def _discard(self) -> None:
        for writer in self._open.values():
            writer.discard()
        self._open.clear()
        self._held = []


def _one_batch(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    (whole,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return whole


def _column(rows: pa.RecordBatch, name: str) -> pa.Array | None:
    return rows.column(name) if name in rows.schema.names else None


def _given(column: pa.Array | None, rows: int) -> I64:
    """The column ``partition``, with `NO_PARTITION` for null."""
    if column is None or column.null_count == rows:
        nothing: I64 = np.full(rows, NO_PARTITION, np.int64)
        return nothing
    given: I64 = column.cast(pa.int64()).fill_null(NO_PARTITION).to_numpy(zero_copy_only=False)
    return given
