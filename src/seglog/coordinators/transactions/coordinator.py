"""The transaction coordinator of this broker (KIP-98, 360, 447, 664, 890): it writes what `TransactionShard` decides,
has markers written when an end is decided, and answers clients.

EndTxn is answered when the decision is committed. Markers follow, and the record that completes the transaction; until
then the next step of the producer waits a moment, and gets CONCURRENT_TRANSACTIONS. If this broker stops leading the
partition meanwhile, its successor finds the decision in the log and writes the markers again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Final

from seglog.coordinators.coordinator_context import CoordinatorContext
from seglog.coordinators.coordinator_error import CoordinatorError, code_of_append
from seglog.coordinators.coordinator_runtime import CoordinatorRuntime, CoordinatorTopic
from seglog.coordinators.transactions.log_records import decode, encode_key, encode_value
from seglog.coordinators.transactions.markers import MarkersFencedError, MarkerWriter, TransactionMarker
from seglog.coordinators.transactions.settings import TransactionSettings
from seglog.coordinators.transactions.shard import TransactionShard
from seglog.coordinators.transactions.transaction import Transaction, TransactionState
from seglog.core.clock import Clock
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import CorruptRecordError, SeglogError, UnsupportedFormatError
from seglog.core.ground import Ground
from seglog.core.types import ProducerIdAndEpoch, TopicPartition
from seglog.replication.replica import Replica

_log: Final = logging.getLogger("seglog.coordinators")
_COMMIT_TIMEOUT_MS: Final = 5_000
_RETRY_SECONDS: Final = 0.1
_COMPLETION_SECONDS: Final = 0.1
"""How long a producer's next step waits for its last transaction: as long as Kafka's brokers try again for it
(``add.partitions.to.txn.retry.backoff.max.ms``)."""


class TransactionContext(CoordinatorContext):
    """The transactional ids of a partition of ``__transaction_state``."""

    def __init__(self, partition: Replica, clock: Clock) -> None:
        super().__init__(partition, clock, _COMMIT_TIMEOUT_MS)
        self.shard = TransactionShard()
        self._completions: dict[str, asyncio.Task[None]] = {}

    def replay(self) -> Iterator[None]:
        """Replay the partition in short steps. Raises `CorruptError` at damage, and at a record that it cannot read."""
        for header, records in self.batches_to_replay():
            for record in () if header.is_control else records:
                if record.key is None:
                    continue
                try:
                    decoded = decode(record.key, record.value)
                except (CorruptRecordError, UnsupportedFormatError) as error:
                    raise self.unreadable(record, error) from error
                if decoded is not None:
                    self.shard.replay(*decoded)
            yield

    def note_completion(self, transactional_id: str, completion: asyncio.Task[None]) -> None:
        """``completion`` has the markers of a decided transaction written."""
        self._completions[transactional_id] = completion
        completion.add_done_callback(lambda _: self._completions.pop(transactional_id, None))

    async def until_completed(self, transactional_id: str, seconds: float) -> None:
        """Wait for the completion that is under way, if there is one."""
        completion = self._completions.get(transactional_id)
        if completion is not None:
            await asyncio.wait((completion,), timeout=seconds)


class TransactionCoordinator(CoordinatorRuntime[TransactionContext]):
    """``new_producer_id`` gives ids that no producer has; ``version`` is the cluster's finalized
    ``transaction.version``."""

    def __init__(
        self,
        topic: CoordinatorTopic,
        settings: TransactionSettings,
        markers: MarkerWriter,
        *,
        new_producer_id: Callable[[], Awaitable[int]],
        version: Callable[[], int],
        ground: Ground,
    ) -> None:
        super().__init__(
            topic,
            "transactional id",
            partition_count=settings.transaction_state_log_num_partitions,
            check_seconds=settings.transaction_abort_timed_out_transaction_cleanup_interval_ms / 1000,
            ground=ground,
        )
        self.settings = settings
        self._markers = markers
        self._new_producer_id = new_producer_id
        self._version = version
        self._next_expiration = 0.0
        self._expiring: asyncio.Task[None] | None = None

    # Loading and checks

    def make_context(self, partition: Replica) -> TransactionContext:
        return TransactionContext(partition, self._clock)

    def replay(self, context: TransactionContext) -> Iterator[None]:
        return context.replay()

    def loaded(self, context: TransactionContext) -> None:
        for transaction in list(context.shard.prepared()):
            self._begin_completion(context, transaction)

    def check(self) -> None:
        """Abort transactions that have timed out and, less often, delete ids that have expired."""
        assert self._owner is not None
        for context in [context for context in self._contexts.values() if context.is_loaded and context.is_led]:
            for transactional_id in context.shard.timed_out(self._clock.now_ms()):
                self._owner.create_task(self._abort_timed_out(context, transactional_id))
        now = self._clock.monotonic()
        is_expiring = self._expiring is not None and not self._expiring.done()
        if now >= self._next_expiration and not is_expiring:  # a pass waits for commits, perhaps for hours
            self._next_expiration = (
                now + self.settings.transaction_remove_expired_transaction_cleanup_interval_ms / 1000
            )
            self._expiring = self._owner.create_task(self._expire())

    # Requests

    async def init_producer_id(
        self, transactional_id: str, timeout_ms: int, expected: ProducerIdAndEpoch | None
    ) -> ProducerIdAndEpoch:
        """A new epoch for the producer, or the one that a repeated request has got. Raises `CoordinatorError`."""
        if not transactional_id:
            raise CoordinatorError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
        if not 0 < timeout_ms <= self.settings.transaction_max_timeout_ms:
            raise CoordinatorError(
                ErrorCode.INVALID_TRANSACTION_TIMEOUT,
                f"a transaction timeout of {timeout_ms} ms is not allowed: transaction.max.timeout.ms is "
                f"{self.settings.transaction_max_timeout_ms}",
            )
        if transactional_id not in self._context_of(transactional_id).shard.transactions:
            count = sum([len(context.shard.transactions) for context in self._contexts.values()])
            most = self.settings.seglog_max_transactional_ids
            self._check_room(transactional_id, count, most, "seglog.max.transactional.ids")
        new_id: int | None = None
        while new_id is None and self._context_of(transactional_id).shard.needs_producer_id(
            transactional_id, expected, self._version()
        ):
            new_id = await self._new_producer_id()
        context = self._context_of(transactional_id)
        proposed = context.shard.initialize(
            transactional_id,
            timeout_ms,
            expected,
            version=self._version(),
            new_producer_id=new_id,
            now_ms=self._clock.now_ms(),
        )
        await self._write(context, proposed)
        if proposed.is_prepared:
            raise CoordinatorError(ErrorCode.CONCURRENT_TRANSACTIONS, "the open transaction is being aborted")
        return proposed.producer

    async def until_completed(self, transactional_id: str) -> None:
        """Wait until the last transaction is completed, or for a moment. A client that is told to try again does so
        after 20 ms, and most markers are written much sooner. Raises `CoordinatorError`.

        Requests of brokers must not wait: those of other transactions are behind them in the same connection.
        """
        await self._context_of(transactional_id).until_completed(transactional_id, _COMPLETION_SECONDS)

    async def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Iterable[TopicPartition],
        version: int,
    ) -> None:
        """Raises `CoordinatorError`."""
        context = self._context_of(transactional_id)
        proposed = context.shard.add_partitions(
            transactional_id, producer, frozenset(partitions), version=version, now_ms=self._clock.now_ms()
        )
        if proposed is not None:
            await self._write(context, proposed)

    def verify_partitions(
        self, transactional_id: str, producer: ProducerIdAndEpoch, partitions: Iterable[TopicPartition]
    ) -> frozenset[TopicPartition]:
        """Those of the partitions that are in the open transaction. Raises `CoordinatorError`."""
        return self._context_of(transactional_id).shard.verify(transactional_id, producer, frozenset(partitions))

    async def end(
        self, transactional_id: str, producer: ProducerIdAndEpoch, *, commit: bool, version: int
    ) -> ProducerIdAndEpoch:
        """Decide how the open transaction ends. The producer id and epoch for the next one (under version 2). Raises
        `CoordinatorError`."""
        context = self._context_of(transactional_id)
        new_id = None
        if context.shard.get(transactional_id).needs_producer_id_to_end(version):
            new_id = await self._new_producer_id()
            context = self._context_of(transactional_id)
        proposed = context.shard.end(
            transactional_id,
            producer,
            commit=commit,
            version=version,
            new_producer_id=new_id,
            now_ms=self._clock.now_ms(),
        )
        if proposed is None:
            return context.shard.get(transactional_id).producer
        await self._write(context, proposed)
        return proposed.completed(proposed.updated_ms).producer

    def describe(self, transactional_id: str) -> Transaction:
        """Raises `CoordinatorError`."""
        found = self._context_of(transactional_id).shard.transactions.get(transactional_id)
        if found is None:
            raise CoordinatorError(
                ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, f"there is no transactional id {transactional_id}"
            )
        return found

    def transactions(self) -> Iterator[Transaction]:
        """All that this broker coordinates. Raises `CoordinatorError` while some are being loaded."""
        for context in self._all_contexts():
            yield from context.shard.transactions.values()

    # Writing

    async def _write(self, context: TransactionContext, proposed: Transaction) -> None:
        """Return when the proposal is committed, and true. Raises `CoordinatorError`, and then it is withdrawn. That
        goes on without a client that goes away meanwhile."""
        assert self._owner is not None
        try:
            end = self._append(context, proposed.transactional_id, encode_value(proposed, self._version()))
        except CoordinatorError:
            context.shard.withdraw(proposed.transactional_id)
            raise
        code = await asyncio.shield(self._owner.create_task(self._settle(context, proposed, end)))
        if code is not ErrorCode.NONE:
            raise CoordinatorError(code, "not committed in time, or another broker leads now")

    def _append(self, context: TransactionContext, transactional_id: str, value: bytes | None) -> int:
        try:
            return context.append_records([(encode_key(transactional_id), value)]).last_offset + 1
        except SeglogError as error:
            raise CoordinatorError(code_of_append(error), str(error)) from error

    async def _settle(self, context: TransactionContext, proposed: Transaction, end: int) -> ErrorCode:
        code = await context.outcome(end)
        if code is not ErrorCode.NONE:
            context.shard.withdraw(proposed.transactional_id)
            return code
        context.shard.settle(proposed.transactional_id)
        if proposed.is_prepared:
            self._begin_completion(context, proposed)
        return code

    # Ends

    def _begin_completion(self, context: TransactionContext, prepared: Transaction) -> None:
        """Have markers written."""
        complete = context.shard.complete(prepared.transactional_id, self._clock.now_ms())
        assert self._owner is not None
        completion = self._owner.create_task(self._complete(context, prepared, complete))
        context.note_completion(prepared.transactional_id, completion)

    async def _complete(self, context: TransactionContext, prepared: Transaction, complete: Transaction) -> None:
        marker = TransactionMarker(
            prepared.producer_id,
            prepared.epoch,
            prepared.state is TransactionState.PREPARE_COMMIT,
            context.leader_epoch,
            prepared.version,
        )
        try:
            await self._markers.write(marker, prepared.partitions)
        except MarkersFencedError as error:
            _log.info("transaction of %s is completed elsewhere: %s", prepared.transactional_id, error)
            context.shard.withdraw(prepared.transactional_id)
            return
        value = encode_value(complete, self._version())
        while context.is_current:
            try:
                end = self._append(context, complete.transactional_id, value)
            except CoordinatorError as error:
                _log.warning("the end of the transaction of %s is not written: %s", complete.transactional_id, error)
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            if await context.committed(end):
                context.shard.settle(complete.transactional_id)
            return

    async def _abort_timed_out(self, context: TransactionContext, transactional_id: str) -> None:
        version = self._version()
        try:
            found = context.shard.transactions.get(transactional_id)
            needs_id = found is not None and found.needs_producer_id_to_end(version)
            new_id = await self._new_producer_id() if needs_id else None
            proposed = context.shard.abort_timed_out(
                transactional_id, version=version, new_producer_id=new_id, now_ms=self._clock.now_ms()
            )
            if proposed is None or not context.is_led:
                return
            await self._write(context, proposed)
        except SeglogError as error:
            _log.warning("the transaction of %s has timed out and is not aborted: %s", transactional_id, error)
            return
        _log.info("the transaction of %s has timed out: it is aborted, its producer fenced", transactional_id)

    async def _expire(self) -> None:
        """Delete ids that were not used for ``transactional.id.expiration.ms``."""
        expiration_ms = self.settings.transactional_id_expiration_ms
        for context in [context for context in self._contexts.values() if context.is_loaded and context.is_led]:
            for transactional_id in list(context.shard.transactions):
                if not context.shard.expire(transactional_id, self._clock.now_ms(), expiration_ms):
                    continue
                try:
                    end = self._append(context, transactional_id, None)
                except CoordinatorError as error:
                    context.shard.withdraw(transactional_id)
                    _log.warning("transactional id %s has expired and is not deleted: %s", transactional_id, error)
                    break
                if await context.committed(end):
                    context.shard.settle(transactional_id)
