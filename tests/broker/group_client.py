"""One connection's requests for one group."""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

import pytest

from seglog.protocol.apis import APIS, ApiKey
from tests.broker.broker_thread import Wire

NONE: Final = 0


def versions(key: ApiKey) -> pytest.MarkDecorator:
    api = APIS[key]
    return pytest.mark.parametrize("version", range(api.low, api.high + 1))


def id_of(wire: Wire, topic: str) -> UUID:
    found: UUID = wire.ask(ApiKey.METADATA, topics=[{"name": topic}]).topics[0].topic_id
    return found


def find(wire: Wire, group: str) -> None:
    assert wire.ask(ApiKey.FIND_COORDINATOR, coordinator_keys=[group]).coordinators[0].error_code == NONE


class GroupClient:
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
            "session_timeout": 600_000,
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
