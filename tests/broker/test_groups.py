"""Requests of groups over a socket, in all their versions: what is in an answer, and what each situation gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

import pytest

from seglog.protocol.apis import APIS, ApiKey
from tests.broker.running import RunningNode, Wire

NONE: Final = 0


def versions(key: ApiKey) -> pytest.MarkDecorator:
    api = APIS[key]
    return pytest.mark.parametrize("version", range(api.low, api.high + 1))


@pytest.fixture
def group(topic_name: str) -> str:
    """A name that no other test has."""
    return f"group-{topic_name}"


@pytest.fixture
def topic(wire: Wire, topic_name: str) -> str:
    """Of two partitions."""
    answer = wire.ask(
        ApiKey.CREATE_TOPICS,
        topics=[{"name": topic_name, "num_partitions": 2, "replication_factor": 1}],
        timeout=30_000,
    )
    assert answer.topics[0].error_code == NONE
    return topic_name


def id_of(wire: Wire, topic: str) -> UUID:
    found: UUID = wire.ask(ApiKey.METADATA, topics=[{"name": topic}]).topics[0].topic_id
    return found


def find(wire: Wire, group: str) -> None:
    assert wire.ask(ApiKey.FIND_COORDINATOR, coordinator_keys=[group]).coordinators[0].error_code == NONE


class Asker:
    """One connection's requests for one group."""

    def __init__(self, wire: Wire, group: str, topic: str) -> None:
        self.wire = wire
        self.group = group
        self.topic = topic
        self.topic_id = id_of(wire, topic)
        find(wire, group)

    def join(self, version: int = 9, member: str = "", instance: str | None = None, **fields: Any) -> Any:
        contents: dict[str, Any] = {
            "group_id": self.group,
            "session_timeout": 10_000,
            "rebalance_timeout": 60_000,
            "member_id": member,
            "group_instance_id": instance,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b"M"}],
        }
        return self.wire.ask(ApiKey.JOIN_GROUP, version, **{**contents, **fields})

    def joined(self, version: int = 9) -> Any:
        answer = self.join(version)
        return self.join(version, answer.member_id) if answer.error_code == 79 else answer

    def sync(self, member: str, version: int = 5, generation: int = 1, **fields: Any) -> Any:
        contents: dict[str, Any] = {
            "group_id": self.group,
            "generation_id": generation,
            "member_id": member,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [{"member_id": member, "assignment": b"A"}],
        }
        return self.wire.ask(ApiKey.SYNC_GROUP, version, **{**contents, **fields})

    def stable(self) -> str:
        member: str = self.joined().member_id
        assert self.sync(member).error_code == NONE
        return member

    def commit(self, version: int = 10, **fields: Any) -> Any:
        """One partition's code, or the answer's topics if there is more than that."""
        named = self.named(version)
        partitions = [{"partition_index": 1, "committed_offset": 5, "committed_metadata": "m"}]
        contents: dict[str, Any] = {"group_id": self.group, "topics": [{**named, "partitions": partitions}]}
        answer = self.wire.ask(ApiKey.OFFSET_COMMIT, version, **{**contents, **fields})
        return answer.topics[0].partitions[0].error_code

    def named(self, version: int) -> dict[str, Any]:
        return {"topic_id": self.topic_id} if version >= 10 else {"name": self.topic}

    def fetch(self, version: int, *, everything: bool = False, topic: dict[str, Any] | None = None) -> Any:
        named = topic or self.named(version)
        topics = None if everything else [{**named, "partition_indexes": [0, 1]}]
        if version < 8:
            return self.wire.ask(ApiKey.OFFSET_FETCH, version, group_id=self.group, topics=topics)
        answer = self.wire.ask(
            ApiKey.OFFSET_FETCH, version, groups=[{"group_id": self.group, "topics": topics}], require_stable=True
        )
        assert answer.groups[0].group_id == self.group
        return answer.groups[0]

    def describe(self, version: int = 6, *, operations: bool = False) -> Any:
        return self.wire.ask(
            ApiKey.DESCRIBE_GROUPS, version, groups=[self.group], include_authorized_operations=operations
        ).groups[0]


@pytest.fixture
def asker(wire: Wire, group: str, topic: str) -> Asker:
    return Asker(wire, group, topic)


# FindCoordinator


@versions(ApiKey.FIND_COORDINATOR)
def test_the_coordinator_of_a_group(wire: Wire, broker: RunningNode, group: str, version: int) -> None:
    keys = {"key": group} if version < 4 else {"coordinator_keys": [group, "other"]}
    answer = wire.ask(ApiKey.FIND_COORDINATOR, version, **keys)
    for found in [answer] if version < 4 else answer.coordinators:
        assert (found.error_code, found.node_id) == (NONE, broker.node.identity.node_id)
        assert f"{found.host}:{found.port}" == broker.bootstrap
    if version >= 4:
        assert [found.key for found in answer.coordinators] == [group, "other"]


@pytest.mark.parametrize(("kind", "version", "code"), [(1, 1, 53), (1, 6, 53), (2, 6, 42), (9, 6, 42)])
def test_what_is_no_group_has_no_coordinator(wire: Wire, kind: int, version: int, code: int) -> None:
    keys = {"key": "x"} if version < 4 else {"coordinator_keys": ["x"]}
    answer = wire.ask(ApiKey.FIND_COORDINATOR, version, key_type=kind, **keys)
    found = answer if version < 4 else answer.coordinators[0]
    assert (found.error_code, found.node_id, found.host, found.port) == (code, -1, "", -1)
    assert ("no transactions" in found.error_message) == (kind == 1)


# Members


@versions(ApiKey.JOIN_GROUP)
def test_a_member_joins(asker: Asker, version: int) -> None:
    first = asker.join(version)
    if version >= 4:
        assert (first.error_code, first.generation_id, first.leader, first.members) == (79, -1, "", ())
        assert first.protocol_name == (None if version >= 7 else "")
        first = asker.join(version, first.member_id)
    assert (first.error_code, first.generation_id, first.protocol_name) == (NONE, 1, "range")
    assert first.member_id == first.leader
    assert first.member_id.startswith("test-")
    assert [(member.member_id, member.metadata) for member in first.members] == [(first.member_id, b"M")]
    if version >= 7:
        assert first.protocol_type == "consumer"


@versions(ApiKey.SYNC_GROUP)
def test_a_member_gets_its_assignment(asker: Asker, version: int) -> None:
    member = asker.joined().member_id
    answer = asker.sync(member, version)
    assert (answer.error_code, answer.assignment) == (NONE, b"A")
    if version >= 5:
        assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")


@versions(ApiKey.HEARTBEAT)
def test_a_member_is_there(asker: Asker, version: int) -> None:
    member = asker.stable()

    def beat(**fields: Any) -> int:
        contents: dict[str, Any] = {"group_id": asker.group, "generation_id": 1, "member_id": member}
        code: int = asker.wire.ask(ApiKey.HEARTBEAT, version, **{**contents, **fields}).error_code
        return code

    assert beat() == NONE
    assert beat(generation_id=0) == 22
    assert beat(member_id="nobody") == 25
    assert beat(group_id="") == 24
    assert beat(group_id="no group") == 25


@versions(ApiKey.LEAVE_GROUP)
def test_a_member_leaves(asker: Asker, version: int) -> None:
    member = asker.stable()

    def leave(who: str, group: str = asker.group) -> tuple[int, list[tuple[str, int]]]:
        one = {"member_id": who} if version < 3 else {"members": [{"member_id": who}]}
        answer = asker.wire.ask(ApiKey.LEAVE_GROUP, version, group_id=group, **one)
        members = () if version < 3 else answer.members
        return answer.error_code, [(found.member_id, found.error_code) for found in members]

    def told(who: str, code: int) -> tuple[int, list[tuple[str, int]]]:
        return (code, []) if version < 3 else (NONE, [(who, code)])

    assert leave("nobody") == told("nobody", 25)
    assert leave(member, "no group") == told(member, 25)
    assert leave(member, "") == (24, [])
    assert leave(member) == told(member, NONE)
    assert asker.describe().group_state == "Empty"


def test_joins_that_cannot_be(asker: Asker) -> None:
    cases: list[tuple[dict[str, Any], int]] = [
        ({"group_id": ""}, 24),
        ({"session_timeout": 5_999}, 26),
        ({"session_timeout": 1_800_001}, 26),
        ({"protocols": []}, 23),
        ({"protocol_type": ""}, 23),
        ({"member": "nobody"}, 25),
    ]
    for fields, code in cases:
        member = str(fields.pop("member", ""))
        answer = asker.join(member=member, **fields)
        assert (answer.error_code, answer.generation_id) == (code, -1), fields


def test_a_sync_has_to_name_its_protocol_from_version_5_on(asker: Asker) -> None:
    member = asker.joined().member_id
    assert asker.sync(member, 5, protocol_name=None).error_code == 23
    assert asker.sync(member, 5, protocol_type=None).error_code == 23
    assert asker.sync(member, 5, protocol_name="sticky").error_code == 23
    assert asker.sync(member, 5, group_id="").error_code == 24
    assert asker.sync(member, 5, generation=2).error_code == 22
    assert asker.sync("nobody", 5).error_code == 25
    assert asker.sync(member, 4).error_code == NONE


def test_a_static_member_is_fenced_by_its_successor(asker: Asker) -> None:
    first = asker.join(instance="i")
    asker.sync(first.member_id, group_instance_id="i")
    second = asker.join(instance="i")
    assert (second.error_code, second.generation_id, second.skip_assignment) == (NONE, 1, True)
    beat = asker.wire.ask(
        ApiKey.HEARTBEAT,
        group_id=asker.group,
        generation_id=1,
        member_id=first.member_id,
        group_instance_id="i",
    )
    assert beat.error_code == 82
    left = asker.wire.ask(
        ApiKey.LEAVE_GROUP, group_id=asker.group, members=[{"member_id": "", "group_instance_id": "i"}]
    )
    assert (left.members[0].error_code, left.members[0].group_instance_id) == (NONE, "i")


# Offsets


@versions(ApiKey.OFFSET_COMMIT)
def test_a_client_commits(asker: Asker, version: int) -> None:
    assert asker.commit(version) == NONE
    found = asker.fetch(10).topics[0]
    assert [(one.partition_index, one.committed_offset, one.metadata) for one in found.partitions] == [
        (0, -1, ""),
        (1, 5, "m"),
    ]
    unknown = {"topic_id": UUID(int=9)} if version >= 10 else {"name": "nowhere"}
    partitions: list[dict[str, Any]] = [{"partition_index": 1, "committed_offset": 5, "committed_metadata": None}]
    assert asker.commit(version, topics=[{**unknown, "partitions": partitions}]) == (100 if version >= 10 else 3)
    partitions[0]["partition_index"] = 2
    assert asker.commit(version, topics=[{**asker.named(version), "partitions": partitions}]) == 3
    partitions[0] |= {"partition_index": 0, "committed_metadata": "m" * 4097}
    assert asker.commit(version, topics=[{**asker.named(version), "partitions": partitions}]) == 12


def test_who_may_commit(asker: Asker) -> None:
    assert asker.commit(8, generation_id_or_member_epoch=1, member_id="m") == 22
    assert asker.commit(9, generation_id_or_member_epoch=1, member_id="m") == 69
    member = asker.joined().member_id
    assert asker.commit(generation_id_or_member_epoch=1, member_id=member) == 27
    asker.sync(member)
    assert asker.commit(generation_id_or_member_epoch=1, member_id=member) == NONE
    assert asker.commit(generation_id_or_member_epoch=2, member_id=member) == 22
    assert asker.commit(generation_id_or_member_epoch=1, member_id="nobody") == 25
    assert asker.commit() == 25


def test_an_old_client_gives_its_commits_an_end(asker: Asker, broker: RunningNode) -> None:
    assert asker.commit(2, retention_time=60_000) == NONE
    shard = broker.node.groups.shard(asker.group)
    (stored,) = (stored.value for stored in shard.offsets.of(asker.group).values())
    assert stored.expire_timestamp == stored.commit_timestamp + 60_000


@versions(ApiKey.OFFSET_FETCH)
def test_offsets_are_fetched(asker: Asker, version: int) -> None:
    asker.commit()
    found = asker.fetch(version)
    (topic,) = found.topics
    assert (topic.topic_id if version >= 10 else topic.name) == (asker.topic_id if version >= 10 else asker.topic)
    shown = [(one.partition_index, one.committed_offset, one.metadata, one.error_code) for one in topic.partitions]
    assert shown == [(0, -1, "", NONE), (1, 5, "m", NONE)]
    if version >= 2:
        assert found.error_code == NONE
        (topic,) = asker.fetch(version, everything=True).topics
        assert [one.partition_index for one in topic.partitions] == [1]
    if version >= 5:
        assert topic.partitions[0].committed_leader_epoch == -1
    unknown: dict[str, Any] = {"topic_id": UUID(int=9)} if version >= 10 else {"name": "nowhere"}
    (topic,) = asker.fetch(version, topic=unknown).topics
    code = 100 if version >= 10 else NONE
    assert [(one.committed_offset, one.error_code) for one in topic.partitions] == [(-1, code)] * 2


@versions(ApiKey.OFFSET_FETCH)
def test_offsets_before_there_is_a_coordinator(start: Callable[..., RunningNode], version: int) -> None:
    with Wire(start().bootstrap) as wire:
        named = {"topic_id": UUID(int=9)} if version >= 10 else {"name": "t"}
        topics = [{**named, "partition_indexes": [0]}]
        if version < 8:
            found = wire.ask(ApiKey.OFFSET_FETCH, version, group_id="g", topics=topics)
        else:
            found = wire.ask(ApiKey.OFFSET_FETCH, version, groups=[{"group_id": "g", "topics": topics}]).groups[0]
        if version < 2:
            assert found.topics[0].partitions[0].error_code == 16
        else:
            assert (found.error_code, found.topics) == (16, ())


def test_commits_end_with_their_topic(asker: Asker) -> None:
    wire, topic = asker.wire, asker.topic
    asker.commit()
    wire.ask(ApiKey.DELETE_TOPICS, topics=[{"name": topic, "topic_id": None}], timeout=30_000)
    assert asker.fetch(9, everything=True).topics == ()
    answer = wire.ask(
        ApiKey.CREATE_TOPICS,
        topics=[{"name": topic, "num_partitions": 2, "replication_factor": 1}],
        timeout=30_000,
    )
    assert answer.topics[0].error_code == NONE
    assert {one.committed_offset for one in asker.fetch(9).topics[0].partitions} == {-1}


def test_offsets_are_deleted(asker: Asker) -> None:
    def delete(group: str = asker.group, topic: str = asker.topic, partition: int = 1) -> Any:
        topics = [{"name": topic, "partitions": [{"partition_index": partition}]}]
        return asker.wire.ask(ApiKey.OFFSET_DELETE, group_id=group, topics=topics)

    def code(answer: Any) -> int:
        assert answer.error_code == NONE
        found: int = answer.topics[0].partitions[0].error_code
        return found

    assert delete().error_code == 69
    assert delete("").error_code == 24
    asker.commit()
    assert code(delete(topic="nowhere")) == 3
    assert code(delete(partition=7)) == 3
    assert code(delete()) == NONE
    assert {one.committed_offset for one in asker.fetch(9).topics[0].partitions} == {-1}
    asker.stable()
    assert code(delete()) == 86


# Administration


@versions(ApiKey.DESCRIBE_GROUPS)
def test_groups_are_described(asker: Asker, version: int) -> None:
    missing = asker.describe(version)
    if version >= 6:
        assert (missing.error_code, missing.error_message) == (69, f"Group {asker.group} not found.")
    else:
        assert missing.error_code == NONE
    assert missing.group_state == "Dead"
    member = asker.stable()
    found = asker.describe(version, operations=version >= 3)
    assert (found.error_code, found.group_state, found.protocol_type, found.protocol_data) == (
        NONE, "Stable", "consumer", "range",
    )  # fmt: skip
    (described,) = found.members
    assert (described.member_id, described.client_id, described.client_host) == (member, "test", "/127.0.0.1")
    assert (described.member_metadata, described.member_assignment) == (b"M", b"A")
    if version >= 3:
        assert found.authorized_operations == 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11
        assert asker.describe(version).authorized_operations == -(2**31)


def test_a_group_that_is_not_stable_does_not_say_what_it_speaks(asker: Asker) -> None:
    member = asker.joined().member_id
    found = asker.describe()
    assert (found.group_state, found.protocol_data) == ("CompletingRebalance", "")
    assert [(one.member_id, one.member_metadata) for one in found.members] == [(member, b"")]


@versions(ApiKey.LIST_GROUPS)
def test_groups_are_listed(asker: Asker, version: int) -> None:
    asker.stable()

    def listed(**filters: object) -> list[Any]:
        answer = asker.wire.ask(ApiKey.LIST_GROUPS, version, **filters)
        assert answer.error_code == NONE
        return [group for group in answer.groups if group.group_id == asker.group]

    (found,) = listed()
    assert found.protocol_type == "consumer"
    if version >= 4:
        assert found.group_state == "Stable"
        assert listed(states_filter=["stable", "nonsense"])
        assert not listed(states_filter=["Empty"])
    if version >= 5:
        assert found.group_type == "classic"
        assert listed(types_filter=["Classic"])
        assert not listed(types_filter=["consumer"])


@versions(ApiKey.DELETE_GROUPS)
def test_groups_are_deleted(asker: Asker, version: int) -> None:
    def delete() -> dict[str, int]:
        answer = asker.wire.ask(ApiKey.DELETE_GROUPS, version, groups_names=[asker.group, asker.group, "no group"])
        return {one.group_id: one.error_code for one in answer.results}

    assert delete() == {asker.group: 69, "no group": 69}
    member = asker.stable()
    asker.commit(generation_id_or_member_epoch=1, member_id=member)
    assert delete()[asker.group] == 68
    asker.wire.ask(ApiKey.LEAVE_GROUP, group_id=asker.group, members=[{"member_id": member}])
    assert delete()[asker.group] == NONE
    assert asker.describe(5).group_state == "Dead"
    assert asker.fetch(10, everything=True).topics == ()


def test_requests_before_there_is_a_coordinator(start: Callable[..., RunningNode]) -> None:
    with Wire(start().bootstrap) as wire:
        common: dict[str, Any] = {"group_id": "g", "member_id": "m", "generation_id": 1}
        protocol: dict[str, Any] = {"protocol_type": "consumer", "protocol_name": "range"}
        join: dict[str, Any] = {
            "group_id": "g",
            "session_timeout": 10_000,
            "rebalance_timeout": 1,
            "member_id": "",
            "protocols": [],
        }
        assert wire.ask(ApiKey.JOIN_GROUP, **join, protocol_type="consumer").error_code == 16
        assert wire.ask(ApiKey.SYNC_GROUP, **common, **protocol, assignments=[]).error_code == 16
        assert wire.ask(ApiKey.HEARTBEAT, **common).error_code == 16
        assert wire.ask(ApiKey.LEAVE_GROUP, group_id="g", members=[]).error_code == 16
        assert wire.ask(ApiKey.DESCRIBE_GROUPS, groups=["g"]).groups[0].error_code == 16
        assert wire.ask(ApiKey.DELETE_GROUPS, groups_names=["g"]).results[0].error_code == 16
        assert wire.ask(ApiKey.OFFSET_DELETE, group_id="g", topics=[]).error_code == 16
        assert wire.ask(ApiKey.LIST_GROUPS).groups == ()
