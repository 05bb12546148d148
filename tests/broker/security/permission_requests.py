"""A request of each API in the table of permissions, and users with different ACLs that send them. Most requests are
about something that a user may use, something that it may not, and something that does not exist."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from seglog.broker.security.acls import Acl, Entry, Operation, Pattern, PatternType, Permission, ResourceType
from seglog.protocol.apis import ApiKey
from seglog.records.record import NewRecord, encode_batch
from tests.sequences.batches import START_MS

__all__ = ["NAMES", "TOPICS", "USERS", "Request", "acls_of", "creation", "requests"]

Request = tuple[ApiKey, int, dict[str, Any]]
_Ids = Mapping[str, UUID]
TOPICS: Final = ("open", "shut")
NAMES: Final = (*TOPICS, "absent")
_UNKNOWN: Final = UUID(int=12345)
_NEVER: Final = 1 << 15
_PRODUCER: Final = {"producer_id": 1 << 40, "producer_epoch": 0}

TOPIC, GROUP, CLUSTER, TRANSACTION = (
    ResourceType.TOPIC,
    ResourceType.GROUP,
    ResourceType.CLUSTER,
    ResourceType.TRANSACTIONAL_ID,
)
_OF: Final = {
    Pattern(TOPIC, "open"): "READ WRITE CREATE DELETE ALTER DESCRIBE DESCRIBE_CONFIGS ALTER_CONFIGS ALL",
    Pattern(GROUP, "g"): "READ DELETE DESCRIBE DESCRIBE_CONFIGS ALTER_CONFIGS ALL",
    Pattern(CLUSTER, "kafka-cluster"): (
        "CREATE DELETE ALTER DESCRIBE CLUSTER_ACTION DESCRIBE_CONFIGS ALTER_CONFIGS IDEMPOTENT_WRITE ALL"
    ),
    Pattern(TRANSACTION, "t"): "WRITE DESCRIBE ALL",
}
_Grants = Sequence[tuple[Pattern, Operation, Permission]]


def _grants() -> Iterator[tuple[str, _Grants]]:
    """None, each operation alone, and some together."""
    yield "nobody", []
    for pattern, names in _OF.items():
        for name in names.split():
            user = f"{pattern.resource.name}-{name}".lower().replace("_", "")
            yield user, [(pattern, Operation[name], Permission.ALLOW)]
    all_, read, write = Operation.ALL, Operation.READ, Operation.WRITE
    allow, deny = Permission.ALLOW, Permission.DENY
    for prefix, permission in (("allowed", allow), ("denied", deny)):
        yield (
            f"{prefix}-prefix",
            [
                (Pattern(TOPIC, "o", PatternType.PREFIXED), all_, permission),
                (Pattern(TOPIC, "*"), read, allow),
                (Pattern(GROUP, "g", PatternType.PREFIXED), read, allow),
            ],
        )
    yield "member", [(Pattern(GROUP, "*"), all_, allow), (Pattern(TOPIC, "open"), read, allow)]
    yield "producer", [(Pattern(TRANSACTION, "*"), all_, allow), (Pattern(TOPIC, "open"), write, allow)]
    yield (
        "stream",
        [
            (Pattern(TRANSACTION, "*"), all_, allow),
            (Pattern(GROUP, "*"), all_, allow),
            (Pattern(TOPIC, "*"), write, allow),
            (Pattern(TOPIC, "open"), read, allow),
            (Pattern(TOPIC, "shut"), write, deny),
        ],
    )
    yield "blind", [(Pattern(TOPIC, "*"), all_, allow), (Pattern(TOPIC, "open"), Operation.DESCRIBE, deny)]


USERS: Final[Mapping[str, _Grants]] = dict(_grants())


def acls_of(users: Mapping[str, _Grants] = USERS) -> list[Acl]:
    return [
        Acl(pattern, Entry(f"User:{user}", "*", operation, permission))
        for user, grants in users.items()
        for pattern, operation, permission in grants
    ]


def creation(acl: Acl) -> dict[str, Any]:
    """An element of CreateAcls."""
    pattern, entry = acl
    return {
        "resource_type": int(pattern.resource),
        "resource_name": pattern.name,
        "resource_pattern_type": int(pattern.type),
        "principal": entry.principal,
        "host": entry.host,
        "operation": int(entry.operation),
        "permission_type": int(entry.permission),
    }


def requests(ids: _Ids) -> Iterator[Request]:
    """``ids`` are those of the `TOPICS`."""
    for some in (
        _of_records,
        _of_metadata,
        _of_offsets,
        _of_groups,
        _of_transactions,
        _of_topics,
        _of_configs,
        _of_tokens,
    ):
        yield from some(ids)
    yield from _of_cluster()


def _named(ids: _Ids, topic: str, version: int, since: int = _NEVER, key: str = "name", **more: Any) -> dict[str, Any]:
    """A topic, by its id from version ``since`` on."""
    return {"topic_id": ids.get(topic, _UNKNOWN), **more} if version >= since else {key: topic, **more}


def _batch(**of: Any) -> list[dict[str, Any]]:
    return [{"index": 0, "records": bytes(encode_batch([NewRecord(b"v", timestamp=START_MS)], **of))}]


def _of_records(ids: _Ids) -> Iterator[Request]:
    for version in (3, 9, 13):
        topics = [_named(ids, name, version, 13, partition_data=_batch()) for name in NAMES]
        yield ApiKey.PRODUCE, version, {"acks": 1, "timeout": 1000, "transactional_id": None, "topic_data": topics}
    for version in (4, 12, 13, 17):
        part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
        topics = [_named(ids, name, version, 13, "topic", partitions=[part]) for name in NAMES]
        limits = {"max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20, "isolation_level": 0}
        who = {"replica_id": -1} if version < 15 else {"replica_state": {"replica_id": -1}}
        yield ApiKey.FETCH, version, {**who, **limits, "topics": topics, "forgotten_topics_data": []}
    offsets = [{"name": name, "partitions": [{"partition_index": 0, "timestamp": -1}]} for name in NAMES]
    for version in (1, 7, 10):
        yield ApiKey.LIST_OFFSETS, version, {"replica_id": -1, "isolation_level": 0, "topics": offsets}
    asked = [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]
    epochs = [{"topic": name, "partitions": asked} for name in NAMES]
    yield ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, {"replica_id": -1, "topics": epochs}
    deletions = [{"name": name, "partitions": [{"partition_index": 1, "offset": 0}]} for name in NAMES]
    yield ApiKey.DELETE_RECORDS, 2, {"topics": deletions, "timeout": 10_000}
    yield ApiKey.DESCRIBE_PRODUCERS, 0, {"topics": [{"name": name, "partition_indexes": [0]} for name in NAMES]}


def _of_metadata(ids: _Ids) -> Iterator[Request]:
    for version in (1, 4, 8, 12, 13):
        more: dict[str, Any] = {"allow_auto_topic_creation": False} if version >= 4 else {}
        if version >= 8:
            more["include_topic_authorized_operations"] = True
        if 8 <= version <= 10:
            more["include_cluster_authorized_operations"] = True
        # Version 1 creates what is missing.
        missing = [] if version == 1 else [{"name": "absent"}]
        for topics in (None, [*({"name": name} for name in TOPICS), *missing], [{"name": "shut"}]):
            yield ApiKey.METADATA, version, {"topics": topics, **more}
        if version >= 12:
            by_id = [_named(ids, name, version, 12, name=None) for name in NAMES]
            yield ApiKey.METADATA, version, {"topics": by_id, **more}
    pages = {"response_partition_limit": 100, "cursor": None}
    yield ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, {"topics": [{"name": name} for name in NAMES], **pages}
    for cursor in (None, {"topic_name": "p", "partition_index": 0}):
        yield ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, {**pages, "topics": [], "cursor": cursor}


def _of_offsets(ids: _Ids) -> Iterator[Request]:
    for version in (2, 9, 10):
        part = {"partition_index": 0, "committed_offset": 1}
        topics = [_named(ids, name, version, 10, partitions=[part]) for name in NAMES]
        member = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": ""}
        yield ApiKey.OFFSET_COMMIT, version, {**member, "topics": topics}
    numbers: dict[str, Any] = {"partition_indexes": [0]}
    for version in (1, 2, 7):
        yield ApiKey.OFFSET_FETCH, version, {"group_id": "g", "topics": [{"name": one, **numbers} for one in NAMES]}
    yield ApiKey.OFFSET_FETCH, 7, {"group_id": "g", "topics": None}
    for version in (8, 10):
        topics = [_named(ids, name, version, 10, **numbers) for name in NAMES]
        groups = [{"group_id": "g", "topics": topics}, {"group_id": "h", "topics": None}]
        yield ApiKey.OFFSET_FETCH, version, {"groups": groups}
    for group in ("g", "h"):
        topics = [{"name": name, "partitions": [{"partition_index": 1}]} for name in NAMES]
        yield ApiKey.OFFSET_DELETE, 0, {"group_id": group, "topics": topics}


def _of_groups(_: _Ids) -> Iterator[Request]:
    for version in (0, 1, 3):
        for key in ("g", "h"):
            yield ApiKey.FIND_COORDINATOR, version, {"key": key, **({"key_type": 0} if version else {})}
            if version:
                yield ApiKey.FIND_COORDINATOR, version, {"key": {"g": "t", "h": "u"}[key], "key_type": 1}
    for version in (4, 6):
        yield ApiKey.FIND_COORDINATOR, version, {"key_type": 0, "coordinator_keys": ["g", "h"]}
        yield ApiKey.FIND_COORDINATOR, version, {"key_type": 1, "coordinator_keys": ["t", "u"]}
    for group in ("g", "h"):
        times = {"session_timeout": 10_000, "rebalance_timeout": 10_000}
        protocols = {"protocol_type": "consumer", "protocols": [{"name": "range", "metadata": b""}]}
        for version in (4, 6, 9):
            yield ApiKey.JOIN_GROUP, version, {"group_id": group, "member_id": "", **times, **protocols}
        member = {"group_id": group, "member_id": "m", "generation_id": 0}
        for version in (1, 4):
            yield ApiKey.HEARTBEAT, version, member
        yield ApiKey.LEAVE_GROUP, 0, {"group_id": group, "member_id": "m"}
        for version in (3, 5):
            leaving = [{"member_id": "m", "group_instance_id": None}]
            yield ApiKey.LEAVE_GROUP, version, {"group_id": group, "members": leaving}
        names = {"protocol_type": "consumer", "protocol_name": "range", "assignments": []}
        yield ApiKey.SYNC_GROUP, 5, {**member, **names}
        beat: dict[str, Any] = {"group_id": group, "member_id": "m" * 22, "member_epoch": 7, "topic_partitions": []}
        for topics in (["open"], ["open", "shut"], None):
            yield ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, {**beat, "subscribed_topic_names": topics}
    yield ApiKey.DESCRIBE_GROUPS, 0, {"groups": ["g", "h"]}
    for version in (3, 6):
        yield ApiKey.DESCRIBE_GROUPS, version, {"groups": ["g", "h"], "include_authorized_operations": True}
    yield ApiKey.LIST_GROUPS, 5, {"states_filter": [], "types_filter": []}
    yield ApiKey.CONSUMER_GROUP_DESCRIBE, 1, {"group_ids": ["g", "h"], "include_authorized_operations": True}
    yield ApiKey.DELETE_GROUPS, 2, {"groups_names": ["g-absent", "h-absent"]}


def _of_transactions(ids: _Ids) -> Iterator[Request]:
    for transaction in (None, "t", "u"):
        expected = {"transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
        yield ApiKey.INIT_PRODUCER_ID, 5, {"transactional_id": transaction, **expected}
    for transaction in ("t", "u"):
        for names in (("open",), ("open", "shut"), NAMES):
            old = {"transactional_id": transaction, **_PRODUCER}
            topics = [{"name": name, "partitions": [0]} for name in names]
            asked = {f"v3_and_below_{name}": value for name, value in {**old, "topics": topics}.items()}
            yield ApiKey.ADD_PARTITIONS_TO_TXN, 3, asked
        for group in ("g", "h"):
            one = {"transactional_id": transaction, **_PRODUCER, "group_id": group}
            yield ApiKey.ADD_OFFSETS_TO_TXN, 4, one
            for version in (3, 5):
                part = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1}
                topics = [_named(ids, name, version, partitions=[part]) for name in NAMES]
                member = {"generation_id": -1, "member_id": ""}
                yield ApiKey.TXN_OFFSET_COMMIT, version, {**one, **member, "topics": topics}
        for version in (3, 5):
            ended = {"transactional_id": transaction, **_PRODUCER, "committed": True}
            yield ApiKey.END_TXN, version, ended
        data = _batch(**_PRODUCER, base_sequence=0, transactional=True)
        topics = [{"name": name, "partition_data": data} for name in TOPICS]
        produce = {"acks": -1, "timeout": 1000, "transactional_id": transaction, "topic_data": topics}
        yield ApiKey.PRODUCE, 9, produce
    verified = [{"name": "open", "partitions": [0]}]
    asking = {"transactional_id": "t", **_PRODUCER, "verify_only": True, "topics": verified}
    yield ApiKey.ADD_PARTITIONS_TO_TXN, 5, {"transactions": [asking]}
    yield ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": ["t", "u", "v"]}
    yield ApiKey.LIST_TRANSACTIONS, 1, {"state_filters": [], "producer_id_filters": [], "duration_filter": -1}
    marker = {"producer_epoch": 0, "transaction_result": False, "coordinator_epoch": 0}
    topics = [{"name": "absent", "partition_indexes": [0]}]
    yield ApiKey.WRITE_TXN_MARKERS, 1, {"markers": [{"producer_id": 1 << 40, **marker, "topics": topics}]}


def _of_topics(_: _Ids) -> Iterator[Request]:
    """None of them is carried out: with the permission, it is only validated or about what does not exist."""
    for version in (4, 7):
        fresh = {"num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        topics = [{"name": name, **fresh} for name in ("open", "opener", "new", "twice", "twice")]
        yield ApiKey.CREATE_TOPICS, version, {"topics": topics, "timeout": 10_000, "validate_only": True}
    for version in (1, 5):
        yield ApiKey.DELETE_TOPICS, version, {"topic_names": ["absent", "opener"], "timeout": 10_000}
    by_id = [{"name": None, "topic_id": _UNKNOWN}, {"name": "absent", "topic_id": None}]
    yield ApiKey.DELETE_TOPICS, 6, {"topics": by_id, "timeout": 10_000}
    grown = [{"name": name, "count": 3, "assignments": None} for name in (*NAMES, "twice", "twice")]
    yield ApiKey.CREATE_PARTITIONS, 3, {"topics": grown, "timeout": 10_000, "validate_only": True}


def _of_tokens(_: _Ids) -> Iterator[Request]:
    times = {"renewers": [], "max_lifetime": -1}
    yield (
        ApiKey.CREATE_DELEGATION_TOKEN,
        3,
        {"owner_principal_type": "User", "owner_principal_name": "someone", **times},
    )
    yield ApiKey.DESCRIBE_DELEGATION_TOKEN, 3, {"owners": None}


def _of_configs(_: _Ids) -> Iterator[Request]:
    resources = [(2, "open"), (2, "shut"), (2, "absent"), (32, "g"), (32, "h"), (4, "1")]
    keys = ["cleanup.policy"]
    described = [{"resource_type": kind, "resource_name": name, "configuration_keys": keys} for kind, name in resources]
    more = {"include_synonyms": False, "include_documentation": False}
    yield ApiKey.DESCRIBE_CONFIGS, 4, {"resources": described, **more}
    for key, version in ((ApiKey.ALTER_CONFIGS, 2), (ApiKey.INCREMENTAL_ALTER_CONFIGS, 1)):
        changed = [{"resource_type": kind, "resource_name": name, "configs": []} for kind, name in resources]
        yield key, version, {"resources": changed, "validate_only": True}


def _of_cluster() -> Iterator[Request]:
    yield ApiKey.DESCRIBE_CLUSTER, 1, {"include_cluster_authorized_operations": True, "endpoint_type": 1}
    yield ApiKey.DESCRIBE_LOG_DIRS, 4, {"topics": [{"topic": "open", "partitions": [0]}]}
    yield ApiKey.LIST_CONFIG_RESOURCES, 1, {"resource_types": [4]}
    any_ = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
    wanted = {**any_, "resource_name_filter": "no-such", "principal_filter": None, "host_filter": None}
    yield ApiKey.DESCRIBE_ACLS, 3, wanted
    yield ApiKey.DELETE_ACLS, 3, {"filters": [wanted, wanted]}
    unnamed = creation(Acl(Pattern(TOPIC, ""), Entry("User:x", "*", Operation.READ, Permission.ALLOW)))
    yield ApiKey.CREATE_ACLS, 3, {"creations": [unnamed, unnamed]}
    first = {"topic": "open", "partitions": [0]}
    yield ApiKey.ELECT_LEADERS, 2, {"election_type": 0, "topic_partitions": [first], "timeout": 10_000}
    cancelled = {"name": "open", "partitions": [{"partition_index": 0, "replicas": None}]}
    yield ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, {"timeout": 10_000, "topics": [cancelled]}
    listed = {"name": "open", "partition_indexes": [0]}
    yield ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, {"timeout": 10_000, "topics": [listed]}
    yield ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, {"components": [], "strict": False}
    quota = {"entity": [{"entity_type": "user", "entity_name": "a"}], "ops": []}
    yield ApiKey.ALTER_CLIENT_QUOTAS, 1, {"entries": [quota], "validate_only": True}
    yield ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, {"users": [{"name": "no-such-user"}]}
    deletions = [{"name": "no-such-user", "mechanism": number} for number in (1, 2)]
    yield ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, {"deletions": deletions, "upsertions": []}
    yield ApiKey.DESCRIBE_QUORUM, 2, {"topics": [{"topic_name": "x", "partitions": [{"partition_index": 0}]}]}
    update = {"feature": "x", "max_version_level": 1, "upgrade_type": 1}
    yield ApiKey.UPDATE_FEATURES, 1, {"timeout": 10_000, "feature_updates": [update], "validate_only": True}
    yield ApiKey.UNREGISTER_BROKER, 0, {"broker_id": 99}
    moved = {"path": "/no-such-directory", "topics": [{"name": "open", "partitions": [0]}]}
    yield ApiKey.ALTER_REPLICA_LOG_DIRS, 2, {"dirs": [moved]}
