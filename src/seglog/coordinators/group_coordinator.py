"""The group coordinator of this broker (``GroupCoordinatorService``): it writes and times what `CoordinatorShard`
decides."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final
from uuid import UUID

from seglog.coordinators.classic.group import NEVER, ClassicGroup
from seglog.coordinators.classic.messages import (
    Answer,
    JoinGroupRequest,
    JoinGroupResult,
    LeavingMember,
    SyncGroupRequest,
    SyncGroupResult,
    size_of,
)
from seglog.coordinators.classic.state import GroupLimits, GroupResult, PendingWrite, fenced
from seglog.coordinators.consumer import classic_members, membership, regular_expressions
from seglog.coordinators.consumer.decision import Decision
from seglog.coordinators.consumer.group import ConsumerGroup
from seglog.coordinators.consumer.member_timers import Expired, TimerChange
from seglog.coordinators.consumer.messages import ConsumerHeartbeat, ConsumerHeartbeatAnswer
from seglog.coordinators.consumer.patterns import resolve_patterns
from seglog.coordinators.consumer.settings import ConsumerRules
from seglog.coordinators.consumer.topic_image import TopicImage
from seglog.coordinators.coordinator_error import CoordinatorError, code_of_append
from seglog.coordinators.coordinator_runtime import CoordinatorRuntime, CoordinatorTopic
from seglog.coordinators.coordinator_shard import ChangeResult, CoordinatorShard, Group, OffsetCommitRequest
from seglog.coordinators.group_context import GroupContext, answer
from seglog.coordinators.group_records import GroupRecord
from seglog.coordinators.settings import GroupSettings
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import SeglogError
from seglog.core.ground import Ground
from seglog.core.types import ProducerIdAndEpoch
from seglog.replication.replica import Replica

_log: Final = logging.getLogger("seglog.coordinators")
_RETRY_MS: Final = 500
"""When an expired member is tried again whose removal could not be written (Kafka's timer retries do the same)."""
MAX_MEMBER_BYTES: Final = 256 << 20
"""The metadata of all members of all groups. Before version 4 of JoinGroup a client need not come back with a member id
(KIP-394), so a megabyte per request would stay for minutes. Kafka has no limit."""


def _sees_all(_: str) -> bool:
    return True


def _no_config(_group_id: str) -> Mapping[str, str]:
    return {}


class GroupCoordinator(CoordinatorRuntime[GroupContext]):
    """All groups of this broker."""

    def __init__(
        self,
        topic: CoordinatorTopic,
        settings: GroupSettings,
        topics: TopicImage,
        group_config: Callable[[str], Mapping[str, str]] = _no_config,
        *,
        ground: Ground,
    ) -> None:
        """``group_config`` returns what is configured for a group now, by Kafka's keys of group configurations."""
        super().__init__(
            topic,
            "group",
            partition_count=settings.offsets_topic_num_partitions,
            check_seconds=settings.offsets_retention_check_interval_ms / 1000,
            ground=ground,
        )
        self.settings = settings
        self._rng = ground.rng
        self._limits = GroupLimits(settings.group_initial_rebalance_delay_ms, settings.group_max_size)
        self._rules = settings.consumer_rules(self._limits)
        self._topics = topics
        self._group_config = group_config
        self._member_bytes = 0
        self._resolving: set[str] = set()

    # Loading and expiry

    def make_context(self, partition: Replica) -> GroupContext:
        return GroupContext(partition, self._limits, self.settings, self._clock)

    def replay(self, context: GroupContext) -> Iterator[None]:
        return context.replay()

    def loaded(self, context: GroupContext) -> None:
        self._append_quietly(context, context.deletions_at_start())
        for group_id, result in context.shard.loaded(context.now()):
            self._do(context, group_id, result)
        for group in list(context.shard.groups.values()):
            if isinstance(group, ConsumerGroup):
                context.shard.start_timers(group, self.rules(group.group_id).session_timeout, context.now())
                self._watch(context, group.group_id)

    def check(self) -> None:
        self.expire_offsets()

    def shard(self, group_id: str) -> CoordinatorShard:
        """The shard for reads. Raises `CoordinatorError` if this broker does not coordinate the group, or has not
        loaded it yet."""
        return self._context_of(group_id).settled()

    def is_in_doubt(self, group_id: str) -> bool:
        """Whether another broker may coordinate the group by now: see `newest`."""
        context = self._contexts.get(self.partition_of(group_id))
        return context is not None and context.partition.check_doubt()

    async def newest(self, group_id: str) -> None:
        """Return when no other coordinator can have committed anything for the group before this call. Raises
        `CoordinatorError`."""
        if not await self._context_of(group_id).is_newest():
            raise CoordinatorError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                f"another broker may coordinate group {group_id}: the metadata store is away, and not all replicas of "
                f"its partition follow this one",
            )

    def _context_with_room(self, group_id: str) -> GroupContext:
        """The context of a group that a request may create. Raises `CoordinatorError`, also if there are too many."""
        context = self._context_of(group_id)
        if group_id not in context.shard.groups:
            count = sum([len(one.shard.groups) for one in self._contexts.values()])
            self._check_room(group_id, count, self.settings.seglog_max_groups, "seglog.max.groups")
        return context

    def shards(self) -> Iterator[CoordinatorShard]:
        """All shards that this broker leads. Raises `CoordinatorError` if one is not loaded yet."""
        return (context.settled() for context in self._all_contexts())

    def rules(self, group_id: str) -> ConsumerRules:
        """The settings of a consumer group."""
        return self._rules.of_group(self._group_config(group_id))

    @property
    def topics(self) -> TopicImage:
        """The topics that groups may subscribe to."""
        return self._topics

    # Members of consumer groups

    async def consumer_heartbeat(
        self, request: ConsumerHeartbeat, sees: Callable[[str], bool] = _sees_all
    ) -> ConsumerHeartbeatAnswer:
        """Raises `CoordinatorError`. Regular expressions that are resolved now match the topics that the member
        ``sees``."""
        context = self._context_with_room(request.group_id)
        decision = self._decision(context, request.group_id)
        async with self._refusing(context):
            answered = context.shard.consumer_heartbeat(decision, request, self._new_id())
        await self._committed(context, self._carry_out(context, request.group_id, decision, sees))
        return answered

    def _decision(self, context: GroupContext, group_id: str) -> Decision:
        return Decision(context.now(), self._topics, self.rules(group_id))

    def _new_id(self) -> str:
        return str(UUID(int=self._rng.getrandbits(128), version=4))

    def _carry_out(
        self, context: GroupContext, group_id: str, decision: Decision, sees: Callable[[str], bool] = _sees_all
    ) -> int:
        """Return the offset that `_committed` is to wait for. Raises `CoordinatorError`; then nothing has changed."""
        for event in decision.events:
            _log.info("%s", event)
        try:
            end = context.carry_out(decision, group_id)
        except SeglogError as error:
            raise CoordinatorError(code_of_append(error), str(error)) from error
        if decision.expressions and group_id not in self._resolving:
            self._resolving.add(group_id)
            asyncio.get_running_loop().call_soon(self._resolve, context, group_id, decision.expressions, sees)
        if decision.downgrade is not None and decision.downgrade.reason is not None:
            result = GroupResult(context.now())
            decision.downgrade.group.prepare(result, decision.downgrade.reason)
            self._do(context, group_id, result)
        self._watch(context, group_id)
        return end

    async def _committed(self, context: GroupContext, end: int) -> None:
        """Raises `CoordinatorError`."""
        code = await context.outcome(end) if end else ErrorCode.NONE
        if code is not ErrorCode.NONE:
            raise CoordinatorError(code, "not committed in time, or another broker leads now")

    @asynccontextmanager
    async def _refusing(self, context: GroupContext) -> AsyncIterator[None]:
        """Hold a refusal back until the decisions that it rests on are committed. A broker that does not know yet that
        another one leads may have removed a member that the other one has kept; Kafka's answers that at once."""
        try:
            yield
        except CoordinatorError:
            await self._committed(context, context.uncommitted_end())
            raise

    def _resolve(
        self, context: GroupContext, group_id: str, expressions: Collection[str], sees: Callable[[str], bool]
    ) -> None:
        """Find the topics of a group's regular expressions, after the heartbeat that asked for it."""
        self._resolving.discard(group_id)
        group = context.shard.consumer(group_id)
        if group is None or not context.is_led:
            return
        decision = self._decision(context, group_id)
        found = resolve_patterns(expressions, self._topics.names)
        seen = {expression: frozenset(filter(sees, topics)) for expression, topics in found.items()}
        regular_expressions.resolved(decision, group, seen)
        try:
            self._carry_out(context, group_id, decision)
        except CoordinatorError as error:  # a later heartbeat asks again
            _log.error("the topics of group %s could not be written: %s", group_id, error)

    # Classic members

    async def join(self, request: JoinGroupRequest, sees: Callable[[str], bool] = _sees_all) -> JoinGroupResult:
        """Raises `CoordinatorError`. ``sees`` as in `consumer_heartbeat`."""
        context = self._context_with_room(request.group_id)
        group = context.shard.consumer(request.group_id)
        if group is not None and not group.is_empty:
            decision = self._decision(context, request.group_id)
            async with self._refusing(context):
                result = classic_members.join(decision, group, request, self._new_id())
            await self._committed(context, self._carry_out(context, request.group_id, decision, sees))
            return result
        if not self._has_room_for(request):
            raise CoordinatorError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, "the metadata of group members exceeds the coordinator's limit"
            )
        ticket: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        prefix = request.client_id if request.instance_id is None else request.instance_id
        new_id = f"{prefix}-{self._new_id()}"
        self._do(context, request.group_id, context.shard.join(request, ticket, new_id, context.now()))
        joined = await ticket
        assert isinstance(joined, JoinGroupResult)
        if group is not None and joined.code is not ErrorCode.NONE:  # its last member may be removed here only
            await self._committed(context, context.uncommitted_end())
        return joined

    def _has_room_for(self, request: JoinGroupRequest) -> bool:
        """Check `MAX_MEMBER_BYTES`. The sum is counted again only when all requests since then exceed the limit: most
        are members that join again."""
        self._member_bytes += size_of(request.protocols)
        if self._member_bytes > MAX_MEMBER_BYTES:
            groups = (group for context in self._contexts.values() for group in context.shard.groups.values())
            there = sum(map(_metadata_size, groups))
            self._member_bytes = there + size_of(request.protocols)
        return self._member_bytes <= MAX_MEMBER_BYTES

    async def sync(self, request: SyncGroupRequest) -> SyncGroupResult:
        """Raises `CoordinatorError`."""
        context = self._context_of(request.group_id)
        group = context.shard.consumer(request.group_id)
        if group is not None:
            decision = self._decision(context, request.group_id)
            async with self._refusing(context):
                result = classic_members.sync(decision, group, request)
            await self._committed(context, self._carry_out(context, request.group_id, decision))
            return result
        ticket: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._do(context, request.group_id, context.shard.sync(request, ticket, context.now()))
        synced = await ticket
        assert isinstance(synced, SyncGroupResult)
        return synced

    async def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Raises `CoordinatorError`."""
        context = self._context_of(group_id)
        group = context.shard.consumer(group_id)
        if group is not None:
            decision = self._decision(context, group_id)
            async with self._refusing(context):
                code = classic_members.heartbeat(decision, group, member_id, instance_id, generation)
            await self._committed(context, self._carry_out(context, group_id, decision))
            return code
        code = context.shard.heartbeat(group_id, member_id, instance_id, generation, context.now())
        if code is ErrorCode.FENCED_INSTANCE_ID:
            _log.info("%s", fenced(group_id, member_id, instance_id))
        return code

    async def leave(self, group_id: str, leaving: Sequence[LeavingMember]) -> list[ErrorCode]:
        """Raises `CoordinatorError`."""
        context = self._context_of(group_id)
        group = context.shard.consumer(group_id)
        if group is not None:
            decision = self._decision(context, group_id)
            codes = classic_members.leave(decision, group, leaving)
            await self._committed(context, self._carry_out(context, group_id, decision))
            return codes
        result, codes = context.shard.leave(group_id, leaving, context.now())
        self._do(context, group_id, result)
        return codes

    # Offsets and groups

    async def commit(self, request: OffsetCommitRequest) -> list[ErrorCode]:
        """Raises `CoordinatorError`."""
        context = self._context_with_room(request.group_id)
        async with self._refusing(context):
            changed = context.shard.commit(request, context.now())
        return await self._change(context, changed)

    async def commit_in_transaction(
        self, request: OffsetCommitRequest, producer: ProducerIdAndEpoch
    ) -> list[ErrorCode]:
        """TxnOffsetCommit: the offsets count when a marker commits the producer's transaction. Raises
        `CoordinatorError`."""
        context = self._context_with_room(request.group_id)
        async with self._refusing(context):
            changed = context.shard.commit(request, context.now(), is_transactional=True)
        if changed.records:
            try:
                end = context.append(changed.records, producer)
            except SeglogError as error:
                raise CoordinatorError(code_of_append(error), str(error)) from error
            code = await context.outcome(end)
            if code is not ErrorCode.NONE:
                raise CoordinatorError(code, "not committed in time, or another broker leads now")
        return changed.codes

    def end_transaction(self, number: int, producer_id: int, marker: int, *, commit: bool) -> None:
        """A marker is committed at offset ``marker`` in a partition of ``__consumer_offsets``."""
        context = self._context(number)
        if context is not None:
            context.end_transaction(producer_id, marker, commit=commit)

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

    def _current_contexts(self) -> list[GroupContext]:
        """The contexts whose partitions still exist: the offsets topic may have been deleted itself."""
        return [context for number, context in list(self._contexts.items()) if self._context(number) is context]

    def expire_offsets(self) -> None:
        """Delete offsets that were not used for ``offsets.retention.minutes``."""
        for context in self._current_contexts():
            if context.is_loaded:
                self._append_quietly(
                    context, context.shard.expire(context.now(), self.settings.offsets_retention_minutes * 60_000)
                )

    async def _change(self, context: GroupContext, changed: ChangeResult) -> list[ErrorCode]:
        if changed.records:
            try:
                end = context.append_in_parts(changed.records)
            except SeglogError as error:
                raise CoordinatorError(code_of_append(error), str(error)) from error
            code = await context.outcome(end)
            if code is not ErrorCode.NONE:
                raise CoordinatorError(code, "the records were not committed in time, or another broker leads")
        return changed.codes

    def _append_quietly(self, context: GroupContext, records: Sequence[GroupRecord]) -> None:
        try:
            context.append_in_parts(records)
        except SeglogError as error:
            _log.error("offsets in %s could not be deleted: %s", context.partition.topic_partition, error)

    # Results of groups

    def _do(self, context: GroupContext, group_id: str, result: GroupResult) -> None:
        """Answer clients, append records, and continue what waits for them."""
        group = context.shard.classic(group_id)
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
        self, context: GroupContext, group: ClassicGroup, pending: PendingWrite | None, end: int
    ) -> None:
        self._stored(context, group, pending, await context.outcome(end))

    def _stored(
        self, context: GroupContext, group: ClassicGroup, pending: PendingWrite | None, code: ErrorCode
    ) -> None:
        if pending is not None:
            self._do(context, group.group_id, context.shard.stored(group, pending, code, context.now()))

    def _watch(self, context: GroupContext, group_id: str) -> None:
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

    def _fire(self, context: GroupContext, group_id: str) -> None:
        context.timers.pop(group_id, None)
        group = context.shard.groups.get(group_id)
        while isinstance(group, ClassicGroup) and (result := group.fire(context.now())) is not None:
            self._do(context, group_id, result)
            group = context.shard.groups.get(group_id)
        while isinstance(group, ConsumerGroup) and (expired := group.timers.take_expired(context.now().monotonic)):
            self._expire(context, group, expired)
            group = context.shard.groups.get(group_id)
        self._watch(context, group_id)

    def _expire(self, context: GroupContext, group: ConsumerGroup, expired: Expired) -> None:
        decision = self._decision(context, group.group_id)
        membership.expire(decision, group, expired)
        try:
            self._carry_out(context, group.group_id, decision)
        except CoordinatorError as error:
            _log.error("member %s of group %s could not be removed: %s", expired.member_id, group.group_id, error)
            again = TimerChange(expired.kind, expired.member_id, _RETRY_MS, expired.epoch)
            group.timers.change([again], context.now().monotonic)


def _metadata_size(group: Group) -> int:
    """The bytes that classic members have sent for each other."""
    if isinstance(group, ClassicGroup):
        return sum(size_of(member.protocols) for member in group.members)
    return sum(size_of(member.classic.protocols) for member in group.members.values() if member.classic is not None)
