"""Batches and markers by their headers, and the producers of a log of them."""

from __future__ import annotations

from seglog.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader
from seglog.records.record import ControlRecord, ControlType
from seglog.storage.log.producers import (
    CompletedTxn,
    Origin,
    ProducerEntry,
    Producers,
)

PID = 7


def batch(
    sequence: int,
    count: int = 1,
    *,
    at: int = 0,
    epoch: int = 0,
    pid: int = PID,
    txn: bool = False,
    timestamp: int = 50,
) -> BatchHeader:
    attributes = TRANSACTIONAL_BIT if txn else 0
    return BatchHeader(at, 99, 0, 2, 0, attributes, count - 1, timestamp, timestamp, pid, epoch, sequence, count)


def marker(at: int, epoch: int = 0, pid: int = PID) -> BatchHeader:
    return BatchHeader(at, 66, 0, 2, 0, TRANSACTIONAL_BIT | CONTROL_BIT, 0, 60, 60, pid, epoch, -1, 1)


def control(*, commit: bool = True, coordinator_epoch: int | None = 0) -> ControlRecord:
    return ControlRecord(0, ControlType.COMMIT if commit else ControlType.ABORT, coordinator_epoch)


class Tracked:
    """Producers of a log to which everything is appended one batch at a time."""

    def __init__(self) -> None:
        self.producers = Producers()
        self.completed: list[CompletedTxn] = []

    def data(self, *headers: BatchHeader, origin: Origin = Origin.CLIENT) -> None:
        for header in headers:
            updates = self.producers.prepare((header,), origin)
            assert updates is not None
            self.producers.apply(updates)

    def mark(
        self,
        header: BatchHeader,
        said: ControlRecord | None = None,
        *,
        origin: Origin = Origin.COORDINATOR,
        version: int = 0,
    ) -> None:
        updates = self.producers.prepare(
            (header,), origin, controls=(said or control(),), transaction_version=version
        )  # fmt: skip
        assert updates is not None
        for completed in self.producers.apply(updates):
            self.completed.append(completed)
            self.producers.complete(completed)

    @property
    def entry(self) -> ProducerEntry:
        return self.producers.entries[PID]
