"""Single APIs on a real Kafka and on ours, in all their versions; members of groups that are late."""

from __future__ import annotations

import itertools
import time
from typing import Any, Final

import pytest

from seglog.protocol.apis import ApiKey
from seglog.records.record import NewRecord, encode_batch
from tests.cases import case
from tests.kit.waiting import SECONDS
from tests.sequences.batches import START_MS
from tests.sequences.both import UNKNOWN_ID, Both, Ref
from tests.sequences.groups import subscription

_numbers = itertools.count()
_CAPPED: Final[dict[ApiKey, str]] = {}
"""APIs of which ours has fewer versions than Kafka, with the reason."""


def created(both: Both, name: str, partitions: int = 1) -> str:
    """A topic with leaders; its id is known under its name."""
    topics = [{"name": name, "num_partitions": partitions, "replication_factor": 1}]
    both.ask(ApiKey.CREATE_TOPICS, 4, topics=topics, timeout=30_000, validate_only=False)
    found = both.ask(ApiKey.METADATA, eventually=True, topics=[{"name": name}])
    both.learn(Ref(name), found, "topics", 0, "topic_id")
    asked = [{"name": name, "partitions": [{"partition_index": n, "timestamp": -1} for n in range(partitions)]}]
    both.ask(ApiKey.LIST_OFFSETS, 4, eventually=True, replica_id=-1, isolation_level=0, topics=asked)
    return name


@pytest.fixture
def topic(both: Both) -> str:
    return created(both, f"api-{next(_numbers)}", 3)


@pytest.mark.parametrize("version", range(5))
def test_versions_are_kafkas(both: Both, version: int) -> None:
    real, ours = (
        {
            api.api_key: (api.min_version, api.max_version)
            for api in side.wire()
            .ask(ApiKey.API_VERSIONS, version, client_software_name="test", client_software_version="1")
            .api_keys
        }
        for side in both.sides
    )
    assert ours
    for key, (low, high) in ours.items():
        assert real[key][0] == low, ApiKey(key)
        assert real[key][1] == high or (ApiKey(key) in _CAPPED and high < real[key][1]), ApiKey(key)
        case()


@pytest.mark.parametrize("version", range(14))
def test_metadata(both: Both, topic: str, version: int) -> None:
    operations: dict[str, Any] = {
        "include_topic_authorized_operations": version >= 8,
        "include_cluster_authorized_operations": 8 <= version <= 10,
    }
    for names in ([topic], [topic, "nowhere"], [topic, topic], ["not legal"], ["nowhere", ""]):
        asked = [{"name": name, "topic_id": None} for name in names]
        both.ask(ApiKey.METADATA, version, topics=asked, allow_auto_topic_creation=version % 2 == 0, **operations)
        case()
    if version >= 1:
        both.ask(ApiKey.METADATA, version, topics=[])
    if version >= 10:
        for ids in ([Ref(topic)], [Ref(topic), UNKNOWN_ID], [UNKNOWN_ID]):
            both.ask(ApiKey.METADATA, version, topics=[{"name": None, "topic_id": one} for one in ids], **operations)
            case()


@pytest.mark.parametrize("version", range(6))
def test_producers_get_ids(both: Both, version: int) -> None:
    """The ids are each broker's own."""
    for producer in ((-1, -1), (5, -1), (-1, 3)) if version >= 3 else ((-1, -1),):
        answers = []
        for side in both.sides:
            contents = {"transaction_timeout": 1000, "producer_id": producer[0], "producer_epoch": producer[1]}
            deadline = time.monotonic() + SECONDS
            answer = side.wire().ask(ApiKey.INIT_PRODUCER_ID, version, transactional_id=None, **contents)
            while answer.error_code == 14 and time.monotonic() < deadline:  # the first waits for a block of ids
                answer = side.wire().ask(ApiKey.INIT_PRODUCER_ID, version, transactional_id=None, **contents)
            answers.append((answer.error_code, answer.producer_id >= 0, answer.producer_epoch))
        both.compare(*answers)


@pytest.mark.parametrize("version", range(3))
def test_elections_that_change_nothing(both: Both, topic: str, version: int) -> None:
    asked = [{"topic": topic, "partitions": [0, 2, 7, -1]}, {"topic": "none", "partitions": [0]}]
    for kind in (0, 1, 5) if version else (None,):
        fields: dict[str, Any] = {} if kind is None else {"election_type": kind}
        both.ask(ApiKey.ELECT_LEADERS, version, topic_partitions=asked, timeout=30_000, **fields)
        case()
    both.ask(ApiKey.ELECT_LEADERS, version, topic_partitions=[{"topic": topic, "partitions": []}], timeout=30_000)


def test_replicas_that_have_nowhere_to_go(both: Both, topic: str) -> None:
    """All that a node which is alone says of reassignments."""
    lists: tuple[list[int] | None, ...] = (None, [], [0], [1], [0, 0], [1, 0], [-1])
    partitions = [{"partition_index": number, "replicas": one} for number, one in enumerate((None, [0], [1]))]
    topics = [{"name": topic, "partitions": partitions}, {"name": "none", "partitions": partitions}]
    for may_change in (True, False):
        fields: dict[str, Any] = {"allow_replication_factor_change": may_change, "timeout": 30_000}
        both.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 1, topics=topics, **fields)
        for replicas in lists:
            one = {"name": topic, "partitions": [{"partition_index": 1, "replicas": replicas}]}
            both.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 1, topics=[one], **fields)
            case()
    both.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, topics=topics, timeout=30_000)
    both.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, topics=None, timeout=30_000)
    named = [{"name": topic, "partition_indexes": [0, 9]}, {"name": "none", "partition_indexes": [0]}]
    both.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, topics=named, timeout=30_000)


def test_where_new_partitions_are_to_be(both: Both, topic: str) -> None:
    new = f"{topic}-assigned"
    lists: tuple[list[list[int]], ...] = ([[1]], [[]], [[0, 0]], [[0], [0, 1]], [[0], []], [[0], [0]])
    for replicas in lists:
        assignments = [{"partition_index": number, "broker_ids": one} for number, one in enumerate(replicas)]
        wanted = {"name": new, "num_partitions": -1, "replication_factor": -1, "assignments": assignments}
        both.ask(ApiKey.CREATE_TOPICS, 4, topics=[wanted], timeout=30_000, validate_only=True)
        more = [{"broker_ids": one} for one in replicas]
        for count in (4, 5):
            grown = {"name": topic, "count": count, "assignments": more}
            both.ask(ApiKey.CREATE_PARTITIONS, topics=[grown], timeout=30_000, validate_only=True)
            case()


@pytest.mark.parametrize("name", ["__mine", "_other", "__consumer_offsets_of_mine"])
def test_a_topic_is_internal_by_its_whole_name(both: Both, name: str) -> None:
    created(both, name)
    batch = bytes(encode_batch([NewRecord(b"v", b"k", START_MS)]))
    topics = [{"name": name, "partition_data": [{"index": 0, "records": batch}]}]
    both.ask(ApiKey.PRODUCE, 9, acks=1, timeout=1000, transactional_id=None, topic_data=topics)


# Groups


class Late:
    """Three members of one group whose rebalances end after three seconds, whoever is there: so long may the two
    brokers be apart, and we be late with what comes next."""

    def __init__(self, both: Both, topic: str) -> None:
        self.both = both
        self.topic = topic
        self.group = f"late-{topic}"
        both.ask(ApiKey.FIND_COORDINATOR, 3, eventually=True, key=self.group, key_type=0)
        both.ask(ApiKey.OFFSET_FETCH, 7, eventually=True, group_id=self.group, topics=None)

    def begin(self, name: str, key: ApiKey, version: int, **contents: Any) -> None:
        self.both.tell(f"{name}: {key.name} {contents}")
        for side in self.both.sides:
            side.wire(name).send(key, version, **side.fill({"group_id": self.group, **contents}))

    def end(self, name: str, key: ApiKey, version: int, *, learns: bool = False) -> Any:
        """The answer, when it comes."""
        answers = [side.wire(name).answer(key, version) for side in self.both.sides]
        if learns:
            for side, answer in zip(self.both.sides, answers, strict=True):
                side.learn(Ref(name), answer.member_id)
        plain = [side.plain(answer) for side, answer in zip(self.both.sides, answers, strict=True)]
        self.both.compare(*plain)
        return plain[0]

    def join(self, name: str, member: Ref | str) -> None:
        protocols = [{"name": "range", "metadata": subscription(self.topic)}]
        self.begin(
            name,
            ApiKey.JOIN_GROUP,
            3,
            session_timeout=60_000,
            rebalance_timeout=3000,
            member_id=member,
            protocol_type="consumer",
            protocols=protocols,
        )

    def joined(self, name: str, *, learns: bool = False) -> Any:
        return self.end(name, ApiKey.JOIN_GROUP, 3, learns=learns)

    def sync(self, name: str, generation: int, *assigned: str) -> None:
        assignments = [{"member_id": Ref(one), "assignment": one.encode()} for one in assigned]
        self.begin(name, ApiKey.SYNC_GROUP, 2, generation_id=generation, member_id=Ref(name), assignments=assignments)

    def synced(self, name: str) -> Any:
        return self.end(name, ApiKey.SYNC_GROUP, 2)

    def heartbeat(self, name: str, generation: int) -> int:
        found = self.both.same(ApiKey.HEARTBEAT, 3, group_id=self.group, generation_id=generation, member_id=Ref(name))
        return int(found["error_code"])


def test_members_that_are_late_are_out(both: Both, topic: str) -> None:
    late = Late(both, topic)
    late.join("a", "")
    assert late.joined("a", learns=True)["generation_id"] == 1
    late.sync("a", 1, "a")
    assert late.synced("a")["assignment"] == b"a"

    late.join("b", "")  # and a does not come: it is out when its time is up
    assert late.joined("b", learns=True)["generation_id"] == 2
    assert late.heartbeat("a", 1) == 25
    late.sync("b", 2, "b")
    assert late.synced("b")["assignment"] == b"b"

    late.join("c", "")
    late.join("b", Ref("b"))
    assert late.joined("c", learns=True)["leader"] == late.joined("b")["leader"] == Ref("b")
    late.sync("c", 3)  # and b, who leads, never says who gets what: it is out, and c is told to join again
    assert late.synced("c")["error_code"] == 27
    late.join("c", Ref("c"))
    assert late.joined("c")["leader"] == Ref("c")
    assert late.heartbeat("b", 3) == 25
