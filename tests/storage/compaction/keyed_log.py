"""A log of batches with keys on a disk in memory, which is compacted."""

from __future__ import annotations

from collections.abc import Sequence

from seglog.records.record import NewRecord, encode_batch, end_txn_marker
from seglog.storage.compaction.log_cleaner import CompactionStats, compact
from seglog.storage.compaction.round import PLAIN
from seglog.storage.log.admit import Origin
from seglog.storage.log.log import Log
from tests.kit.manual_clock import ManualClock
from tests.kit.memory_fs import MemoryFs
from tests.storage.compaction.compacted import START_MS, config, facts
from tests.storage.disk import load, new_disk

DAY = 24 * 60 * 60 * 1000


class Disk:
    """A log on a disk in memory; every `put` is a batch, every `roll` ends a segment."""

    def __init__(self, **keys: object) -> None:
        self.clock = ManualClock(START_MS)
        self.fs: MemoryFs = new_disk()
        defaults = {"internal_segment_bytes": 100_000, "delete_retention_ms": DAY}
        self.log: Log = load(self.fs, config=config(**defaults | keys), clock=self.clock).log

    def put(self, *items: tuple[bytes, bytes | None], codec: int = 0) -> None:
        self.log.append(encode_batch(self._records(items), codec=codec), origin=Origin.CLIENT)

    def _records(self, items: Sequence[tuple[bytes, bytes | None]]) -> list[NewRecord]:
        return [NewRecord(value, key, self.clock.now_ms()) for key, value in items]

    def produce(
        self, *items: tuple[bytes, bytes | None], sequence: int, epoch: int = 0, transactional: bool = False
    ) -> None:
        """A batch of producer 7."""
        data = encode_batch(
            self._records(items),
            producer_id=7,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
        self.log.append(data, origin=Origin.CLIENT)

    def end(self, *, commit: bool) -> None:
        """The transaction of producer 7."""
        marker = end_txn_marker(
            commit=commit, coordinator_epoch=0, producer_id=7, producer_epoch=0, timestamp=self.clock.now_ms()
        )
        self.log.append(marker, origin=Origin.COORDINATOR)

    def clean(self, first_dirty: int = 0, *, map_keys: int = 1000, engine: str = PLAIN) -> CompactionStats:
        return compact(self.log, first_dirty=first_dirty, map_bytes=map_keys * 24, engine=engine)

    @property
    def left(self) -> list[tuple[int, bytes | None, bytes | None]]:
        return [(fact.record.offset, fact.record.key, fact.record.value) for fact in facts(self.log)]
