"""The same requests by users with different ACLs, to a Kafka with ``StandardAuthorizer`` and to ours: every API of the
table of permissions gets the same error codes, names and authorized operations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple
from uuid import UUID

import pytest

from seglog.protocol.apis import APIS, ApiKey
from tests.broker.broker_thread import RunningNode, Wire
from tests.broker.security.acl_node import everything
from tests.broker.security.permission_requests import TOPICS, USERS, acls_of, creation, requests
from tests.broker.security.secured_node import log_in
from tests.cases import case
from tests.kafka.acl_node import AclKafkaNode, acl_settings, password_of
from tests.kit.waiting import wait_until

pytestmark = pytest.mark.xdist_group("acl-answers")
_SETTINGS: Final = {
    "listeners": "PLAINTEXT://127.0.0.1:0,SASL://127.0.0.1:0",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT",
    "auto.create.topics.enable": "true",
    "node.id": "1",
    "transaction.state.log.num.partitions": "1",
}


_UNSUPPORTED_VERSION: Final = 35
_TOPIC_AUTHORIZATION_FAILED: Final = 29


class _Side(NamedTuple):
    """A broker: its listener for everybody and the one with names, and the ids of its topics."""

    plain: str
    secured: str
    ids: dict[str, UUID]

    def of(self, user: str) -> Wire:
        wire = Wire(self.secured)
        log_in(wire, user, password_of(user))
        return wire


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[_Side, _Side]]:
    path: Path = tmp_path_factory.mktemp("acl-answers")
    with (
        AclKafkaNode(path / "kafka", USERS) as kafka,
        RunningNode(path / "seglog", {**_SETTINGS, **acl_settings(USERS)}) as ours,
    ):
        secured = next(one.host_port for one in ours.node.addresses if one.name == "SASL")
        made = _Side(kafka.bootstrap, kafka.secured, {}), _Side(ours.bootstrap, secured, {})
        for side in made:
            with Wire(side.plain) as wire:
                _prepare(wire, side.ids)
        yield made


def _prepare(wire: Wire, ids: dict[str, UUID]) -> None:
    acls = acls_of()
    for topic in TOPICS:
        wire.create_topic(topic, 2)
    created = wire.ask(ApiKey.CREATE_ACLS, creations=[creation(acl) for acl in acls])
    assert not any(one.error_code for one in created.results)
    wait_until(lambda: _number_of_acls(wire) == len(acls), "the ACLs")
    for group in ("g", "h"):
        _await(wire, ApiKey.FIND_COORDINATOR, 6, key_type=0, coordinator_keys=[group])
        parts = [{"partition_index": 0, "committed_offset": 0}]
        member = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": ""}
        _await(wire, ApiKey.OFFSET_COMMIT, 9, **member, topics=[{"name": one, "partitions": parts} for one in TOPICS])
    for transaction in ("t", "u"):
        _await(wire, ApiKey.FIND_COORDINATOR, 6, key_type=1, coordinator_keys=[transaction])
        producer = {"transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
        _await(wire, ApiKey.INIT_PRODUCER_ID, 5, transactional_id=transaction, **producer)
    _await(wire, ApiKey.METADATA, 12, topics=[{"name": name} for name in TOPICS])
    found = wire.ask(ApiKey.METADATA, topics=[{"name": name} for name in TOPICS])
    ids.update({topic.name: topic.topic_id for topic in found.topics})


def _number_of_acls(wire: Wire) -> int:
    return sum(len(one.acls) for one in wire.ask(ApiKey.DESCRIBE_ACLS, **everything()).resources)


def _await(wire: Wire, key: ApiKey, version: int, **contents: object) -> None:
    """Ask until the answer has no error."""
    wait_until(lambda: not any(_codes(wire.ask(key, version, **contents))), f"an answer to {key.name}")


def _codes(value: Any) -> Iterator[int]:
    if isinstance(value, SimpleNamespace):
        yield getattr(value, "error_code", 0)
        for one in vars(value).values():
            yield from _codes(one)
    elif isinstance(value, tuple | list):
        for one in value:
            yield from _codes(one)


_KEPT: Final = frozenset(
    {
        "error_code",
        "topic_config_error_code",
        "partition_error_code",
        "name",
        "topic",
        "topic_name",
        "key",
        "group_id",
        "transactional_id",
        "resource_name",
        "resource_type",
        "topic_authorized_operations",
        "cluster_authorized_operations",
        "authorized_operations",
        "partition_index",
        "partition",
        "num_partitions",
        "committed_offset",
        "user",
        "feature",
    }
)
"""Fields that are compared. Others are a broker's own, or have nothing to do with permissions."""


def _shape(value: Any, ids: Mapping[Any, str], field: str = "") -> Any:
    if isinstance(value, SimpleNamespace):
        found = {name: _shape(one, ids, name) for name, one in vars(value).items()}
        return {name: one for name, one in found.items() if one is not None}
    if isinstance(value, tuple | list):
        return len(value) > 0 if field == "configs" else sorted([_shape(one, ids, field) for one in value], key=repr)
    if field == "topic_id":
        return ids.get(value)
    if field == "producer_id":
        return value < 0
    return value if field in _KEPT else None


@pytest.mark.parametrize("user", USERS)
def test_answers_are_kafkas(sides: tuple[_Side, _Side], user: str) -> None:
    names = [{topic_id: name for name, topic_id in side.ids.items()} for side in sides]
    different = []
    with sides[0].of(user) as kafka, sides[1].of(user) as ours:
        for (key, version, to_kafka), (_, _, to_us) in zip(*(requests(side.ids) for side in sides), strict=True):
            assert version in range(APIS[key].served, APIS[key].high + 1)
            answers = kafka.ask(key, version, **to_kafka), ours.ask(key, version, **to_us)
            case()
            if _UNSUPPORTED_VERSION in _codes(answers[1]):
                continue  # the feature is not there
            expected, found = (_shape(answer, ids) for answer, ids in zip(answers, names, strict=True))
            if expected != found:
                different.append(f"{key.name} {version}: {to_us}\n  Kafka: {expected}\n  ours:  {found}")
    assert not different, f"{len(different)} answers to {user} differ:\n" + "\n".join(different)


@pytest.mark.parametrize(
    "user", ["nobody", "topic-delete", "topic-describe", "cluster-delete", "blind", "allowed-prefix"]
)
def test_topics_are_deleted_by_id_without_telling_their_names(sides: tuple[_Side, _Side], user: str) -> None:
    shapes = []
    for side in sides:
        with Wire(side.plain) as wire, side.of(user) as asking:
            topics = [wire.create_topic(f"{prefix}-{user}") for prefix in ("x", "o")]
            asked = {"topics": [{"name": name} for name in topics]}
            _await(wire, ApiKey.METADATA, 12, **asked)  # Kafka's broker learns of topics after their creation
            ids = {topic.topic_id: topic.name for topic in wire.ask(ApiKey.METADATA, 12, **asked).topics}
            wanted = [{"name": None, "topic_id": topic_id} for topic_id in ids]
            answer = asking.ask(ApiKey.DELETE_TOPICS, 6, topics=wanted, timeout=30_000)
            shapes.append([(ids[one.topic_id], one.name, one.error_code) for one in answer.responses])
    assert sorted(shapes[0], key=repr) == sorted(shapes[1], key=repr)


@pytest.mark.parametrize(
    "user", ["nobody", "topic-create", "topic-describe", "cluster-create", "blind", "allowed-prefix"]
)
def test_topics_are_created_by_metadata_with_the_permission_only(sides: tuple[_Side, _Side], user: str) -> None:
    refused = []
    for side in sides:
        with side.of(user) as wire:
            topics = [{"name": f"{prefix}-made-by-{user}"} for prefix in ("x", "o")]
            answer = wire.ask(ApiKey.METADATA, 12, topics=topics, allow_auto_topic_creation=True)
            refused.append({one.name for one in answer.topics if one.error_code == _TOPIC_AUTHORIZATION_FAILED})
    assert refused[0] == refused[1]
