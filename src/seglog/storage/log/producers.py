"""The state of a log's idempotent and transactional producers: sequences, epochs, open transactions. Pure.

Rules of Kafka 4.4's ``ProducerStateManager``: a batch must continue its producer's sequence; one that was appended
before is recognised among the last five; an older epoch is fenced; a transaction is open from its first batch to its
marker. The state is a function of the log: `Producers.replay` makes it from batches, `encode_snapshot` keeps what a
restart needs. Of the last five batches a snapshot has one: `remember` takes the others from the log when they are
needed, which Kafka does not do.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from seglog.core.errors import CorruptSnapshotError, InvalidProducerEpochError, InvalidTransactionStateError
from seglog.core.types import MAX_INT32, Buffer, ProducerIdAndEpoch
from seglog.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader
from seglog.storage.log.producer_entry import (
    ABORT,
    BATCHES_KEPT,
    BatchMetadata,
    Marker,
    Origin,
    ProducerEntry,
    add_batch,
    end_transaction,
    metadata_of,
)
from seglog.storage.log.verification import Verification, begin_verification

__all__ = [
    "BatchMetadata",
    "CompletedTxn",
    "OpenTxn",
    "Origin",
    "ProducerEntry",
    "ProducerUpdates",
    "Producers",
    "ReplicatingTxn",
    "decode_snapshot",
    "encode_snapshot",
]


class CompletedTxn(NamedTuple):
    """A transaction with its end; ``last_offset`` is that of the marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


class OpenTxn(NamedTuple):
    first_offset: int
    producer_id: int


class ReplicatingTxn(NamedTuple):
    """A completed transaction whose marker may not be on all replicas: for consumers it is undecided still."""

    first_offset: int
    last_offset: int
    producer_id: int


class ProducerUpdates(NamedTuple):
    """The changes of one append: new entries, and transactions that begin and end, in the order of the batches.
    ``verified`` are the producers whose verification is over."""

    entries: dict[int, ProducerEntry]
    started: tuple[OpenTxn, ...]
    completed: tuple[CompletedTxn, ...]
    verified: tuple[int, ...] = ()


_UNKNOWN: Final = ProducerEntry()


class Producers:
    """State of all producers of one partition.

    ``map_end_offset`` is the offset (exclusive) up to which the log is reflected here, ``last_snapshot_offset`` that of
    the newest snapshot on disk. ``ongoing`` has the open transactions' producers by first offset, ascending.
    ``verifications`` are of this process: the log does not have them. ``abridged`` producers come from a snapshot,
    which leaves out all of their batches but the last.
    """

    __slots__ = (
        "_table_size",
        "abridged",
        "entries",
        "last_snapshot_offset",
        "map_end_offset",
        "ongoing",
        "replicating",
        "verifications",
    )

    def __init__(self) -> None:
        # The containers change, too: a reader without the lock looks up one producer, or copies all in one step.
        self.entries: dict[int, ProducerEntry] = {}  # guarded by the log's lock
        self.ongoing: dict[int, int] = {}  # guarded by the log's lock
        self.replicating: list[ReplicatingTxn] = []  # guarded by the log's lock
        self.verifications: dict[int, Verification] = {}  # guarded by the log's lock
        self.abridged: set[int] = set()  # guarded by the log's lock
        self.map_end_offset = 0  # guarded by the log's lock
        self.last_snapshot_offset = 0  # guarded by the log's lock
        self._table_size = _FIRST_TABLE_SIZE  # guarded by the log's lock

    def copy_of_transactions(self) -> Producers:
        """Return a copy of the producers and their open transactions that a replay may change."""
        copy = Producers()
        copy.entries = dict(self.entries)
        copy.ongoing = dict(self.ongoing)
        return copy

    # Appends: look, then apply

    def find_duplicate(self, header: BatchHeader) -> BatchMetadata | None:
        """The batch that this one repeats: same producer, epoch and sequences."""
        entry = self.entries.get(header.producer_id)
        if entry is None or entry.epoch != header.producer_epoch:
            return None
        first, last = header.base_sequence, header.last_sequence
        for batch in entry.batches:
            if batch.last_sequence == last and batch.first_sequence == first:
                return batch
        return None

    def may_have_forgotten(self, header: BatchHeader) -> bool:
        """Whether the log may have this batch although `find_duplicate` does not know it: it comes before the oldest
        batch that is known of its producer, and a snapshot left out the batches before that one."""
        if header.producer_id not in self.abridged:
            return False
        entry = self.entries.get(header.producer_id)
        if entry is None or entry.epoch != header.producer_epoch or not entry.batches:
            return False
        distance = (entry.batches[0].first_sequence - header.last_sequence) & MAX_INT32
        return 0 < distance <= MAX_INT32 // 2  # sequences wrap

    def remember(self, producer_id: int, earlier: Iterable[BatchHeader]) -> None:
        """Take in the producer's batches before its oldest known one, the newest of them first. A batch whose sequences
        do not reach up to the next one ends the run."""
        entry = self.entries[producer_id]
        batches = list(entry.batches)
        for header in earlier:
            if len(batches) == BATCHES_KEPT or (header.last_sequence + 1) & MAX_INT32 != batches[0].first_sequence:
                break
            batches.insert(0, metadata_of(header))
        self.entries[producer_id] = entry._replace(batches=tuple(batches))
        self.abridged.discard(producer_id)  # not if the log could not be read

    def prepare(
        self,
        batches: Sequence[BatchHeader],
        origin: Origin,
        *,
        controls: Sequence[Marker | None] | None = None,
        transaction_version: int = 0,
    ) -> ProducerUpdates | None:
        """The changes that appending ``batches``, with their final offsets, would make; nothing changes yet.

        ``controls`` has the marker of each control batch (None for other batches, and for control batches that
        compaction emptied). ``transaction_version`` is the coordinator's (2: a marker's epoch is above that of its
        transaction, KIP-890). None if no batch has a producer. Raises the `AppendError` with which Kafka refuses the
        append.
        """
        entries: dict[int, ProducerEntry] = {}
        started: list[OpenTxn] = []
        completed: list[CompletedTxn] = []
        verified: list[int] = []
        for at, header in enumerate(batches):
            producer_id = header.producer_id
            if producer_id < 0:
                continue
            entry = entries.get(producer_id) or self.entries.get(producer_id, _UNKNOWN)
            verification = self.verifications.get(producer_id) if self.verifications else None
            if verification is not None and header.attributes & TRANSACTIONAL_BIT and verification.ends_with(header):
                verified.append(producer_id)
            if header.attributes & CONTROL_BIT:
                control = controls[at] if controls is not None else None
                if control is None:
                    continue
                entries[producer_id] = end_transaction(entry, header, control, origin, transaction_version)
                if entry.current_txn_first_offset is not None:
                    completed.append(
                        CompletedTxn(
                            producer_id, entry.current_txn_first_offset, header.base_offset, control.type == ABORT
                        )
                    )
                continue
            updated = entries[producer_id] = add_batch(entry, header, origin, verification)
            if updated.current_txn_first_offset is not None and entry.current_txn_first_offset is None:
                started.append(OpenTxn(updated.current_txn_first_offset, producer_id))
        if not entries:
            return None
        return ProducerUpdates(entries, tuple(started), tuple(completed), tuple(verified))

    def prepare_run(self, first: BatchHeader, last: Sequence[BatchHeader]) -> ProducerUpdates:
        """`prepare` for batches of one transactional producer whose sequences are known to be consecutive, from
        ``first`` to the ``last`` ones. Only the first must be checked, and only the last ones are remembered."""
        updates = self.prepare((first,), Origin.CLIENT)
        assert updates is not None
        entry = updates.entries[first.producer_id]
        for header in last:
            if header.base_offset != first.base_offset:
                entry = add_batch(entry, header, Origin.REPLICATION)
        return updates._replace(entries={first.producer_id: entry})

    def has_sequence(self, producer: ProducerIdAndEpoch, sequence: int) -> bool:
        """Whether the producer's batches up to this sequence are here. Sequences must not have wrapped."""
        entry = self.entries.get(producer.producer_id)
        return entry is not None and entry.epoch == producer.epoch and entry.last_sequence >= sequence

    def apply(self, updates: ProducerUpdates) -> tuple[CompletedTxn, ...]:
        """Make it so, after the batches are in the log. Returns the transactions that are to be given to `complete`."""
        self._enter(
            updates.entries if len(updates.entries) == 1 else _in_update_order(updates.entries), updates.started
        )
        for producer_id in updates.verified:
            self.verifications.pop(producer_id, None)
        return updates.completed

    def restore(self, entries: dict[int, ProducerEntry]) -> None:
        """Take over what a snapshot says, in its order."""
        self.abridged.update(producer_id for producer_id, entry in entries.items() if entry.batches)
        txns = [
            OpenTxn(entry.current_txn_first_offset, producer_id)
            for producer_id, entry in entries.items()
            if entry.current_txn_first_offset is not None
        ]
        self._enter(entries, txns)

    def _enter(self, entries: dict[int, ProducerEntry], started: Iterable[OpenTxn]) -> None:
        self.entries.update(entries)
        while len(self.entries) > self._table_size * _LOAD_FACTOR:
            self._table_size *= 2
        for txn in started:
            self._open(txn)

    def _open(self, txn: OpenTxn) -> None:
        in_order = not self.ongoing or next(reversed(self.ongoing)) < txn.first_offset
        self.ongoing[txn.first_offset] = txn.producer_id
        if not in_order:
            self.ongoing = dict(sorted(self.ongoing.items()))

    def replay(self, header: BatchHeader, control: Marker | None) -> CompletedTxn | None:
        """Take in a batch that is in the log already. Returns a transaction that it ends: give that to `complete`."""
        updates = self.prepare((header,), Origin.REPLICATION, controls=(control,))
        self.map_end_offset = header.last_offset + 1
        if updates is None:
            return None
        completed = self.apply(updates)
        return completed[0] if completed else None

    # Verifications

    def verify(self, producer: ProducerIdAndEpoch, sequence: int, *, bumps_epoch: bool, now_ms: int) -> int | None:
        """The guard of a verification that begins or is under way, for a batch that begins with ``sequence``; None if
        the producer's transaction is open here, and the batch needs none. Raises `InvalidProducerEpochError`."""
        self._check_epoch(producer)
        if self._has_open(producer):
            return None
        producer_id, epoch = producer
        found = self.verifications.get(producer_id)
        if found is None:
            found = begin_verification(epoch, sequence, bumps_epoch=bumps_epoch, now_ms=now_ms)
        self.verifications[producer_id] = found = found.joined(epoch, sequence, bumps_epoch=bumps_epoch)
        return found.guard

    def check_verified(self, producer: ProducerIdAndEpoch, guard: int | None) -> None:
        """Raise the `AppendError` for a batch of a transaction that must not be appended under this guard."""
        if self._has_open(producer):
            return
        self._check_epoch(producer)
        found = self.verifications.get(producer.producer_id)
        if guard is None or found is None or found.guard != guard:
            raise InvalidTransactionStateError(f"{producer} has not verified that it has a transaction open here")

    def _has_open(self, producer: ProducerIdAndEpoch) -> bool:
        entry = self.entries.get(producer.producer_id)
        return entry is not None and entry.current_txn_first_offset is not None and entry.epoch == producer.epoch

    def _check_epoch(self, producer: ProducerIdAndEpoch) -> None:
        entry = self.entries.get(producer.producer_id)
        if entry is not None and producer.epoch < entry.epoch:
            raise InvalidProducerEpochError(f"{producer} is older than epoch {entry.epoch}, the last seen")

    # Transactions

    def last_stable_offset(self, completed: CompletedTxn) -> int:
        """The last stable offset once ``completed`` ends: where another producer has one open, or past the marker.

        A follower may append several transactions at once. One that begins after the marker does not count: Kafka's
        ``ProducerStateManager.lastStableOffset`` takes it, and its readers then miss aborted transactions in between.
        """
        past = completed.last_offset + 1
        others = (first for first, producer_id in self.ongoing.items() if producer_id != completed.producer_id)
        return min(next(others, past), past)

    def complete(self, completed: CompletedTxn) -> None:
        """Close the transaction. It stays unstable until the high watermark passes its marker."""
        del self.ongoing[completed.first_offset]
        insort(self.replicating, ReplicatingTxn(completed.first_offset, completed.last_offset, completed.producer_id))

    def on_high_watermark(self, high_watermark: int) -> None:
        """Markers below ``high_watermark`` are on all replicas."""
        if self.replicating:
            self.replicating = [txn for txn in self.replicating if txn.last_offset >= high_watermark]

    def on_log_start(self, offset: int) -> None:
        """The log begins at ``offset`` now."""
        self.on_high_watermark(offset)
        self.map_end_offset = max(self.map_end_offset, offset)

    def reflect(self, offset: int) -> None:
        """The log up to ``offset`` (exclusive) is in this state now, or this state is as of there."""
        self.map_end_offset = offset

    def note_snapshot(self) -> None:
        """The newest snapshot on disk has this state."""
        self.last_snapshot_offset = self.map_end_offset

    def first_unstable_offset(self) -> int | None:
        """The first offset whose transaction is open, or ended by a marker that is not replicated yet."""
        undecided = next(iter(self.ongoing), None)
        if not self.replicating:
            return undecided
        replicating = self.replicating[0].first_offset
        return replicating if undecided is None else min(undecided, replicating)

    # Forgetting

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers idle for ``expiration_ms``, never one with an open transaction; returns how many."""
        for producer_id, one in list(self.verifications.items()):
            if now_ms - one.begun_ms >= expiration_ms:
                del self.verifications[producer_id]
        gone = [
            producer_id
            for producer_id, entry in self.entries.items()
            if entry.current_txn_first_offset is None and now_ms - entry.last_timestamp >= expiration_ms
        ]
        for producer_id in gone:
            del self.entries[producer_id]
        self.abridged.difference_update(gone)
        return len(gone)

    def clear(self) -> None:
        self.entries.clear()
        self.abridged.clear()
        self.ongoing.clear()
        self.replicating = []

    def in_snapshot_order(self) -> Iterator[tuple[int, ProducerEntry]]:
        """The entries as Java's ``HashMap<Long, …>`` iterates: by bucket, within one in order of insertion.

        Exact but for nine or more producers in one bucket of a table of 64 or more, which Java keeps as a tree; Kafka
        hands producer ids out one by one, and then a bucket has at most one.
        """
        mask = self._table_size - 1
        return iter(sorted(self.entries.items(), key=lambda item: _spread(item[0]) & mask))


# Snapshots

_FIRST_TABLE_SIZE: Final = 16
_LOAD_FACTOR: Final = 0.75

SNAPSHOT_VERSION: Final = 1
SNAPSHOT_HEADER: Final = Struct(">hIi")
"""version, CRC-32C of what follows it, number of entries"""
_CRC_END: Final = 6
SNAPSHOT_ENTRY: Final = Struct(">qhiqiqiq")
"""producer id, epoch, last sequence, last offset, offset delta, timestamp, coordinator epoch, open txn's first
offset"""
assert (SNAPSHOT_HEADER.size, SNAPSHOT_ENTRY.size) == (10, 46)


def _spread(producer_id: int) -> int:
    """``HashMap.hash(Long)``: 32 bits, high halves folded into low ones."""
    bits = producer_id & 0xFFFFFFFFFFFFFFFF
    folded = (bits ^ bits >> 32) & 0xFFFFFFFF
    return folded ^ folded >> 16


def _in_update_order(entries: dict[int, ProducerEntry]) -> dict[int, ProducerEntry]:
    """The producers of one append in the order in which Kafka enters them.

    It collects them in a map of its own by ``computeIfAbsent``, which grows the table before it enters another, and
    puts that in front of its bucket.
    """
    mask = _FIRST_TABLE_SIZE - 1
    while len(entries) - 1 > (mask + 1) * _LOAD_FACTOR:
        mask = mask * 2 + 1
    newest_first = list(entries.items())[::-1]
    return dict(sorted(newest_first, key=lambda item: _spread(item[0]) & mask))


def encode_snapshot(producers: Producers) -> bytes:
    """The bytes of a ``.snapshot`` file (``ProducerSnapshot.json``): of a producer's batches it has the last only."""
    parts = [b""]
    for producer_id, entry in producers.in_snapshot_order():
        batch = entry.batches[-1] if entry.batches else _NO_BATCH
        txn = entry.current_txn_first_offset
        parts.append(
            SNAPSHOT_ENTRY.pack(
                producer_id,
                entry.epoch,
                batch.last_sequence,
                batch.last_offset,
                batch.offset_delta,
                entry.last_timestamp,
                entry.coordinator_epoch,
                -1 if txn is None else txn,
            )
        )
    parts[0] = SNAPSHOT_HEADER.pack(SNAPSHOT_VERSION, 0, len(parts) - 1)
    data = bytearray().join(parts)
    crc = int(crc32c(memoryview(data)[_CRC_END:]))
    SNAPSHOT_HEADER.pack_into(data, 0, SNAPSHOT_VERSION, crc, len(parts) - 1)
    return bytes(data)


_NO_BATCH: Final = BatchMetadata(-1, -1, 0, -1)


def decode_snapshot(data: Buffer, file: str | None = None) -> Producers:
    """The state as of a snapshot; `CorruptSnapshotError` on an unknown version, a wrong CRC or a wrong size.

    ``map_end_offset`` is 0: the offset is in the file's name.
    """
    if len(data) < SNAPSHOT_HEADER.size:
        raise CorruptSnapshotError(f"a snapshot has {SNAPSHOT_HEADER.size} bytes or more, this {len(data)}", file=file)
    version, crc, count = SNAPSHOT_HEADER.unpack_from(data)
    if version != SNAPSHOT_VERSION:
        raise CorruptSnapshotError(
            f"version {version} is unknown, {SNAPSHOT_VERSION} is expected", position=0, file=file
        )
    computed = int(crc32c(memoryview(data)[_CRC_END:]))
    if crc != computed:
        raise CorruptSnapshotError(f"stored CRC {crc} is not the computed {computed}", position=2, file=file)
    expected = SNAPSHOT_HEADER.size + count * SNAPSHOT_ENTRY.size
    if count < 0 or expected != len(data):
        raise CorruptSnapshotError(
            f"{count} entries make {expected} bytes, {len(data)} are there", position=6, file=file
        )
    producers = Producers()
    entries: dict[int, ProducerEntry] = {}
    for fields in SNAPSHOT_ENTRY.iter_unpack(memoryview(data)[SNAPSHOT_HEADER.size :]):
        producer_id, epoch, last_sequence, last_offset, offset_delta, timestamp, coordinator_epoch, txn = fields
        batches = (BatchMetadata(last_sequence, last_offset, offset_delta, timestamp),) if last_offset >= 0 else ()
        entries[producer_id] = ProducerEntry(epoch, batches, coordinator_epoch, txn if txn >= 0 else None, timestamp)
    producers.restore(entries)
    return producers
