"""Random requests of members of consumer groups (KIP-848), to a real Kafka and to ours: the same answers, and the same
records in ``__consumer_offsets``.

All members ask for the assignor ``range``, which depends on their ids alone: ``uniform`` goes by the topics' ids, which
each broker makes up.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from struct import pack
from typing import Any, Final

from seglog.coordinators.consumer_protocol import decode_assignment, encode_assignment
from seglog.coordinators.consumer_records import CONSUMER_KEYS
from seglog.coordinators.group_records import decode
from seglog.protocol.apis import ApiKey
from tests.kit.waiting import wait_until
from tests.sequences.both import Both, Ref, Side, in_order
from tests.sequences.internal_topics import records_of

_QUESTIONS: Final = {
    ApiKey.CONSUMER_GROUP_DESCRIBE: 1,
    ApiKey.DESCRIBE_GROUPS: 6,
    ApiKey.DELETE_GROUPS: 2,
    ApiKey.OFFSET_DELETE: 0,
    ApiKey.HEARTBEAT: 4,
}
"""APIs and versions."""
TIMEOUT_MS: Final = 1_200_000
"""Longer than a test may take."""
_JOINS, _LEAVES, _LEAVES_FOR_NOW = 0, -1, -2
_OWN: Final = frozenset({"client_host", "metadata_hash", "timestamp", "version"})
"""Fields of records that depend on the broker: where clients are, ids of topics, times."""


class Member:
    """A client: its epoch, and the partitions that it has by topic."""

    def __init__(self, name: str, instance: str | None) -> None:
        self.name = name
        self.member_id = name
        self.instance = instance
        self.lives = 0
        self.topics: list[str] = []
        self.reset()

    def reset(self) -> None:
        self.epoch = _JOINS
        self.owned: dict[str, list[int]] = {}


class ClassicMember:
    """A member of the same group that speaks the classic protocol. The brokers make up its id: `range` takes two such
    members in the same order only if one of them is static."""

    def __init__(self, world: ConsumerGroups, instance: str | None = None) -> None:
        self._instance = instance
        self._both = world.both
        self._group = world.group
        self._topic = world.topics[0]
        self._ref = Ref(f"classic member {id(self)}")
        self._generation = -1
        self._has_id = False
        self.owned: list[int] = []

    def _who(self) -> dict[str, Any]:
        who = {"group_id": self._group, "member_id": self._ref, "generation_id": self._generation}
        return who | {"group_instance_id": self._instance}

    def join(self) -> None:
        owned = {self._topic: frozenset(self.owned)}
        contents: dict[str, Any] = {
            "group_id": self._group,
            "group_instance_id": self._instance,
            "session_timeout": TIMEOUT_MS,
            "rebalance_timeout": TIMEOUT_MS,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": encode_subscription([self._topic], owned)}],
        }
        if not self._has_id:
            answers = [side.wire().ask(ApiKey.JOIN_GROUP, 9, **contents, member_id="") for side in self._both.sides]
            for side, answer in zip(self._both.sides, answers, strict=True):
                side.learn(self._ref, answer.member_id)
            self._has_id = True
        answer = self._both.ask(ApiKey.JOIN_GROUP, 9, **contents, member_id=self._ref).ours
        assert answer.error_code == 0
        self._generation = answer.generation_id

    def sync(self, assigns: list[int] | None = None) -> None:
        """``assigns``: it leads a classic group, and takes these partitions."""
        assignment = encode_assignment({self._topic: frozenset(assigns or ())}, 1)
        answer = self._both.ask(
            ApiKey.SYNC_GROUP,
            5,
            **self._who(),
            protocol_type="consumer",
            protocol_name="range",
            assignments=[{"member_id": self._ref, "assignment": assignment}] if assigns else [],
        ).ours
        self.owned = sorted(decode_assignment(answer.assignment).partitions.get(self._topic, ()))

    def heartbeat(self) -> int:
        return int(self._both.ask(ApiKey.HEARTBEAT, 4, **self._who()).ours.error_code)

    def leave(self) -> None:
        members = [{"member_id": self._ref, "group_instance_id": self._instance}]
        self._both.ask(ApiKey.LEAVE_GROUP, 4, group_id=self._group, members=members)


def encode_subscription(topics: list[str], owned: Mapping[str, frozenset[int]]) -> bytes:
    """Version 1: the assigned partitions follow the topics and the user data."""
    out = bytearray(pack(">hi", 1, len(topics)))
    for topic in topics:
        out += pack(">h", len(topic)) + topic.encode()
    return bytes(out) + pack(">i", -1) + encode_assignment(owned, 1)[2:-4]


class ConsumerGroups:
    """One group, and clients that read two topics."""

    def __init__(self, both: Both, rng: Random, tag: str, topics: list[str]) -> None:
        self.both = both
        self.rng = rng
        self.group = f"{tag}-group"
        self.topics = topics
        self.members = [Member(f"{tag}-{number}", f"{tag}-i" if number == 3 else None) for number in range(4)]
        both.ask(ApiKey.FIND_COORDINATOR, 3, eventually=True, key=self.group, key_type=0)
        both.ask(ApiKey.OFFSET_FETCH, 7, eventually=True, group_id=self.group, topics=None)

    def step(self) -> None:
        member = self.rng.choice(self.members)
        act = self.rng.choices(
            [
                self.heartbeat,
                self.lost,
                self.subscribe,
                self.leave,
                self.commit,
                self.fetch,
                self.wrong,
                self.ask_others,
            ],
            [50, 8, 6, 6, 10, 6, 8, 6],
        )[0]
        act(member)

    # Heartbeats

    def _send(self, member: Member, **fields: Any) -> Any:
        contents = {
            "group_id": self.group,
            "member_id": member.member_id,
            "member_epoch": member.epoch,
            "instance_id": member.instance,
            "topic_partitions": self._owned(member.owned),
            **fields,
        }
        return self.both.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, self.rng.choice([0, 1]), **contents)

    @staticmethod
    def _owned(owned: dict[str, list[int]]) -> list[dict[str, Any]]:
        return [{"topic_id": Ref(topic), "partitions": numbers} for topic, numbers in owned.items()]

    def _full(self, member: Member) -> dict[str, Any]:
        return {
            "rebalance_timeout": TIMEOUT_MS,
            "subscribed_topic_names": member.topics,
            "server_assignor": "range",
        }

    def _take(self, member: Member, answers: Any) -> None:
        answer = answers.ours
        if answer.error_code:
            if answer.error_code in (25, 69, 110):  # unknown member or group, fenced epoch
                member.reset()
            return
        member.epoch = answer.member_epoch
        if answer.assignment is not None:
            names = {self.both.ours.given[Ref(topic)]: topic for topic in self.topics}
            member.owned = {names[one.topic_id]: sorted(one.partitions) for one in answer.assignment.topic_partitions}

    def heartbeat(self, member: Member) -> None:
        if member.epoch == _JOINS:
            member.topics = member.topics or self._some_topics()
            member.owned = {}
            self._take(member, self._send(member, **self._full(member)))
            return
        fields: dict[str, Any] = self._full(member) if self.rng.random() < 0.1 else {}
        if not fields and self.rng.random() < 0.2:
            fields["topic_partitions"] = None
        self._take(member, self._send(member, **fields))

    def lost(self, member: Member) -> None:
        """The client does not see the answer, and says everything again."""
        if member.epoch != _JOINS:
            self._send(member)
            self._take(member, self._send(member, **self._full(member)))

    def subscribe(self, member: Member) -> None:
        member.topics = self._some_topics()
        if member.epoch != _JOINS:
            self._take(member, self._send(member, subscribed_topic_names=member.topics))

    def _some_topics(self) -> list[str]:
        return self.rng.sample(self.topics, self.rng.choice([1, 1, 2]))

    def leave(self, member: Member) -> None:
        for_now = member.instance is not None and self.rng.random() < 0.6
        self._send(member, member_epoch=_LEAVES_FOR_NOW if for_now else _LEAVES)
        member.reset()
        if for_now:
            member.lives += 1
            member.member_id = f"{member.name}-{member.lives}"

    def wrong(self, member: Member) -> None:
        """Requests that no right client sends."""
        wrong: list[dict[str, Any]] = [
            {"member_epoch": member.epoch + 1},
            {"member_epoch": max(member.epoch - 1, 1)},
            {"member_epoch": -3},
            {"member_epoch": _LEAVES_FOR_NOW, "instance_id": None},
            {"member_id": "nobody", "member_epoch": 1},
            {"instance_id": "nobody", "member_epoch": 1},
            {"instance_id": f"{self.members[3].instance}", "member_epoch": 1},
            {"server_assignor": "sticky"},
            {"rack_id": ""},
            {"group_id": ""},
            {"group_id": f"{self.group}-other", "member_epoch": 1},
            {"member_epoch": 0, "topic_partitions": None},
            {"member_epoch": 0, "topic_partitions": [], "rebalance_timeout": -1},
            {"topic_partitions": [{"topic_id": Ref(self.topics[0]), "partitions": [0, 1, 2, 3]}]},
        ]
        fields = self.rng.choice(wrong)
        answers = self._send(member, **fields)
        if not answers.ours.error_code and "topic_partitions" in fields:
            self._take(member, answers)

    # Offsets and questions

    def commit(self, member: Member) -> None:
        topic = self.rng.choice(self.topics)
        offset = {
            "partition_index": self.rng.randrange(2),
            "committed_offset": self.rng.randrange(100),
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        version = self.rng.choice([8, 9, 9, 10])
        named = {"topic_id": Ref(topic)} if version == 10 else {"name": topic}
        self.both.ask(
            ApiKey.OFFSET_COMMIT,
            version,
            group_id=self.group,
            member_id=member.member_id if self.rng.random() < 0.9 else "",
            generation_id_or_member_epoch=self._epoch(member),
            group_instance_id=member.instance,
            topics=[{**named, "partitions": [offset]}],
        )

    def _epoch(self, member: Member) -> int:
        return member.epoch + self.rng.choice([0, 0, 0, 0, 1, -1])

    def fetch(self, member: Member) -> None:
        as_member = self.rng.random() < 0.7
        group = {
            "group_id": self.group,
            "member_id": member.member_id if as_member else None,
            "member_epoch": self._epoch(member) if as_member else -1,
            "topics": [{"name": topic, "partition_indexes": [0, 1]} for topic in self.topics],
        }
        self.both.ask(ApiKey.OFFSET_FETCH, 9, groups=[group], require_stable=True)

    def ask_others(self, _: Member) -> None:
        """Questions of administrators, and of a member that takes the group for a classic one."""
        partition = {"partition_index": 0}
        key = self.rng.choice(list(_QUESTIONS))
        version = _QUESTIONS[key]
        if key is ApiKey.CONSUMER_GROUP_DESCRIBE:
            self.describe()
        elif key is ApiKey.DESCRIBE_GROUPS:
            self.both.ask(key, version, groups=[self.group])
        elif key is ApiKey.DELETE_GROUPS:
            self.both.ask(key, version, groups_names=[f"{self.group}-other"])
        elif key is ApiKey.OFFSET_DELETE:
            topics = [{"name": self.topics[0], "partitions": [partition]}]
            self.both.ask(key, version, group_id=self.group, topics=topics)
        else:
            member_id = self.members[0].member_id
            self.both.ask(key, version, group_id=self.group, member_id=member_id, generation_id=1)

    def describe(self) -> None:
        self.both.tell("describe")
        self.both.compare(*(self._described(side) for side in self.both.sides))

    def _described(self, side: Side) -> Any:
        groups = [self.group, f"{self.group}-other"]
        answer = side.plain(side.wire().ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, group_ids=groups))
        for group in answer["groups"]:
            for member in group["members"]:
                member["subscribed_topic_names"] = sorted(member["subscribed_topic_names"])
                for assignment in (member["assignment"], member["target_assignment"]):
                    for topic in assignment["topic_partitions"]:
                        topic["partitions"] = sorted(topic["partitions"])
        return answer

    def until_described_alike(self) -> None:
        """Until both have resolved the regular expressions, which they do after the heartbeat that asks for it."""

        def is_resolved() -> bool:
            found = [self._described(side)["groups"] for side in self.both.sides]
            return found[0] == found[1] and all(group["group_epoch"] > 1 for group in found[0][:1])

        wait_until(is_resolved, "regular expressions")

    def join_by_expression(self, member: Member, expression: str) -> None:
        member.topics = []
        fields = self._full(member) | {"subscribed_topic_names": None, "subscribed_topic_regex": expression}
        contents = {
            "group_id": self.group,
            "member_id": member.member_id,
            "member_epoch": member.epoch,
            "topic_partitions": self._owned(member.owned),
        }
        self._take(member, self.both.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, **{**contents, **fields}))

    # Records

    def check_records(self) -> None:
        """The values of each key in their order. The order among the keys of one request is that of a hash map."""
        self.both.compare(*(self._written(side) for side in self.both.sides))

    def _written(self, side: Side) -> dict[str, list[Any]]:
        names = {side.given[Ref(topic)]: topic for topic in self.topics}
        found: dict[str, list[Any]] = {}
        for record in records_of(side, "__consumer_offsets"):
            entry = None if record.key is None else decode(record.key, record.value)
            if entry is not None and isinstance(entry[0], CONSUMER_KEYS) and entry[0].group == self.group:
                values = found.setdefault(f"{type(entry[0]).__name__} {[side.plain(part) for part in entry[0]]}", [])
                values.append(None if entry[1] is None else _plain(entry[1]._asdict(), names))
        return found


def _plain(value: Any, names: dict[Any, str]) -> Any:
    if isinstance(value, dict):
        return {
            names.get(name, str(name)): bool(one) if name in _OWN else _plain(one, names)
            for name, one in sorted(value.items(), key=str)
        }
    if isinstance(value, frozenset):
        return sorted(value)
    return in_order(value) if isinstance(value, list) else value
