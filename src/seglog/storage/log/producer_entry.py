"""One idempotent or transactional producer: what a log remembers of it, and which batch of it may come next. Pure.

Rules of Kafka 4.4's ``ProducerStateEntry`` and ``ProducerAppendInfo``.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple, Protocol

from seglog.core.errors import (
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidTransactionStateError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from seglog.core.types import MAX_INT32
from seglog.records.batch import TRANSACTIONAL_BIT, BatchHeader
from seglog.storage.log.verification import Verification

BATCHES_KEPT: Final = 5
"""Batches of a producer that can be recognised again: a client has at most five requests in flight."""
NO_PRODUCER_EPOCH: Final = -1
MAX_PRODUCER_EPOCH: Final = 32767
ABORT: Final = 0
COMMIT: Final = 1
"""Types of the control records that end a transaction."""


class Marker(Protocol):
    """The part of a control record that producer state needs (`seglog.records.record.ControlRecord`)."""

    @property
    def type(self) -> int: ...
    @property
    def coordinator_epoch(self) -> int | None: ...


class Origin(Enum):
    """Where an append comes from, and so what is checked.

    CLIENT: a produce request, which holds one batch. BULK: our own bulk writers, several such batches. COORDINATOR: a
    coordinator on this broker, which writes control batches and has no sequences. REPLICATION: a leader, which has
    checked everything already; offsets are its own.
    """

    CLIENT = "client"
    BULK = "bulk"
    COORDINATOR = "coordinator"
    REPLICATION = "replication"


class BatchMetadata(NamedTuple):
    """A batch as a producer's entry remembers it. ``offset_delta`` is last offset - first offset."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        """Wraps from 0 back to 2^31-1."""
        return (self.last_sequence - self.offset_delta) & MAX_INT32

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


def metadata_of(header: BatchHeader) -> BatchMetadata:
    return BatchMetadata(header.last_sequence, header.last_offset, header.last_offset_delta, header.max_timestamp)


class ProducerEntry(NamedTuple):
    """A producer's state; ``batches`` has the oldest first and is empty when its epoch has written markers only."""

    epoch: int = NO_PRODUCER_EPOCH
    batches: tuple[BatchMetadata, ...] = ()
    coordinator_epoch: int = -1
    current_txn_first_offset: int | None = None
    last_timestamp: int = -1

    @property
    def last_sequence(self) -> int:
        """-1 without batches: the next sequence is 0 then."""
        return self.batches[-1].last_sequence if self.batches else -1


def add_batch(
    entry: ProducerEntry, header: BatchHeader, origin: Origin, verification: Verification | None = None
) -> ProducerEntry:
    """The state after a data batch. ``verification`` is the one of its producer that is under way."""
    epoch = header.producer_epoch
    if origin is not Origin.REPLICATION:
        if epoch < entry.epoch:
            raise InvalidProducerEpochError(
                f"epoch {epoch} of producer {header.producer_id} at offset {header.base_offset} is below the last "
                f"seen, {entry.epoch}"
            )
        if origin is not Origin.COORDINATOR:
            if verification is not None:
                _check_first_sequence(entry, header, verification)
            _check_sequence(entry, header, is_empty_log=origin is Origin.CLIENT and header.base_offset == 0)
    batch = metadata_of(header)
    txn = entry.current_txn_first_offset
    if header.attributes & TRANSACTIONAL_BIT:
        if txn is None:
            txn = header.base_offset
    elif txn is not None:
        raise InvalidTransactionStateError(
            f"producer {header.producer_id} writes outside of a transaction at offset {header.base_offset} and has "
            f"one open since offset {txn}"
        )
    kept = entry.batches[1 - BATCHES_KEPT :] if epoch == entry.epoch else ()
    return ProducerEntry(epoch, (*kept, batch), entry.coordinator_epoch, txn, header.max_timestamp)


def _check_first_sequence(entry: ProducerEntry, header: BatchHeader, verification: Verification) -> None:
    """A batch that waited for the coordinator must not overtake an earlier one that waits still, or was refused."""
    first = header.base_sequence
    if verification.bumps_epoch and first != 0 and not entry.batches:
        raise OutOfOrderSequenceError(
            f"producer {header.producer_id} begins with sequence {first} at offset {header.base_offset}: a producer of "
            f"transaction version 2 without a batch here begins with 0"
        )
    if first > verification.lowest_sequence:
        raise OutOfOrderSequenceError(
            f"producer {header.producer_id} begins with sequence {first} at offset {header.base_offset}, after "
            f"{verification.lowest_sequence} was seen and not appended"
        )


def _check_sequence(entry: ProducerEntry, header: BatchHeader, *, is_empty_log: bool) -> None:
    """``is_empty_log``: the log has never held a record, so this producer cannot have an earlier batch in it. As in
    Kafka 4.5; 4.4 accepts any first sequence (KAFKA-15591): if the first of several pipelined batches was refused, the
    next one would begin the log, and the retry of the first would be out of order for ever."""
    first = header.base_sequence
    if entry.epoch == NO_PRODUCER_EPOCH:
        if is_empty_log and first != 0:
            raise OutOfOrderSequenceError(
                f"producer {header.producer_id} begins with sequence {first}, not 0, in a log without any records"
            )
        return  # its batches may all be gone, deleted with old segments: any sequence may be the next
    if header.producer_epoch != entry.epoch:
        if first != 0:
            raise OutOfOrderSequenceError(
                f"producer {header.producer_id} begins epoch {header.producer_epoch} after {entry.epoch} with sequence "
                f"{first}, not 0, at offset {header.base_offset}"
            )
        return
    last = entry.last_sequence
    if first != ((last + 1) & MAX_INT32):
        raise OutOfOrderSequenceError(
            f"producer {header.producer_id} continues with sequence {first} after {last} at offset {header.base_offset}"
        )


def end_transaction(
    entry: ProducerEntry, header: BatchHeader, control: Marker, origin: Origin, transaction_version: int
) -> ProducerEntry:
    """The state after a transaction's marker; the producer may have had none open."""
    epoch = header.producer_epoch
    coordinator_epoch = control.coordinator_epoch
    if control.type not in (ABORT, COMMIT) or coordinator_epoch is None:
        raise InvalidRecordError(f"a control record of type {control.type} at {header.base_offset} has a producer id")
    if origin is not Origin.REPLICATION:
        if _is_fenced(entry, epoch, transaction_version):
            raise InvalidProducerEpochError(
                f"marker of epoch {epoch} for producer {header.producer_id} at offset {header.base_offset}, which has "
                f"epoch {entry.epoch} (transaction version {transaction_version})"
            )
        if coordinator_epoch < entry.coordinator_epoch:
            raise TransactionCoordinatorFencedError(
                f"marker of coordinator epoch {coordinator_epoch} for producer {header.producer_id} at offset "
                f"{header.base_offset}, which has seen {entry.coordinator_epoch}"
            )
    batches = entry.batches if epoch == entry.epoch else ()
    return ProducerEntry(epoch, batches, coordinator_epoch, None, header.max_timestamp)


def _is_fenced(entry: ProducerEntry, marker_epoch: int, transaction_version: int) -> bool:
    if transaction_version < 2 or marker_epoch != entry.epoch:
        return marker_epoch < entry.epoch
    # KIP-890 gives the marker a higher epoch. The same one again is a retry if the transaction has ended already, and
    # all that is left at the greatest epoch.
    return entry.current_txn_first_offset is not None and marker_epoch != MAX_PRODUCER_EPOCH
