"""Clients of groups whose coordinator moves, and a model of the promises to them that knows only answers.

A committed offset is never lost, and neither is one that was seen as committed: the coordinator of an epoch returns
nothing older than what one of this or an earlier epoch has returned or confirmed. (A coordinator that does not know yet
that it was deposed may return less than its successor; so does Kafka's.) In one generation a member has one assignment.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from seglog.coordinators.classic.messages import JoinGroupRequest, JoinGroupResult, LeavingMember, SyncGroupRequest
from seglog.coordinators.coordinator_error import CoordinatorError
from seglog.coordinators.coordinator_shard import OffsetCommit, OffsetCommitRequest
from seglog.core.error_codes import ErrorCode
from tests.coordinators.coordinators import TOPIC, Coordinators, groups, offsets_of
from tests.coordinators.shard_driver import RANGE
from tests.kit.virtual_cluster import VirtualBroker

GROUP: Final = "crew"
_AWAY: Final = {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}
_ANEW: Final = {ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS}
_RESET: Final = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID}


class Promises:
    """Which answers were given, and to whom; ``codes`` counts them."""

    def __init__(self) -> None:
        self.codes: Counter[str] = Counter()
        self._tried: dict[str, int] = {}
        self._told: defaultdict[str, dict[int, int]] = defaultdict(dict)
        self._assigned: dict[tuple[int, str], bytes] = {}

    def tried(self, name: str) -> int:
        self._tried[name] = self._tried.get(name, 0) + 1
        return self._tried[name]

    def committed(self, name: str, epoch: int, offset: int) -> None:
        told = self._told[name]
        told[epoch] = max(told.get(epoch, 0), offset)

    def fetched(self, name: str, epoch: int, offset: int) -> None:
        before = max((told for since, told in self._told[name].items() if since <= epoch), default=0)
        assert before <= offset <= self._tried.get(name, 0), f"{name} goes back from {before} to {offset} in {epoch}"
        self.committed(name, epoch, offset)

    def assigned(self, generation: int, member_id: str, assignment: bytes) -> None:
        there = self._assigned.setdefault((generation, member_id), assignment)
        assert there == assignment, f"{member_id} has two assignments in generation {generation}"
        assert assignment.startswith(b"%d/" % generation)

    @contextmanager
    def counted(self, *expected: set[ErrorCode]) -> Iterator[None]:
        """Count the errors that a client expects and continues after."""
        try:
            yield
        except CoordinatorError as error:
            if not any(error.code in codes for codes in expected):
                raise
            self.codes[error.code.name] += 1


class GroupClient:
    """A client: it asks any broker for the coordinator, and goes there."""

    def __init__(self, cluster: Coordinators, promises: Promises, name: str) -> None:
        self.cluster = cluster
        self.promises = promises
        self.name = name
        self.group = name
        self.has_time = True
        self.rng = cluster.world.rng

    async def find(self) -> VirtualBroker | None:
        asked = self.rng.choice(list(self.cluster.brokers.values()))
        return self.cluster.brokers.get(await self.cluster.at(asked, groups(asked).locate(self.group)))

    async def fetch(self, node: VirtualBroker) -> None:
        """As an OffsetFetch, which while its session is in doubt waits until nothing can be newer."""
        await self.cluster.at(node, self._fetch(node))

    async def _fetch(self, node: VirtualBroker) -> None:
        with self.promises.counted(_AWAY):
            if groups(node).is_in_doubt(self.group):
                await groups(node).newest(self.group)
            shard = groups(node).shard(self.group)
            epoch = offsets_of(node).leader_epoch
            found = shard.fetch(self.group, (self.name, 0), TOPIC, require_stable=True).value
            self.promises.fetched(self.name, epoch, 0 if found is None else found.offset)

    async def commit(
        self, node: VirtualBroker, generation: int = -1, member_id: str = "", instance: str | None = None
    ) -> None:
        """Raises `CoordinatorError`."""
        await self.cluster.at(node, self._commit(node, generation, member_id, instance))

    async def _commit(self, node: VirtualBroker, generation: int, member_id: str, instance: str | None) -> None:
        offset, epoch = self.promises.tried(self.name), offsets_of(node).leader_epoch
        commits = [OffsetCommit((self.name, 0), TOPIC, offset, -1, "")]
        codes = await groups(node).commit(OffsetCommitRequest(self.group, generation, member_id, instance, commits, 9))
        assert codes == [ErrorCode.NONE]
        self.promises.codes["committed"] += 1
        self.promises.committed(self.name, epoch, offset)

    async def run(self) -> None:
        """Only commit offsets."""
        while self.has_time:
            await asyncio.sleep(self.rng.uniform(0.0, 0.2))
            node = await self.find()
            if node is None:
                continue
            await self.fetch(node)
            with self.promises.counted(_AWAY):
                await self.commit(node)
                await self.fetch(node)


class GroupMemberClient(GroupClient):
    """A member of the group, static or not, that leaves or restarts now and then."""

    def __init__(self, cluster: Coordinators, promises: Promises, name: str, instance: str | None) -> None:
        super().__init__(cluster, promises, name)
        self.group = GROUP
        self.instance = instance
        self.member_id = ""

    async def run(self) -> None:
        while self.has_time:
            await asyncio.sleep(self.rng.uniform(0.0, 0.2))
            node = await self.find()
            if node is None:
                continue
            with self.promises.counted(_AWAY, _ANEW):
                joined = await self._join(node)
                if joined is not None and await self._sync(node, joined):
                    await self._work(joined.generation)

    async def _join(self, node: VirtualBroker) -> JoinGroupResult | None:
        protocols = ("consumer", RANGE)
        request = JoinGroupRequest(GROUP, self.member_id, self.instance, self.name, "/h", 4_000, 6_000, *protocols, 9)
        joined = await self.cluster.at(node, groups(node).join(request))
        self.promises.codes[f"join {joined.code.name}"] += 1
        if joined.code is ErrorCode.MEMBER_ID_REQUIRED or joined.code is ErrorCode.NONE:
            self.member_id = joined.member_id
        elif joined.code in _RESET:
            self.member_id = ""
        else:
            assert joined.code in _AWAY | _ANEW
        return joined if joined.code is ErrorCode.NONE else None

    async def _sync(self, node: VirtualBroker, joined: JoinGroupResult) -> bool:
        assignments = {}
        if joined.leader == joined.member_id and not joined.skip_assignment:
            word = self.rng.getrandbits(32)
            assignments = {
                member.member_id: b"%d/%d/%s" % (joined.generation, word, member.member_id.encode())
                for member in joined.members
            }
        request = SyncGroupRequest(
            GROUP, self.member_id, self.instance, joined.generation, "consumer", joined.protocol, assignments
        )
        synced = await self.cluster.at(node, groups(node).sync(request))
        self.promises.codes[f"sync {synced.code.name}"] += 1
        if synced.code in _RESET:
            self.member_id = ""
        if synced.code is not ErrorCode.NONE:
            assert synced.code in _AWAY | _ANEW | _RESET
            return False
        self.promises.assigned(joined.generation, self.member_id, synced.assignment)
        return True

    async def _work(self, generation: int) -> None:
        """Commit until it must join again, or leaves."""
        while self.has_time and self.rng.random() > 0.02:
            await asyncio.sleep(self.rng.uniform(0.0, 0.3))
            node = await self.find()
            if node is None:
                continue
            await self.fetch(node)
            code = await self._commit_as_member(node, generation)
            if code in _ANEW | _RESET:
                self.member_id = "" if code in _RESET else self.member_id
                return
        if self.instance is not None:
            self.member_id = ""  # it was started anew
            return
        node = await self.find()
        if node is not None:
            with self.promises.counted(_AWAY):
                await self.cluster.at(node, groups(node).leave(GROUP, [LeavingMember(self.member_id)]))
                self.member_id = ""

    async def _commit_as_member(self, node: VirtualBroker, generation: int) -> ErrorCode:
        try:
            beat = groups(node).heartbeat(GROUP, self.member_id, self.instance, generation)
            code = await self.cluster.at(node, beat)
            if code is ErrorCode.NONE:
                await self.commit(node, generation, self.member_id, self.instance)
        except CoordinatorError as error:
            code = error.code
        self.promises.codes[f"work {code.name}"] += 1
        return code
