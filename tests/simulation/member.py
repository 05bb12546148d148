"""A member of a group, as a consumer of the classic protocol is: it joins, leads or follows, reads, commits, beats."""

from __future__ import annotations

import json
from typing import Any

from seglog.core.types import TopicPartition
from seglog.protocol.apis import ApiKey
from seglog.protocol.message_reader import Message
from tests.simulation.clients import PASSING, TO_REJOIN, Fetcher
from tests.simulation.truth import Commit, ViolationError, check
from tests.simulation.wire import LostError

SESSION_MS = 1500
FENCED_INSTANCE = 82
MEMBER_ID_REQUIRED = 79
ILLEGAL_GENERATION, UNKNOWN_MEMBER, REBALANCE = 22, 25, 27


class RejoinError(Exception):
    """The group wants this member to join again."""


class Member(Fetcher):
    """One of a group. With ``instance`` it is a static member: who dies and comes back is not missed."""

    def __init__(self, *arguments: Any, group: str, instance: str | None = None) -> None:
        super().__init__(*arguments)
        self.group = group
        self.instance = instance
        self._member_id = ""
        self._generation = self._written = -1
        self._losses = 0
        self._committed: dict[TopicPartition, int] = {}

    async def run(self) -> None:
        while not self.is_over:
            try:
                await self._live()
            except RejoinError:
                continue
            except LostError:
                await self.pause()

    async def _live(self) -> None:
        await self._find()
        await self._join()
        while not self.is_over:
            await self.fetch()
            await self._beat()
            if self.rng.random() < 0.4:
                await self._commit()

    async def _find(self) -> None:
        """Where the group is coordinated: this makes the topic of offsets, too."""
        found = await self.ask(ApiKey.FIND_COORDINATOR, key_type=0, coordinator_keys=[self.group])
        self._check(found.coordinators[0].error_code)

    async def _join(self) -> None:
        self.positions = {}
        if self._losses != self.truth.losses:
            self._losses, self._written = self.truth.losses, -1
        contents = {
            "group_id": self.group,
            "session_timeout": SESSION_MS,
            "rebalance_timeout": 1000,
            "group_instance_id": self.instance,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b""}],
            "reason": None,
        }
        channel = await self.channel()
        future = channel.send(ApiKey.JOIN_GROUP, {**contents, "member_id": self._member_id})
        joined = await self.answer(channel, future, more=4.0)
        if joined.error_code == MEMBER_ID_REQUIRED:
            self._member_id = joined.member_id
            raise RejoinError
        self._check(joined.error_code)
        check(joined.generation_id >= self._written, f"{self.group} is back at generation {joined.generation_id}")
        self._member_id, self._generation = joined.member_id, joined.generation_id
        channel = await self.channel()
        future = channel.send(
            ApiKey.SYNC_GROUP,
            {
                **self._who(),
                "protocol_type": "consumer",
                "protocol_name": "range",
                "assignments": self._assign(joined),
            },
        )
        synced = await self.answer(channel, future, more=4.0)
        self._check(synced.error_code)
        if self._losses == self.truth.losses:
            self._written = self._generation  # with the assignment it was written down
        mine = [TopicPartition(*one) for one in json.loads(synced.assignment or b"[]")]
        await self._resume(mine)

    def _assign(self, joined: Message) -> list[dict[str, object]]:
        if joined.leader != joined.member_id or joined.skip_assignment:
            return []
        members = sorted(member.member_id for member in joined.members)
        return [
            {
                "member_id": member,
                "assignment": json.dumps([list(place) for place in self.places[at :: len(members)]]).encode(),
            }
            for at, member in enumerate(members)
        ]

    async def _resume(self, mine: list[TopicPartition]) -> None:
        """From where the group has committed (P9)."""
        self.forget_session()
        topics: dict[str, list[int]] = {}
        for place in mine:
            topics.setdefault(place.topic, []).append(place.partition)
        wanted = [{"name": topic, "partition_indexes": numbers} for topic, numbers in topics.items()]
        group = {"group_id": self.group, "member_id": None, "member_epoch": -1, "topics": wanted}
        losses, asked = self.truth.losses, self.world.steps
        answer = await self.ask(ApiKey.OFFSET_FETCH, groups=[group], require_stable=True)
        self._check(answer.groups[0].error_code)
        for topic in answer.groups[0].topics:
            for one in topic.partitions:
                self._check(one.error_code)
                place = TopicPartition(topic.name, one.partition_index)
                if losses == self.truth.losses:
                    self.truth.holds(self.group, place, one.metadata or "", asked)
                self.truth.resumed += one.committed_offset > 0
                self.positions[place] = max(one.committed_offset, 0)
        self._committed = dict(self.positions)

    async def _commit(self) -> None:
        commits: dict[TopicPartition, Commit] = {}
        topics: dict[str, list[dict[str, object]]] = {}
        for place, offset in self.positions.items():
            if offset > self._committed.get(place, 0):
                commit = commits[place] = self.truth.begins_commit(self.group, place, offset)
                one = {"partition_index": place.partition, "committed_offset": offset, "committed_leader_epoch": -1}
                topics.setdefault(place.topic, []).append({**one, "committed_metadata": str(commit.number)})
        losses = self.truth.losses
        answer = await self.ask(
            ApiKey.OFFSET_COMMIT,
            group_id=self.group,
            generation_id_or_member_epoch=self._generation,
            member_id=self._member_id,
            group_instance_id=self.instance,
            topics=[{"name": topic, "partitions": partitions} for topic, partitions in topics.items()],
        )
        for topic in answer.topics:
            for one in topic.partitions:
                self._check(one.error_code)
                place = TopicPartition(topic.name, one.partition_index)
                self._committed[place] = commits[place].offset
                self.truth.ends_commit(commits[place], losses)

    async def _beat(self) -> None:
        self._check((await self.ask(ApiKey.HEARTBEAT, **self._who())).error_code)

    def _who(self) -> dict[str, object]:
        return {
            "group_id": self.group,
            "generation_id": self._generation,
            "member_id": self._member_id,
            "group_instance_id": self.instance,
        }

    def _check(self, code: int) -> None:
        if code == 0:
            return
        if code in PASSING:
            raise LostError
        if code == FENCED_INSTANCE:
            self.is_over = True  # another one has its name
        elif code not in TO_REJOIN:
            raise ViolationError(f"{self.name} is told {code} by the coordinator of {self.group}")
        if code == UNKNOWN_MEMBER:
            self._member_id, self._generation, self._written = "", -1, -1
        if code == ILLEGAL_GENERATION:
            self._generation = -1
        raise RejoinError
