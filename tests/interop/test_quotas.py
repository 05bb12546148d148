"""Quotas of clients beside a real Kafka, and through its tools."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from math import inf, nan
from pathlib import Path
from typing import Any, Final

import pytest

from seglog.core.rates import Rate, SimpleRate, TokenBucket, Window
from seglog.protocol.apis import ApiKey
from seglog.records.record import NewRecord, encode_batch
from tests.clients.java_tools import Steps
from tests.clients.servers import Server
from tests.kafka.jars import CURRENT
from tests.kafka.tools import run_java
from tests.sequences.both import Both

PRODUCE, FETCH, REQUEST, MUTATION = (
    "producer_byte_rate",
    "consumer_byte_rate",
    "request_percentage",
    "controller_mutation_rate",
)
CONNECTIONS: Final = "connection_creation_rate"
USER: Final = "ANONYMOUS"
_numbers = itertools.count()
Entity = Mapping[str, str | None]


@pytest.fixture(autouse=True)
def _no_quotas_after(both: Both) -> Iterator[None]:
    """Other tests use the same Kafka."""
    yield
    entries = both.real.wire("at last").ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, components=[], strict=False).entries
    for entry in entries:
        entity = {part.entity_type: part.entity_name for part in entry.entity}
        alter(both, (entity, dict.fromkeys(value.key for value in entry.values)), wire="at last")


def entry(entity: Entity, quotas: Mapping[str, float | None]) -> dict[str, Any]:
    return {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()],
        "ops": [
            {"key": key, "value": 0.0 if value is None else value, "remove": value is None}
            for key, value in quotas.items()
        ],
    }


def alter(
    both: Both, *changes: tuple[Entity, Mapping[str, float | None]], validate_only: bool = False, wire: str = ""
) -> Any:
    entries = [entry(*change) for change in changes]
    return both.same(ApiKey.ALTER_CLIENT_QUOTAS, wire=wire, entries=entries, validate_only=validate_only)


def described(both: Both, *components: tuple[str, int, str | None], strict: bool = False) -> Any:
    wanted = [{"entity_type": kind, "match_type": match, "match": name} for kind, match, name in components]
    return both.same(ApiKey.DESCRIBE_CLIENT_QUOTAS, eventually=True, components=wanted, strict=strict)


def put(both: Both, *changes: tuple[Entity, Mapping[str, float | None]]) -> None:
    """Change quotas, and wait until they are in force. Kafka's broker shows a change a moment before that, but no later
    one before."""
    alter(both, *changes, wire="admin")
    described(both)
    alter(both, ({"client-id": f"later-{next(_numbers)}"}, {FETCH: 1e9}), wire="admin")
    described(both)


def test_quotas_are_validated_as_in_kafka(both: Both) -> None:
    entities: Sequence[Entity] = (
        {"user": "ann"},
        {"user": None},
        {"client-id": "app"},
        {"client-id": None},
        {"user": "ann", "client-id": "app"},
        {"user": None, "client-id": None},
        {"user": 'CN=ann, O="x"/y,z%', "client-id": "..,=%"},
        {"ip": "127.0.0.9"},
        {"ip": "::1"},
        {"ip": "localhost"},
        {"ip": None},
        {"ip": "no.such.host.invalid"},
        {"ip": "1.2.3.4", "user": "ann"},
        {"ip": None, "client-id": "app"},
        {"user": ""},
        {"client-id": ""},
        {"ip": ""},
        {"group": "g"},
        {},
    )
    changes: Sequence[Mapping[str, float | None]] = (
        {PRODUCE: 1024.0},
        {PRODUCE: 2048.0, FETCH: 1.0, REQUEST: 12.5, MUTATION: 0.25},
        {CONNECTIONS: 5.0},
        {CONNECTIONS: 1.5},
        {CONNECTIONS: 2.0**31},
        {PRODUCE: 0.0},
        {PRODUCE: -1.0},
        {PRODUCE: 1.5},
        {PRODUCE: 1.0000001},
        {PRODUCE: 2.0**63},
        {PRODUCE: 1e19},
        {PRODUCE: inf},
        {FETCH: nan},
        {REQUEST: inf},
        {"no_such": 5.0},
        {"no_such": None},
        {PRODUCE: None, FETCH: None},
        {},
    )
    for entity in entities:
        for change in changes:
            alter(both, (entity, change))
    described(both)
    for change in (*changes, {PRODUCE: 7.0, "no_such": 7.0}):
        alter(both, ({"user": "ann"}, change), validate_only=True)
        described(both, ("user", 0, "ann"))


def test_entities_of_one_request_are_changed_or_refused_as_in_kafka(both: Both) -> None:
    one, other = {"user": "ann"}, {"user": "bob", "client-id": None}
    alter(both, (one, {PRODUCE: 5.0}), (other, {FETCH: 6.0}))
    alter(both, (one, {PRODUCE: 7.0}), (one, {FETCH: 7.0}), (other, {FETCH: -1.0}))
    described(both)
    twice = entry(one, {PRODUCE: 8.0})
    twice["ops"] *= 2
    both.same(ApiKey.ALTER_CLIENT_QUOTAS, entries=[twice], validate_only=False)
    twice = entry(one, {PRODUCE: 8.0})
    twice["entity"].append({"entity_type": "user", "entity_name": "bob"})
    both.same(ApiKey.ALTER_CLIENT_QUOTAS, entries=[twice], validate_only=False)
    both.same(ApiKey.ALTER_CLIENT_QUOTAS, 0, entries=[entry(other, {REQUEST: 9.0})], validate_only=False)
    described(both)
    both.same(ApiKey.DESCRIBE_CLIENT_QUOTAS, 0, components=[], strict=False)


def test_filters_choose_as_in_kafka(both: Both) -> None:
    users, clients = ("ann", "bob", None), ("app", None)
    entities: list[Entity] = [*({"user": user} for user in users), *({"client-id": client} for client in clients)]
    entities.extend({"user": user, "client-id": client} for user in users for client in clients)
    entities.extend([{"ip": "127.0.0.9"}, {"ip": None}])
    alter(both, *((entity, {CONNECTIONS if "ip" in entity else PRODUCE: 5.0}) for entity in entities))
    components = [(kind, *rest) for kind in ("user", "client-id", "ip") for rest in ((0, "ann"), (1, None), (2, None))]
    components += [("client-id", 0, "app"), ("ip", 0, "127.0.0.9"), ("user", 0, "nobody")]
    for strict in (True, False):
        described(both, strict=strict)
        for first in components:
            described(both, first, strict=strict)
            for second in components:
                described(both, first, second, strict=strict)
    for wrong in (("", 0, "x"), ("group", 0, "x"), ("user", 3, None), ("user", 0, None), ("user", 1, "x")):
        described(both, wrong)
    described(both, ("user", 2, "x"))


LEVELS: Final[Sequence[Entity]] = (
    {"user": USER, "client-id": "own"},
    {"user": USER, "client-id": None},
    {"user": USER},
    {"user": None, "client-id": "own"},
    {"user": None, "client-id": None},
    {"user": None},
    {"client-id": "own"},
    {"client-id": None},
)
"""From the one that decides first."""
TINY, HUGE = 1.0, 1e12


def produced(both: Both, topic: str, client_id: str) -> bool:
    """Whether a small request is throttled."""
    batch = bytes(encode_batch([NewRecord(b"v" * 50, b"k", 1_600_000_000_000)]))
    partition = {"index": 0, "records": batch}
    data = [{"name": topic, "partition_data": [partition]}]
    name = f"client-id={client_id}"
    answer = both.ask(ApiKey.PRODUCE, 9, wire=name, transactional_id=None, acks=1, timeout=30_000, topic_data=data)
    for side in both.sides:
        side.drop(name)  # it is muted
    return bool(answer.ours.throttle_time)


def made_topic(both: Both, name: str) -> str:
    wanted = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    both.same(ApiKey.CREATE_TOPICS, 4, topics=[wanted], timeout=30_000, validate_only=False)
    asked = [{"name": name, "partitions": [{"partition_index": 0, "timestamp": -1}]}]
    both.same(ApiKey.LIST_OFFSETS, 4, eventually=True, replica_id=-1, isolation_level=0, topics=asked)
    return name


def test_levels_take_precedence_as_in_kafka(both: Both) -> None:
    topic = made_topic(both, "quota-levels")
    for place in range(len(LEVELS)):
        for mine, later in ((TINY, HUGE), (HUGE, TINY)):
            client = f"app-{next(_numbers)}"
            levels = [
                {kind: client if name == "own" else name for kind, name in level.items()} for level in LEVELS[place:]
            ]
            quotas = [(level, {PRODUCE: later if at else mine}) for at, level in enumerate(levels)]
            put(both, *quotas)
            assert produced(both, topic, client) == (mine == TINY or (place == len(LEVELS) - 1 and later == mine))
            alter(both, *((level, {PRODUCE: None}) for level in levels), wire="admin")
    described(both)


def test_a_fetch_beyond_the_quota_is_empty_as_in_kafka(both: Both) -> None:
    topic = made_topic(both, "quota-fetch")
    batch = bytes(encode_batch([NewRecord(b"v" * 3_000, b"k", 1_600_000_000_000)]))
    for _ in range(8):
        data = [{"name": topic, "partition_data": [{"index": 0, "records": batch}]}]
        both.same(ApiKey.PRODUCE, 9, transactional_id=None, acks=1, timeout=30_000, topic_data=data)
    for client, rate in (("slow", 100.0), ("fast", 1e9)):  # one batch is too much for the first, at any time
        put(both, ({"client-id": client}, {FETCH: rate}))
        for number in range(3):
            wanted = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20, "current_leader_epoch": -1}
            for session_epoch in (-1, 0):
                contents = {
                    "replica_id": -1,
                    "max_wait": 0,
                    "min_bytes": 1,
                    "max_bytes": 1 << 20,
                    "isolation_level": 0,
                    "session_id": 0,
                    "session_epoch": session_epoch,
                    "forgotten_topics_data": [],
                    "rack_id": "",
                    "topics": [{"topic": topic, "partitions": [{**wanted, "log_start_offset": -1}]}],
                }
                wire = f"{client}-{number}-{session_epoch} client-id={client}"
                both.same(ApiKey.FETCH, 11, wire=wire, **contents)


@pytest.mark.parametrize("strict", [True, False])
def test_mutations_beyond_the_quota_are_refused_as_in_kafka(both: Both, strict: bool) -> None:
    client = f"maker-{strict}"
    put(both, ({"client-id": client}, {MUTATION: 0.001}))

    def ask(key: ApiKey, version: int, **contents: Any) -> Any:
        return both.same(key, version, wire=f"{next(_numbers)} client-id={client}", timeout=30_000, **contents)

    def topics(*names: str, partitions: int = 1) -> list[dict[str, Any]]:
        rest = {"num_partitions": partitions, "replication_factor": 1, "assignments": [], "configs": []}
        return [{"name": f"{client}-{name}", **rest} for name in names]

    create, grow, delete = (6, 3, 5) if strict else (4, 2, 4)
    ask(ApiKey.CREATE_TOPICS, 4, topics=topics("before", "that", partitions=2), validate_only=False)
    ask(ApiKey.CREATE_TOPICS, create, topics=topics("only"), validate_only=True)
    ask(ApiKey.CREATE_TOPICS, create, topics=topics("first", "second"), validate_only=False)
    ask(ApiKey.CREATE_TOPICS, create, topics=topics("first"), validate_only=False)
    more = [{"name": f"{client}-before", "count": 4, "assignments": None}]
    ask(ApiKey.CREATE_PARTITIONS, grow, topics=more, validate_only=True)
    ask(ApiKey.CREATE_PARTITIONS, grow, topics=more, validate_only=False)
    ask(ApiKey.CREATE_PARTITIONS, grow, topics=[{**more[0], "count": 1}], validate_only=False)
    ask(ApiKey.DELETE_TOPICS, delete, topic_names=[f"{client}-that", f"{client}-none"])


def test_kafkas_tool_sets_and_describes_quotas(tmp_path: Path) -> None:
    both = ("--entity-type", "users", "--entity-name", "ann", "--entity-type", "clients", "--entity-default")
    with Server("ours", tmp_path / "log") as server:
        steps = Steps(CURRENT, server.bootstrap)
        steps.add("alter", "configs", "--alter", "--user", "ann", "--add-config", f"{PRODUCE}=1024,{REQUEST}=12.5")
        steps.add("pair", "configs", "--alter", *both, "--add-config", f"{FETCH}=2048")
        steps.add("ip", "configs", "--alter", "--ip", "127.0.0.9", "--add-config", f"{CONNECTIONS}=5")
        steps.add("default", "configs", "--alter", "--client-defaults", "--add-config", f"{MUTATION}=3")
        steps.add("users", "configs", "--describe", "--entity-type", "users")
        steps.add("clients", "configs", "--describe", "--entity-type", "clients")
        steps.add("of pair", "configs", "--describe", *both)
        steps.add("ips", "configs", "--describe", "--entity-type", "ips")
        steps.add("wrong", "configs", "--alter", "--user", "ann", "--add-config", f"{PRODUCE}=-5")
        steps.add("delete", "configs", "--alter", "--user", "ann", "--delete-config", PRODUCE)
        steps.add("then", "configs", "--describe", "--user", "ann")
        ran = steps.run()
    assert f"Quota configs for user-principal 'ann' are {PRODUCE}=1024.0, {REQUEST}=12.5" in ran["users"].out, ran
    assert f"Quota configs for the default client-id are {MUTATION}=3.0" in ran["clients"].out, ran
    assert f"Quota configs for user-principal 'ann', the default client-id are {FETCH}=2048.0" in ran["of pair"].out
    assert f"Quota configs for ip '127.0.0.9' are {CONNECTIONS}=5.0" in ran["ips"].out, ran
    assert f"Quota {PRODUCE} must be greater than 0" in ran["wrong"].out + ran["wrong"].err, ran
    assert f"are {REQUEST}=12.5" in ran["then"].out, ran


def test_measures_are_those_of_kafka(tmp_path: Path) -> None:
    rng = random.Random(124)
    runs: list[dict[str, Any]] = []
    for number in range(300):
        now_ms, steps = 1_600_000_000_000, []
        for _ in range(rng.randrange(1, 60)):
            now_ms += rng.choice((0, 1, rng.randrange(300), rng.randrange(3_000), rng.randrange(30_000)))
            steps.append([now_ms, float(rng.choice((1, rng.randrange(2_000), rng.randrange(100_000), -500)))])
        kind = ("rate", "simple", "bucket")[number % 3]
        samples, seconds = rng.choice((11, 11, 2, 1, 30)), rng.choice((1, 1, 2, 5))
        quota = rng.choice((1.0, 0.5, 333.0, 10_000.0))
        runs.append({"kind": kind, "samples": samples, "seconds": seconds, "quota": quota, "steps": steps})
    path = tmp_path / "runs"
    path.write_text("\n".join(map(json.dumps, runs)))
    expected = [json.loads(line) for line in run_java("Rates", [str(path)], with_ours=True).splitlines()]
    assert len(expected) == len(runs)
    for run, times in zip(runs, expected, strict=True):
        assert _throttle_times(**run) == times, run


def _throttle_times(kind: str, samples: int, seconds: int, quota: float, steps: list[list[float]]) -> list[int]:
    window, found = Window(samples, seconds * 1000), []
    bucket, rate = TokenBucket(), Rate() if kind == "rate" else SimpleRate()
    for now, value in steps:
        if kind == "bucket":
            bucket.record(window, quota, value, int(now))
            found.append(bucket.throttle_ms(window, quota, int(now)))
        else:
            rate.record(window, value, int(now))
            found.append(rate.throttle_ms(window, quota, int(now)))
    return found


def test_throttles_of_replication_are_set_and_described_as_in_kafka(both: Both) -> None:
    topic = made_topic(both, "quota-replicas")
    rates = ["leader.replication.throttled.rate", "follower.replication.throttled.rate"]
    lists = ["leader.replication.throttled.replicas", "follower.replication.throttled.replicas"]

    def change(kind: int, name: str, key: str, operation: int, value: str | None) -> None:
        config = {"name": key, "config_operation": operation, "value": value}
        resource = {"resource_type": kind, "resource_name": name, "configs": [config]}
        both.same(ApiKey.INCREMENTAL_ALTER_CONFIGS, resources=[resource], validate_only=False)
        for kind_, name_, keys in ((4, "1", rates), (4, "", rates), (2, topic, lists)):
            asked = {"resource_type": kind_, "resource_name": name_, "configuration_keys": keys}
            both.same(ApiKey.DESCRIBE_CONFIGS, eventually=True, resources=[asked], include_synonyms=True)

    for key in rates:
        for name, operation, value in (
            ("1", 0, "5000"),
            ("", 0, "6000"),
            ("1", 0, "0"),
            ("1", 0, "-1"),
            ("1", 0, "soon"),
            ("1", 1, None),
            ("1", 1, ""),
            ("", 1, None),
        ):
            change(4, name, key, operation, value)
    for key in lists:
        for operation, value in (
            (0, "0:1,1:1"),
            (0, "*"),
            (0, "0:1,*"),
            (0, "0-1"),
            (0, ""),
            (0, "0:1"),
            (2, "1:1"),
            (3, "0:1"),
            (1, None),
        ):
            change(2, topic, key, operation, value)
    change(4, "1", "replica.alter.log.dirs.io.max.bytes.per.second", 1, "")
