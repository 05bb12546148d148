"""The context of one partition of ``__consumer_offsets`` while this broker leads it in one epoch
(``CoordinatorContext``).

It owns the partition's shard. A change is true when its records are appended. If they are never committed because
another broker leads, the context ends too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final
from uuid import UUID

from seglog.coordinators.coordinator_shard import CoordinatorShard
from seglog.coordinators.group_messages import code_of_outcome
from seglog.coordinators.group_records import GroupRecord, encode
from seglog.coordinators.group_state import GroupLimits, GroupResult, Now
from seglog.coordinators.settings import GroupSettings
from seglog.core.clock import Clock
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import NotLeaderError
from seglog.records.record import NewRecord, encode_batch
from seglog.replication.replica import Replica
from seglog.replication.waiters import GrowthWaiter
from seglog.storage.log.admit import Origin

_PART_BYTES: Final = 256 << 10
"""The size at which a batch of commits or deletions ends, far below ``max.message.bytes``."""

_ASK_AGAIN_SECONDS: Final = 0.01
"""How often to check whether the followers have fetched since a request came."""


class CoordinatorContext:
    """``is_replayed``: all records are read. ``is_loaded``: these are committed too, and requests are served.
    ``timers`` are those of groups, with the deadlines they are set for."""

    def __init__(self, partition: Replica, limits: GroupLimits, settings: GroupSettings, clock: Clock) -> None:
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.shard = CoordinatorShard(limits, settings.offset_metadata_max_bytes)
        self.is_loaded = self.is_replayed = partition.log.log_start_offset == partition.log.log_end_offset
        self._deleted_topics: list[tuple[str, UUID | None]] = []
        self.timers: dict[str, tuple[int, asyncio.TimerHandle]] = {}
        self._settings = settings
        self._clock = clock
        self._is_over = False

    @property
    def is_led(self) -> bool:
        """Whether this broker still leads the partition, in the same epoch."""
        partition = self.partition
        return partition.leads and partition.leader_epoch == self.leader_epoch and not self._is_over

    def replayed(self) -> None:
        """Every record that the log had is replayed."""
        self.is_replayed = True

    def loaded(self) -> list[GroupRecord]:
        """Every replayed record is committed: serve requests. Returns records to append, for topics deleted before."""
        self.is_loaded = True
        return self.shard.topics_deleted(self._deleted_topics)

    def topics_deleted(self, topics: Sequence[tuple[str, UUID | None]]) -> list[GroupRecord]:
        """Return the records that delete the offsets of these topics; none while it is loading: `loaded` has them."""
        if self.is_loaded:
            return self.shard.topics_deleted(topics)
        self._deleted_topics += topics
        return []

    def stop(self, now: Now) -> None:
        """End the context. Waiting clients look for the coordinator again."""
        self._is_over = True
        for _, timer in self.timers.values():
            timer.cancel()
        self.timers.clear()
        for group in self.shard.groups.values():
            answer(group.die(ErrorCode.NOT_COORDINATOR, now))
        self.shard.groups.clear()

    def settled(self) -> CoordinatorShard:
        """The shard, for reads: the offsets that it returns are committed (``CoordinatorRuntime.scheduleReadOperation``
        also reads at the last committed offset)."""
        self.shard.offsets.settle(self.partition.log.high_watermark)
        return self.shard

    async def is_newest(self) -> bool:
        """Wait until no other coordinator can have committed anything newer before this call, for
        ``offsets.commit.timeout.ms`` at most. Return whether that is so.

        While the metadata store is away, another broker may coordinate these groups unnoticed. None did if all members
        of the ISR have followed this broker after the call.
        """
        asked_ms = int(self._clock.monotonic() * 1000)
        deadline = self._clock.monotonic() + self._settings.offsets_commit_timeout_ms / 1000
        while self.is_led and self.partition.in_doubt and not self.partition.is_followed_since(asked_ms):
            if self._clock.monotonic() >= deadline:
                return False
            self.partition.wake_followers()
            await asyncio.sleep(_ASK_AGAIN_SECONDS)
        return self.is_led

    # Writing

    def append(self, records: Sequence[GroupRecord]) -> int:
        """Append one batch and apply its records. Return the offset after it. Raises what `Replica.append` raises."""
        if not self.is_led:
            raise NotLeaderError(f"{self.partition.topic_partition} is no longer led in epoch {self.leader_epoch}")
        now = self._clock.now_ms()
        encoded = [encode(entry) for entry in records]
        batch = encode_batch(
            [NewRecord(value, key, now) for key, value in encoded],
            codec=self._settings.offsets_topic_compression_codec,
            base_sequence=0,  # as in Kafka, although there is no producer
        )
        appended = self.partition.append(batch, Origin.COORDINATOR, needs_all=True)
        self.settled().apply(records, appended.first_offset, committed=self.partition.log.high_watermark)
        return appended.last_offset + 1

    def append_in_parts(self, records: Sequence[GroupRecord]) -> int:
        """Append records that are independent of each other, as one batch if they fit."""
        part: list[GroupRecord] = []
        size = end = 0
        for record in records:
            key, value = record
            part.append(record)
            size += sum(len(field) for field in (*key, *(value or ())) if isinstance(field, str)) + 64
            if size >= _PART_BYTES:
                end = self.append(part)
                part, size = [], 0
        return self.append(part) if part else end

    async def outcome(self, end: int) -> ErrorCode:
        """Wait until the high watermark reaches ``end``, for ``offsets.commit.timeout.ms`` at most. Return the client's
        code."""
        deadline = self._clock.monotonic() + self._settings.offsets_commit_timeout_ms / 1000
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
        """Wait without a limit until the high watermark reaches ``end``. False if this broker stops leading first."""
        while self.is_led and self.partition.log.high_watermark < end:
            await self._wait(self._settings.offsets_commit_timeout_ms / 1000)
        return self.is_led

    async def _wait(self, seconds: float) -> None:
        waiter = GrowthWaiter(1, seconds)
        waiters = self.partition.waiters
        waiters[waiter] = None
        try:
            await waiter.wait()
        finally:
            waiters.pop(waiter, None)


def answer(result: GroupResult) -> None:
    """Answer all waiting clients of a result."""
    for ticket, reply in result.replies:
        assert isinstance(ticket, asyncio.Future)
        if not ticket.done():  # it is cancelled if the client has gone
            ticket.set_result(reply)
