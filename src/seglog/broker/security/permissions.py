"""The one table of permissions: for each API the operation that it needs, on which resource, and how a denial is
answered. `seglog.broker.security.guard` checks requests by it, and ``docs/permissions.md`` and tests are made from it.

Rules are those of ``KafkaApis`` and ``ControllerApis`` of Kafka 4.4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple

from seglog.broker.security.acls import Operation, ResourceType
from seglog.core.error_codes import ErrorCode
from seglog.protocol.apis import ApiKey


class Denied(Enum):
    """What a client gets that lacks the permission."""

    REQUEST = "the whole request is refused"
    ELEMENT = "this element is refused, and the others are answered"
    OMITTED = "left out of the answer"
    FIELD = "the field is empty"
    AS_CLIENT = "the request is one of a client"


class Need(NamedTuple):
    """``of`` is a list or field of the request (of the answer if what is denied is omitted); "" is the cluster, or some
    resource of the type. A client that has one of the permissions ``or_else`` needs no other."""

    operation: Operation
    resource: ResourceType
    of: str = ""
    denied: Denied = Denied.REQUEST
    or_else: Sequence[tuple[Operation, ResourceType]] = ()
    first: int = 0
    last: int = 1 << 15
    """The versions that need it."""
    note: str = ""

    @property
    def code(self) -> ErrorCode:
        return CODES[self.resource]


CODES: Final[Mapping[ResourceType, ErrorCode]] = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ResourceType.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    ResourceType.USER: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}

_TOPIC: Final = ResourceType.TOPIC
_GROUP: Final = ResourceType.GROUP
_CLUSTER: Final = ResourceType.CLUSTER
_TRANSACTION: Final = ResourceType.TRANSACTIONAL_ID
_READ: Final = Operation.READ
_WRITE: Final = Operation.WRITE
_CREATE: Final = Operation.CREATE
_DELETE: Final = Operation.DELETE
_ALTER: Final = Operation.ALTER
_DESCRIBE: Final = Operation.DESCRIBE
_ACTION: Final = Operation.CLUSTER_ACTION
_CONFIGS: Final = Operation.DESCRIBE_CONFIGS
_ALTER_CONFIGS: Final = Operation.ALTER_CONFIGS
_MEMBER: Final = (Need(_READ, _GROUP, "group_id"),)
_CHANGE_CLUSTER: Final = (Need(_ALTER, _CLUSTER),)
_SHOW_CLUSTER: Final = (Need(_DESCRIBE, _CLUSTER),)
_CHANGE_CONFIGS: Final = (
    Need(_ALTER_CONFIGS, _TOPIC, "resources", Denied.ELEMENT),
    Need(_ALTER_CONFIGS, _GROUP, "resources", Denied.ELEMENT),
    Need(_ALTER_CONFIGS, _CLUSTER, "resources", Denied.ELEMENT, note="of brokers and all others"),
)
_REPORTED: Final = "the operations that the client may do are reported, if it asks for them"

NEEDS: Final[Mapping[ApiKey, Sequence[Need]]] = {
    ApiKey.PRODUCE: (
        Need(_WRITE, _TRANSACTION, "transactional_id", note="if a batch is transactional"),
        Need(_WRITE, _TOPIC, "topics", Denied.ELEMENT),
    ),
    ApiKey.FETCH: (
        Need(_ACTION, _CLUSTER, "replica_id", note="if a broker sends it"),
        Need(_READ, _TOPIC, "topics", Denied.ELEMENT),
    ),
    ApiKey.LIST_OFFSETS: (Need(_DESCRIBE, _TOPIC, "topics", Denied.ELEMENT),),
    ApiKey.METADATA: (
        Need(_DESCRIBE, _TOPIC, "topics", Denied.ELEMENT, note="a request for all topics leaves it out"),
        Need(
            _CREATE,
            _TOPIC,
            "topics",
            Denied.ELEMENT,
            or_else=((_CREATE, _CLUSTER),),
            note="if the request would create it",
        ),
        Need(_DESCRIBE, _CLUSTER, "cluster_authorized_operations", Denied.FIELD, note=_REPORTED),
    ),
    ApiKey.OFFSET_COMMIT: (*_MEMBER, Need(_READ, _TOPIC, "topics", Denied.ELEMENT)),
    ApiKey.OFFSET_FETCH: (
        Need(_DESCRIBE, _GROUP, "groups", Denied.ELEMENT),
        Need(_DESCRIBE, _TOPIC, "topics", Denied.ELEMENT, note="a request for all topics leaves it out"),
    ),
    ApiKey.FIND_COORDINATOR: (
        Need(_DESCRIBE, _GROUP, "coordinator_keys", Denied.ELEMENT, note="key type 0"),
        Need(_DESCRIBE, _TRANSACTION, "coordinator_keys", Denied.ELEMENT, note="key type 1"),
    ),
    ApiKey.JOIN_GROUP: _MEMBER,
    ApiKey.HEARTBEAT: _MEMBER,
    ApiKey.LEAVE_GROUP: _MEMBER,
    ApiKey.SYNC_GROUP: _MEMBER,
    ApiKey.DESCRIBE_GROUPS: (Need(_DESCRIBE, _GROUP, "groups", Denied.ELEMENT, note=_REPORTED),),
    ApiKey.LIST_GROUPS: (Need(_DESCRIBE, _GROUP, "groups", Denied.OMITTED, or_else=((_DESCRIBE, _CLUSTER),)),),
    ApiKey.SASL_HANDSHAKE: (),
    ApiKey.API_VERSIONS: (),
    ApiKey.CREATE_TOPICS: (
        Need(_CREATE, _TOPIC, "topics", Denied.ELEMENT, or_else=((_CREATE, _CLUSTER),)),
        Need(_CONFIGS, _TOPIC, "topics", Denied.FIELD, note="the new topic's partitions and configuration are hidden"),
    ),
    ApiKey.DELETE_TOPICS: (
        Need(_DELETE, _TOPIC, "topics", Denied.ELEMENT, or_else=((_DELETE, _CLUSTER),)),
        Need(_DESCRIBE, _TOPIC, "topics", Denied.FIELD, note="the name of a topic that was given by id is hidden"),
    ),
    ApiKey.DELETE_RECORDS: (Need(_DELETE, _TOPIC, "topics", Denied.ELEMENT),),
    ApiKey.INIT_PRODUCER_ID: (
        Need(_WRITE, _TRANSACTION, "transactional_id", note="if there is one"),
        Need(
            Operation.IDEMPOTENT_WRITE,
            _CLUSTER,
            or_else=((_WRITE, _TOPIC),),
            note="without a transactional id; to write to any topic suffices",
        ),
    ),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (
        Need(_DESCRIBE, _TOPIC, "topics", Denied.ELEMENT, or_else=((_ACTION, _CLUSTER),)),
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: (
        Need(_ACTION, _CLUSTER, first=4),
        Need(_WRITE, _TRANSACTION, "transactions", Denied.ELEMENT, last=3),
        Need(_WRITE, _TOPIC, "topics", Denied.ELEMENT, last=3, note="the others are OPERATION_NOT_ATTEMPTED"),
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: (Need(_WRITE, _TRANSACTION, "transactional_id"), *_MEMBER),
    ApiKey.END_TXN: (Need(_WRITE, _TRANSACTION, "transactional_id"),),
    ApiKey.WRITE_TXN_MARKERS: (Need(_ACTION, _CLUSTER, or_else=((_ALTER, _CLUSTER),)),),
    ApiKey.TXN_OFFSET_COMMIT: (
        Need(_WRITE, _TRANSACTION, "transactional_id"),
        *_MEMBER,
        Need(_READ, _TOPIC, "topics", Denied.ELEMENT),
    ),
    ApiKey.DESCRIBE_ACLS: _SHOW_CLUSTER,
    ApiKey.CREATE_ACLS: _CHANGE_CLUSTER,
    ApiKey.DELETE_ACLS: _CHANGE_CLUSTER,
    ApiKey.DESCRIBE_CONFIGS: (
        Need(_CONFIGS, _TOPIC, "resources", Denied.ELEMENT),
        Need(_CONFIGS, _GROUP, "resources", Denied.ELEMENT),
        Need(_CONFIGS, _CLUSTER, "resources", Denied.ELEMENT, note="of brokers and all others"),
    ),
    ApiKey.ALTER_CONFIGS: _CHANGE_CONFIGS,
    ApiKey.ALTER_REPLICA_LOG_DIRS: _CHANGE_CLUSTER,
    ApiKey.DESCRIBE_LOG_DIRS: _SHOW_CLUSTER,
    ApiKey.SASL_AUTHENTICATE: (),
    ApiKey.CREATE_DELEGATION_TOKEN: (
        Need(Operation.CREATE_TOKENS, ResourceType.USER, "owner_principal_name", note="of another owner"),
    ),
    # The owner and the renewers of a token may, and no ACL allows it to others.
    ApiKey.RENEW_DELEGATION_TOKEN: (),
    ApiKey.EXPIRE_DELEGATION_TOKEN: (),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: (
        Need(
            _DESCRIBE,
            ResourceType.DELEGATION_TOKEN,
            "tokens",
            Denied.OMITTED,
            note="that the client neither owns, asked for nor may renew",
        ),
        Need(
            Operation.DESCRIBE_TOKENS,
            ResourceType.USER,
            "tokens",
            Denied.OMITTED,
            note="instead, for all tokens of the owner",
        ),
    ),
    ApiKey.CREATE_PARTITIONS: (Need(_ALTER, _TOPIC, "topics", Denied.ELEMENT),),
    ApiKey.DELETE_GROUPS: (Need(_DELETE, _GROUP, "groups_names", Denied.ELEMENT),),
    ApiKey.ELECT_LEADERS: _CHANGE_CLUSTER,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _CHANGE_CONFIGS,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _CHANGE_CLUSTER,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _SHOW_CLUSTER,
    ApiKey.OFFSET_DELETE: (Need(_DELETE, _GROUP, "group_id"), Need(_READ, _TOPIC, "topics", Denied.ELEMENT)),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (Need(_CONFIGS, _CLUSTER),),
    ApiKey.ALTER_CLIENT_QUOTAS: (Need(_ALTER_CONFIGS, _CLUSTER),),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _SHOW_CLUSTER,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _CHANGE_CLUSTER,
    ApiKey.DESCRIBE_QUORUM: _SHOW_CLUSTER,
    ApiKey.UPDATE_FEATURES: _CHANGE_CLUSTER,
    ApiKey.DESCRIBE_CLUSTER: (
        Need(_DESCRIBE, _CLUSTER, "cluster_authorized_operations", Denied.FIELD, note=_REPORTED),
    ),
    ApiKey.DESCRIBE_PRODUCERS: (Need(_READ, _TOPIC, "topics", Denied.ELEMENT),),
    ApiKey.UNREGISTER_BROKER: _CHANGE_CLUSTER,
    ApiKey.DESCRIBE_TRANSACTIONS: (
        Need(_DESCRIBE, _TRANSACTION, "transactional_ids", Denied.ELEMENT),
        Need(_DESCRIBE, _TOPIC, "topics", Denied.OMITTED),
    ),
    ApiKey.LIST_TRANSACTIONS: (Need(_DESCRIBE, _TRANSACTION, "transaction_states", Denied.OMITTED),),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: (
        *_MEMBER,
        Need(_DESCRIBE, _TOPIC, "subscribed_topic_names"),
        Need(_DESCRIBE, _TOPIC, "subscribed_topic_regex", Denied.OMITTED, note="topics that match are not assigned"),
    ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (
        Need(_DESCRIBE, _GROUP, "group_ids", Denied.ELEMENT, note=_REPORTED),
        Need(_DESCRIBE, _TOPIC, "groups", Denied.ELEMENT, note="of every topic that is assigned to a member"),
    ),
    ApiKey.LIST_CONFIG_RESOURCES: (Need(_CONFIGS, _CLUSTER),),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (
        Need(_DESCRIBE, _TOPIC, "topics", Denied.ELEMENT, note="a request for all topics leaves it out"),
    ),
    ApiKey.ADD_RAFT_VOTER: _CHANGE_CLUSTER,
    ApiKey.REMOVE_RAFT_VOTER: _CHANGE_CLUSTER,
    ApiKey.UNREGISTER_CONTROLLER: _CHANGE_CLUSTER,
    # Kafka refuses requests for features that are switched off before it asks for permissions.
    ApiKey.SHARE_GROUP_HEARTBEAT: (),
    ApiKey.SHARE_GROUP_DESCRIBE: (),
    ApiKey.SHARE_FETCH: (),
    ApiKey.SHARE_ACKNOWLEDGE: (),
    ApiKey.STREAMS_GROUP_HEARTBEAT: (),
    ApiKey.STREAMS_GROUP_DESCRIBE: (),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: (),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: (),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: (),
    ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE: (),
}
