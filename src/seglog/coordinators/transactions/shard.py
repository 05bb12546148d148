"""The transactional ids of one partition of ``__transaction_state``: replayed, asked, changed. Pure.

A change is proposed, written, and settled when its record is committed. Between proposal and settlement every other
request for the id gets CONCURRENT_TRANSACTIONS, on which clients try again.
"""

from __future__ import annotations

from collections.abc import Iterator

from seglog.coordinators.coordinator_error import CoordinatorError
from seglog.coordinators.transactions.transaction import (
    EPOCH_BUMPS_FROM,
    NO_PRODUCER_EPOCH,
    Transaction,
    TransactionState,
)
from seglog.core.error_codes import ErrorCode
from seglog.core.types import ProducerIdAndEpoch, TopicPartition


class TransactionShard:
    """Invariant: an id with a proposal is not changed by anything but that proposal's settlement or withdrawal."""

    __slots__ = ("_proposals", "transactions")

    def __init__(self) -> None:
        self.transactions: dict[str, Transaction] = {}
        self._proposals: dict[str, Transaction | None] = {}

    # Records

    def replay(self, transactional_id: str, transaction: Transaction | None) -> None:
        """A record read after a change of the coordinator, in the order of the log."""
        if transaction is None:
            self.transactions.pop(transactional_id, None)
        else:
            self.transactions[transactional_id] = transaction

    def settle(self, transactional_id: str) -> None:
        """The record of the proposal is committed."""
        self.replay(transactional_id, self._proposals.pop(transactional_id))

    def withdraw(self, transactional_id: str) -> None:
        """The record of the proposal could not be written."""
        self._proposals.pop(transactional_id, None)

    # Proposals

    def initialize(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: ProducerIdAndEpoch | None,
        *,
        version: int,
        new_producer_id: int | None,
        now_ms: int,
    ) -> Transaction:
        """InitProducerId: the id at rest in a new epoch or, where a transaction is open, that one aborted: then the
        client has to ask again."""
        self._check_free(transactional_id)
        found = self.transactions.get(transactional_id)
        if found is None:
            assert new_producer_id is not None
            found = Transaction(transactional_id, new_producer_id, NO_PRODUCER_EPOCH, timeout_ms, now_ms)
        proposed = found.initialized(timeout_ms, expected, new_producer_id, now_ms)
        if proposed is None:
            proposed = found.fenced(version=version, new_producer_id=new_producer_id, now_ms=now_ms)
        return self._propose(proposed)

    def needs_producer_id(self, transactional_id: str, expected: ProducerIdAndEpoch | None, version: int) -> bool:
        """Whether `initialize` needs another producer id."""
        found = self.transactions.get(transactional_id)
        if found is None:
            return True
        is_open = found.state is TransactionState.ONGOING
        return found.needs_producer_id_to_end(version) if is_open else found.needs_producer_id(expected)

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: frozenset[TopicPartition],
        *,
        version: int,
        now_ms: int,
    ) -> Transaction | None:
        """AddPartitionsToTxn; None if the log needs no record."""
        found = self.get(transactional_id)
        self._check_free(transactional_id)
        added = found.with_partitions(producer, partitions, version, now_ms)
        return None if added is found else self._propose(added)

    def end(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        *,
        commit: bool,
        version: int,
        new_producer_id: int | None,
        now_ms: int,
    ) -> Transaction | None:
        """EndTxn: the transaction with its end decided; None if that is how it has been completed."""
        found = self.get(transactional_id)
        if version < EPOCH_BUMPS_FROM:
            found.check_identity(producer)
        self._check_free(transactional_id)
        ended = found.ended(producer, commit=commit, version=version, new_producer_id=new_producer_id, now_ms=now_ms)
        return None if ended is found else self._propose(ended)

    def abort_timed_out(
        self, transactional_id: str, *, version: int, new_producer_id: int | None, now_ms: int
    ) -> Transaction | None:
        """The transaction aborted and its producer fenced, if it still is open for too long."""
        found = self.transactions.get(transactional_id)
        if found is None or transactional_id in self._proposals or not found.has_timed_out(now_ms):
            return None
        return self._propose(found.fenced(version=version, new_producer_id=new_producer_id, now_ms=now_ms))

    def complete(self, transactional_id: str, now_ms: int) -> Transaction:
        """Propose the transaction as it is when all its markers are written. Raises `CoordinatorError` if it is being
        changed already."""
        self._check_free(transactional_id)
        return self._propose(self.transactions[transactional_id].completed(now_ms))

    def expire(self, transactional_id: str, now_ms: int, expiration_ms: int) -> bool:
        """Propose to delete an id, if it is there and has been at rest for ``transactional.id.expiration.ms``."""
        found = self.transactions.get(transactional_id)
        is_due = found is not None and found.is_at_rest and found.updated_ms <= now_ms - expiration_ms
        if not is_due or transactional_id in self._proposals:
            return False
        self._proposals[transactional_id] = None
        return True

    def _check_free(self, transactional_id: str) -> None:
        if transactional_id in self._proposals:
            raise CoordinatorError(
                ErrorCode.CONCURRENT_TRANSACTIONS, f"transactional id {transactional_id} is being changed"
            )

    def _propose(self, transaction: Transaction) -> Transaction:
        self._proposals[transaction.transactional_id] = transaction
        return transaction

    # Questions

    def get(self, transactional_id: str) -> Transaction:
        """Raises `CoordinatorError`."""
        found = self.transactions.get(transactional_id)
        if found is None:
            raise CoordinatorError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING, f"there is no transactional id {transactional_id}"
            )
        return found

    def verify(
        self, transactional_id: str, producer: ProducerIdAndEpoch, partitions: frozenset[TopicPartition]
    ) -> frozenset[TopicPartition]:
        """Those of the partitions that are in the producer's open transaction. Raises `CoordinatorError`."""
        found = self.get(transactional_id)
        found.check_producer(producer)
        return partitions & found.partitions

    def timed_out(self, now_ms: int) -> list[str]:
        return [
            transactional_id
            for transactional_id, found in self.transactions.items()
            if transactional_id not in self._proposals and found.has_timed_out(now_ms)
        ]

    def prepared(self) -> Iterator[Transaction]:
        """Those whose markers are to be written (again) after a change of the coordinator."""
        return (found for found in self.transactions.values() if found.is_prepared)
