"""Bugs of transactions, put in on purpose. docs/replication.md has a table of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import pytest

from seglog.broker.apis import transaction_markers
from seglog.broker.produce.transaction_verification import TransactionVerifier
from seglog.client.range_fetcher import RangeFetcher
from seglog.coordinators.committed_offsets import CommittedOffsets
from seglog.coordinators.group_coordinator import GroupCoordinator
from seglog.coordinators.transactions.coordinator import TransactionContext, TransactionCoordinator
from seglog.coordinators.transactions.markers import MarkerWriter, TransactionMarker
from seglog.coordinators.transactions.shard import TransactionShard
from seglog.coordinators.transactions.transaction import Transaction, TransactionState
from seglog.core.error_codes import ErrorCode
from seglog.core.types import ProducerIdAndEpoch, TopicPartition
from seglog.storage.log import producer_entry, producers
from seglog.storage.log.producer_entry import Origin, ProducerEntry
from seglog.storage.log.producers import CompletedTxn, Producers
from tests.simulation.cluster.scenario import Scenario

Patch = pytest.MonkeyPatch
_HESITATION_SECONDS: Final = 0.03


class Bug(NamedTuple):
    """``seed`` is one that finds it soon, in ``scenario`` and with ``rates`` of faults where they are not the seed's
    own. ``is_slow``: left to `make test-long`."""

    name: str
    plant: Callable[[Patch], None]
    seed: int = 0
    scenario: Scenario | None = None
    rates: Mapping[str, float] = MappingProxyType({})
    is_slow: bool = False


# The coordinator


def _kafka_17754(patch: Patch) -> None:
    """EndTxn of the epoch before ends the transaction that is open."""

    def ended(self: Transaction, producer: ProducerIdAndEpoch, *, version: int, **more: Any) -> Transaction:
        is_delayed = self.state is TransactionState.ONGOING and producer.epoch == self.epoch - 1
        return honest(self, self.producer if is_delayed else producer, version=version, **more)

    honest = Transaction.ended
    patch.setattr(Transaction, "ended", ended)


def _answered_early(patch: Patch) -> None:
    """EndTxn is answered, and markers are written, before the decision is committed."""

    async def settle(
        self: TransactionCoordinator, context: TransactionContext, proposed: Transaction, _: int
    ) -> ErrorCode:
        context.shard.settle(proposed.transactional_id)
        if proposed.is_prepared:
            self._begin_completion(context, proposed)
        return ErrorCode.NONE

    patch.setattr(TransactionCoordinator, "_settle", settle)


def _not_resumed(patch: Patch) -> None:
    """A new coordinator leaves decided transactions as they are."""
    patch.setattr(TransactionCoordinator, "loaded", lambda *_: None)


def _not_timed_out(patch: Patch) -> None:
    """A transaction that its producer has left stays open."""
    patch.setattr(TransactionShard, "timed_out", lambda *_: [])


def _not_fenced(patch: Patch) -> None:
    """A transaction that times out is aborted in the epoch of its producer."""

    def fenced(self: Transaction, **more: Any) -> Transaction:
        found = honest(self, **more)
        return found._replace(epoch=self.epoch)

    honest = Transaction.fenced
    patch.setattr(Transaction, "fenced", fenced)


# Markers


def _marker_lost(patch: Patch) -> None:
    """A partition whose leader does not answer, or is another one, counts as done."""

    async def try_once(
        self: MarkerWriter, marker: TransactionMarker, partitions: set[TopicPartition]
    ) -> set[TopicPartition]:
        await honest(self, marker, partitions)
        return partitions

    honest = MarkerWriter._try
    patch.setattr(MarkerWriter, "_try", try_once)


def _answered_uncommitted(patch: Patch) -> None:
    """A marker counts as written when it is appended, though a new leader may not have it."""

    async def committed(appended: ErrorCode | tuple[Any, int, int]) -> ErrorCode:
        return appended if isinstance(appended, ErrorCode) else ErrorCode.NONE

    patch.setattr(transaction_markers, "_committed", committed)


# Appends


def _kafka_14402(patch: Patch) -> None:
    """Partitions are not verified to be in the transaction: a late append begins one that never ends."""

    async def check(
        self: TransactionVerifier,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Sequence[TopicPartition],
        *,
        adds: bool,
        knows_abortable: bool,
    ) -> dict[TopicPartition, ErrorCode]:
        if not adds:
            return dict.fromkeys(partitions, ErrorCode.NONE)
        return await honest(self, transactional_id, producer, partitions, adds=adds, knows_abortable=knows_abortable)

    honest = TransactionVerifier.check
    patch.setattr(TransactionVerifier, "check", check)


def _two_steps(patch: Patch) -> None:
    """A marker between the verification of a partition and the append goes unnoticed. Brokers are slow to go on, so
    that there is one."""

    async def check(
        self: TransactionVerifier,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Sequence[TopicPartition],
        **more: Any,
    ) -> dict[TopicPartition, ErrorCode]:
        found = await honest(self, transactional_id, producer, partitions, **more)
        await asyncio.sleep(_HESITATION_SECONDS)
        return found

    honest = TransactionVerifier.check
    patch.setattr(TransactionVerifier, "check", check)
    patch.setattr(Producers, "check_verified", lambda *_: None)


def _late_append(patch: Patch) -> None:
    """A transaction that was verified once is not verified again, and an older epoch is accepted."""
    verified: set[tuple[str, int, TopicPartition]] = set()

    async def check(
        self: TransactionVerifier,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Sequence[TopicPartition],
        **more: Any,
    ) -> dict[TopicPartition, ErrorCode]:
        found = await honest(self, transactional_id, producer, partitions, **more)
        for one in partitions:
            key = (transactional_id, producer.producer_id, one)
            if found[one] is ErrorCode.NONE:
                verified.add(key)
            elif key in verified:
                found[one] = ErrorCode.NONE
        return found

    def add_batch(entry: ProducerEntry, header: Any, origin: Origin, *more: Any) -> ProducerEntry:
        is_late = header.producer_epoch < entry.epoch and origin is not Origin.REPLICATION
        return honest_add(entry, header, Origin.REPLICATION if is_late else origin, *more)

    honest, honest_add = TransactionVerifier.check, producer_entry.add_batch
    patch.setattr(TransactionVerifier, "check", check)
    patch.setattr(producers, "add_batch", add_batch)
    patch.setattr(Producers, "check_verified", lambda *_: None)


# What readers see


def _lso_past_marker(patch: Patch) -> None:
    """The last stable offset passes a marker before the high watermark has."""

    def complete(self: Producers, completed: CompletedTxn) -> None:
        del self.ongoing[completed.first_offset]

    patch.setattr(Producers, "complete", complete)


def _offsets_shown(patch: Patch) -> None:
    """The offsets of a transaction count before its marker."""

    def put(self: CommittedOffsets, key: Any, value: Any, record: int, producer_id: int = -1, **more: Any) -> None:
        del producer_id
        honest(self, key, value, record, **more)

    honest = CommittedOffsets.put
    patch.setattr(CommittedOffsets, "put", put)


def _offsets_unstable(patch: Patch) -> None:
    """Offsets are returned although an open transaction may change them (KIP-447)."""
    patch.setattr(CommittedOffsets, "is_pending", lambda *_: False)


def _offsets_forgotten(patch: Patch) -> None:
    """A commit marker does not reach the group coordinator of the broker that appends it."""
    patch.setattr(GroupCoordinator, "end_transaction", lambda *_, **__: None)


# Readers


def _high_watermark_only(patch: Patch) -> None:
    """A reader of ranges takes three empty answers for the end of a range if the high watermark has reached it, though
    the last stable offset has not."""

    def empty(self: RangeFetcher, *answer: Any, is_first: bool) -> bool:
        read_committed, self._read_committed = self._read_committed, False
        try:
            return honest(self, *answer, is_first=is_first)
        finally:
            self._read_committed = read_committed

    honest = RangeFetcher._empty
    patch.setattr(RangeFetcher, "_empty", empty)


_QUIET = dict.fromkeys(
    (
        *("crash_every", "power_every", "pause_every", "cut_every", "expire_every", "stop_every", "disk_every"),
        *("away_every", "fill_every", "install_every", "configure_every", "reassign_every", "blackout_every"),
        *("coordinators_every", "loss", "store_lost", "store_slow", "watch_slow", "disk_slow"),
    ),
    0.0,
)
_MOVES = _QUIET | {"coordinators_every": 700}
_SLOW = _QUIET | {"slow": 0.01}
_LATE = _QUIET | {"slow": 0.01, "late": 0.4}
_AGAIN = _QUIET | {"slow": 0.0, "late": 0.0, "end_again": 0.9}
_RACING = _QUIET | {"slow": 0.0, "late": 0.5, "end_again": 0.0}
_KILLED = {"crash_every": 1_500}
_THREE = Scenario(partitions=3, coordinators=True)
_RANGES = _THREE._replace(ranges=True)

BUGS = (
    Bug("KAFKA-17754", _kafka_17754, scenario=_THREE, rates=_AGAIN, is_slow=True),
    Bug("KAFKA-14402", _kafka_14402, seed=2, scenario=_THREE, rates=_LATE),
    Bug("marker-lost", _marker_lost, seed=50),
    Bug("late-append", _late_append, rates=_LATE),
    Bug("high-watermark-only", _high_watermark_only, scenario=_RANGES),
    Bug("lso-past-marker", _lso_past_marker, seed=1),
    Bug("two-steps", _two_steps, scenario=_THREE, rates=_RACING, is_slow=True),
    Bug("offsets-shown", _offsets_shown),
    Bug("offsets-unstable", _offsets_unstable, seed=15, scenario=_THREE, rates=_SLOW, is_slow=True),
    Bug("offsets-forgotten", _offsets_forgotten, seed=4, is_slow=True),
    Bug("answered-early", _answered_early, seed=13, rates=_KILLED, is_slow=True),
    Bug("answered-uncommitted", _answered_uncommitted, seed=519, rates=_KILLED, is_slow=True),
    Bug("not-resumed", _not_resumed, scenario=_THREE, rates=_MOVES, is_slow=True),
    Bug("not-timed-out", _not_timed_out, seed=4, is_slow=True),
    Bug("not-fenced", _not_fenced, rates=_SLOW, is_slow=True),
)
