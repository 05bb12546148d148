"""Records of ``__consumer_offsets``: bytes as Kafka 4.4 writes them, of all versions that it reads.

A key begins with a version (int16) that is really its type; strings have their length before them as int16 (-1: null),
byte fields as int32, arrays their count as int32. From version 4 on values are flexible: lengths are varints and one
too large, and each struct ends in tagged fields.

====================== ============================================================================================
key 0, 1: a commit     group string, topic string, partition int32
value 0 to 4           offset int64, leaderEpoch int32 (3 on), metadata string, commitTimestamp int64,
                       expireTimestamp int64 (1 only), tag 0: topicId uuid (4 on)
key 2: a group         group string
value 0 to 4           protocolType string, generation int32, protocol string?, leader string?,
                       currentStateTimestamp int64 (2 on), members [memberId string, groupInstanceId string? (3 on),
                       clientId string, clientHost string, rebalanceTimeout int32 (1 on), sessionTimeout int32,
                       subscription bytes, assignment bytes]
====================== ============================================================================================

4.4 writes commits in version 4, in version 1 if they have an expiry of their own, and groups in version 3. A record
without a value deletes what its key names. `seglog.coordinators.consumer_records` has the records of consumer groups.
Other keys are those of share and streams groups: they are left alone.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple
from uuid import UUID

from seglog.coordinators import consumer_records
from seglog.coordinators.consumer_records import ConsumerKey, ConsumerRecord
from seglog.core.errors import CorruptRecordError, InvalidRequestError, UnsupportedFormatError
from seglog.core.types import NO_EPOCH, NO_TIMESTAMP, Buffer
from seglog.core.utf8 import decode_utf8
from seglog.protocol.wire import WireReader, uvarint

NO_RETENTION: Final = -1

_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")
_INT64: Final = Struct(">q")
_COMMIT_KEYS: Final = (0, 1)
_GROUP_KEY: Final = 2
_HIGHEST_COMMIT: Final = 4
_HIGHEST_GROUP: Final = 4
_FLEXIBLE: Final = 4
_MAX_STRING: Final = 2**15 - 1


class OffsetCommitKey(NamedTuple):
    """The partition of a committed offset."""

    group: str
    topic: str
    partition: int


class GroupMetadataKey(NamedTuple):
    group: str


class OffsetAndMetadata(NamedTuple):
    """A committed offset. Times are milliseconds since 1970; ``expire_timestamp`` is -1 unless the client set one."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp: int
    expire_timestamp: int = NO_RETENTION
    topic_id: UUID | None = None


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


class GroupMetadataValue(NamedTuple):
    """The stored form of a group, written after each rebalance and when the group becomes empty (then without protocol,
    leader and members)."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp: int
    members: tuple[MemberMetadata, ...]


Key = OffsetCommitKey | GroupMetadataKey | ConsumerKey
GroupRecord = (
    tuple[OffsetCommitKey, OffsetAndMetadata | None]
    | tuple[GroupMetadataKey, GroupMetadataValue | None]
    | ConsumerRecord
)
"""A record: the new value for its key, or None if the key is deleted."""


# Writing


def encode_key(key: Key) -> bytes:
    """
    >>> encode_key(OffsetCommitKey("g", "t", 3)).hex()
    '000100016700017400000003'
    """
    if isinstance(key, OffsetCommitKey):
        return _INT16.pack(1) + _string(key.group) + _string(key.topic) + _INT32.pack(key.partition)
    if isinstance(key, GroupMetadataKey):
        return _INT16.pack(_GROUP_KEY) + _string(key.group)
    return consumer_records.encode_key(key)


def encode(entry: GroupRecord) -> tuple[bytes, bytes | None]:
    """Return the record's key and value."""
    key, value = entry
    if value is None:
        return encode_key(key), None
    if isinstance(value, OffsetAndMetadata):
        return encode_key(key), _encode_commit(value)
    if isinstance(value, GroupMetadataValue):
        return encode_key(key), _encode_group(value)
    return encode_key(key), consumer_records.encode_value(value)


def _encode_commit(value: OffsetAndMetadata) -> bytes:
    if value.expire_timestamp != NO_RETENTION:
        return b"".join(
            (
                _INT16.pack(1),
                _INT64.pack(value.offset),
                _string(value.metadata),
                _INT64.pack(value.commit_timestamp),
                _INT64.pack(value.expire_timestamp),
            )
        )
    metadata = value.metadata.encode(errors="replace")
    has_id = value.topic_id is not None and value.topic_id.int != 0
    return b"".join(
        (
            _INT16.pack(4),
            _INT64.pack(value.offset),
            _INT32.pack(value.leader_epoch),
            uvarint(len(metadata) + 1),
            metadata,
            _INT64.pack(value.commit_timestamp),
            b"\x01\x00\x10" + value.topic_id.bytes if has_id and value.topic_id is not None else b"\x00",
        )
    )


def _encode_group(value: GroupMetadataValue) -> bytes:
    parts = [
        _INT16.pack(3),
        _string(value.protocol_type),
        _INT32.pack(value.generation),
        _nullable(value.protocol),
        _nullable(value.leader),
        _INT64.pack(value.state_timestamp),
        _INT32.pack(len(value.members)),
    ]
    for member in value.members:
        parts += (
            _string(member.member_id),
            _nullable(member.instance_id),
            _string(member.client_id),
            _string(member.client_host),
            _INT32.pack(member.rebalance_timeout),
            _INT32.pack(member.session_timeout),
            _INT32.pack(len(member.subscription)),
            member.subscription,
            _INT32.pack(len(member.assignment)),
            member.assignment,
        )
    return b"".join(parts)


def _string(text: str) -> bytes:
    data = text.encode(errors="replace")
    if len(data) > _MAX_STRING:
        raise InvalidRequestError(
            f"a text of {len(data)} bytes is too long for a group's record: the limit is {_MAX_STRING}"
        )
    return _INT16.pack(len(data)) + data


def _nullable(text: str | None) -> bytes:
    return _INT16.pack(-1) if text is None else _string(text)


# Reading


def decode(key: Buffer, value: Buffer | None) -> GroupRecord | None:
    """Decode a record. None if it belongs to a share or streams group.

    Raises `CorruptRecordError`, and `UnsupportedFormatError` for a value version that Kafka 4.4 does not know. Ignores
    bytes after the last field, as Kafka does.
    """
    try:
        found = _decode_key(key)
        if isinstance(found, OffsetCommitKey):
            return found, None if value is None else _decode_commit(value)
        if isinstance(found, GroupMetadataKey):
            return found, None if value is None else _decode_group(value)
        return None if found is None else consumer_records.decode(found, value)
    except InvalidRequestError as error:
        raise CorruptRecordError(f"a group's record cannot be read: {error}") from error


def _decode_key(data: Buffer) -> Key | None:
    reader = WireReader(data)
    kind = reader.integer("int16")
    if kind in _COMMIT_KEYS:
        return OffsetCommitKey(_text(reader), _text(reader), reader.integer("int32"))
    return GroupMetadataKey(_text(reader)) if kind == _GROUP_KEY else consumer_records.decode_key(kind, reader)


def _decode_commit(data: Buffer) -> OffsetAndMetadata:
    reader = WireReader(data)
    version = _version(reader, _HIGHEST_COMMIT, "an offset")
    flexible = version >= _FLEXIBLE
    offset = reader.integer("int64")
    epoch = reader.integer("int32") if version >= 3 else NO_EPOCH
    metadata = _text(reader, flexible=flexible)
    commit_timestamp = reader.integer("int64")
    expires = reader.integer("int64") if version == 1 else NO_RETENTION
    topic_id = _topic_id(reader) if flexible else None
    return OffsetAndMetadata(offset, epoch, metadata, commit_timestamp, expires, topic_id)


def _topic_id(reader: WireReader) -> UUID | None:
    topic_id = None
    for _ in range(reader.uvarint()):
        tag, size = reader.uvarint(), reader.uvarint()
        if tag == 0 and size == 16:
            topic_id = reader.uuid()
        else:
            reader.take(size)
    return topic_id


def _decode_group(data: Buffer) -> GroupMetadataValue:
    reader = WireReader(data)
    version = _version(reader, _HIGHEST_GROUP, "a group")
    flexible = version >= _FLEXIBLE
    protocol_type = _text(reader, flexible=flexible)
    generation = reader.integer("int32")
    protocol = _text_or_null(reader, flexible=flexible)
    leader = _text_or_null(reader, flexible=flexible)
    state_timestamp = reader.integer("int64") if version >= 2 else NO_TIMESTAMP
    count = reader.uvarint() - 1 if flexible else reader.integer("int32")
    if not 0 <= count <= reader.left:
        raise InvalidRequestError(f"{count} members in {reader.left} bytes")
    members = tuple([_member(reader, version, flexible=flexible) for _ in range(count)])
    if flexible:
        reader.skip_tags()
    return GroupMetadataValue(protocol_type, generation, protocol, leader, state_timestamp, members)


def _member(reader: WireReader, version: int, *, flexible: bool) -> MemberMetadata:
    member_id = _text(reader, flexible=flexible)
    instance_id = _text_or_null(reader, flexible=flexible) if version >= 3 else None
    client_id = _text(reader, flexible=flexible)
    client_host = _text(reader, flexible=flexible)
    # Before version 1 a member had one timeout for both purposes.
    rebalance_timeout = reader.integer("int32") if version >= 1 else -1
    session_timeout = reader.integer("int32")
    subscription = _bytes(reader, flexible=flexible)
    assignment = _bytes(reader, flexible=flexible)
    if flexible:
        reader.skip_tags()
    if rebalance_timeout == -1:
        rebalance_timeout = session_timeout
    return MemberMetadata(
        member_id, instance_id, client_id, client_host, rebalance_timeout, session_timeout, subscription, assignment
    )


def _version(reader: WireReader, highest: int, what: str) -> int:
    version = reader.integer("int16")
    if not 0 <= version <= highest:
        raise UnsupportedFormatError(f"version {version} of {what}'s record is not supported: the latest is {highest}")
    return version


def _text(reader: WireReader, *, flexible: bool = False) -> str:
    text = _text_or_null(reader, flexible=flexible)
    if text is None:
        raise InvalidRequestError("a text must not be null")
    return text


def _text_or_null(reader: WireReader, *, flexible: bool = False) -> str | None:
    length = reader.uvarint() - 1 if flexible else reader.integer("int16")
    return None if length < 0 else decode_utf8(reader.take(length))


def _bytes(reader: WireReader, *, flexible: bool) -> bytes:
    return reader.take(reader.uvarint() - 1 if flexible else reader.integer("int32"))
