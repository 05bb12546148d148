"""Requests of groups over a socket, in all their versions: their offsets, and their administration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from seglog.protocol.apis import ApiKey
from seglog.records.compression import Codec
from tests.broker.broker_thread import RunningNode, Wire
from tests.broker.group_client import NONE, GroupClient, versions

# Offsets


@versions(ApiKey.OFFSET_COMMIT)
def test_a_client_commits(asker: GroupClient, version: int) -> None:
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


def test_commit_checks_member_and_generation(asker: GroupClient) -> None:
    assert asker.commit(8, generation_id_or_member_epoch=1, member_id="m") == 22
    assert asker.commit(9, generation_id_or_member_epoch=1, member_id="m") == 69
    member = asker.joined().member_id
    assert asker.commit(generation_id_or_member_epoch=1, member_id=member) == 27
    asker.sync(member)
    assert asker.commit(generation_id_or_member_epoch=1, member_id=member) == NONE
    assert asker.commit(generation_id_or_member_epoch=2, member_id=member) == 22
    assert asker.commit(generation_id_or_member_epoch=1, member_id="nobody") == 25
    assert asker.commit() == 25


def test_an_old_client_gives_its_commits_an_end(asker: GroupClient, broker: RunningNode) -> None:
    assert asker.commit(2, retention_time=60_000) == NONE
    shard = broker.node.groups.shard(asker.group)
    (stored,) = (stored.value for stored in shard.offsets.of(asker.group).values())
    assert stored.expire_timestamp == stored.commit_timestamp + 60_000


@versions(ApiKey.OFFSET_FETCH)
def test_offsets_are_fetched(asker: GroupClient, version: int) -> None:
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


def test_commits_end_with_their_topic(asker: GroupClient) -> None:
    wire, topic = asker.wire, asker.topic
    asker.commit()
    wire.ask(ApiKey.DELETE_TOPICS, topics=[{"name": topic, "topic_id": None}], timeout=30_000)
    assert asker.fetch(9, everything=True).topics == ()
    wire.create_topic(topic, 2)
    assert {one.committed_offset for one in asker.fetch(9).topics[0].partitions} == {-1}


def test_offsets_are_deleted(asker: GroupClient) -> None:
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
def test_groups_are_described(asker: GroupClient, version: int) -> None:
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


def test_a_group_that_is_not_stable_does_not_say_what_it_speaks(asker: GroupClient) -> None:
    member = asker.joined().member_id
    found = asker.describe()
    assert (found.group_state, found.protocol_data) == ("CompletingRebalance", "")
    assert [(one.member_id, one.member_metadata) for one in found.members] == [(member, b"")]


@versions(ApiKey.LIST_GROUPS)
def test_groups_are_listed(asker: GroupClient, version: int) -> None:
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
def test_groups_are_deleted(asker: GroupClient, version: int) -> None:
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


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD])
def test_offsets_are_compressed_as_the_broker_is_told(start: Callable[..., RunningNode], codec: Codec) -> None:
    running = start({"offsets.topic.compression.codec": str(int(codec)), "offsets.topic.num.partitions": "1"})
    with Wire(running.bootstrap) as wire:
        wire.create_topic("t", 2)
        assert GroupClient(wire, "g", "t").commit() == NONE
    headers = [header for header, _ in running.node.directories.dirs[0].log("__consumer_offsets").read(0).batches()]
    assert [header.codec for header in headers] == [codec]
    running.stop()
    running.start()
    with Wire(running.bootstrap) as wire:
        partitions = GroupClient(wire, "g", "t").fetch(10).topics[0].partitions
    assert [one.committed_offset for one in partitions] == [-1, 5]
