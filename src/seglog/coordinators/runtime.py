"""The group coordinator of this broker: what is decided in `seglog.coordinators.shard` is written, timed and answered.

A request finds the partition of ``__consumer_offsets`` that its group lives in. Its records are appended there as one
batch; whoever asked is answered when they are below the high watermark. On one event loop: between two awaits nothing
else runs, so that a decision and its append are one step.

A home is of one partition in one epoch in which this broker leads it: `GroupCoordinator.moved` ends those that are
over, and has new ones loaded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Final
from uuid import UUID

from seglog.coordinators.codec import Entry
from seglog.coordinators.coordinator_error import CoordinatorError, code_of_append
from seglog.coordinators.groups import NEVER, Group
from seglog.coordinators.homes import Home, answer
from seglog.coordinators.loading import load
from seglog.coordinators.requests import Answer, JoinAnswer, JoinRequest, Leaving, SyncAnswer, SyncRequest, size_of
from seglog.coordinators.settings import OFFSETS_TOPIC, GroupSettings, OffsetsTopic, java_hash
from seglog.coordinators.shard import Changed, CommitRequest, Shard
from seglog.coordinators.steps import GroupLimits, Now, Pending, Step, fenced
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import SeglogError
from seglog.core.ground import Ground

_log: Final = logging.getLogger("seglog.coordinators")
_NOBODY: Final = -1
MAX_MEMBER_BYTES: Final = 256 << 20
"""What the members of all groups may say of themselves. Before version 4 of JoinGroup nobody has to come back with an
id (KIP-394): a megabyte a request stays for minutes. Kafka has no limit."""


class GroupCoordinator:
    """All groups of this broker. `run` loads them and looks after them as long as the broker runs."""

    def __init__(self, topic: OffsetsTopic, settings: GroupSettings, *, ground: Ground) -> None:
        self.settings = settings
        self._topic = topic
        self._clock = ground.clock
        self._rng = ground.rng
        self._limits = GroupLimits(settings.group_initial_rebalance_delay_ms, settings.group_max_size)
        self._homes: dict[int, Home] = {}
        self._creation: asyncio.Task[None] | None = None
        self._member_bytes = 0
        self._wants_loading = asyncio.Event()
        self._owner: asyncio.TaskGroup | None = None

    # Life

    async def run(self) -> None:
        """Load what is there, then expire offsets, until it is cancelled."""
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
                    # Not `wait_for`, which may take the event for an answer when it is cancelled at the same time.
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(wait):
                            await self._wants_loading.wait()
        finally:
            self._owner = None
            self._stop()

    async def _load_all(self) -> None:
        self._wants_loading.clear()
        for number in range(len(self._topic.partitions())):
            home = self._home(number)
            if home is not None and not home.is_replayed:
                await self._load(home)

    async def _load(self, home: Home) -> None:
        """Replay what is there. It may be asked when all of that is committed, for which nobody else waits."""
        end = home.partition.log.log_end_offset
        try:
            for _ in load(home.shard, home.partition):
                await asyncio.sleep(0)
                if not home.is_led:  # others are in `_homes` by now, or it is not ours any more
                    return
        except (SeglogError, OSError) as error:  # it was deleted or cut meanwhile, or is damaged: others go on
            _log.error("groups of %s cannot be loaded: %s", home.partition.topic_partition, error)
            return
        home.is_replayed = True
        if home.partition.log.high_watermark >= end:
            self._loaded(home)
        else:
            assert self._owner is not None
            self._owner.create_task(self._loaded_later(home, end))

    async def _loaded_later(self, home: Home, end: int) -> None:
        if await home.committed(end):
            self._loaded(home)

    def _loaded(self, home: Home) -> None:
        home.is_loaded = True
        self._append_quietly(home, home.shard.topics_deleted(home.gone))
        for group_id, step in home.shard.loaded(self._now()):
            self._do(home, group_id, step)

    def _stop(self) -> None:
        for home in self._homes.values():
            home.stop(self._now())
        self._homes.clear()

    def moved(self) -> None:
        """Of the partitions of ``__consumer_offsets`` this broker leads others now, or some in another epoch: groups of
        those that it has lost are told so at once, new ones are loaded."""
        for number in list(self._homes):
            self._home(number)
        self._wants_loading.set()

    # Where a group lives

    def partition_of(self, group_id: str) -> int:
        count = len(self._topic.partitions()) or self.settings.offsets_topic_num_partitions
        return java_hash(group_id) % count

    async def locate(self, group_id: str) -> int:
        """The id of the broker that coordinates the group, -1 if there is none; makes the topic, if it is the first
        group."""
        if self._owner is None:
            return _NOBODY
        if not self._topic.partitions():
            if self._creation is None or self._creation.done():
                self._creation = self._owner.create_task(self._create())
            await asyncio.shield(self._creation)  # it goes on for the others when one who waits has gone
        return self._topic.leader(self.partition_of(group_id))

    async def _create(self) -> None:
        try:
            await self._topic.create()
        except SeglogError as error:
            _log.error("%s could not be made: %s", OFFSETS_TOPIC, error)

    def _home(self, number: int) -> Home | None:
        """The groups of a partition, if this broker leads it. What it led before is over, whoever notices first."""
        partitions = self._topic.partitions()
        partition = partitions[number] if number < len(partitions) else None
        home = self._homes.get(number)
        if home is not None and (home.partition is not partition or not home.is_led):
            del self._homes[number]
            home.stop(self._now())
            home = None
        if home is None and partition is not None and partition.leads:
            home = self._homes[number] = Home(partition, self._limits, self.settings, self._clock)
            if not home.is_loaded:
                self._wants_loading.set()
        return home

    def _home_of(self, group_id: str) -> Home:
        if self._owner is None:
            raise CoordinatorError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the coordinator does not run")
        number = self.partition_of(group_id)
        home = self._home(number)
        if home is None and self._topic.is_awaited(number):
            raise CoordinatorError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"group {group_id} will be of this broker")
        if home is None:
            raise CoordinatorError(ErrorCode.NOT_COORDINATOR, f"group {group_id} is not of this broker")
        if not home.is_loaded:
            raise CoordinatorError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"group {group_id} is being loaded")
        return home

    def shard(self, group_id: str) -> Shard:
        """For questions. Raises `CoordinatorError` where the group is not of this broker, or not loaded yet."""
        return self._home_of(group_id).settled()

    def is_in_doubt(self, group_id: str) -> bool:
        """Whether another broker may coordinate the group by now: see `newest`."""
        home = self._homes.get(self.partition_of(group_id))
        return home is not None and home.partition.in_doubt

    async def newest(self, group_id: str) -> None:
        """Return when no other coordinator had committed anything for the group before this was called. Raises
        `CoordinatorError`."""
        if not await self._home_of(group_id).is_newest():
            raise CoordinatorError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                f"group {group_id} may be of another broker: the metadata store is away, and not all replicas of its "
                f"partition follow this one",
            )

    def shards(self) -> Iterator[Shard]:
        """All that this broker leads. Raises `CoordinatorError` if one is not loaded yet."""
        for number in range(len(self._topic.partitions())):
            home = self._home(number)
            if home is not None:
                if not home.is_loaded:
                    raise CoordinatorError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "groups are being loaded")
                yield home.settled()

    def _now(self) -> Now:
        # Rounded: a timer that rings on time must not find that it is one too early, and be set again for at once.
        return Now(round(self._clock.monotonic() * 1000), self._clock.now_ms())

    # Members

    async def join(self, request: JoinRequest) -> JoinAnswer:
        """Raises `CoordinatorError`."""
        home = self._home_of(request.group_id)
        if not self._has_room_for(request):
            raise CoordinatorError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "members of groups say too much of themselves")
        ticket: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        prefix = request.client_id if request.instance_id is None else request.instance_id
        new_id = f"{prefix}-{UUID(int=self._rng.getrandbits(128), version=4)}"
        self._do(home, request.group_id, home.shard.join(request, ticket, new_id, self._now()))
        joined = await ticket
        assert isinstance(joined, JoinAnswer)
        return joined

    def _has_room_for(self, request: JoinRequest) -> bool:
        """Whether what members say of themselves stays below `MAX_MEMBER_BYTES`. It is counted anew only when all that
        came since would be too much: mostly those are members that join again."""
        self._member_bytes += size_of(request.protocols)
        if self._member_bytes > MAX_MEMBER_BYTES:
            groups = (group for home in self._homes.values() for group in home.shard.groups.values())
            there = sum(size_of(member.protocols) for group in groups for member in group.members)
            self._member_bytes = there + size_of(request.protocols)
        return self._member_bytes <= MAX_MEMBER_BYTES

    async def sync(self, request: SyncRequest) -> SyncAnswer:
        """Raises `CoordinatorError`."""
        home = self._home_of(request.group_id)
        ticket: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._do(home, request.group_id, home.shard.sync(request, ticket, self._now()))
        synced = await ticket
        assert isinstance(synced, SyncAnswer)
        return synced

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Raises `CoordinatorError`."""
        code = self._home_of(group_id).shard.heartbeat(group_id, member_id, instance_id, generation, self._now())
        if code is ErrorCode.FENCED_INSTANCE_ID:
            _log.info("%s", fenced(group_id, member_id, instance_id))
        return code

    async def leave(self, group_id: str, leaving: Sequence[Leaving]) -> list[ErrorCode]:
        """Raises `CoordinatorError`."""
        home = self._home_of(group_id)
        step, codes = home.shard.leave(group_id, leaving, self._now())
        self._do(home, group_id, step)
        return codes

    # Offsets and groups

    async def commit(self, request: CommitRequest) -> list[ErrorCode]:
        """Raises `CoordinatorError`."""
        home = self._home_of(request.group_id)
        return await self._change(home, home.shard.commit(request, self._now()))

    async def delete_offsets(self, group_id: str, places: Sequence[tuple[str, int]]) -> list[ErrorCode]:
        """Raises `CoordinatorError`."""
        home = self._home_of(group_id)
        return await self._change(home, home.shard.delete_offsets(group_id, places))

    async def delete_group(self, group_id: str) -> ErrorCode:
        """Raises `CoordinatorError`."""
        home = self._home_of(group_id)
        codes = await self._change(home, home.shard.delete_groups([group_id]))
        self._watch(home, group_id)
        return codes[0]

    def topics_deleted(self, topics: Sequence[tuple[str, UUID | None]]) -> None:
        """Topics are no more: what groups have committed of them goes, too."""
        for home in self._homes_that_are():
            if home.is_loaded:
                self._append_quietly(home, home.shard.topics_deleted(topics))
            else:
                home.gone += topics

    def _homes_that_are(self) -> list[Home]:
        """Without those of a topic of offsets that was deleted itself."""
        return [home for number, home in list(self._homes.items()) if self._home(number) is home]

    def expire_offsets(self) -> None:
        """Delete offsets that nobody has used for ``offsets.retention.minutes``."""
        for home in self._homes_that_are():
            if home.is_loaded:
                self._append_quietly(
                    home, home.shard.expire(self._now(), self.settings.offsets_retention_minutes * 60_000)
                )

    async def _change(self, home: Home, changed: Changed) -> list[ErrorCode]:
        if changed.records:
            try:
                end = home.append_in_parts(changed.records)
            except SeglogError as error:
                raise CoordinatorError(code_of_append(error), str(error)) from error
            code = await home.outcome(end)
            if code is not ErrorCode.NONE:
                raise CoordinatorError(code, "not committed in time, or another broker leads now")
        return changed.codes

    def _append_quietly(self, home: Home, records: Sequence[Entry]) -> None:
        try:
            home.append_in_parts(records)
        except SeglogError as error:
            _log.error("offsets in %s could not be deleted: %s", home.partition.topic_partition, error)

    # Steps of groups

    def _do(self, home: Home, group_id: str, step: Step) -> None:
        """Answer, write, and go on with what waited for that."""
        group = home.shard.groups.get(group_id)
        for event in step.events:
            _log.info("%s", event)
        answer(step)
        if step.records and group is not None:
            pending = step.pending
            try:
                end = home.append(step.records)
            except SeglogError as error:
                _log.error("group %s could not be written: %s", group_id, error)
                self._stored(home, group, pending, code_of_append(error))
            else:
                code = home.known_outcome(end)
                if code is not None:
                    self._stored(home, group, pending, code)
                else:
                    assert self._owner is not None  # else there was no home
                    self._owner.create_task(self._store_later(home, group, pending, end))
        self._watch(home, group_id)

    async def _store_later(self, home: Home, group: Group, pending: Pending | None, end: int) -> None:
        self._stored(home, group, pending, await home.outcome(end))

    def _stored(self, home: Home, group: Group, pending: Pending | None, code: ErrorCode) -> None:
        if pending is not None:
            self._do(home, group.group_id, home.shard.stored(group, pending, code, self._now()))

    def _watch(self, home: Home, group_id: str) -> None:
        """See to it that the group is asked when its next deadline comes. Later deadlines cost nothing."""
        group = home.shard.groups.get(group_id)
        earliest = NEVER if group is None else group.earliest
        armed = home.timers.get(group_id)
        if armed is not None:
            if armed[0] <= earliest < NEVER:
                return
            armed[1].cancel()
            del home.timers[group_id]
        if earliest < NEVER:
            seconds = max(earliest / 1000 - self._clock.monotonic(), 0)
            timer = asyncio.get_running_loop().call_later(seconds, self._fire, home, group_id)
            home.timers[group_id] = (earliest, timer)

    def _fire(self, home: Home, group_id: str) -> None:
        home.timers.pop(group_id, None)
        group = home.shard.groups.get(group_id)
        while group is not None and (step := group.fire(self._now())) is not None:
            self._do(home, group_id, step)
            group = home.shard.groups.get(group_id)
        self._watch(home, group_id)
