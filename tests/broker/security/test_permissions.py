"""The table of permissions, and answers by it. `tests/interop/test_acl_answers.py` asks Kafka the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from seglog.broker.security.acls import Operation, ResourceType
from seglog.broker.security.permissions import CODES, NEEDS, Denied
from seglog.core.error_codes import ErrorCode
from seglog.protocol.apis import APIS, ApiKey
from tests.broker.security.acl_node import AclNode, acl, add
from tests.broker.security.permission_requests import NAMES, TOPICS, requests

_NO_DENIALS: Final = {0, int(ErrorCode.UNKNOWN_TOPIC_ID), int(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)}
_DENIALS: Final = {int(code) for code in CODES.values()}
_WITHOUT_REQUEST: Final = {ApiKey.ADD_RAFT_VOTER, ApiKey.REMOVE_RAFT_VOTER, ApiKey.UNREGISTER_CONTROLLER}
"""Kafka answers them with an error whatever the client may do."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AclNode]:
    users = ("nobody", "listed")
    with AclNode(tmp_path_factory.mktemp("permissions"), users, {"auto.create.topics.enable": "false"}) as made:
        with made.of("nobody") as wire:
            assert wire.ask(ApiKey.METADATA, topics=None).topics == ()
        with _superuser(made) as wire:
            for topic in TOPICS:
                wire.create_topic(topic, 2)
        yield made


def _superuser(node: AclNode) -> Any:
    from tests.broker.broker_thread import Wire

    return Wire(node.bootstrap)


def _codes(value: Any) -> Iterator[int]:
    if isinstance(value, SimpleNamespace):
        for name, one in vars(value).items():
            if name.endswith("error_code"):
                yield one
            else:
                yield from _codes(one)
    elif isinstance(value, tuple):
        for one in value:
            yield from _codes(one)


def test_every_api_is_in_the_table_and_is_asked() -> None:
    assert set(NEEDS) == set(APIS)
    asked = {key for key, _, _ in requests({})}
    assert asked == {key for key, needs in NEEDS.items() if needs} - _WITHOUT_REQUEST


@pytest.mark.parametrize("key", [key for key, needs in NEEDS.items() if needs and key not in _WITHOUT_REQUEST])
def test_without_acls_a_request_gets_the_codes_of_the_table(node: AclNode, key: ApiKey) -> None:
    ids = {topic.name: topic.topic_id for topic in node.node.topics}
    of_key = [(version, contents) for asked, version, contents in requests(ids) if asked is key]
    needs = NEEDS[key]
    expected = {int(need.code) for need in needs if need.denied in (Denied.REQUEST, Denied.ELEMENT)}
    with node.of("nobody") as nobody, _superuser(node) as superuser:
        for version, contents in of_key:
            found = set(_codes(nobody.ask(key, version, **contents)))
            assert found & _DENIALS <= expected, (version, found)
            # Requests for all of something leave out what is denied, and ids that are not known reveal nothing.
            assert found & _DENIALS or found <= _NO_DENIALS
            assert not set(_codes(superuser.ask(key, version, **contents))) & (_DENIALS - {_OF_NOBODY})
        if expected:
            assert any(set(_codes(nobody.ask(key, version, **contents))) & expected for version, contents in of_key)


_OF_NOBODY: Final = int(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


def test_metadata_creates_only_what_the_client_may_create(tmp_path: Path) -> None:
    with AclNode(tmp_path, ["listed"]) as node, node.of("listed") as wire, _superuser(node) as superuser:
        add(superuser, acl("listed", Operation.DESCRIBE, ResourceType.TOPIC, "*"))
        asked = {"topics": [{"name": "new"}], "allow_auto_topic_creation": True}
        (answer,) = wire.ask(ApiKey.METADATA, 12, **asked).topics
        assert answer.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert "new" not in node.node.topics.by_name
        add(superuser, acl("listed", Operation.CREATE, ResourceType.CLUSTER, "kafka-cluster"))
        (answer,) = wire.ask(ApiKey.METADATA, 12, **asked).topics
        assert answer.error_code == 0
        assert "new" in node.node.topics.by_name


def test_names_of_denied_topics_do_not_leak(node: AclNode) -> None:
    ids = [topic.topic_id for topic in node.node.topics]
    with node.of("nobody") as wire:
        answer = wire.ask(ApiKey.METADATA, 12, topics=[{"name": None, "topic_id": one} for one in ids])
        assert {one.name for one in answer.topics} == {None}
        asked = [{"name": None, "topic_id": one} for one in ids]
        deleted = wire.ask(ApiKey.DELETE_TOPICS, 6, topics=asked, timeout=30_000).responses
        assert {(one.name, one.error_code) for one in deleted} == {(None, ErrorCode.TOPIC_AUTHORIZATION_FAILED)}
        named = wire.ask(ApiKey.METADATA, 12, topics=[{"name": name} for name in NAMES]).topics
        assert wire.ask(ApiKey.METADATA, 12, topics=None).topics == ()
        paged = wire.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, topics=[], response_partition_limit=100, cursor=None)
        assert paged.topics == ()
        # The same for topics that exist and those that do not.
        assert {(one.error_code, one.topic_id, one.partitions) for one in named} == {(29, None, ())}
