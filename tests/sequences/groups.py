"""Consumer groups on both brokers: clients that join, sync, stay, leave and commit, in any order, right and wrong.

A request may be answered at once, when others have done their part, or never. Ours goes first: whomever it answers,
Kafka must answer, and nobody else. What waits is known by asking both what state the group is in.
"""

from __future__ import annotations

import random
import select
import struct
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from seglog.protocol.apis import ApiKey
from tests.broker.broker_thread import Wire
from tests.kit.waiting import SECONDS
from tests.sequences import group_requests
from tests.sequences.both import Answers, Both, Ref, Side, brief
from tests.sequences.logs import some_version

SESSION_MS: Final = 1_200_000
"""Longer than any test takes, so that no member is removed for silence."""
PROTOCOLS: Final = ("range", "roundrobin")
"""All members like the first one best: on ties Kafka takes any (docs/differences.md)."""
_BARRIERS: Final = 3
"""Questions after which a timer of 0 ms has fired."""
_ASKED: Final = (ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP)


class Client:
    """One consumer: what it believes, and the request that it waits for."""

    def __init__(self, name: str, group: str, instance: str | None) -> None:
        self.name = name
        self.group = group
        self.instance = instance
        self.member: Ref | str = ""
        self.generation = -1
        self.protocol: str | None = None
        self.is_leader = False
        self.others: list[Ref | str] = []
        self.waits: tuple[ApiKey, int] | None = None
        self.asked_as: Ref | str = ""
        self.lives = 0
        self.next: ApiKey = ApiKey.JOIN_GROUP


class GroupWorld:
    """Groups with clients, and a topic that they read; ``tag`` makes their names this world's own."""

    def __init__(self, both: Both, rng: random.Random, tag: str, topic: str) -> None:
        self.both = both
        self.rng = rng
        self.topic = topic
        self.tag = tag
        self.groups: list[str] = []
        self.clients: list[Client] = []
        self.leaders: dict[str, Ref | str] = {}
        self.parted: list[str] = []
        self.given: dict[str, list[Ref]] = {}
        self._begun = 0
        for _ in range(2):
            self._begin_group()

    def _begin_group(self) -> None:
        group = f"{self.tag}-group-{self._begun}"
        self._begun += 1
        self.groups.append(group)
        self.given[group] = []
        self.clients += [
            Client(f"{group}-{number}", group, "instance-3" if number == 3 else None) for number in range(4)
        ]
        self.both.ask(ApiKey.FIND_COORDINATOR, 3, eventually=True, key=group, key_type=0)
        self.both.ask(ApiKey.OFFSET_FETCH, 7, eventually=True, group_id=group, topics=None)

    def _part(self, group: str) -> None:
        """The brokers have legally chosen different leaders: another group takes this one's place."""
        self.both.tell(f"{group} has parted")
        self._end_group(group)
        self.groups.remove(group)
        self.clients = [client for client in self.clients if client.group != group]
        self.parted.append(group)
        self._begin_group()

    def _end_group(self, group: str) -> None:
        """Everybody leaves: nothing waits any more."""
        clients = [client for client in self.clients if client.group == group]
        for client in clients:
            if client.waits is not None:
                self._reconnect(client)
        members = [{"member_id": one.member, "group_instance_id": None} for one in clients if one.member]
        for side in self.both.sides:
            side.wire().ask(ApiKey.LEAVE_GROUP, 4, group_id=group, members=side.fill(members))

    def step(self) -> None:
        """One request, and all answers that come of it: mostly what a client would do next."""
        free = [client for client in self.clients if client.waits is None]
        if free and self.rng.random() < 0.6:
            client = self.rng.choice(free)
            if client.next is ApiKey.JOIN_GROUP:
                self.join(client)
            elif client.next is ApiKey.SYNC_GROUP:
                self.sync(client)
            elif self.rng.random() < 0.4:
                group_requests.commit(self, client)
            else:
                self.heartbeat(client)
        else:
            self.rng.choices(list(_STEPS), list(_STEPS.values()))[0](self)
        self.settle()

    def close(self) -> None:
        for group in self.groups:
            self._end_group(group)

    # Who asks what

    def free(self) -> Client | None:
        free = [client for client in self.clients if client.waits is None]
        return self.rng.choice(free) if free else None

    def member_of(self, client: Client) -> Ref | str:
        """Mostly its own offset; sometimes an unknown one or another member's."""
        member = client.member
        if self.rng.random() > 0.93:
            known: list[Ref | str] = [other.member for other in self.clients if isinstance(other.member, Ref)]
            strangers: list[Ref | str] = ["", "nobody"]
            member = self.rng.choice(strangers + known)
        # Who asks as a member that waits takes its place; Kafka lets the older request wait (docs/differences.md).
        return "nobody" if member and any(one.waits and one.asked_as == member for one in self.clients) else member

    def generation_of(self, client: Client) -> int:
        return client.generation if self.rng.random() < 0.93 else client.generation + self.rng.choice([-1, 1])

    def instance_of(self, client: Client) -> str | None:
        if self.rng.random() < 0.97:
            return client.instance
        return self.rng.choice([None, "instance-3", "instance-9"])

    def join(self, client: Client | None = None) -> None:
        client = client or self.free()
        if client is None:
            return
        rng = self.rng
        version = some_version(rng, ApiKey.JOIN_GROUP, at_least=5 if client.instance else 0)
        if client.instance is not None and rng.random() < 0.15:
            client.member = ""  # it was restarted
        names = PROTOCOLS[: rng.choice([1, 2, 2])] if rng.random() < 0.97 else ("sticky",)
        contents = {
            "group_id": client.group if rng.random() < 0.99 else "",
            "session_timeout": SESSION_MS if rng.random() < 0.98 else 1,
            "rebalance_timeout": SESSION_MS,
            "member_id": self.member_of(client),
            "group_instance_id": self.instance_of(client) if version >= 5 else None,
            "protocol_type": "consumer" if rng.random() < 0.98 else rng.choice(["connect", ""]),
            "protocols": [{"name": name, "metadata": subscription(self.topic)} for name in names],
            "reason": "a test",
        }
        self._send(client, ApiKey.JOIN_GROUP, version, contents)

    def sync(self, client: Client | None = None) -> None:
        client = client or self.free()
        if client is None:
            return
        rng = self.rng
        version = some_version(rng, ApiKey.SYNC_GROUP, at_least=3 if client.instance else 0)
        assignments = []
        if client.is_leader or rng.random() < 0.05:
            assignments = [{"member_id": other, "assignment": b"for it"} for other in client.others]
        contents = {
            "group_id": client.group,
            "generation_id": self.generation_of(client),
            "member_id": self.member_of(client),
            "group_instance_id": self.instance_of(client) if version >= 3 else None,
            "protocol_type": "consumer" if rng.random() < 0.96 else rng.choice(["connect", None]),
            "protocol_name": client.protocol if rng.random() < 0.96 else rng.choice(["sticky", None]),
            "assignments": assignments,
        }
        self._send(client, ApiKey.SYNC_GROUP, version, contents)

    def heartbeat(self, client: Client | None = None) -> None:
        client = client or self.free()
        if client is None:
            return
        version = some_version(self.rng, ApiKey.HEARTBEAT, at_least=3 if client.instance else 0)
        answer = self.both.ask(
            ApiKey.HEARTBEAT,
            version,
            wire=client.name,
            group_id=client.group,
            generation_id=self.generation_of(client),
            member_id=self.member_of(client),
            group_instance_id=self.instance_of(client) if version >= 3 else None,
        )
        if answer.real.error_code:
            client.next = ApiKey.JOIN_GROUP

    def leave(self, client: Client | None = None) -> None:
        client = client or self.free()
        if client is None:
            return
        rng = self.rng
        version = some_version(rng, ApiKey.LEAVE_GROUP, at_least=3 if client.instance else 0)
        leaving = [client]
        # As above: a member that is removed while it waits for its assignment.
        if version >= 3 and rng.random() < 0.4 and not self._waits_for_assignment(client.group):
            leaving.append(rng.choice(self.clients))
            leaving.append(Client("nobody", client.group, rng.choice(["instance-3", "instance-9"])))
        members = [{"member_id": one.member, "group_instance_id": one.instance, "reason": "a test"} for one in leaving]
        contents: dict[str, Any] = {"group_id": client.group, "members": members}
        if version < 3:
            contents |= {"member_id": members[0]["member_id"]}
        self.both.ask(ApiKey.LEAVE_GROUP, version, wire=client.name, **contents)

    def _waits_for_assignment(self, group: str) -> bool:
        return any(one.group == group and one.waits and one.waits[0] is ApiKey.SYNC_GROUP for one in self.clients)

    def clear_out(self) -> None:
        """Remove members whose clients are gone, or all others would wait for them forever."""
        group = self.rng.choice(self.groups)
        if self._waits_for_assignment(group):
            return
        used = {one for client in self.clients for one in (client.member, client.asked_as)}
        gone = [ref for ref in self.given[group] if ref not in used]
        members = [{"member_id": ref, "group_instance_id": None} for ref in gone]
        self.both.ask(ApiKey.LEAVE_GROUP, 4, group_id=group, members=members)
        self.given[group] = [ref for ref in self.given[group] if ref in used]

    def reconnect(self) -> None:
        """A client that waits closes its connection and will ask again."""
        waiting = [client for client in self.clients if client.waits is not None]
        if waiting:
            self._reconnect(self.rng.choice(waiting))

    def _reconnect(self, client: Client) -> None:
        self.both.tell(f"{client.name} reconnects")
        client.waits = None
        for side in self.both.sides:
            side.drop(client.name)

    # Answers that come when they come

    def _send(self, client: Client, key: ApiKey, version: int, contents: Mapping[str, Any]) -> None:
        self.both.tell(f"{client.name}: {key.name} v{version} {brief(contents)}")
        for side in (self.both.ours, self.both.real):
            side.wire(client.name).send(key, version, **side.fill(contents))
        client.waits = key, version
        client.asked_as = contents["member_id"]

    def settle(self) -> None:
        """Take all answers that ours has given, and those of Kafka to the same clients; there are no others."""
        deadline = time.monotonic() + SECONDS
        while True:
            for _ in range(_BARRIERS):
                ours = self._states(self.both.ours)
            answered = [client for client in self.clients if client.waits and _has_answer(self.both.ours, client)]
            found = [(client, self._take(client)) for client in answered]
            for client, answers in found:
                self._learn(client, answers)
            for group in {client.group for client, answers in found if self._believe(client, answers)}:
                self._part(group)
            real = self._states(self.both.real)
            early = [client.name for client in self.clients if client.waits and _has_answer(self.both.real, client)]
            if not answered and not early and real == ours:
                return
            if not answered and time.monotonic() > deadline:
                self.both.compare((real, early), (ours, []))

    def _states(self, side: Side) -> Any:
        answer = side.wire().ask(ApiKey.DESCRIBE_GROUPS, 4, groups=self.groups, include_authorized_operations=False)
        return [(group.group_id, group.group_state, len(group.members)) for group in answer.groups]

    def _take(self, client: Client) -> Answers:
        assert client.waits is not None
        key, version = client.waits
        client.waits = None
        try:
            return Answers(*(side.wire(client.name).answer(key, version) for side in self.both.sides))
        except (ConnectionError, TimeoutError) as error:
            states = [self._states(side) for side in self.both.sides]
            story = "\n".join(self.both.story[-12:])
            raise AssertionError(f"{client.name} {key.name}: {error!r} {states}:\n{story}") from error

    def _learn(self, client: Client, answers: Answers) -> None:
        """A member id that neither broker has given before belongs to this client."""
        self.both.tell(f"{client.name} is answered {answers.ours}")
        given = [getattr(answer, "member_id", "") for answer in answers]
        if all(given) and not any(side.knows(one) for side, one in zip(self.both.sides, given, strict=True)):
            client.lives += 1
            ref = Ref(f"{client.name}, {client.lives}")
            self.both.learn(ref, answers, "member_id")
            self.given[client.group].append(ref)

    def _believe(self, client: Client, answers: Answers) -> bool:
        """Whether both have given the lead to different members."""
        real, ours = (side.plain(answer) for side, answer in zip(self.both.sides, answers, strict=True))
        if "generation_id" not in real:
            self.both.compare(real, ours)
            client.next = ApiKey.JOIN_GROUP if real["error_code"] else ApiKey.HEARTBEAT
            return False
        if real["leader"] != ours["leader"] and self._may_part(client.group, real, ours):
            self.both.compare(*(answer | {"leader": None, "members": None} for answer in (real, ours)))
            return True
        self.both.compare(real, ours)
        if real["error_code"] in (0, 79):
            client.member = real["member_id"]
        elif real["error_code"] in (25, 82):
            client.member = ""
        client.next = ApiKey.JOIN_GROUP if real["error_code"] else ApiKey.SYNC_GROUP
        if not real["error_code"]:
            self.leaders[client.group] = real["leader"]
            client.generation = real["generation_id"]
            client.protocol = real["protocol_name"]
            client.is_leader = real["leader"] == real["member_id"]
            client.others = [member["member_id"] for member in real["members"]]
        return False

    def _may_part(self, group: str, *answers: Mapping[str, Any]) -> bool:
        """When a leader leaves, Kafka picks the first of a hash table, and seglog the oldest member."""
        before = self.leaders.get(group)
        members = [member["member_id"] for answer in answers for member in answer["members"]]
        return before is not None and before not in [*members, *(answer["leader"] for answer in answers)]


def subscription(topic: str) -> bytes:
    """Of a consumer, version 0."""
    name = topic.encode()
    return struct.pack(">hih", 0, 1, len(name)) + name + struct.pack(">i", -1)


def _has_answer(side: Side, client: Client) -> bool:
    wire: Wire = side.wire(client.name)
    return bool(select.select([wire], [], [], 0)[0])


_STEPS: Final[Mapping[Callable[[GroupWorld], None], int]] = {
    GroupWorld.join: 12,
    GroupWorld.sync: 8,
    GroupWorld.heartbeat: 4,
    GroupWorld.leave: 4,
    GroupWorld.clear_out: 12,
    GroupWorld.reconnect: 2,
    group_requests.commit: 10,
    group_requests.fetch_offsets: 6,
    group_requests.delete_offsets: 3,
    group_requests.describe: 6,
    group_requests.list_groups: 2,
    group_requests.delete_groups: 2,
    group_requests.find_coordinator: 1,
}
