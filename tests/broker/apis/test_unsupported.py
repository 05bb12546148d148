"""Features of Kafka that seglog lacks: the answers are those of a Kafka 4.4 in which they are off (measured there)."""

from __future__ import annotations

from typing import Any

import pytest

from seglog.protocol.apis import APIS, ApiKey
from seglog.protocol.message_reader import Message
from tests.broker.broker_thread import Wire

MEMBER = "A" * 22
ACL = {
    "resource_type": 2, "resource_name": "t", "resource_pattern_type": 3, "principal": "User:a", "host": "*",
    "operation": 2, "permission_type": 3,
}  # fmt: skip
ACL_FILTER = {
    "resource_type_filter": 2, "resource_name_filter": "t", "pattern_type_filter": 3, "principal_filter": None,
    "host_filter": None, "operation": 1, "permission_type": 1,
}  # fmt: skip
GROUP_OF: dict[str, object] = {"group_id": "g", "member_id": MEMBER}


def whole(answer: Message) -> list[int]:
    return [answer.error_code]


CASES: list[tuple[ApiKey, dict[str, object], Any, list[int]]] = [
    (ApiKey.SASL_HANDSHAKE, {"mechanism": "PLAIN"}, whole, [34]),
    (ApiKey.SASL_AUTHENTICATE, {"auth_bytes": b"x"}, whole, [34]),
    (ApiKey.DESCRIBE_ACLS, ACL_FILTER, whole, [54]),
    (ApiKey.CREATE_ACLS, {"creations": [ACL, ACL]}, lambda a: [one.error_code for one in a.results], [54, 54]),
    (
        ApiKey.DELETE_ACLS,
        {"filters": [ACL_FILTER] * 2},
        lambda a: [one.error_code for one in a.filter_results],
        [54, 54],
    ),
    (ApiKey.SHARE_GROUP_HEARTBEAT, {**GROUP_OF, "member_epoch": 0}, whole, [35]),
    (ApiKey.SHARE_GROUP_DESCRIBE, {"group_ids": ["g"]}, lambda a: [one.error_code for one in a.groups], [35]),
    (ApiKey.SHARE_FETCH, GROUP_OF, whole, [35]),
    (ApiKey.SHARE_ACKNOWLEDGE, GROUP_OF, whole, [35]),
    (ApiKey.STREAMS_GROUP_HEARTBEAT, {**GROUP_OF, "member_epoch": 0}, whole, [35]),
    (ApiKey.STREAMS_GROUP_DESCRIBE, {"group_ids": ["g"]}, lambda a: [one.error_code for one in a.groups], [35]),
    (
        ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE,
        {**GROUP_OF, "topology_description": {"subtopologies": [], "global_stores": []}},
        whole,
        [35],
    ),
    (ApiKey.ADD_RAFT_VOTER, {"voter_id": 4, "listeners": []}, whole, [35]),
    (ApiKey.REMOVE_RAFT_VOTER, {"voter_id": 4}, whole, [35]),
    (ApiKey.UNREGISTER_CONTROLLER, {"controller_id": 4}, whole, [35]),
    (
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
        {"groups": [{"group_id": "g"}]},
        lambda a: [one.error_code for one in a.groups],
        [35],
    ),
    (ApiKey.ALTER_SHARE_GROUP_OFFSETS, {"group_id": "g"}, whole, [35]),
    (ApiKey.DELETE_SHARE_GROUP_OFFSETS, {"group_id": "g"}, whole, [35]),
]


@pytest.mark.parametrize(("key", "contents", "codes", "expected"), CASES, ids=[case[0].name for case in CASES])
def test_what_is_not_supported_is_answered_with_an_error(
    wire: Wire, key: ApiKey, contents: dict[str, object], codes: Any, expected: list[int]
) -> None:
    assert codes(wire.ask(key, APIS[key].high, **contents)) == expected


def test_states_of_transactions_that_are_not_known_are_named(wire: Wire) -> None:
    answer = wire.ask(ApiKey.LIST_TRANSACTIONS, 2, state_filters=["Ongoing", "Foo"], producer_id_filters=[])
    assert (answer.unknown_state_filters, answer.transaction_states) == (("Foo",), ())
