"""Requests of a group's members over a socket, in all their versions, and who coordinates them."""

from __future__ import annotations

from typing import Any

import pytest

from seglog.protocol.apis import ApiKey
from tests.broker.broker_thread import RunningNode, Wire
from tests.broker.group_client import NONE, GroupClient, versions

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


@pytest.mark.parametrize(("kind", "version", "code"), [(2, 6, 42), (9, 6, 42)])
def test_find_coordinator_refuses_other_key_types(wire: Wire, kind: int, version: int, code: int) -> None:
    keys = {"key": "x"} if version < 4 else {"coordinator_keys": ["x"]}
    answer = wire.ask(ApiKey.FIND_COORDINATOR, version, key_type=kind, **keys)
    found = answer if version < 4 else answer.coordinators[0]
    assert (found.error_code, found.node_id, found.host, found.port) == (code, -1, "", -1)


# Members


@versions(ApiKey.JOIN_GROUP)
def test_a_member_joins(asker: GroupClient, version: int) -> None:
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
def test_a_member_gets_its_assignment(asker: GroupClient, version: int) -> None:
    member = asker.joined().member_id
    answer = asker.sync(member, version)
    assert (answer.error_code, answer.assignment) == (NONE, b"A")
    if version >= 5:
        assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")


@versions(ApiKey.HEARTBEAT)
def test_a_member_is_there(asker: GroupClient, version: int) -> None:
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
def test_a_member_leaves(asker: GroupClient, version: int) -> None:
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


def test_joins_that_cannot_be(asker: GroupClient) -> None:
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


def test_a_sync_has_to_name_its_protocol_from_version_5_on(asker: GroupClient) -> None:
    member = asker.joined().member_id
    assert asker.sync(member, 5, protocol_name=None).error_code == 23
    assert asker.sync(member, 5, protocol_type=None).error_code == 23
    assert asker.sync(member, 5, protocol_name="sticky").error_code == 23
    assert asker.sync(member, 5, group_id="").error_code == 24
    assert asker.sync(member, 5, generation=2).error_code == 22
    assert asker.sync("nobody", 5).error_code == 25
    assert asker.sync(member, 4).error_code == NONE


def test_a_static_member_is_fenced_by_its_successor(asker: GroupClient) -> None:
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
