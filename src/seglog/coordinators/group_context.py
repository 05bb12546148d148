"""The groups of one partition of ``__consumer_offsets`` while this broker leads it in one epoch."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final
from uuid import UUID

from seglog.coordinators.classic.group import ClassicGroup
from seglog.coordinators.classic.state import GroupLimits, GroupResult, Now
from seglog.coordinators.consumer.decision import Decision
from seglog.coordinators.coordinator_context import CoordinatorContext
from seglog.coordinators.coordinator_shard import CoordinatorShard
from seglog.coordinators.group_records import GroupRecord, decode, encode
from seglog.coordinators.settings import GroupSettings
from seglog.core.clock import Clock
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import CorruptRecordError, UnsupportedFormatError
from seglog.core.types import NO_PRODUCER_ID, ProducerIdAndEpoch
from seglog.records.record import ControlType, Record, parse_control
from seglog.replication.replica import Replica

_PART_BYTES: Final = 256 << 10
"""The size at which a batch of commits or deletions ends, far below ``max.message.bytes``."""
_RECORDS_AT_ONCE: Final = 256
"""About two milliseconds, in which no client is answered."""
_ASK_AGAIN_SECONDS: Final = 0.01
"""How often to check whether the followers have fetched since a request came."""


class GroupContext(CoordinatorContext):
    """``timers`` are those of groups, with the deadlines they are set for."""

    def __init__(self, partition: Replica, limits: GroupLimits, settings: GroupSettings, clock: Clock) -> None:
        super().__init__(partition, clock, settings.offsets_commit_timeout_ms)
        self.shard = CoordinatorShard(limits, settings.offset_metadata_max_bytes)
        self.timers: dict[str, tuple[int, asyncio.TimerHandle]] = {}
        self._deleted_topics: list[tuple[str, UUID | None]] = []
        self._early_markers: list[tuple[int, int, bool]] = []
        """Producer id, offset and commit of those that were written while the log was replayed up to where it ended
        before."""
        self._settings = settings

    def now(self) -> Now:
        # Rounded, or a timer that fires on time could find itself one millisecond early and be set again at once.
        return Now(round(self._clock.monotonic() * 1000), self._clock.now_ms())

    def replay(self) -> Iterator[None]:
        """Replay the partition in short steps. Raises `CorruptError` at damage, and at a record that it cannot read."""
        for header, records in self.batches_to_replay():
            if header.is_control:
                self._end_transactions(records, header.producer_id)
                continue
            producer_id = header.producer_id if header.is_transactional else -1
            for start in range(0, len(records), _RECORDS_AT_ONCE):
                for record in records[start : start + _RECORDS_AT_ONCE]:
                    self._replay(record, producer_id)
                yield

    def _end_transactions(self, records: list[Record], producer_id: int) -> None:
        for record in records:
            kind = parse_control(record).type
            if kind in (ControlType.COMMIT, ControlType.ABORT):
                self.shard.offsets.end_transaction(producer_id, record.offset, commit=kind is ControlType.COMMIT)

    def replayed(self) -> None:
        super().replayed()
        for producer_id, marker, commit in self._early_markers:
            self.shard.offsets.end_transaction(producer_id, marker, commit=commit)
        self._early_markers.clear()

    def end_transaction(self, producer_id: int, marker: int, *, commit: bool) -> None:
        """Decide the offsets of a transaction: its marker is committed at offset ``marker``."""
        if self.is_replayed:
            self.shard.offsets.end_transaction(producer_id, marker, commit=commit)
        else:
            self._early_markers.append((producer_id, marker, commit))

    def _replay(self, record: Record, producer_id: int) -> None:
        """Replay one record. Raises `CorruptRecordError` if it cannot be read: without it the group would be another
        (``CoordinatorLoaderImpl`` fails, too). A record of an unknown type is passed over."""
        if record.key is None:
            return
        try:
            entry = decode(record.key, record.value)
        except (CorruptRecordError, UnsupportedFormatError) as error:
            raise self.unreadable(record, error) from error
        if entry is not None:
            self.shard.replay(entry, record.offset, producer_id)

    def deletions_at_start(self) -> list[GroupRecord]:
        """The records that delete the offsets of topics deleted while it was loading."""
        return self.shard.topics_deleted(self._deleted_topics)

    def topics_deleted(self, topics: Sequence[tuple[str, UUID | None]]) -> list[GroupRecord]:
        """Return the records that delete the offsets of these topics; none while it is loading: see
        `deletions_at_start`."""
        if self.is_loaded:
            return self.shard.topics_deleted(topics)
        self._deleted_topics += topics
        return []

    def stop(self) -> None:
        """End the context. Waiting clients look for the coordinator again."""
        super().stop()
        for _, timer in self.timers.values():
            timer.cancel()
        self.timers.clear()
        for group in self.shard.groups.values():
            if isinstance(group, ClassicGroup):
                answer(group.die(ErrorCode.NOT_COORDINATOR, self.now()))
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
        deadline = self._clock.monotonic() + self._timeout_ms / 1000
        while self.partition.check_doubt() and self.is_led and not self.partition.is_followed_since(asked_ms):
            if self._clock.monotonic() >= deadline:
                return False
            self.partition.wake_followers()
            await asyncio.sleep(_ASK_AGAIN_SECONDS)
        return self.is_led

    # Writing

    def append(self, records: Sequence[GroupRecord], producer: ProducerIdAndEpoch | None = None) -> int:
        """Append one batch and apply its records; those of a ``producer``'s transaction count when a marker commits it.
        Return the offset after the batch. Raises what `Replica.append` raises."""
        encoded = [encode(entry) for entry in records]
        codec = self._settings.offsets_topic_compression_codec
        if producer is None:
            appended = self.append_records(encoded, codec=codec)
        else:
            appended = self.append_records(encoded, codec=codec, producer=producer)
        self.settled().apply(
            records,
            appended.first_offset,
            committed=self.partition.log.high_watermark,
            producer_id=NO_PRODUCER_ID if producer is None else producer.producer_id,
        )
        return appended.last_offset + 1

    def carry_out(self, decision: Decision, group_id: str) -> int:
        """Append the records of a decision about a consumer group, and do what follows from it. Return the offset up to
        which the log must be committed before the answer: a decision without records goes by earlier ones that may not
        be committed yet (``CoordinatorRuntime``, whose writes without records also wait). 0 if all is committed. Raises
        what `Replica.append` raises; then nothing has changed."""
        end = self.append(decision.records) if decision.records else self.uncommitted_end()
        self.shard.settle(decision, group_id)
        if decision.upgraded is not None:
            # Its members join again, now as classic members of the consumer group.
            answer(decision.upgraded.die(ErrorCode.REBALANCE_IN_PROGRESS, decision.now))
        return end

    def uncommitted_end(self) -> int:
        """The log end offset if some records are not committed yet; otherwise 0."""
        log = self.partition.log
        return log.log_end_offset if log.high_watermark < log.log_end_offset else 0

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


def answer(result: GroupResult) -> None:
    """Answer all waiting clients of a result."""
    for ticket, reply in result.replies:
        assert isinstance(ticket, asyncio.Future)
        if not ticket.done():  # it is cancelled if the client has gone
            ticket.set_result(reply)
