"""Divides the rows of a task by the partition they go to, wherever that is.

The rows of a task are held up to a size, for any number of partitions, and then handed on one partition after the
other. So that size bounds the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from seglog.core.errors import InvalidConfigError, InvalidRecordError
from seglog.core.types import TopicPartition
from seglog.records.column_encoding import ByteColumn, byte_column
from seglog.records.intrinsics import I64
from seglog.records.partition_kernels import NO_PARTITION, SlotAssignment, assign_slots, group_rows, new_sticky

_ENCODED: Final = ("key", "value", "timestamp", "headers")
_COLUMNS: Final = frozenset({*_ENCODED, "topic", "partition"})
_OVERHEAD: Final = 8
"""Approximate bytes of a record beside its key and value, as Java's sticky partitioner counts them."""


class RowGroups:
    """For one task, in one thread. ``topic``: the one of all rows; None: the column ``topic`` has it.

    ``partitions_of`` gives the numbers of partitions of topics that were not met before; it raises
    `UnknownTopicError`. Topics for which ``is_keyed`` says so refuse rows without a key. ``batch_size`` is the size
    after which the sticky partition of rows without a key changes; with ``ignore_keys`` all rows count as such.
    """

    def __init__(
        self,
        topic: str | None,
        partitions_of: Callable[[Sequence[str]], Mapping[str, int]],
        *,
        batch_size: int,
        buffer_bytes: int,
        rng: np.random.Generator,
        ignore_keys: bool = False,
        is_keyed: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._topic = topic
        self._partitions_of = partitions_of
        self._is_keyed = is_keyed
        self._ignore_keys = ignore_keys
        self._batch_size = batch_size
        self._buffer_bytes = buffer_bytes
        self._rng = rng
        self._topics: list[str] = []
        self._index: dict[str, int] = {}
        self._first: I64 = np.zeros(1, np.int64)
        """The partitions of all topics have one numbering, their slots: the first slot of each topic, and the end."""
        self._keyed = np.zeros(0, np.bool_)
        self._sticky = new_sticky(0)
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self.rows = 0
        """Rows that were divided."""

    def divide(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[TopicPartition, pa.RecordBatch]]:
        """The rows, with the columns to encode; those of a partition in their order, in one or more groups.

        Raises `InvalidConfigError` for a partition that does not exist, `UnknownTopicError`, and `InvalidRecordError`
        for a row without a topic, or without a key where one is needed.
        """
        for batch in batches:
            if not batch.num_rows:
                continue
            batch = batch.select([name for name in batch.schema.names if name in _COLUMNS])
            size = batch.nbytes
            if self._held_bytes + size > self._buffer_bytes:
                yield from self._divide_held()
            self._held.append(batch)
            self._held_bytes += size
        yield from self._divide_held()

    def _divide_held(self) -> Iterator[tuple[TopicPartition, pa.RecordBatch]]:
        if not self._held:
            return
        rows = _one_batch(self._held)
        self._held, self._held_bytes = [], 0
        slots = self._assign(rows)
        starts: I64 = np.zeros(int(self._first[-1]) + 1, np.int64)
        order: I64 = np.empty(len(slots), np.int64)
        group_rows(slots, starts, order)
        rows = rows.select([name for name in rows.schema.names if name in _ENCODED])
        filled = np.flatnonzero(np.diff(starts))
        if len(filled) > 1:
            rows = rows.take(pa.array(order))
        for slot in filled.tolist():
            start, end = int(starts[slot]), int(starts[slot + 1])
            yield self._partition(slot), rows.slice(start, end - start)
        self.rows += len(slots)

    def _partition(self, slot: int) -> TopicPartition:
        topic = int(np.searchsorted(self._first, slot, side="right")) - 1
        return TopicPartition(self._topics[topic], slot - int(self._first[topic]))

    def _assign(self, rows: pa.RecordBatch) -> I64:
        """The slot of each row."""
        topics = self._topic_numbers(rows)
        keys = byte_column("key", _column(rows, "key"), rows.num_rows)
        self._check_keys(keys, topics)
        given = _given(_column(rows, "partition"), rows.num_rows)
        values = byte_column("value", _column(rows, "value"), rows.num_rows)
        sizes: I64 = np.maximum(values.spans[1], 0) + np.maximum(keys.spans[1], 0) + _OVERHEAD
        slots: I64 = np.zeros(rows.num_rows, np.int64)
        if self._ignore_keys:
            keys = byte_column("key", None, rows.num_rows)
        numbers = int(sizes.sum()) // self._batch_size + 2 * len(self._topics)
        done = assign_slots(
            keys.data,
            keys.spans,
            sizes,
            given,
            topics,
            self._first,
            self._batch_size,
            self._rng.integers(0, 1 << 62, numbers, np.int64),
            self._sticky,
            slots,
        )
        row = SlotAssignment(*done).bad_row
        if row >= 0:
            number = int(topics[row])
            count = int(self._first[number + 1] - self._first[number])
            raise InvalidConfigError(
                f"column partition: there is no partition {given[row]} of topic {self._topics[number]}, which has "
                f"{count}, numbered from 0"
            )
        return slots

    def _topic_numbers(self, rows: pa.RecordBatch) -> I64:
        """Each row's topic by its number."""
        if self._topic is not None:
            self._learn([self._topic])
            numbers: I64 = np.zeros(rows.num_rows, np.int64)
            return numbers
        column = rows.column("topic")
        if column.null_count:
            raise InvalidRecordError("column topic is null in a row: fill it, or set the option topic for all rows")
        encoded = column.dictionary_encode()
        names = encoded.dictionary.to_pylist()
        self._learn(names)
        table: I64 = np.array([self._index[name] for name in names], np.int64)
        found: I64 = table[encoded.indices.to_numpy(zero_copy_only=False)]
        return found

    def _learn(self, names: Sequence[str]) -> None:
        new = sorted(name for name in names if name not in self._index)
        if not new:
            return
        found = self._partitions_of(new)
        for name in new:
            self._index[name] = len(self._topics)
            self._topics.append(name)
        counts = [found[name] for name in new]
        self._first = np.concatenate((self._first, self._first[-1] + np.cumsum(np.array(counts, np.int64))))
        self._keyed = np.concatenate((self._keyed, np.array([self._is_keyed(name) for name in new], np.bool_)))
        self._sticky = np.concatenate((self._sticky, new_sticky(len(new))))

    def _check_keys(self, keys: ByteColumn, topics: I64) -> None:
        if not self._keyed.any():
            return
        without = np.flatnonzero((keys.spans[1] < 0) & self._keyed[topics])
        if len(without):
            topic = self._topics[int(topics[without[0]])]
            raise InvalidRecordError(f"column key is null in a row for topic {topic}, which is compacted by key")


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
