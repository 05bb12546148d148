"""Topics, configurations, groups and offsets, by the admin client of each library."""

from __future__ import annotations

from typing import Any

import pytest

from tests.clients.choosing import NEW_AND_OLD, names
from tests.clients.process import ClientError, ClientProcess, encoded
from tests.clients.servers import Server
from tests.kit.waiting import wait_until

_EXISTS = {"TOPIC_ALREADY_EXISTS", "TopicAlreadyExistsError", "TopicExistsException"}
_UNKNOWN = {"UNKNOWN_TOPIC_OR_PART", "UnknownTopicOrPartitionError", "UnknownTopicOrPartitionException"}
_INVALID_PARTITIONS = {"INVALID_PARTITIONS", "InvalidPartitionsError", "InvalidPartitionsException"}
_INVALID_CONFIG = {"INVALID_CONFIG", "InvalidConfigurationError", "InvalidConfigurationException"}
_NOT_EMPTY = {"NON_EMPTY_GROUP", "GroupNotEmptyException", "NonEmptyGroupError"}
_T0 = 1_700_000_000_000


@pytest.mark.parametrize("name", names(*NEW_AND_OLD))
def test_topics(server: Server, name: str, topic_name: str) -> None:
    with ClientProcess(name, server.bootstrap) as client:
        config = {"retention.ms": "86400000", "cleanup.policy": "compact"}
        client.create(topic_name, 2, config)
        _wait(client, "partitions", 2, topic=topic_name)
        _wait(client, "config_of", config, topic=topic_name, names=[*config])
        with pytest.raises(ClientError) as refused:
            client.admin("create", topic=topic_name, partitions=2)
        assert refused.value.args[0] in _EXISTS
        assert client.admin("grow", topic=topic_name, total=5) == "ok"
        with pytest.raises(ClientError) as refused:
            client.admin("grow", topic=topic_name, total=3)
        assert refused.value.args[0] in _INVALID_PARTITIONS
        _wait(client, "partitions", 5, topic=topic_name)
        assert client.admin("alter", topic=topic_name, config={"max.message.bytes": "77777"}) == "ok"
        _wait(client, "config_of", {"max.message.bytes": "77777"}, topic=topic_name, names=["max.message.bytes"])
        with pytest.raises(ClientError) as refused:
            client.admin("alter", topic=topic_name, config={"retention.ms": "soon"})
        assert refused.value.args[0] in _INVALID_CONFIG
        assert client.admin("delete", topic=topic_name) == "ok"
        with pytest.raises(ClientError) as refused:
            client.admin("delete", topic=topic_name)
        assert refused.value.args[0] in _UNKNOWN


def _wait(client: ClientProcess, job: str, answer: object, **what: Any) -> None:
    """Kafka's broker answers from its own copy of the metadata, which may be older than a change that has ended."""
    wait_until(lambda: client.admin(job, **what) == answer, f"{job} to be {answer}")


@pytest.mark.parametrize("name", names(*NEW_AND_OLD))
def test_offsets_and_groups(server: Server, name: str, topic_name: str) -> None:
    with ClientProcess(name, server.bootstrap) as client, ClientProcess("confluent", server.bootstrap) as member:
        client.create(topic_name, 1)
        records = [encoded(0, None, b"%d" % number, _T0 + 1000 * number) for number in range(10)]
        assert len(client.run("produce", topic=topic_name, records=records)) == 10
        assert client.admin("at", topic=topic_name, time=_T0 + 2500) == [3, 0, 10]
        if client.admin("delete_records", topic=topic_name, before=4) is not None:
            assert client.admin("at", topic=topic_name, time=_T0 + 2500) == [4, 4, 10]
        group = f"group-{topic_name}"
        member.begin("member", group=group, topic=topic_name, session_ms=30_000)
        member.until(lambda one: one.offsets("committed", 0)[-1:] == [9])
        assert group in client.admin("groups")
        assert client.admin("group", group=group) == ["Stable", "consumer", 1]
        assert client.admin("offsets", group=group) == {"0": 10}
        if "delete_group" not in client.kind.cannot:
            with pytest.raises(ClientError) as refused:
                client.admin("delete_group", group=group)
            assert refused.value.args[0] in _NOT_EMPTY
        member.finish("stop")
        assert client.admin("group", group=group)[::2] == ["Empty", 0]
        if client.admin("delete_group", group=group) is not None:
            assert group not in client.admin("groups")
