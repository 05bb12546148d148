"""Members of a group in a simulated cluster, by either protocol. Each process lives many lives: it joins, reads,
commits and beats, and then leaves, dies, or stays away for longer than its session."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from struct import pack
from typing import TYPE_CHECKING, Any, Final

from seglog.coordinators.consumer_protocol import decode_assignment, encode_assignment
from seglog.coordinators.group_context import GroupContext
from seglog.protocol.apis import ApiKey
from seglog.protocol.message_reader import Message
from tests.simulation.cluster.contents import TOPIC
from tests.simulation.cluster.coordinator_clients import CoordinatorClient
from tests.simulation.consumer_groups.ownership import GroupModel, MemberView, Ownership
from tests.simulation.wire import LostError, UnsentError

if TYPE_CHECKING:
    from tests.simulation.cluster.cluster import Cluster

GROUP: Final = "g"
SESSION_SECONDS: Final = 1.5
_REBALANCE_SECONDS: Final = 2.0
_JOINS, _LEAVES, _LEAVES_FOR_NOW = 0, -1, -2
_ILLEGAL_GENERATION, _UNKNOWN_MEMBER, _REBALANCE = 22, 25, 27
_GROUP_ID_NOT_FOUND, _MEMBER_ID_REQUIRED, _FENCED_INSTANCE = 69, 79, 82
_UNSTABLE, _FENCED_EPOCH, _UNRELEASED_INSTANCE, _STALE_EPOCH = 88, 110, 111, 113
_OVER: Final = {_ILLEGAL_GENERATION, _UNKNOWN_MEMBER, _GROUP_ID_NOT_FOUND, _FENCED_INSTANCE, _FENCED_EPOCH}
_REFUSED: Final = {*_OVER, _STALE_EPOCH}
"""Codes of a commit that has changed nothing."""
_NOT_DONE: Final = {14, _UNRELEASED_INSTANCE}
"""COORDINATOR_LOAD_IN_PROGRESS is said before anything is done; after other codes something may have been."""
_PASSING: Final = {1, 3, 5, 6, 7, 14, 15, 16, 19, 20, 56, 100}


_SUBSCRIPTION: Final = pack(">hih", 0, 1, len(TOPIC)) + TOPIC.encode() + pack(">i", -1)


class RejoinError(Exception):
    """It is not a member any more."""


class Member(CoordinatorClient):
    """``instance`` makes it a static one; ``classics`` is how many of its lives speak the classic protocol."""

    def __init__(
        self, cluster: Cluster, name: str, model: GroupModel, *, instance: str | None, classics: float
    ) -> None:
        self.model = model
        self.is_calm = False
        """From now on it stays."""
        self.lives = 0
        self.revoked = 0
        self.commits = self.refused = 0
        self._instance = instance
        self._classics = classics
        self._view: MemberView | None = None
        self._positions: dict[int, int] = {}
        self._told: frozenset[int] | None = None
        """Its partitions, as the coordinator has heard of them."""
        self._to_give_up: set[int] = set()
        super().__init__(cluster, name)

    async def act(self) -> None:
        self.lives += 1
        if self.rng.random() < self._classics:
            await self._live_classic()
        else:
            await self._live()

    @property
    def view(self) -> MemberView:
        assert self._view is not None
        return self._view

    def _new_view(self, name: str) -> None:
        self._view = self.model.member(name, SESSION_SECONDS, _REBALANCE_SECONDS)
        self._forget()

    def _end(self) -> None:
        self.model.gone(self.view)
        self._forget()

    def _forget(self) -> None:
        self._told = None
        self._to_give_up = set()
        self._positions.clear()

    # The consumer protocol

    async def _live(self) -> None:
        """One life under one id."""
        rng = self.rng
        self._new_view(f"{self.name}-{self.lives}")
        uses_pattern = rng.random() < 0.3
        subscription = {"subscribed_topic_regex": f"{TOPIC}.*"} if uses_pattern else {"subscribed_topic_names": [TOPIC]}
        whole = {**subscription, "rebalance_timeout": int(_REBALANCE_SECONDS * 1000)}
        epoch, is_whole = _JOINS, True
        while self.is_on:
            self.doing = f"heartbeat of {self.view.name} in {epoch}"
            owned: frozenset[int] | None = frozenset(self.view.owned)
            if not is_whole and owned == self._told:
                owned = None
            try:
                epoch = await self._beat(epoch, whole if is_whole else {}, owned)
                is_whole = False
            except LostError:
                is_whole = True
                await self.pause()
                continue
            except RejoinError:
                self._end()
                epoch, is_whole = _JOINS, True
                await self.pause()
                continue
            await self._revoke_some()
            if not await self._read():
                return

    async def _beat(self, epoch: int, contents: dict[str, Any], owned: frozenset[int] | None) -> int:
        """The epoch in which it is now. Raises `LostError`, `RejoinError`."""
        sent, latest, view = self.world.now, self.model.latest_epoch, self.view
        answer = await self._ask_member(
            ApiKey.CONSUMER_GROUP_HEARTBEAT,
            owned,
            group_id=GROUP,
            member_id=view.name,
            member_epoch=epoch,
            instance_id=self._instance,
            topic_partitions=None if owned is None else self._partitions(owned),
            **contents,
        )
        code = answer.error_code
        if code in _PASSING or code == _UNRELEASED_INSTANCE:
            if code not in _NOT_DONE:
                view.lose(sent, owned, may_be_late=False)
            raise LostError
        if code in _OVER:
            if epoch != _JOINS:
                self.model.fenced(view, code, self.world.now)
            raise RejoinError
        assert code == 0, f"{view.name} is told {code}: {answer.error_message}"
        if epoch == _JOINS:
            self.model.joined(view, answer.member_epoch, latest)
        if answer.assignment is not None:
            target = {number for topic in answer.assignment.topic_partitions for number in topic.partitions}
            self._to_give_up = view.owned.keys() - target
        self.model.answered(view, sent, answer.member_epoch, is_clean=not self._to_give_up)
        if owned is not None:
            self._told = owned
        if answer.assignment is not None:
            for number in sorted(target - view.owned.keys()):
                self.model.take(view, number, self.world.now)
        return int(answer.member_epoch)

    def _partitions(self, owned: frozenset[int]) -> list[dict[str, Any]]:
        return [{"topic_id": self.cluster.topic_id, "partitions": sorted(owned)}] if owned else []

    async def _revoke_some(self) -> None:
        """Give up what it must, not always at once."""
        for number in sorted(self._to_give_up):
            if self.rng.random() < 0.7:
                await self._revoke(number)
                self._to_give_up.discard(number)

    async def _revoke(self, number: int) -> None:
        """Sometimes after a while, and sometimes with a commit that is not waited for."""
        rng, ownership = self.rng, self.view.owned[number]
        if rng.random() < 0.1:
            await asyncio.sleep(rng.random() * (0.5 if self.is_calm else 1.5 * _REBALANCE_SECONDS))
        if number in self._positions and rng.random() < 0.5:
            late = rng.choice((0.0, 0.0, 0.2, 1.0))
            work = self._commit_later(ownership, self._positions[number], self.view.epoch, late)
            if late:
                self.loop.create_task(work)
            else:
                await work
        self._positions.pop(number, None)
        self.model.give_up(self.view, number)
        self.revoked += 1

    async def _ask_member(
        self, api: ApiKey, owned: frozenset[int] | None, /, *, more: float = 0.0, **contents: Any
    ) -> Message:
        """Raises `LostError`, and puts it down."""
        sent = self.world.now
        try:
            return await self.ask_coordinator(0, GROUP, api, more=more, **contents)
        except UnsentError:
            raise
        except LostError:
            self.view.lose(sent, owned, may_be_late=True)
            raise

    async def _read(self) -> bool:
        """Read between two heartbeats; returns whether the member stays."""
        rng = self.rng
        await asyncio.sleep(rng.uniform(0.05, 0.3))
        for number in sorted(self.view.owned):
            await self._process(number)
        if self.is_calm:
            return True
        chance = rng.random()
        if chance < 0.02:
            await asyncio.sleep(rng.random() * 2 * SESSION_SECONDS)
        elif chance < 0.05:
            self._end()  # the process dies
            return False
        elif chance < 0.09:
            await self._leave()
            return False
        return True

    async def _leave(self) -> None:
        view, is_for_now = self.view, self._instance is not None and self.rng.random() < 0.6
        self._end()
        try:
            await self._ask_member(
                ApiKey.CONSUMER_GROUP_HEARTBEAT,
                frozenset(),
                group_id=GROUP,
                member_id=view.name,
                member_epoch=_LEAVES_FOR_NOW if is_for_now else _LEAVES,
                instance_id=self._instance,
            )
        except LostError:
            return

    # The classic protocol

    async def _live_classic(self) -> None:
        """One life. It gives up everything before it joins again, as eager assignors ask for."""
        self._new_view(f"{self.name}-{self.lives}")
        member_id = ""
        while self.is_on:
            self.doing = f"classic life of {self.view.name}"
            try:
                member_id, generation = await self._join(member_id)
                while await self._read():
                    await self._beat_classic(member_id, generation)
                return
            except LostError:
                await self.pause()
            except RejoinError as error:
                if error.args:  # under another id its epochs begin anew
                    member_id = ""
                    self._end()
            await self._revoke_all()

    async def _revoke_all(self) -> None:
        for number in sorted(self.view.owned):
            await self._revoke(number)

    async def _join(self, member_id: str) -> tuple[str, int]:
        """Its id and its generation. Raises `LostError`, `RejoinError`."""
        joined = await self._ask_member(
            ApiKey.JOIN_GROUP,
            frozenset(),
            more=4.0,
            group_id=GROUP,
            session_timeout=int(SESSION_SECONDS * 1000),
            rebalance_timeout=int(_REBALANCE_SECONDS * 1000),
            group_instance_id=self._instance,
            protocol_type="consumer",
            protocols=[{"name": "range", "metadata": _SUBSCRIPTION}],
            reason=None,
            member_id=member_id,
        )
        if joined.error_code == _MEMBER_ID_REQUIRED:
            return await self._join(joined.member_id)
        self._check(joined.error_code)
        assignments = []
        if joined.leader == joined.member_id and not joined.skip_assignment:
            members = sorted(member.member_id for member in joined.members)
            numbers = range(self.cluster.scenario.partitions)
            assignments = [
                {
                    "member_id": one,
                    "assignment": encode_assignment({TOPIC: frozenset(numbers[at :: len(members)])}, 0),
                }
                for at, one in enumerate(members)
            ]
        sent = self.world.now
        synced = await self._ask_member(
            ApiKey.SYNC_GROUP,
            None,
            more=4.0,
            group_id=GROUP,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            group_instance_id=self._instance,
            protocol_type="consumer",
            protocol_name="range",
            assignments=assignments,
        )
        self._check(synced.error_code)
        view = self.view
        view.name = joined.member_id
        self.model.joined_again(view)
        view.answer(sent, joined.generation_id, is_clean=True)
        mine = decode_assignment(bytes(synced.assignment)).partitions.get(TOPIC, ()) if synced.assignment else ()
        for number in sorted(mine):
            self.model.take(view, number, self.world.now)
        return joined.member_id, joined.generation_id

    async def _beat_classic(self, member_id: str, generation: int) -> None:
        """A coordinator that is still loading the group says that all is well, as Kafka's does: such an answer is no
        promise."""
        sent, serving = self.world.now, self._serving()
        answer = await self._ask_member(
            ApiKey.HEARTBEAT,
            None,
            group_id=GROUP,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=self._instance,
        )
        self._check(answer.error_code)
        if serving and serving == self._serving():
            self.view.answer(sent, generation, is_clean=True)

    def _serving(self) -> list[GroupContext]:
        """The contexts of the group's partition, if none of them is still loaded."""
        contexts = list(contexts_of(self.cluster))
        return contexts if all(one.is_loaded for one in contexts) else []

    def _check(self, code: int) -> None:
        """Raises `LostError`; `RejoinError`, with the code if it needs another id."""
        if code == 0:
            return
        if code in (_ILLEGAL_GENERATION, _REBALANCE):
            raise RejoinError
        if code in _OVER:
            raise RejoinError(code)
        assert code in _PASSING, f"{self.view.name} is told {code}"
        raise LostError

    # Offsets

    async def _process(self, number: int) -> None:
        ownership, epoch = self.view.owned.get(number), self.view.epoch
        if ownership is None:
            return
        try:
            if number not in self._positions or self.rng.random() < 0.1:
                found = await self.fetch(number, self.view.name, epoch)
                if found is None:
                    return
                self._positions.setdefault(number, found)
            if self.rng.random() < 0.6:
                self._positions[number] += self.rng.randrange(1, 5)
            if self.rng.random() < 0.4:
                await self._commit(ownership, self._positions[number], epoch)
        except LostError:
            return

    async def _commit_later(self, ownership: Ownership, offset: int, epoch: int, seconds: float) -> None:
        await asyncio.sleep(seconds)
        try:
            await self._commit(ownership, offset, epoch)
        except LostError:
            return

    async def _commit(self, ownership: Ownership, offset: int, epoch: int) -> None:
        commit = self.model.commit(ownership, offset, self.world.now)
        answer = await self.ask_coordinator(
            0,
            GROUP,
            ApiKey.OFFSET_COMMIT,
            group_id=GROUP,
            generation_id_or_member_epoch=epoch,
            member_id=ownership.owner,
            group_instance_id=self._instance,
            topics=[
                {
                    "name": TOPIC,
                    "partitions": [
                        {
                            "partition_index": ownership.number,
                            "committed_offset": offset,
                            "committed_metadata": commit.name,
                        }
                    ],
                }
            ],
        )
        code = answer.topics[0].partitions[0].error_code
        if code == 0:
            self.model.acknowledge(commit, self.world.now)
            self.commits += 1
            return
        assert code in _REFUSED or code in _PASSING or code == _REBALANCE, f"a commit of {self.name} is told {code}"
        commit.is_refused = code in _REFUSED
        self.refused += commit.is_refused

    async def fetch(self, number: int, member_id: str | None, epoch: int) -> int | None:
        """The offset that is committed; None if the coordinator does not say it. Raises `LostError`."""
        sent = self.world.now
        wanted = [{"name": TOPIC, "partition_indexes": [number]}]
        if member_id is None or self.view.epoch != epoch or self.view.name != member_id:
            member_id, epoch = None, -1
        group = {"group_id": GROUP, "member_id": member_id, "member_epoch": epoch, "topics": wanted}
        answer = await self.ask_coordinator(0, GROUP, ApiKey.OFFSET_FETCH, groups=[group], require_stable=True)
        one = answer.groups[0]
        if one.error_code in _REFUSED or one.error_code in _PASSING:
            return None
        assert one.error_code == 0, f"a fetch of {self.name} is told {one.error_code}"
        place = one.topics[0].partitions[0]
        if place.error_code in _PASSING or place.error_code == _UNSTABLE:
            return None
        assert place.error_code == 0, f"a fetch of {self.name} is told {place.error_code}"
        self.model.fetched(number, place.metadata or "", sent)
        return max(int(place.committed_offset), 0)

    async def fetch_at_last(self, number: int) -> None:
        """When a coordinator says it."""
        while True:
            try:
                if await self.fetch(number, None, -1) is not None:
                    return
            except LostError:
                self._coordinators.clear()
            await self.pause()


def contexts_of(cluster: Cluster) -> Iterator[GroupContext]:
    """Where brokers that run coordinate the group, or did until now."""
    for host in cluster.hosts.values():
        if host.node is not None and host.answers:
            yield from host.node.groups._contexts.values()
