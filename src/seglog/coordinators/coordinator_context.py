"""The state of one partition of a coordinator's internal topic while this broker leads it in one epoch
(``CoordinatorContext``).

A change is true when its records are appended. If they are never committed because another broker leads, the context
ends too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from seglog.coordinators.coordinator_error import code_of_outcome
from seglog.core.clock import Clock
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import CorruptError, CorruptRecordError, DamagedPartitionError, NotLeaderError, SeglogError
from seglog.core.types import NO_EPOCH, NO_PRODUCER_ID, Buffer, ProducerIdAndEpoch
from seglog.records import any_magic
from seglog.records.batch import BatchHeader
from seglog.records.record import NewRecord, Record, encode_batch
from seglog.replication.replica import Replica
from seglog.replication.waiters import GrowthWaiter
from seglog.storage.log.admit import Origin
from seglog.storage.log.log import AppendResult
from seglog.storage.log.reads import checked_batches

_NO_PRODUCER: Final = ProducerIdAndEpoch(NO_PRODUCER_ID, NO_EPOCH)


class CoordinatorContext:
    """``is_replayed``: all records are read. ``is_loaded``: these are committed too, and requests are served."""

    def __init__(self, partition: Replica, clock: Clock, timeout_ms: int) -> None:
        """``timeout_ms``: how long a write may take to be committed."""
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.is_loaded = self.is_replayed = partition.log.log_start_offset == partition.log.log_end_offset
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._is_over = False
        self.refusal: SeglogError | None = None
        """The reason why the records cannot be replayed."""

    @property
    def is_led(self) -> bool:
        """Whether this broker still leads the partition, in the same epoch."""
        return self.partition.leads and self.is_current

    @property
    def is_current(self) -> bool:
        """Whether no other broker has led the partition since, though this one may be suspended: `is_led` can become
        true again."""
        partition = self.partition
        return partition.progress is not None and partition.leader_epoch == self.leader_epoch and not self._is_over

    def replayed(self) -> None:
        """Every record that the log had is replayed."""
        self.is_replayed = True

    def serve(self) -> None:
        """Every replayed record is committed: serve requests."""
        self.is_loaded = True

    def stop(self) -> None:
        """End the context: another broker leads the partition, or this one stops."""
        self._is_over = True

    def batches_to_replay(self) -> Iterator[tuple[BatchHeader, list[Record]]]:
        """All batches up to the current end of the log, with their records.

        The end is the log's, not the high watermark, which a new leader does not know at once
        (``CoordinatorLoaderImpl``). Raises `CorruptError` at damage.
        """
        log = self.partition.log
        for header, entry, data, (file, position) in checked_batches(log, log.log_start_offset, log.log_end_offset):
            try:
                records = any_magic.decode(data, entry)
            except CorruptError as error:
                raise error.at(file=file, base=position, offset=header.base_offset) from error
            yield header, [record for record in records if record.offset >= log.log_start_offset]

    def refuse(self, error: SeglogError) -> None:
        """The records cannot be replayed: what clients would get is wrong, so they get nothing. This broker gives the
        partition up, for another replica to lead it."""
        self.refusal = error
        log = self.partition.log
        self.partition.damaged(
            DamagedPartitionError(
                f"{error}. {self.partition.topic_partition} cannot be coordinated from this replica, and nothing was "
                f"changed: see `seglog verify {log.path}` and `seglog repair {log.path}`"
            )
        )

    def unreadable(self, record: Record, error: SeglogError) -> CorruptRecordError:
        """For a record whose batch is as it was written, and that this release cannot read."""
        return CorruptRecordError(str(error), file=self.partition.log.path, offset=record.offset)

    # Writing

    def append_records(
        self,
        records: Sequence[tuple[Buffer, Buffer | None]],
        *,
        codec: int = 0,
        producer: ProducerIdAndEpoch = _NO_PRODUCER,
    ) -> AppendResult:
        """Append keys and values as one batch, with a ``producer`` as a part of its transaction. Raises what
        `Replica.append` raises."""
        if not self.is_led:
            raise NotLeaderError(f"{self.partition.topic_partition} is no longer led in epoch {self.leader_epoch}")
        now = self._clock.now_ms()
        batch = encode_batch(
            [NewRecord(value, key, now) for key, value in records],
            codec=codec,
            base_sequence=0,  # as in Kafka, also where there is no producer
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            transactional=producer is not _NO_PRODUCER,
        )
        return self.partition.append(batch, Origin.COORDINATOR, needs_all=True)

    async def outcome(self, end: int) -> ErrorCode:
        """Wait until the high watermark reaches ``end``, for the context's timeout at most. Return the client's
        code."""
        deadline = self._clock.monotonic() + self._timeout_ms / 1000
        while (code := self.known_outcome(end)) is None:
            left = deadline - self._clock.monotonic()
            if left <= 0:
                return ErrorCode.COORDINATOR_NOT_AVAILABLE
            await self._wait(left)
        return code

    def known_outcome(self, end: int) -> ErrorCode | None:
        """As `outcome`, without waiting: None while it is open."""
        if not self.is_led:
            return ErrorCode.NOT_COORDINATOR
        found = self.partition.outcome(self.leader_epoch, end)
        return None if found is None else code_of_outcome(found)

    async def committed(self, end: int) -> bool:
        """Wait without a limit until the high watermark reaches ``end``. False if this broker stops leading first; what
        it does while it is suspended does not count."""
        while self.is_current and self.partition.log.high_watermark < end:
            await self._wait(self._timeout_ms / 1000)
        return self.is_current

    async def _wait(self, seconds: float) -> None:
        waiter = GrowthWaiter(1, seconds)
        waiters = self.partition.waiters
        waiters[waiter] = None
        try:
            await waiter.wait()
        finally:
            waiters.pop(waiter, None)
