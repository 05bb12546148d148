"""Records of ``__consumer_offsets``: typed values, read and written by `seglog.records.coordinator_records`.

Kafka 4.4 writes commits in version 4, in version 1 if they have an expiry of their own, and groups in version 3; values
of consumer groups (`seglog.coordinators.consumer_records`) have version 0. A record without a value deletes what its
key names. Records of share and streams groups are left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Self, cast
from uuid import UUID

from seglog.coordinators import consumer_records as consumer
from seglog.coordinators.consumer_records import ConsumerKey, ConsumerRecord, Fields
from seglog.core.types import NO_EPOCH, Buffer
from seglog.records.coordinator_records import GROUPS, UnknownTypeError, as_seglog_error
from seglog.records.kafka_messages import MessageError

NO_RETENTION: Final = -1
NO_TIMEOUT: Final = -1
_NO_TOPIC: Final = bytes(16)
_EXPIRING: Final = 1
"""The only version of a commit with a time of expiry."""


class OffsetCommitKey(NamedTuple):
    """The partition of a committed offset."""

    group: str
    topic: str
    partition: int


class GroupMetadataKey(NamedTuple):
    """A group of classic members."""

    group: str


class OffsetAndMetadata(NamedTuple):
    """A committed offset. Times are milliseconds since 1970; ``expire_timestamp`` is -1 unless the client set one."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp: int
    expire_timestamp: int = NO_RETENTION
    topic_id: UUID | None = None

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        topic_id = fields.get("topicId", _NO_TOPIC)
        return cls(
            fields["offset"],
            fields.get("leaderEpoch", NO_EPOCH),
            fields["metadata"],
            fields["commitTimestamp"],
            fields.get("expireTimestamp", NO_RETENTION),
            None if topic_id == _NO_TOPIC else UUID(bytes=topic_id),
        )

    def to_fields(self) -> Fields:
        return {
            "offset": self.offset,
            "leaderEpoch": self.leader_epoch,
            "metadata": self.metadata,
            "commitTimestamp": self.commit_timestamp,
            "expireTimestamp": self.expire_timestamp,
            "topicId": _NO_TOPIC if self.topic_id is None else self.topic_id.bytes,
        }


class MemberMetadata(NamedTuple):
    """A member of a stable group; timeouts are milliseconds."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout: int
    session_timeout: int
    subscription: bytes
    assignment: bytes

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        rebalance_timeout, session_timeout = fields["rebalanceTimeout"], fields["sessionTimeout"]
        return cls(
            fields["memberId"],
            fields["groupInstanceId"],
            fields["clientId"],
            fields["clientHost"],
            # Before version 1 a member had one timeout for both purposes.
            session_timeout if rebalance_timeout == NO_TIMEOUT else rebalance_timeout,
            session_timeout,
            fields["subscription"],
            fields["assignment"],
        )

    def to_fields(self) -> Fields:
        return {
            "memberId": self.member_id,
            "groupInstanceId": self.instance_id,
            "clientId": self.client_id,
            "clientHost": self.client_host,
            "rebalanceTimeout": self.rebalance_timeout,
            "sessionTimeout": self.session_timeout,
            "subscription": self.subscription,
            "assignment": self.assignment,
        }


class GroupMetadataValue(NamedTuple):
    """The stored form of a group, written after each rebalance and when the group becomes empty (then without protocol,
    leader and members)."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp: int
    members: tuple[MemberMetadata, ...]

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        return cls(
            fields["protocolType"],
            fields["generation"],
            fields["protocol"],
            fields["leader"],
            fields["currentStateTimestamp"],
            tuple([MemberMetadata.from_fields(member) for member in fields["members"]]),
        )

    def to_fields(self) -> Fields:
        return {
            "protocolType": self.protocol_type,
            "generation": self.generation,
            "protocol": self.protocol,
            "leader": self.leader,
            "currentStateTimestamp": self.state_timestamp,
            "members": [member.to_fields() for member in self.members],
        }


Key = OffsetCommitKey | GroupMetadataKey | ConsumerKey
GroupRecord = (
    tuple[OffsetCommitKey, OffsetAndMetadata | None]
    | tuple[GroupMetadataKey, GroupMetadataValue | None]
    | ConsumerRecord
)
"""A record: the new value for its key, or None if the key is deleted."""


class _Type(NamedTuple):
    """A type of record: the classes of its key and its value, and the version in which the value is written."""

    number: int
    key: Any
    value: Any
    version: int


_TYPES: Final = (
    _Type(0, OffsetCommitKey, OffsetAndMetadata, 4),  # as 1, from Kafka before 0.9
    _Type(1, OffsetCommitKey, OffsetAndMetadata, 4),
    _Type(2, GroupMetadataKey, GroupMetadataValue, 3),
    _Type(3, consumer.ConsumerGroupKey, consumer.ConsumerGroupValue, 0),
    _Type(4, consumer.TopicsKey, consumer.TopicsValue, 0),
    _Type(5, consumer.MemberKey, consumer.MemberValue, 0),
    _Type(6, consumer.TargetKey, consumer.TargetValue, 0),
    _Type(7, consumer.MemberTargetKey, consumer.MemberTargetValue, 0),
    _Type(8, consumer.CurrentAssignmentKey, consumer.CurrentAssignmentValue, 0),
    _Type(16, consumer.RegularExpressionKey, consumer.RegularExpressionValue, 0),
)
_OF_NUMBER: Final[Mapping[int, _Type]] = {one.number: one for one in _TYPES}
_OF_KEY: Final[Mapping[type, _Type]] = {one.key: one for one in _TYPES}
"""The last type of a key's class is the one that is written."""


def encode_key(key: Key) -> bytes:
    """Raises `InvalidRequestError` for a text that is too long.

    >>> encode_key(OffsetCommitKey("g", "t", 3)).hex()
    '000100016700017400000003'
    """
    return GROUPS.write_key(_OF_KEY[type(key)].number, key)


def encode(entry: GroupRecord) -> tuple[bytes, bytes | None]:
    """Return the record's key and value. Raises `InvalidRequestError` for a text that is too long."""
    key, value = entry
    if value is None:
        return encode_key(key), None
    number, _, _, version = _OF_KEY[type(key)]
    if isinstance(value, OffsetAndMetadata) and value.expire_timestamp != NO_RETENTION:
        version = _EXPIRING
    return GROUPS.write_key(number, key), GROUPS.write_value(number, value.to_fields(), version)


def decode(key: Buffer, value: Buffer | None) -> GroupRecord | None:
    """Decode a record. None for records of share and streams groups, and of types that Kafka 4.4 does not know.

    Raises `CorruptRecordError`, and `UnsupportedFormatError` for a value version that Kafka 4.4 does not know. Ignores
    bytes after the last field, as Kafka does.
    """
    try:
        message, fields = GROUPS.read_key(key)
        found = _OF_NUMBER.get(message.id)
        if found is None:
            return None
        typed = found.key(*fields.values())
        if value is None:
            return cast("GroupRecord", (typed, None))
        return cast("GroupRecord", (typed, found.value.from_fields(GROUPS.read_value(message.id, value).fields)))
    except UnknownTypeError:
        return None
    except MessageError as error:
        raise as_seglog_error(error, "a group") from error
