"""A transactional id and the state of its transaction: pure rules, as Kafka 4.4's ``TransactionMetadata`` and
``TransactionCoordinator`` have them (KIP-98, 360, 890).

A transaction is a value. Each verb returns the value that is to be written to ``__transaction_state``, or raises the
`CoordinatorError` that the client gets; nothing changes until that record is committed.

Two client protocols share the states. Under transaction version 2 (KIP-890) the coordinator raises the producer epoch
with every end of a transaction and tells the client the new one; under versions 0 and 1 the epoch changes only when the
producer initializes or is fenced.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final, NamedTuple

from seglog.coordinators.coordinator_error import CoordinatorError
from seglog.core.error_codes import ErrorCode
from seglog.core.types import NO_PRODUCER_ID, NO_TIMESTAMP, ProducerIdAndEpoch, TopicPartition

NO_PRODUCER_EPOCH: Final = -1
MAX_EPOCH: Final = 2**15 - 1
EPOCH_BUMPS_FROM: Final = 2
"""The transaction version from which the end of a transaction raises the producer's epoch."""


class TransactionState(IntEnum):
    """The numbers are those of the log's records."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def label(self) -> str:
        """
        >>> TransactionState.PREPARE_COMMIT.label
        'PrepareCommit'
        """
        return self.name.title().replace("_", "")


_AT_REST: Final = frozenset({TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT})
_PREPARED: Final = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
PREVIOUS: Final[Mapping[TransactionState, frozenset[TransactionState]]] = {
    TransactionState.EMPTY: _AT_REST,
    TransactionState.ONGOING: _AT_REST | {TransactionState.ONGOING},
    TransactionState.PREPARE_COMMIT: frozenset({TransactionState.ONGOING}),
    TransactionState.PREPARE_ABORT: _AT_REST | {TransactionState.ONGOING},
    TransactionState.COMPLETE_COMMIT: frozenset({TransactionState.PREPARE_COMMIT}),
    TransactionState.COMPLETE_ABORT: frozenset({TransactionState.PREPARE_ABORT}),
    TransactionState.DEAD: _AT_REST,
}
"""From which states a state is reached."""


class Transaction(NamedTuple):
    """``last_epoch`` is the epoch before the current one, for a client that repeats InitProducerId (KIP-360): it is not
    written, and unknown after a change of the coordinator. ``next_producer_id`` replaces the producer id when the
    transaction completes, since its epochs are used up. ``version`` is the client's transaction version. Times are
    milliseconds since 1970.

    Invariant: ``partitions`` is empty at rest; ``start_ms`` is set from Ongoing to Complete.
    """

    transactional_id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    updated_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = NO_TIMESTAMP
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    last_epoch: int = NO_PRODUCER_EPOCH
    version: int = 0

    @property
    def producer(self) -> ProducerIdAndEpoch:
        return ProducerIdAndEpoch(self.producer_id, self.epoch)

    @property
    def is_at_rest(self) -> bool:
        """No transaction is open or being completed: the id may expire."""
        return self.state in _AT_REST

    @property
    def is_prepared(self) -> bool:
        """Its end is decided; markers are under way."""
        return self.state in _PREPARED

    @property
    def is_exhausted(self) -> bool:
        """The next epoch needs a new producer id. One epoch is kept back, for the fence of a transaction."""
        return is_exhausted(self.epoch)

    def has_timed_out(self, now_ms: int) -> bool:
        return self.state is TransactionState.ONGOING and now_ms > self.start_ms + self.timeout_ms

    # InitProducerId

    def initialized(
        self, timeout_ms: int, expected: ProducerIdAndEpoch | None, new_producer_id: int | None, now_ms: int
    ) -> Transaction | None:
        """With a new epoch and no transaction; None if one is open and must be aborted first (`fenced`).

        ``expected`` is what a client has that initializes again after an error (KIP-360); the answer to a repeated
        request is the same. ``new_producer_id`` is needed where `needs_producer_id` says so.
        """
        if expected is not None and not self._may_be_of(expected):
            raise CoordinatorError(ErrorCode.PRODUCER_FENCED, f"{expected} is not the producer of {self.producer}")
        if self.is_prepared:
            raise CoordinatorError(ErrorCode.CONCURRENT_TRANSACTIONS, "the last transaction is being completed")
        if self.state is TransactionState.ONGOING:
            return None
        if self.needs_producer_id(expected):
            assert new_producer_id is not None
            producer_id, epoch, last = new_producer_id, 0, self.epoch if expected else NO_PRODUCER_EPOCH
        else:
            producer_id = self.producer_id
            epoch, last = self._next_epoch(expected)
        return self._moved(TransactionState.EMPTY, now_ms)._replace(
            producer_id=producer_id,
            epoch=epoch,
            last_epoch=last,
            timeout_ms=timeout_ms,
            partitions=frozenset(),
            start_ms=NO_TIMESTAMP,
        )

    def needs_producer_id(self, expected: ProducerIdAndEpoch | None) -> bool:
        """Whether `initialized` goes on with another producer id."""
        return self.is_at_rest and self.is_exhausted and (expected is None or expected.epoch == self.epoch)

    def _may_be_of(self, expected: ProducerIdAndEpoch) -> bool:
        if self.epoch == NO_PRODUCER_EPOCH or expected.producer_id == self.producer_id:
            return True
        return expected.producer_id == self.previous_producer_id and is_exhausted(expected.epoch)

    def _next_epoch(self, expected: ProducerIdAndEpoch | None) -> tuple[int, int]:
        """The epoch, and the one before it."""
        if expected is None:
            return self.epoch + 1, NO_PRODUCER_EPOCH
        if expected.epoch == self.epoch or self.epoch == NO_PRODUCER_EPOCH:
            return self.epoch + 1, self.epoch
        if expected.epoch == self.last_epoch:  # the answer to this very request was lost
            return self.epoch, self.last_epoch
        raise CoordinatorError(ErrorCode.PRODUCER_FENCED, f"{expected} is older than {self.producer}")

    # AddPartitionsToTxn, AddOffsetsToTxn

    def check_producer(self, producer: ProducerIdAndEpoch) -> None:
        """Raises `CoordinatorError` unless the producer may add to the transaction now."""
        self.check_identity(producer)
        if self.is_prepared:
            raise CoordinatorError(ErrorCode.CONCURRENT_TRANSACTIONS, "the last transaction is being completed")

    def check_identity(self, producer: ProducerIdAndEpoch) -> None:
        if producer.producer_id != self.producer_id:
            raise CoordinatorError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, f"{producer} is not {self.producer}")
        if producer.epoch != self.epoch:
            raise CoordinatorError(ErrorCode.PRODUCER_FENCED, f"{producer} is older than {self.producer}")

    def with_partitions(
        self, producer: ProducerIdAndEpoch, partitions: frozenset[TopicPartition], version: int, now_ms: int
    ) -> Transaction:
        """With these partitions in its transaction, which begins if none is open. The same value if all are in it."""
        self.check_producer(producer)
        if self.state is TransactionState.ONGOING and partitions <= self.partitions:
            return self
        return self._moved(TransactionState.ONGOING, now_ms)._replace(
            partitions=self.partitions | partitions,
            start_ms=self.start_ms if self.state is TransactionState.ONGOING else now_ms,
            version=version,
        )

    # EndTxn

    def ended(
        self, producer: ProducerIdAndEpoch, *, commit: bool, version: int, new_producer_id: int | None, now_ms: int
    ) -> Transaction:
        """With its end decided (PrepareCommit or PrepareAbort). The same value if it has been completed like that: the
        client repeats a request whose answer was lost."""
        if version < EPOCH_BUMPS_FROM:
            return self._ended_at_its_epoch(producer, commit=commit, now_ms=now_ms)
        is_retry = self._is_retry(producer)
        if producer.producer_id != self.producer_id and not self._is_retry_after_rotation(producer):
            raise CoordinatorError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, f"{producer} is not {self.producer}")
        is_current = producer.epoch == self.epoch
        if not (is_retry if self.is_prepared else is_current or (is_retry and self._is_complete)):
            raise CoordinatorError(ErrorCode.PRODUCER_FENCED, f"{producer} is older than {self.producer}")
        if self.state is not TransactionState.ONGOING and (self.is_prepared or is_retry or commit):
            return self._repeated(commit=commit, is_retry=is_retry or self.is_prepared)
        return self._prepared(commit=commit, version=version, new_producer_id=new_producer_id, now_ms=now_ms)

    @property
    def _is_complete(self) -> bool:
        return self.state in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)

    def _is_retry(self, producer: ProducerIdAndEpoch) -> bool:
        """Whether the request is of the epoch before the end that it asks for. Ends of versions 0 and 1 keep their
        epoch: after those, the epoch before is of a producer that was fenced (``endTxnEpochBumped``)."""
        has_bumped = self.version >= EPOCH_BUMPS_FROM and self.epoch == producer.epoch + 1
        return has_bumped or self._is_retry_after_rotation(producer)

    def _is_retry_after_rotation(self, producer: ProducerIdAndEpoch) -> bool:
        return self.epoch == 0 and producer == (self.previous_producer_id, MAX_EPOCH - 1)

    def _ended_at_its_epoch(self, producer: ProducerIdAndEpoch, *, commit: bool, now_ms: int) -> Transaction:
        """As clients of transaction versions 0 and 1 end it."""
        self.check_identity(producer)
        if self.state is not TransactionState.ONGOING:
            return self._repeated(commit=commit, is_retry=True)
        return self._prepared(commit=commit, version=0, new_producer_id=None, now_ms=now_ms)

    def _repeated(self, *, commit: bool, is_retry: bool) -> Transaction:
        """The answer to an end where no transaction is open."""
        if is_retry and self.state is (TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT):
            return self
        if is_retry and self.state is (TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT):
            raise CoordinatorError(ErrorCode.CONCURRENT_TRANSACTIONS, "the transaction is being completed")
        end = "commit" if commit else "abort"
        raise CoordinatorError(ErrorCode.INVALID_TXN_STATE, f"cannot {end} a transaction in {self.state.label}")

    def fenced(self, *, version: int, new_producer_id: int | None, now_ms: int) -> Transaction:
        """Its open transaction aborted, in an epoch that the producer has not: after a timeout, or when another one
        initializes. ``version`` is the cluster's."""
        assert self.state is TransactionState.ONGOING
        if version >= EPOCH_BUMPS_FROM:
            return self._prepared(commit=False, version=version, new_producer_id=new_producer_id, now_ms=now_ms)
        return self._moved(TransactionState.PREPARE_ABORT, now_ms)._replace(
            epoch=min(self.epoch + 1, MAX_EPOCH), last_epoch=NO_PRODUCER_EPOCH, version=0
        )

    def needs_producer_id_to_end(self, version: int) -> bool:
        """Whether `ended` and `fenced` need a producer id for the next transaction."""
        return version >= EPOCH_BUMPS_FROM and self.is_exhausted

    def _prepared(self, *, commit: bool, version: int, new_producer_id: int | None, now_ms: int) -> Transaction:
        state = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
        start_ms = self.start_ms if self.state is TransactionState.ONGOING else now_ms  # nothing was added: an abort
        prepared = self._moved(state, now_ms)._replace(start_ms=start_ms, version=version)
        if version < EPOCH_BUMPS_FROM:
            return prepared
        return prepared._replace(
            epoch=min(self.epoch + 1, MAX_EPOCH),
            last_epoch=self.epoch,
            next_producer_id=NO_PRODUCER_ID if new_producer_id is None else new_producer_id,
        )

    def completed(self, now_ms: int) -> Transaction:
        """All markers are written."""
        commits = self.state is TransactionState.PREPARE_COMMIT
        state = TransactionState.COMPLETE_COMMIT if commits else TransactionState.COMPLETE_ABORT
        complete = self._moved(state, now_ms)._replace(partitions=frozenset(), next_producer_id=NO_PRODUCER_ID)
        if self.next_producer_id == NO_PRODUCER_ID:
            return complete
        return complete._replace(producer_id=self.next_producer_id, epoch=0)

    def _moved(self, state: TransactionState, now_ms: int) -> Transaction:
        assert self.state in PREVIOUS[state], f"{self.transactional_id}: {self.state.label} to {state.label}"
        return self._replace(state=state, updated_ms=now_ms, previous_producer_id=self.producer_id)


def is_exhausted(epoch: int) -> bool:
    return epoch >= MAX_EPOCH - 1
