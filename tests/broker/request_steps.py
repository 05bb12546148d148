"""The largest step of a broker's event loop, counted in calls instead of seconds, and requests with any number of
elements for every API that has a list."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from seglog.protocol.apis import ApiKey
from tests.broker.broker_thread import RunningNode

TOPIC: Final = "steps"
Request = tuple[ApiKey, int | None, Mapping[str, Any]]


class LargestStep:
    """``calls`` of the longest step so far: functions of Python and of C that one callback of the loop calls."""

    def __init__(self) -> None:
        self.calls = 0
        self._now = 0

    def begin(self) -> None:
        self._now = 0

    def end(self) -> None:
        self.calls = max(self.calls, self._now)

    def count(self, _frame: object, event: str, _argument: object) -> None:
        if event in ("call", "c_call"):
            self._now += 1


@contextmanager
def largest_step(running: RunningNode) -> Iterator[LargestStep]:
    """Counts the calls of each step of the broker's loop."""
    step = LargestStep()
    handles: Any = asyncio.Handle
    run = handles._run

    def counted(handle: asyncio.Handle) -> None:
        step.begin()
        run(handle)
        step.end()

    async def profile(hook: Any) -> None:
        sys.setprofile(hook)

    handles._run = counted
    try:
        running.on_loop(lambda: profile(step.count))
        yield step
        running.on_loop(lambda: profile(None))
    finally:
        handles._run = run


def _names(count: int) -> list[str]:
    return [f"n{number}" for number in range(count)]


def _of_topic(partitions: str, item: Callable[[int], object], named: str = "name") -> Callable[[int], Any]:
    return lambda count: [{named: TOPIC, partitions: [item(number) for number in range(count)]}]


def _offsets(count: int) -> Any:
    return _of_topic(
        "partitions",
        lambda number: {
            "partition_index": number,
            "committed_offset": 1,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        },
    )(count)


_NO_MEMBER: Final = {"group_id": "steps", "member_id": "", "group_instance_id": None}
_PRODUCER: Final = {"transactional_id": "steps", "producer_id": 1, "producer_epoch": 0}

REQUESTS: Final[Mapping[str, Callable[[int], Request]]] = {
    "Metadata": lambda count: (
        ApiKey.METADATA,
        9,
        {"topics": [{"name": name} for name in _names(count)], "allow_auto_topic_creation": False},
    ),
    "Fetch": lambda count: (
        ApiKey.FETCH,
        12,
        {
            "max_wait": 0,
            "min_bytes": 0,
            "max_bytes": 1 << 20,
            "topics": _of_topic("partitions", lambda n: {"partition": n, "fetch_offset": 0}, "topic")(count),
        },
    ),
    "ListOffsets": lambda count: (
        ApiKey.LIST_OFFSETS,
        7,
        {
            "replica_id": -1,
            "isolation_level": 0,
            "topics": _of_topic(
                "partitions", lambda n: {"partition_index": n, "timestamp": -1, "current_leader_epoch": -1}
            )(count),
        },
    ),
    "OffsetForLeaderEpoch": lambda count: (
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        4,
        {
            "replica_id": -1,
            "topics": _of_topic(
                "partitions", lambda n: {"partition": n, "current_leader_epoch": -1, "leader_epoch": 0}, "topic"
            )(count),
        },
    ),
    "DeleteRecords": lambda count: (
        ApiKey.DELETE_RECORDS,
        None,
        {"timeout": 0, "topics": _of_topic("partitions", lambda n: {"partition_index": n, "offset": 0})(count)},
    ),
    "OffsetCommit": lambda count: (
        ApiKey.OFFSET_COMMIT,
        8,
        {**_NO_MEMBER, "generation_id_or_member_epoch": -1, "topics": _offsets(count)},
    ),
    "OffsetFetch": lambda count: (
        ApiKey.OFFSET_FETCH,
        8,
        {
            "require_stable": False,
            "groups": [
                {
                    "group_id": "steps",
                    "member_id": None,
                    "topics": _of_topic("partition_indexes", lambda n: n)(count),
                }
            ],
        },
    ),
    "OffsetFetch of groups": lambda count: (
        ApiKey.OFFSET_FETCH,
        8,
        {"require_stable": False, "groups": [{"group_id": name, "topics": None} for name in _names(count)]},
    ),
    "OffsetDelete": lambda count: (
        ApiKey.OFFSET_DELETE,
        None,
        {"group_id": "steps", "topics": _of_topic("partitions", lambda n: {"partition_index": n})(count)},
    ),
    "TxnOffsetCommit": lambda count: (
        ApiKey.TXN_OFFSET_COMMIT,
        3,
        {**_NO_MEMBER, **_PRODUCER, "generation_id": -1, "topics": _offsets(count)},
    ),
    "AddPartitionsToTxn": lambda count: (
        ApiKey.ADD_PARTITIONS_TO_TXN,
        3,
        {
            **{f"v3_and_below_{name}": value for name, value in _PRODUCER.items()},
            "v3_and_below_topics": _of_topic("partitions", lambda n: n)(count),
        },
    ),
    "AddPartitionsToTxn of brokers": lambda count: (
        ApiKey.ADD_PARTITIONS_TO_TXN,
        4,
        {
            "transactions": [
                {**_PRODUCER, "transactional_id": name, "verify_only": True, "topics": []} for name in _names(count)
            ]
        },
    ),
    "FindCoordinator": lambda count: (
        ApiKey.FIND_COORDINATOR,
        4,
        {"key_type": 0, "coordinator_keys": _names(count)},
    ),
    "DescribeGroups": lambda count: (ApiKey.DESCRIBE_GROUPS, 5, {"groups": _names(count)}),
    "ConsumerGroupDescribe": lambda count: (ApiKey.CONSUMER_GROUP_DESCRIBE, None, {"group_ids": _names(count)}),
    "DeleteGroups": lambda count: (ApiKey.DELETE_GROUPS, None, {"groups_names": _names(count)}),
    "LeaveGroup": lambda count: (
        ApiKey.LEAVE_GROUP,
        4,
        {"group_id": "steps", "members": [{"member_id": name, "group_instance_id": None} for name in _names(count)]},
    ),
    "JoinGroup": lambda count: (
        ApiKey.JOIN_GROUP,
        5,
        {
            **_NO_MEMBER,
            "session_timeout": 10_000,
            "rebalance_timeout": 10_000,
            "protocol_type": "consumer",
            "protocols": [{"name": name, "metadata": b""} for name in _names(count)],
        },
    ),
    "SyncGroup": lambda count: (
        ApiKey.SYNC_GROUP,
        3,
        {
            **_NO_MEMBER,
            "generation_id": 1,
            "assignments": [{"member_id": name, "assignment": b""} for name in _names(count)],
        },
    ),
    "ConsumerGroupHeartbeat": lambda count: (
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        None,
        {
            "group_id": "steps-consumers",
            "member_id": "AAAAAAAAAAAAAAAAAAAAAA",
            "member_epoch": 0,
            "rebalance_timeout": 10_000,
            "subscribed_topic_names": _names(count),
            "topic_partitions": [],
        },
    ),
    "DescribeProducers": lambda count: (
        ApiKey.DESCRIBE_PRODUCERS,
        None,
        {"topics": _of_topic("partition_indexes", lambda n: n)(count)},
    ),
    "DescribeConfigs": lambda count: (
        ApiKey.DESCRIBE_CONFIGS,
        None,
        {
            "resources": [
                {"resource_type": 2, "resource_name": name, "configuration_keys": None} for name in _names(count)
            ]
        },
    ),
    "IncrementalAlterConfigs": lambda count: (
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        None,
        {
            "validate_only": True,
            "resources": [{"resource_type": 2, "resource_name": name, "configs": []} for name in _names(count)],
        },
    ),
    "AlterConfigs of one resource": lambda count: (
        ApiKey.ALTER_CONFIGS,
        None,
        {
            "validate_only": True,
            "resources": [
                {
                    "resource_type": 2,
                    "resource_name": TOPIC,
                    "configs": [{"name": name, "value": "1"} for name in _names(count)],
                }
            ],
        },
    ),
    "CreatePartitions": lambda count: (
        ApiKey.CREATE_PARTITIONS,
        None,
        {
            "timeout": 0,
            "validate_only": True,
            "topics": [{"name": name, "count": 2, "assignments": None} for name in _names(count)],
        },
    ),
    "DeleteTopics": lambda count: (
        ApiKey.DELETE_TOPICS,
        6,
        {"timeout": 0, "topics": [{"name": name, "topic_id": None} for name in _names(count)]},
    ),
    "ElectLeaders": lambda count: (
        ApiKey.ELECT_LEADERS,
        None,
        {
            "election_type": 0,
            "timeout": 0,
            "topic_partitions": [{"topic": TOPIC, "partitions": list(range(count))}],
        },
    ),
    "AlterPartitionReassignments": lambda count: (
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        None,
        {
            "timeout": 0,
            "topics": _of_topic("partitions", lambda n: {"partition_index": n, "replicas": None})(count),
        },
    ),
    "ListPartitionReassignments": lambda count: (
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        None,
        {"timeout": 0, "topics": _of_topic("partition_indexes", lambda n: n)(count)},
    ),
    "DescribeLogDirs": lambda count: (
        ApiKey.DESCRIBE_LOG_DIRS,
        None,
        {"topics": _of_topic("partitions", lambda n: n, "topic")(count)},
    ),
    "AlterReplicaLogDirs": lambda count: (
        ApiKey.ALTER_REPLICA_LOG_DIRS,
        None,
        {"dirs": [{"path": "/d", "topics": _of_topic("partitions", lambda n: n)(count)}]},
    ),
    "DescribeQuorum": lambda count: (
        ApiKey.DESCRIBE_QUORUM,
        None,
        {"topics": _of_topic("partitions", lambda n: {"partition_index": n}, "topic_name")(count)},
    ),
    "DescribeTopicPartitions": lambda count: (
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        None,
        {"topics": [{"name": name} for name in _names(count)], "response_partition_limit": 2000, "cursor": None},
    ),
    "WriteTxnMarkers": lambda count: (
        ApiKey.WRITE_TXN_MARKERS,
        1,
        {
            "markers": [
                {
                    "producer_id": 7,
                    "producer_epoch": 0,
                    "transaction_result": False,
                    "coordinator_epoch": 0,
                    "topics": _of_topic("partition_indexes", lambda n: n + 1)(count),
                }
            ]
        },
    ),
    "WriteTxnMarkers of many": lambda count: (
        ApiKey.WRITE_TXN_MARKERS,
        1,
        {
            "markers": [
                {
                    "producer_id": number,
                    "producer_epoch": 0,
                    "transaction_result": True,
                    "coordinator_epoch": 0,
                    "topics": [],
                }
                for number in range(count)
            ]
        },
    ),
    "DescribeTransactions": lambda count: (
        ApiKey.DESCRIBE_TRANSACTIONS,
        None,
        {"transactional_ids": _names(count)},
    ),
    "ListTransactions": lambda count: (
        ApiKey.LIST_TRANSACTIONS,
        0,
        {"state_filters": _names(count), "producer_id_filters": list(range(count))},
    ),
    "DescribeUserScramCredentials": lambda count: (
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        None,
        {"users": [{"name": name} for name in _names(count)]},
    ),
    "AlterUserScramCredentials": lambda count: (
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        None,
        {"deletions": [{"name": name, "mechanism": 3} for name in _names(count)], "upsertions": []},
    ),
    "ListGroups": lambda count: (ApiKey.LIST_GROUPS, 5, {"states_filter": _names(count), "types_filter": []}),
}
