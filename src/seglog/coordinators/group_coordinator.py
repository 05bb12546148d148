"""The group coordinator of this broker (``GroupCoordinatorService``): it writes and times what `CoordinatorShard`
decides.

A request finds the partition of ``__consumer_offsets`` that has its group. Its records are appended there as one batch;
the client is answered when they are below the high watermark. Everything runs on one event loop: nothing else runs
between two awaits, so a decision and its append are one step.

A context belongs to one partition in one epoch in which this broker leads it. `GroupCoordinator.moved` ends those that
are over and loads new ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Final
from uuid import UUID

from seglog.coordinators.classic_group import NEVER, ClassicGroup
from seglog.coordinators.coordinator_context import CoordinatorContext, answer
from seglog.coordinators.coordinator_loader import load
from seglog.coordinators.coordinator_shard import ChangeResult, CoordinatorShard, OffsetCommitRequest
from seglog.coordinators.group_messages import (
    Answer,
    CoordinatorError,
    JoinGroupRequest,
    JoinGroupResult,
    LeavingMember,
    SyncGroupRequest,
    SyncGroupResult,
    code_of_append,
    size_of,
)
from seglog.coordinators.group_records import GroupRecord
from seglog.coordinators.group_state import GroupLimits, GroupResult, Now, PendingWrite, fenced
from seglog.coordinators.settings import OFFSETS_TOPIC, GroupSettings, OffsetsTopic, java_hash
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import SeglogError
from seglog.core.ground import Ground

_log: Final = logging.getLogger("seglog.coordinators")
_NO_COORDINATOR: Final = -1
MAX_MEMBER_BYTES: Final = 256 << 20
"""The metadata of all members of all groups. Before version 4 of JoinGroup a client need not come back with a member id
(KIP-394), so a megabyte per request would stay for minutes. Kafka has no limit."""


class GroupCoordinator:
    """All groups of this broker. `run` loads them, expires offsets, and owns their tasks."""

    def __init__(self, topic: OffsetsTopic, settings: GroupSettings, *, ground: Ground) -> None:
        self.settings = settings
        self._topic = topic
        self._clock = ground.clock
        self._rng = ground.rng
        self._limits = GroupLimits(settings.group_initial_rebalance_delay_ms, settings.group_max_size)
        self._contexts: dict[int, CoordinatorContext] = {}
        self._creation: asyncio.Task[None] | None = None
        self._member_bytes = 0
        self._wants_loading = asyncio.Event()
        self._owner: asyncio.TaskGroup | None = None

    # Loading and expiry

    async def run(self) -> None:
        """Load the groups, then expire offsets, until cancelled."""
        next_check = self._clock.monotonic() + self.settings.offsets_retention_check_interval_ms / 1000
        try:
            async with asyncio.TaskGroup() as self._owner:
                while True:
                    await self._load_all()
                    wait = next_check - self._clock.monotonic()
                    if wait <= 0:
                        self.expire_offsets()
                        next_check = self._clock.monotonic() + self.settings.offsets_retention_check_interval_ms / 1000
                        continue
                    # `wait_for` may swallow a cancellation that comes together with the event.
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(wait):
                            await self._wants_loading.wait()
        finally:
            self._owner = None
            self._stop()

    async def _load_all(self) -> None:
        self._wants_loading.clear()
        for number in range(len(self._topic.partitions())):
            context = self._context(number)
            if context is not None and not context.is_replayed:
                await self._load(context)

    async def _load(self, context: CoordinatorContext) -> None:
        """Replay the partition. It serves requests when everything in it is committed; other partitions do not wait for
        that."""
        end = context.partition.log.log_end_offset
        try:
            for _ in load(context.shard, context.partition):
                await asyncio.sleep(0)
                if not context.is_led:  # `_contexts` has another one by now, or none
                    return
        except (SeglogError, OSError) as error:  # it was deleted or truncated meanwhile, or is damaged
            _log.error("groups of %s cannot be loaded: %s", context.partition.topic_partition, error)
            return
        context.replayed()
        if context.partition.log.high_watermark >= end:
            self._loaded(context)
        else:
            assert self._owner is not None
            self._owner.create_task(self._loaded_later(context, end))

    async def _loaded_later(self, context: CoordinatorContext, end: int) -> None:
        if await context.committed(end):
            self._loaded(context)

    def _loaded(self, context: CoordinatorContext) -> None:
        self._append_quietly(context, context.loaded())
        for group_id, result in context.shard.loaded(self._now()):
            self._do(context, group_id, result)

    def _stop(self) -> None:
        for context in self._contexts.values():
            context.stop(self._now())
        self._contexts.clear()

    def moved(self) -> None:
        """This broker leads other partitions of ``__consumer_offsets``, or some in another epoch: end the lost groups,
        load the new ones."""
        for number in list(self._contexts):
            self._context(number)
        self._wants_loading.set()

    # The coordinator of a group

    def partition_of(self, group_id: str) -> int:
        count = len(self._topic.partitions()) or self.settings.offsets_topic_num_partitions
        return java_hash(group_id) % count

    async def locate(self, group_id: str) -> int:
        """Return the id of the group's coordinator, -1 if there is none. The first group creates the topic."""
        if self._owner is None:
            return _NO_COORDINATOR
        if not self._topic.partitions():
            if self._creation is None or self._creation.done():
                self._creation = self._owner.create_task(self._create())
            await asyncio.shield(self._creation)  # others wait for it even if this request is cancelled
        return self._topic.leader(self.partition_of(group_id))

    async def _create(self) -> None:
        try:
            await self._topic.create()
        except SeglogError as error:
            _log.error("%s could not be created: %s", OFFSETS_TOPIC, error)

    def _context(self, number: int) -> CoordinatorContext | None:
        """Return the context of a partition that this broker leads. End the one of an epoch that is over, whichever
        caller notices first."""
        partitions = self._topic.partitions()
        partition = partitions[number] if number < len(partitions) else None
        context = self._contexts.get(number)
        if context is not None and (context.partition is not partition or not context.is_led):
            del self._contexts[number]
            context.stop(self._now())
            context = None
        if context is None and partition is not None and partition.leads:
            context = self._contexts[number] = CoordinatorContext(partition, self._limits, self.settings, self._clock)
            if not context.is_loaded:
                self._wants_loading.set()
        return context

    def _context_of(self, group_id: str) -> CoordinatorContext:
        if self._owner is None:
            raise CoordinatorError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the coordinator is not running")
        number = self.partition_of(group_id)
        context = self._context(number)
        if context is None and self._topic.is_awaited(number):
            raise CoordinatorError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"this broker will coordinate group {group_id}"
            )
        if context is None:
            raise CoordinatorError(ErrorCode.NOT_COORDINATOR, f"this broker does not coordinate group {group_id}")
        if not context.is_loaded:
            raise CoordinatorError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"group {group_id} is being loaded")
        return context

    def shard(self, group_id: str) -> CoordinatorShard:
        """The shard for reads. Raises `CoordinatorError` if this broker does not coordinate the group, or has not
        loaded it yet."""
        return self._context_of(group_id).settled()

    def is_in_doubt(self, group_id: str) -> bool:
        """Whether another broker may coordinate the group by now: see `newest`."""
        context = self._contexts.get(self.partition_of(group_id))
        return context is not None and context.partition.in_doubt

    async def newest(self, group_id: str) -> None:
        """Return when no other coordinator can have committed anything for the group before this call. Raises
        `CoordinatorError`."""
        if not await self._context_of(group_id).is_newest():
            raise CoordinatorError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                f"another broker may coordinate group {group_id}: the metadata store is away, and not all replicas of "
                f"its partition follow this one",
            )

    def shards(self) -> Iterator[CoordinatorShard]:
        """All shards that this broker leads. Raises `CoordinatorError` if one is not loaded yet."""
        for number in range(len(self._topic.partitions())):
            context = self._context(number)
            if context is not None:
                if not context.is_loaded:
                    raise CoordinatorError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "groups are being loaded")
                yield context.settled()

    def _now(self) -> Now:
        # Rounded, or a timer that fires on time could find itself one millisecond early and be set again at once.
        return Now(round(self._clock.monotonic() * 1000), self._clock.now_ms())

    # Members

    async def join(self, request: JoinGroupRequest) -> JoinGroupResult:
        """Raises `CoordinatorError`."""
        context = self._context_of(request.group_id)
        if not self._has_room_for(request):
            raise CoordinatorError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, "the metadata of group members exceeds the coordinator's limit"
            )
        ticket: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        prefix = request.client_id if request.instance_id is None else request.instance_id
        new_id = f"{prefix}-{UUID(int=self._rng.getrandbits(128), version=4)}"
        self._do(context, request.group_id, context.shard.join(request, ticket, new_id, self._now()))
        joined = await ticket
        assert isinstance(joined, JoinGroupResult)
        return joined

    def _has_room_for(self, request: JoinGroupRequest) -> bool:
        """Check `MAX_MEMBER_BYTES`. The sum is counted again only when all requests since then exceed the limit: most
        are members that join again."""
        self._member_bytes += size_of(request.protocols)
        if self._member_bytes > MAX_MEMBER_BYTES:
            groups = (group for context in self._contexts.values() for group in context.shard.groups.values())
            there = sum(size_of(member.protocols) for group in groups for member in group.members)
            self._member_bytes = there + size_of(request.protocols)
        return self._member_bytes <= MAX_MEMBER_BYTES

    async def sync(self, request: SyncGroupRequest) -> SyncGroupResult:
        """Raises `CoordinatorError`."""
        context = self._context_of(request.group_id)
        ticket: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._do(context, request.group_id, context.shard.sync(request, ticket, self._now()))
        synced = await ticket
        assert isinstance(synced, SyncGroupResult)
        return synced

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Raises `CoordinatorError`."""
        code = self._context_of(group_id).shard.heartbeat(group_id, member_id, instance_id, generation, self._now())
        if code is ErrorCode.FENCED_INSTANCE_ID:
            _log.info("%s", fenced(group_id, member_id, instance_id))
        return code

    async def leave(self, group_id: str, leaving: Sequence[LeavingMember]) -> list[ErrorCode]:
        """Raises `CoordinatorError`."""
        context = self._context_of(group_id)
        result, codes = context.shard.leave(group_id, leaving, self._now())
        self._do(context, group_id, result)
        return codes

    # Offsets and groups

    async def commit(self, request: OffsetCommitRequest) -> list[ErrorCode]:
        """Raises `CoordinatorError`."""
        context = self._context_of(request.group_id)
        return await self._change(context, context.shard.commit(request, self._now()))

    async def delete_offsets(self, group_id: str, places: Sequence[tuple[str, int]]) -> list[ErrorCode]:
        """Raises `CoordinatorError`."""
        context = self._context_of(group_id)
        return await self._change(context, context.shard.delete_offsets(group_id, places))

    async def delete_group(self, group_id: str) -> ErrorCode:
        """Raises `CoordinatorError`."""
        context = self._context_of(group_id)
        codes = await self._change(context, context.shard.delete_groups([group_id]))
        self._watch(context, group_id)
        return codes[0]

    def topics_deleted(self, topics: Sequence[tuple[str, UUID | None]]) -> None:
        """Delete the committed offsets of deleted topics."""
        for context in self._current_contexts():
            self._append_quietly(context, context.topics_deleted(topics))

    def _current_contexts(self) -> list[CoordinatorContext]:
        """The contexts whose partitions still exist: the offsets topic may have been deleted itself."""
        return [context for number, context in list(self._contexts.items()) if self._context(number) is context]

    def expire_offsets(self) -> None:
        """Delete offsets that were not used for ``offsets.retention.minutes``."""
        for context in self._current_contexts():
            if context.is_loaded:
                self._append_quietly(
                    context, context.shard.expire(self._now(), self.settings.offsets_retention_minutes * 60_000)
                )

    async def _change(self, context: CoordinatorContext, changed: ChangeResult) -> list[ErrorCode]:
        if changed.records:
            try:
                end = context.append_in_parts(changed.records)
            except SeglogError as error:
                raise CoordinatorError(code_of_append(error), str(error)) from error
            code = await context.outcome(end)
            if code is not ErrorCode.NONE:
                raise CoordinatorError(code, "the records were not committed in time, or another broker leads")
        return changed.codes

    def _append_quietly(self, context: CoordinatorContext, records: Sequence[GroupRecord]) -> None:
        try:
            context.append_in_parts(records)
        except SeglogError as error:
            _log.error("offsets in %s could not be deleted: %s", context.partition.topic_partition, error)

    # Results of groups

    def _do(self, context: CoordinatorContext, group_id: str, result: GroupResult) -> None:
        """Answer clients, append records, and continue what waits for them."""
        group = context.shard.groups.get(group_id)
        for event in result.events:
            _log.info("%s", event)
        answer(result)
        if result.records and group is not None:
            pending = result.pending
            try:
                end = context.append(result.records)
            except SeglogError as error:
                _log.error("group %s could not be written: %s", group_id, error)
                self._stored(context, group, pending, code_of_append(error))
            else:
                code = context.known_outcome(end)
                if code is not None:
                    self._stored(context, group, pending, code)
                else:
                    assert self._owner is not None  # contexts exist only while `run` does
                    self._owner.create_task(self._store_later(context, group, pending, end))
        self._watch(context, group_id)

    async def _store_later(
        self, context: CoordinatorContext, group: ClassicGroup, pending: PendingWrite | None, end: int
    ) -> None:
        self._stored(context, group, pending, await context.outcome(end))

    def _stored(
        self, context: CoordinatorContext, group: ClassicGroup, pending: PendingWrite | None, code: ErrorCode
    ) -> None:
        if pending is not None:
            self._do(context, group.group_id, context.shard.stored(group, pending, code, self._now()))

    def _watch(self, context: CoordinatorContext, group_id: str) -> None:
        """Set the timer of the group's next deadline. A later deadline keeps the timer."""
        group = context.shard.groups.get(group_id)
        earliest = NEVER if group is None else group.earliest
        armed = context.timers.get(group_id)
        if armed is not None:
            if armed[0] <= earliest < NEVER:
                return
            armed[1].cancel()
            del context.timers[group_id]
        if earliest < NEVER:
            seconds = max(earliest / 1000 - self._clock.monotonic(), 0)
            timer = asyncio.get_running_loop().call_later(seconds, self._fire, context, group_id)
            context.timers[group_id] = (earliest, timer)

    def _fire(self, context: CoordinatorContext, group_id: str) -> None:
        context.timers.pop(group_id, None)
        group = context.shard.groups.get(group_id)
        while group is not None and (result := group.fire(self._now())) is not None:
            self._do(context, group_id, result)
            group = context.shard.groups.get(group_id)
        self._watch(context, group_id)
