"""ConsumerGroupHeartbeat and ConsumerGroupDescribe over a socket, and what other APIs say of consumer groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from seglog.protocol.apis import ApiKey
from tests.broker.broker_thread import RunningNode, Wire
from tests.broker.group_client import NONE, versions

INVALID = 42


def heartbeat(wire: Wire, group: str, version: int = 1, **fields: Any) -> Any:
    contents = {"group_id": group, "member_id": "m", "member_epoch": 0, "topic_partitions": None, **fields}
    return wire.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, version, **contents)


def join(wire: Wire, group: str, topic: str, version: int = 1, **fields: Any) -> Any:
    wire.ask(ApiKey.FIND_COORDINATOR, 3, key=group or "g", key_type=0)
    first = {"rebalance_timeout": 60_000, "subscribed_topic_names": [topic], "topic_partitions": []}
    return heartbeat(wire, group, version, **{**first, **fields})


@versions(ApiKey.CONSUMER_GROUP_HEARTBEAT)
def test_a_member_joins_stays_and_leaves(wire: Wire, topic: str, group: str, version: int) -> None:
    joined = join(wire, group, topic, version, member_id="m" if version else "")
    assert (joined.error_code, joined.member_epoch, joined.heartbeat_interval) == (NONE, 2, 5000)
    assert [sorted(one.partitions) for one in joined.assignment.topic_partitions] == [[0, 1]]
    member_id = joined.member_id
    assert version or member_id
    again = heartbeat(wire, group, version, member_id=member_id, member_epoch=2)
    assert (again.error_code, again.member_epoch, again.assignment) == (NONE, 2, None)
    assert heartbeat(wire, group, version, member_id=member_id, member_epoch=9).error_code == 110
    assert heartbeat(wire, group, version, member_id=member_id, member_epoch=-1).member_epoch == -1
    gone = heartbeat(wire, group, version, member_id=member_id, member_epoch=2)
    assert (gone.error_code, gone.error_message) == (
        25,
        f"Member {member_id} is not a member of group {group}.",
    )


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"group_id": ""}, INVALID),
        ({"member_id": ""}, INVALID),
        ({"instance_id": " "}, INVALID),
        ({"rack_id": ""}, INVALID),
        ({"rebalance_timeout": -1}, INVALID),
        ({"topic_partitions": None}, INVALID),
        ({"subscribed_topic_names": None}, INVALID),
        ({"member_epoch": -3}, INVALID),
        ({"member_epoch": -2}, INVALID),
        ({"server_assignor": "sticky"}, 112),
        ({"subscribed_topic_regex": "("}, 128),
        ({"member_epoch": 1}, 69),
    ],
)
def test_heartbeats_that_are_refused(wire: Wire, topic: str, group: str, fields: dict[str, Any], code: int) -> None:
    answer = join(wire, group, topic, **fields)
    assert (answer.error_code, answer.member_epoch) == (code, 0)
    assert answer.error_message


@versions(ApiKey.CONSUMER_GROUP_DESCRIBE)
def test_a_group_is_described(wire: Wire, topic: str, group: str, version: int) -> None:
    join(wire, group, topic, member_id="m", instance_id="i", rack_id="r")
    answer = wire.ask(
        ApiKey.CONSUMER_GROUP_DESCRIBE, version, group_ids=[group, "other", ""], include_authorized_operations=True
    )
    found, other, unnamed = answer.groups
    assert (found.group_state, found.group_epoch, found.assignment_epoch) == ("Stable", 2, 2)
    assert found.assignor_name == "uniform"
    assert found.authorized_operations > 0
    (member,) = found.members
    assert (member.member_id, member.instance_id, member.rack_id, member.member_epoch) == ("m", "i", "r", 2)
    assert (list(member.subscribed_topic_names), member.subscribed_topic_regex) == ([topic], "")
    for assignment in (member.assignment, member.target_assignment):
        assert [(one.topic_name, list(one.partitions)) for one in assignment.topic_partitions] == [(topic, [0, 1])]
    if version >= 1:
        assert member.member_type == 1
    assert (other.error_code, other.error_message) == (69, "Group other not found.")
    assert unnamed.error_code == 24


def test_other_apis_know_the_group(wire: Wire, topic: str, group: str) -> None:
    join(wire, group, topic)
    listed = wire.ask(ApiKey.LIST_GROUPS, 5, states_filter=["Stable"], types_filter=["consumer"]).groups
    assert [(one.group_state, one.group_type, one.protocol_type) for one in listed if one.group_id == group] == [
        ("Stable", "consumer", "consumer")
    ]
    described = wire.ask(ApiKey.DESCRIBE_GROUPS, 6, groups=[group]).groups[0]
    assert (described.error_code, described.group_state, described.error_message) == (
        69,
        "Dead",
        f"Group {group} is not a classic group.",
    )
    assert wire.ask(ApiKey.DELETE_GROUPS, 2, groups_names=[group]).results[0].error_code == 68
    commit = {
        "group_id": group,
        "member_id": "m",
        "generation_id_or_member_epoch": 2,
        "topics": [
            {
                "name": topic,
                "partitions": [
                    {
                        "partition_index": 0,
                        "committed_offset": 5,
                        "committed_leader_epoch": -1,
                        "committed_metadata": "",
                    }
                ],
            }
        ],
    }
    assert wire.ask(ApiKey.OFFSET_COMMIT, 9, **commit).topics[0].partitions[0].error_code == NONE
    commit["generation_id_or_member_epoch"] = 3
    assert wire.ask(ApiKey.OFFSET_COMMIT, 9, **commit).topics[0].partitions[0].error_code == 113
    wanted = {"group_id": group, "member_id": "m", "topics": [{"name": topic, "partition_indexes": [0]}]}
    for epoch, code in ((2, NONE), (1, 113)):
        fetched = wire.ask(ApiKey.OFFSET_FETCH, 9, groups=[{**wanted, "member_epoch": epoch}], require_stable=False)
        assert fetched.groups[0].error_code == code
    heartbeat(wire, group, member_epoch=-1)
    assert wire.ask(ApiKey.DELETE_GROUPS, 2, groups_names=[group]).results[0].error_code == NONE


def test_a_group_survives_a_restart(start: Callable[..., RunningNode]) -> None:
    first = start()
    with Wire(first.bootstrap) as wire:
        topic = wire.create_topic("t", 2)
        while join(wire, "g", topic).error_code in {14, 15, 16}:
            pass
    first.stop()
    with Wire(start().bootstrap) as wire:
        while (again := heartbeat(wire, "g", member_epoch=2)).error_code in {14, 15, 16}:
            pass
        assert (again.error_code, again.member_epoch, again.assignment) == (NONE, 2, None)
