"""The values of consumer groups (KIP-848) in ``__consumer_offsets``: `seglog.records.kafka_schemas` has their layout.

`from_fields` takes the fields of a message by Kafka's names, and `to_fields` returns them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple, Self
from uuid import UUID

Partitions = Mapping[UUID, frozenset[int]]
"""Partitions by topic id."""
PartitionEpochs = Mapping[UUID, Mapping[int, int]]
"""Partitions by topic id, with the epoch in which the member got each."""
Fields = Mapping[str, Any]


class MemberState(IntEnum):
    """The state of a member's reconciliation (``MemberState.java``)."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    """It must give up partitions before it gets others."""
    UNRELEASED_PARTITIONS = 2
    """It waits for partitions of other members."""
    UNKNOWN = 127
    """A state of a newer broker."""


_STATES: Final = frozenset(MemberState)


class ConsumerGroupKey(NamedTuple):
    """Key 3."""

    group: str


class TopicsKey(NamedTuple):
    """Key 4."""

    group: str


class MemberKey(NamedTuple):
    """Key 5."""

    group: str
    member: str


class TargetKey(NamedTuple):
    """Key 6."""

    group: str


class MemberTargetKey(NamedTuple):
    """Key 7."""

    group: str
    member: str


class CurrentAssignmentKey(NamedTuple):
    """Key 8."""

    group: str
    member: str


class RegularExpressionKey(NamedTuple):
    """Key 16."""

    group: str
    expression: str


class ConsumerGroupValue(NamedTuple):
    """``metadata_hash``: KIP-1101."""

    epoch: int
    metadata_hash: int = 0

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        return cls(fields["epoch"], fields["metadataHash"])

    def to_fields(self) -> Fields:
        return {"epoch": self.epoch, "metadataHash": self.metadata_hash}


class TopicsValue(NamedTuple):
    """The topics of a group, written before 4.1. Only its existence counts: later brokers delete it."""

    topics: Sequence[Fields]

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        return cls(fields["topics"])

    def to_fields(self) -> Fields:
        return {"topics": self.topics}


class ClassicMemberMetadata(NamedTuple):
    """A member that speaks the classic protocol; ``session_timeout`` is in milliseconds."""

    session_timeout: int
    protocols: tuple[tuple[str, bytes], ...]

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        protocols = fields["supportedProtocols"]
        return cls(fields["sessionTimeoutMs"], tuple([(one["name"], one["metadata"]) for one in protocols]))

    def to_fields(self) -> Fields:
        protocols = [{"name": name, "metadata": metadata} for name, metadata in self.protocols]
        return {"sessionTimeoutMs": self.session_timeout, "supportedProtocols": protocols}


class MemberValue(NamedTuple):
    """A member's subscription; ``rebalance_timeout`` is in milliseconds. ``classic`` is None for a member of the
    consumer protocol: the record then says so. A record that says nothing is that of a classic member without
    protocols."""

    instance_id: str | None
    rack: str | None
    client_id: str
    client_host: str
    topics: frozenset[str]
    expression: str | None
    rebalance_timeout: int
    assignor: str | None
    classic: ClassicMemberMetadata | None = None

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        classic = fields["classicMemberMetadata"]
        return cls(
            fields["instanceId"],
            fields["rackId"],
            fields["clientId"],
            fields["clientHost"],
            frozenset(fields["subscribedTopicNames"]),
            fields["subscribedTopicRegex"],
            fields["rebalanceTimeoutMs"],
            fields["serverAssignor"],
            None if classic is None else ClassicMemberMetadata.from_fields(classic),
        )

    def to_fields(self) -> Fields:
        return {
            "instanceId": self.instance_id,
            "rackId": self.rack,
            "clientId": self.client_id,
            "clientHost": self.client_host,
            "subscribedTopicNames": sorted(self.topics),
            "subscribedTopicRegex": self.expression,
            "rebalanceTimeoutMs": self.rebalance_timeout,
            "serverAssignor": self.assignor,
            "classicMemberMetadata": None if self.classic is None else self.classic.to_fields(),
        }


class TargetValue(NamedTuple):
    """``timestamp`` is in milliseconds since 1970, 0 if it is not known."""

    epoch: int
    timestamp: int = 0

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        return cls(fields["assignmentEpoch"], fields["assignmentTimestamp"])

    def to_fields(self) -> Fields:
        return {"assignmentEpoch": self.epoch, "assignmentTimestamp": self.timestamp}


class MemberTargetValue(NamedTuple):
    """The partitions that a member is to have."""

    partitions: Partitions

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        topics = fields["topicPartitions"]
        return cls({UUID(bytes=topic["topicId"]): frozenset(topic["partitions"]) for topic in topics})

    def to_fields(self) -> Fields:
        topics = self.partitions.items()
        return {"topicPartitions": [{"topicId": one.bytes, "partitions": sorted(numbers)} for one, numbers in topics]}


class CurrentAssignmentValue(NamedTuple):
    """The partitions that a member may read, and those that it must give up first."""

    epoch: int
    previous_epoch: int
    state: MemberState
    assigned: PartitionEpochs
    revoking: PartitionEpochs

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        epoch, state = fields["memberEpoch"], fields["state"]
        return cls(
            epoch,
            fields["previousMemberEpoch"],
            MemberState(state) if state in _STATES else MemberState.UNKNOWN,
            _partition_epochs(fields["assignedPartitions"], max(epoch, 0)),
            _partition_epochs(fields["partitionsPendingRevocation"], max(epoch, 0)),
        )

    def to_fields(self) -> Fields:
        return {
            "memberEpoch": self.epoch,
            "previousMemberEpoch": self.previous_epoch,
            "state": self.state,
            "assignedPartitions": _topic_partitions(self.assigned),
            "partitionsPendingRevocation": _topic_partitions(self.revoking),
        }


def _partition_epochs(topics: Sequence[Fields], default: int) -> PartitionEpochs:
    """Partitions of a record without epochs, or not with one for each, have the epoch ``default``: Kafka before 4.3
    writes none (KIP-1251)."""
    found = {}
    for topic in topics:
        numbers, epochs = topic["partitions"], topic["assignmentEpochs"]
        if epochs is None or len(epochs) != len(numbers):
            epochs = [default] * len(numbers)
        found[UUID(bytes=topic["topicId"])] = dict(zip(numbers, epochs, strict=True))
    return found


def _topic_partitions(partitions: PartitionEpochs) -> Sequence[Fields]:
    return [
        {
            "topicId": topic_id.bytes,
            "partitions": (numbers := sorted(epochs)),
            "assignmentEpochs": [epochs[number] for number in numbers],
        }
        for topic_id, epochs in partitions.items()
    ]


class RegularExpressionValue(NamedTuple):
    """The topics that matched when the topics of the cluster had this version; ``timestamp`` in milliseconds since
    1970."""

    topics: frozenset[str]
    version: int
    timestamp: int

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        return cls(frozenset(fields["topics"]), fields["version"], fields["timestamp"])

    def to_fields(self) -> Fields:
        return {"topics": sorted(self.topics), "version": self.version, "timestamp": self.timestamp}


ConsumerKey = (
    ConsumerGroupKey | TopicsKey | MemberKey | TargetKey | MemberTargetKey | CurrentAssignmentKey | RegularExpressionKey
)
ConsumerRecord = (
    tuple[ConsumerGroupKey, ConsumerGroupValue | None]
    | tuple[TopicsKey, TopicsValue | None]
    | tuple[MemberKey, MemberValue | None]
    | tuple[TargetKey, TargetValue | None]
    | tuple[MemberTargetKey, MemberTargetValue | None]
    | tuple[CurrentAssignmentKey, CurrentAssignmentValue | None]
    | tuple[RegularExpressionKey, RegularExpressionValue | None]
)
"""A record: the new value for its key, or None if the key is deleted."""
CONSUMER_KEYS: Final = (
    ConsumerGroupKey,
    TopicsKey,
    MemberKey,
    TargetKey,
    MemberTargetKey,
    CurrentAssignmentKey,
    RegularExpressionKey,
)
