"""The batches of one partition that no broker has acknowledged, in the order of their sequences. No I/O.

After an error the batches that are under way must be answered before the first one is sent again. The broker refuses
them, since a sequence is missing, or has them already; either way the order of the partition stays.

Invariant: what is sent is always the oldest part of what is not acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from seglog.core.types import Buffer


class QueuedBatch:
    """``data`` is a whole batch of magic 2. ``since`` is when it came, in seconds of a monotonic clock."""

    __slots__ = ("data", "is_sent", "records", "since")

    def __init__(self, data: Buffer, records: int, since: float) -> None:
        self.data: Final = data
        self.records: Final = records
        self.since: Final = since
        self.is_sent = False


class PartitionQueue:
    __slots__ = ("_batches", "_is_draining", "_sent", "acknowledged")

    def __init__(self) -> None:
        self._batches: list[QueuedBatch] = []
        self._sent = 0
        self._is_draining = False
        self.acknowledged = 0
        """Records that the broker has."""

    def __bool__(self) -> bool:
        return bool(self._batches)

    def __iter__(self) -> Iterable[QueuedBatch]:
        return iter(self._batches)

    @property
    def oldest(self) -> QueuedBatch:
        return self._batches[0]

    def add(self, batch: QueuedBatch) -> None:
        self._batches.append(batch)

    def next_batch(self) -> QueuedBatch | None:
        """The batch to send now, if there is one."""
        if self._is_draining or self._sent == len(self._batches):
            return None
        return self._batches[self._sent]

    def send(self, batch: QueuedBatch) -> None:
        assert batch is self._batches[self._sent]
        batch.is_sent = True
        self._sent += 1

    def acknowledge(self, batch: QueuedBatch) -> None:
        self._batches.remove(batch)
        self.acknowledged += batch.records
        self._answer()

    def is_oldest(self, batch: QueuedBatch) -> bool:
        """Whether no batch before it misses an acknowledgement, which would explain that its sequence is refused."""
        return self._batches[0] is batch

    def retry(self, batch: QueuedBatch) -> None:
        """It was refused, or its answer is lost."""
        batch.is_sent = False
        self._is_draining = True
        self._answer()

    def replace(self, batch: QueuedBatch, parts: Sequence[QueuedBatch]) -> None:
        """It was refused because it is too large: send ``parts`` instead."""
        at = self._batches.index(batch)
        self._batches[at : at + 1] = parts
        self._is_draining = True
        self._answer()

    def _answer(self) -> None:
        self._sent = 0 if self._is_draining else self._sent - 1
        if self._is_draining and not any(batch.is_sent for batch in self._batches):
            self._is_draining = False
