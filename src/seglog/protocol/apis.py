"""The one table of APIs: which requests are served, in which versions, and how large a frame may be.

ApiVersions, dispatch, the fuzzer and the documentation derive from it. An API that is not in it is not advertised. Some
APIs are in it only so that the broker refuses them with an error and no client waits
(`seglog.broker.apis.unsupported`). Versions are those of a Kafka 4.4 broker, except where a newer one requires a
feature that seglog lacks.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final, NamedTuple

_SMALL: Final = 1 << 20
"""The frame limit of requests that only name things: a megabyte has room for ten thousand partitions."""


class ApiKey(IntEnum):
    """API keys (``ApiKeys.java``)."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_QUORUM = 55
    UPDATE_FEATURES = 57
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    STREAMS_GROUP_HEARTBEAT = 88
    STREAMS_GROUP_DESCRIBE = 89
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92
    STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE = 93
    UNREGISTER_CONTROLLER = 94


_NEVER_FLEXIBLE: Final = 1 << 15


def name_of(key: int) -> str:
    """An API's name in ``ApiKeys.java``.

    >>> name_of(69), name_of(-1)
    ('ConsumerGroupDescribe', 'API -1')
    """
    return ApiKey(key).name.title().replace("_", "") if key in APIS else f"API {key}"


class Api(NamedTuple):
    """Versions ``low`` to ``high`` are advertised. Those from ``served`` on are answered, others get
    UNSUPPORTED_VERSION.

    ``flexible`` is the first version with tagged fields. ``max_frame`` is in bytes; None means
    ``socket.request.max.bytes``.
    """

    key: ApiKey
    low: int
    high: int
    flexible: int
    served: int = 0
    max_frame: int | None = _SMALL


APIS: Final[Mapping[int, Api]] = {
    int(api.key): api._replace(served=max(api.low, api.served))
    for api in (
        # Clients test for a range that begins at 0 before they use v2 batches (KAFKA-18659); 0 to 2 are not served.
        Api(ApiKey.PRODUCE, 0, 13, 9, served=3, max_frame=None),
        Api(ApiKey.FETCH, 4, 18, 12),
        Api(ApiKey.LIST_OFFSETS, 1, 11, 6),
        Api(ApiKey.METADATA, 0, 13, 9),
        Api(ApiKey.OFFSET_COMMIT, 2, 10, 8),
        Api(ApiKey.OFFSET_FETCH, 1, 10, 6),
        Api(ApiKey.FIND_COORDINATOR, 0, 6, 3),
        Api(ApiKey.JOIN_GROUP, 0, 9, 6),
        Api(ApiKey.HEARTBEAT, 0, 4, 4),
        Api(ApiKey.LEAVE_GROUP, 0, 5, 4),
        Api(ApiKey.SYNC_GROUP, 0, 5, 4),
        Api(ApiKey.DESCRIBE_GROUPS, 0, 6, 5),
        Api(ApiKey.LIST_GROUPS, 0, 5, 3),
        Api(ApiKey.SASL_HANDSHAKE, 0, 1, _NEVER_FLEXIBLE),
        Api(ApiKey.API_VERSIONS, 0, 5, 3),
        Api(ApiKey.CREATE_TOPICS, 2, 7, 5),
        Api(ApiKey.DELETE_TOPICS, 1, 6, 4),
        Api(ApiKey.DELETE_RECORDS, 0, 2, 2),
        Api(ApiKey.INIT_PRODUCER_ID, 0, 5, 2),
        Api(ApiKey.OFFSET_FOR_LEADER_EPOCH, 2, 4, 4),
        Api(ApiKey.ADD_PARTITIONS_TO_TXN, 0, 5, 3),
        Api(ApiKey.ADD_OFFSETS_TO_TXN, 0, 4, 3),
        Api(ApiKey.END_TXN, 0, 5, 3),
        Api(ApiKey.WRITE_TXN_MARKERS, 1, 2, 1),
        Api(ApiKey.TXN_OFFSET_COMMIT, 0, 6, 3),
        Api(ApiKey.DESCRIBE_CONFIGS, 1, 4, 4),
        Api(ApiKey.ALTER_CONFIGS, 0, 2, 2),
        Api(ApiKey.ALTER_REPLICA_LOG_DIRS, 1, 2, 2),
        Api(ApiKey.DESCRIBE_LOG_DIRS, 1, 5, 2),
        Api(ApiKey.CREATE_PARTITIONS, 0, 3, 2),
        Api(ApiKey.CREATE_DELEGATION_TOKEN, 1, 3, 2),
        Api(ApiKey.RENEW_DELEGATION_TOKEN, 1, 2, 2),
        Api(ApiKey.EXPIRE_DELEGATION_TOKEN, 1, 2, 2),
        Api(ApiKey.DESCRIBE_DELEGATION_TOKEN, 1, 3, 2),
        Api(ApiKey.DELETE_GROUPS, 0, 3, 2),
        Api(ApiKey.ELECT_LEADERS, 0, 2, 2),
        Api(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, 1, 1),
        Api(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, 1, 0),
        Api(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 0, 0),
        Api(ApiKey.OFFSET_DELETE, 0, 0, _NEVER_FLEXIBLE),
        Api(ApiKey.DESCRIBE_QUORUM, 0, 2, 0),
        Api(ApiKey.UPDATE_FEATURES, 0, 2, 0),
        Api(ApiKey.DESCRIBE_CLUSTER, 0, 2, 0),
        Api(ApiKey.DESCRIBE_PRODUCERS, 0, 0, 0),
        Api(ApiKey.UNREGISTER_BROKER, 0, 0, 0),
        Api(ApiKey.DESCRIBE_TRANSACTIONS, 0, 0, 0),
        Api(ApiKey.LIST_TRANSACTIONS, 0, 2, 0),
        Api(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, 1, 0),
        Api(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, 1, 0),
        Api(ApiKey.LIST_CONFIG_RESOURCES, 0, 1, 0),
        Api(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 0, 0),
        Api(ApiKey.SASL_AUTHENTICATE, 0, 2, 2),
        Api(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, 0, 0),
        Api(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, 0, 0),
        Api(ApiKey.DESCRIBE_ACLS, 1, 3, 2),
        Api(ApiKey.CREATE_ACLS, 1, 3, 2),
        Api(ApiKey.DELETE_ACLS, 1, 3, 2),
        Api(ApiKey.DESCRIBE_CLIENT_QUOTAS, 0, 1, 1),
        Api(ApiKey.ALTER_CLIENT_QUOTAS, 0, 1, 1),
        # `seglog.broker.apis.unsupported` answers the following.
        Api(ApiKey.SHARE_GROUP_HEARTBEAT, 1, 1, 0),
        Api(ApiKey.SHARE_GROUP_DESCRIBE, 1, 1, 0),
        Api(ApiKey.SHARE_FETCH, 1, 2, 0),
        Api(ApiKey.SHARE_ACKNOWLEDGE, 1, 2, 0),
        Api(ApiKey.ADD_RAFT_VOTER, 0, 1, 0),
        Api(ApiKey.REMOVE_RAFT_VOTER, 0, 0, 0),
        Api(ApiKey.STREAMS_GROUP_HEARTBEAT, 0, 1, 0),
        Api(ApiKey.STREAMS_GROUP_DESCRIBE, 0, 1, 0),
        Api(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 0, 1, 0),
        Api(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, 0, 0),
        Api(ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, 0, 0),
        Api(ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE, 0, 0, 0),
        Api(ApiKey.UNREGISTER_CONTROLLER, 0, 0, 0),
    )
}
