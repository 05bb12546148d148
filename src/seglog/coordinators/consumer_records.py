"""Records of consumer groups (KIP-848) in ``__consumer_offsets``: bytes as Kafka 4.4 writes them.

A key begins with its type (int16); strings have their length before them as int16. A value begins with version 0
(int16) and is flexible: lengths are varints and one too large, and each struct ends in tagged fields.

======================== ==========================================================================================
key 3: group             group string
value                    epoch int32, tag 0: metadataHash int64 (KIP-1101; not if it is 0)
key 4: topics            group string; brokers before 4.1 write a value, which later ones delete
key 5: member            group string, member string
value                    instanceId string?, rackId string?, clientId string, clientHost string, topics [string],
                         regularExpression string?, rebalanceTimeoutMs int32, assignor string?,
                         tag 0: a byte that is 1 before the struct of a classic member, else 0;
                         sessionTimeoutMs int32, protocols [name string, metadata bytes]
key 6: target            group string
value                    assignmentEpoch int32, tag 0: assignmentTimestamp int64 (KIP-1263; not if it is 0)
key 7: a member's target group string, member string
value                    [topicId uuid, partitions [int32]]
key 8: current           group string, member string
value                    memberEpoch int32, previousMemberEpoch int32, state int8, and twice, assigned and pending
                         revocation: [topicId uuid, partitions [int32], tag 0: assignmentEpochs [int32] (KIP-1251)]
key 16: regex            group string, regularExpression string
value                    topics [string], version int64, timestamp int64
======================== ==========================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from struct import Struct
from typing import Any, Final, NamedTuple, TypeVar, cast
from uuid import UUID

from seglog.core.errors import InvalidRequestError, UnsupportedFormatError
from seglog.core.types import Buffer
from seglog.protocol.wire import WireReader, put_count, put_text, uvarint

Partitions = Mapping[UUID, frozenset[int]]
"""Partitions by topic id."""
PartitionEpochs = Mapping[UUID, Mapping[int, int]]
"""Partitions by topic id, with the epoch in which the member got each."""

_INT8: Final = Struct(">b")
_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")
_INT64: Final = Struct(">q")
_VERSION: Final = 0
_MAX_STRING: Final = 2**15 - 1
_ZERO: Final = UUID(int=0)


class MemberState(IntEnum):
    """The state of a member's reconciliation (``MemberState.java``)."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    """It must give up partitions before it gets others."""
    UNRELEASED_PARTITIONS = 2
    """It waits for partitions of other members."""
    UNKNOWN = 127
    """A state of a newer broker."""


# Keys


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


# Values


class ConsumerGroupValue(NamedTuple):
    epoch: int
    metadata_hash: int = 0


class TopicsValue(NamedTuple):
    """The topics of a group, written before 4.1. Only its existence counts."""

    data: bytes


class ClassicMemberMetadata(NamedTuple):
    """A member that speaks the classic protocol; ``session_timeout`` is in milliseconds."""

    session_timeout: int
    protocols: tuple[tuple[str, bytes], ...]


_NO_CLASSIC: Final = ClassicMemberMetadata(0, ())
"""Kafka takes this for a record without tag 0."""


class MemberValue(NamedTuple):
    """A member's subscription; ``rebalance_timeout`` is in milliseconds."""

    instance_id: str | None
    rack: str | None
    client_id: str
    client_host: str
    topics: frozenset[str]
    expression: str | None
    rebalance_timeout: int
    assignor: str | None
    classic: ClassicMemberMetadata | None = None


class TargetValue(NamedTuple):
    """``timestamp`` is in milliseconds since 1970, 0 if it is not known."""

    epoch: int
    timestamp: int = 0


class MemberTargetValue(NamedTuple):
    partitions: Partitions


class CurrentAssignmentValue(NamedTuple):
    """The partitions that a member may read, and those that it must give up first."""

    epoch: int
    previous_epoch: int
    state: MemberState
    assigned: PartitionEpochs
    revoking: PartitionEpochs


class RegularExpressionValue(NamedTuple):
    """The topics that matched when the topics of the cluster had this version; ``timestamp`` in milliseconds since
    1970."""

    topics: frozenset[str]
    version: int
    timestamp: int


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


# Writing


def encode_key(key: ConsumerKey) -> bytes:
    """
    >>> encode_key(MemberKey("g", "m")).hex()
    '000500016700016d'
    """
    return _INT16.pack(_TYPES[type(key)]) + b"".join(map(_key_text, key))


def encode_value(value: NamedTuple) -> bytes:
    out = bytearray(_INT16.pack(_VERSION))
    _ENCODERS[type(value)](out, value)
    return bytes(out)


def _key_text(text: str) -> bytes:
    data = text.encode(errors="replace")
    if len(data) > _MAX_STRING:
        raise InvalidRequestError(
            f"a text of {len(data)} bytes is too long for a group's record: the limit is {_MAX_STRING}"
        )
    return _INT16.pack(len(data)) + data


def _put_group(out: bytearray, value: ConsumerGroupValue) -> None:
    out += _INT32.pack(value.epoch)
    _put_tag(out, _INT64.pack(value.metadata_hash) if value.metadata_hash else None)


def _put_topics(out: bytearray, value: TopicsValue) -> None:
    out += value.data


def _put_member(out: bytearray, value: MemberValue) -> None:
    for text in (value.instance_id, value.rack, value.client_id, value.client_host):
        put_text(out, text)
    _put_texts(out, value.topics)
    put_text(out, value.expression)
    out += _INT32.pack(value.rebalance_timeout)
    put_text(out, value.assignor)
    if value.classic is None:
        _put_tag(out, b"\x00")
    else:
        _put_tag(out, None if value.classic == _NO_CLASSIC else _classic_bytes(value.classic))


def _classic_bytes(classic: ClassicMemberMetadata) -> bytes:
    out = bytearray(b"\x01")
    out += _INT32.pack(classic.session_timeout)
    put_count(out, len(classic.protocols), flexible=True)
    for name, metadata in classic.protocols:
        put_text(out, name)
        put_count(out, len(metadata), flexible=True)
        out += metadata
        out.append(0)
    out.append(0)
    return bytes(out)


def _put_target(out: bytearray, value: TargetValue) -> None:
    out += _INT32.pack(value.epoch)
    _put_tag(out, _INT64.pack(value.timestamp) if value.timestamp else None)


def _put_member_target(out: bytearray, value: MemberTargetValue) -> None:
    put_count(out, len(value.partitions), flexible=True)
    for topic_id, numbers in value.partitions.items():
        out += topic_id.bytes
        _put_numbers(out, sorted(numbers))
        out.append(0)
    out.append(0)


def _put_current(out: bytearray, value: CurrentAssignmentValue) -> None:
    out += _INT32.pack(value.epoch) + _INT32.pack(value.previous_epoch) + _INT8.pack(value.state)
    for assignment in (value.assigned, value.revoking):
        put_count(out, len(assignment), flexible=True)
        for topic_id, epochs in assignment.items():
            numbers = sorted(epochs)
            out += topic_id.bytes
            _put_numbers(out, numbers)
            tag = bytearray()
            _put_numbers(tag, [epochs[number] for number in numbers])
            _put_tag(out, tag if numbers else None)
    out.append(0)


def _put_expression(out: bytearray, value: RegularExpressionValue) -> None:
    _put_texts(out, value.topics)
    out += _INT64.pack(value.version) + _INT64.pack(value.timestamp)
    out.append(0)


def _put_texts(out: bytearray, texts: Iterable[str]) -> None:
    ordered = sorted(texts)
    put_count(out, len(ordered), flexible=True)
    for text in ordered:
        put_text(out, text)


def _put_numbers(out: bytearray, numbers: list[int]) -> None:
    put_count(out, len(numbers), flexible=True)
    out += b"".join(map(_INT32.pack, numbers))


def _put_tag(out: bytearray, data: Buffer | None) -> None:
    """The end of a struct: no tagged field, or number 0."""
    if data is None:
        out.append(0)
    else:
        out += b"\x01\x00" + uvarint(len(data)) + data


# Reading


def decode_key(kind: int, reader: WireReader) -> ConsumerKey | None:
    """Decode a key after its type. None for the types of other groups."""
    key = _OF_TYPE.get(kind)
    return None if key is None else key(*[_read_key_text(reader) for _ in key._fields])


def decode(key: ConsumerKey, value: Buffer | None) -> ConsumerRecord:
    """Raises `InvalidRequestError`, and `UnsupportedFormatError` for a version that Kafka 4.4 does not know. Ignores
    bytes after the last field."""
    if value is None:
        return cast("ConsumerRecord", (key, None))
    reader = WireReader(value)
    version = reader.integer("int16")
    if version != _VERSION:
        raise UnsupportedFormatError(f"version {version} of a consumer group's record is not supported")
    return cast("ConsumerRecord", (key, _DECODERS[type(key)](reader)))  # `_DECODERS` keeps key and value together


def _read_key_text(reader: WireReader) -> str:
    return _required(reader.text(flexible=False))


def _required(text: str | None) -> str:
    if text is None:
        raise InvalidRequestError("a text must not be null")
    return text


def _read_group(reader: WireReader) -> ConsumerGroupValue:
    return ConsumerGroupValue(reader.integer("int32"), _read_tagged_int64(reader))


def _read_topics(reader: WireReader) -> TopicsValue:
    return TopicsValue(reader.take(reader.left))


def _read_member(reader: WireReader) -> MemberValue:
    instance_id, rack = reader.text(), reader.text()
    client_id, client_host = _required(reader.text()), _required(reader.text())
    topics = frozenset(_read_texts(reader))
    expression = reader.text()
    rebalance_timeout = reader.integer("int32")
    assignor = reader.text()
    tag = _read_tag(reader)
    classic = _NO_CLASSIC if tag is None else _read_classic(WireReader(tag))
    return MemberValue(
        instance_id, rack, client_id, client_host, topics, expression, rebalance_timeout, assignor, classic
    )


def _read_classic(reader: WireReader) -> ClassicMemberMetadata | None:
    if not reader.uvarint():
        return None
    session_timeout = reader.integer("int32")

    def protocol() -> tuple[str, bytes]:
        found = _required(reader.text()), reader.take(reader.uvarint() - 1)
        reader.skip_tags()
        return found

    return ClassicMemberMetadata(session_timeout, tuple(_read_array(reader, protocol)))


def _read_target(reader: WireReader) -> TargetValue:
    return TargetValue(reader.integer("int32"), _read_tagged_int64(reader))


def _read_member_target(reader: WireReader) -> MemberTargetValue:
    def topic() -> tuple[UUID, frozenset[int]]:
        found = reader.uuid() or _ZERO, frozenset(_read_numbers(reader))
        reader.skip_tags()
        return found

    return MemberTargetValue(dict(_read_array(reader, topic)))


def _read_current(reader: WireReader) -> CurrentAssignmentValue:
    epoch, previous_epoch, number = reader.integer("int32"), reader.integer("int32"), reader.integer("int8")
    state = MemberState(number) if number in _STATES else MemberState.UNKNOWN
    assigned = _read_partition_epochs(reader, max(epoch, 0))
    return CurrentAssignmentValue(epoch, previous_epoch, state, assigned, _read_partition_epochs(reader, max(epoch, 0)))


def _read_partition_epochs(reader: WireReader, default: int) -> PartitionEpochs:
    """Partitions of a record without epochs, or not with one for each, have the epoch ``default``."""

    def topic() -> tuple[UUID, dict[int, int]]:
        topic_id, numbers, tag = reader.uuid() or _ZERO, _read_numbers(reader), _read_tag(reader)
        epochs = [] if tag is None else _read_numbers(WireReader(tag))
        if len(epochs) != len(numbers):
            epochs = [default] * len(numbers)
        return topic_id, dict(zip(numbers, epochs, strict=True))

    return dict(_read_array(reader, topic))


def _read_expression(reader: WireReader) -> RegularExpressionValue:
    return RegularExpressionValue(frozenset(_read_texts(reader)), reader.integer("int64"), reader.integer("int64"))


_T = TypeVar("_T")


def _read_array(reader: WireReader, element: Callable[[], _T]) -> list[_T]:
    count = reader.uvarint() - 1
    if count > reader.left:
        raise InvalidRequestError(f"{count} elements in {reader.left} bytes")
    return [element() for _ in range(count)]


def _read_texts(reader: WireReader) -> list[str]:
    return _read_array(reader, lambda: _required(reader.text()))


def _read_numbers(reader: WireReader) -> list[int]:
    return _read_array(reader, lambda: reader.integer("int32"))


def _read_tag(reader: WireReader) -> bytes | None:
    """The bytes of tagged field 0."""
    found = None
    for _ in range(reader.tags()):
        tag, data = reader.uvarint(), reader.take(reader.uvarint())
        if tag == 0:
            found = data
    return found


def _read_tagged_int64(reader: WireReader) -> int:
    tag = _read_tag(reader)
    return 0 if tag is None else WireReader(tag).integer("int64")


_OF_TYPE: Final[Mapping[int, Any]] = {
    3: ConsumerGroupKey,
    4: TopicsKey,
    5: MemberKey,
    6: TargetKey,
    7: MemberTargetKey,
    8: CurrentAssignmentKey,
    16: RegularExpressionKey,
}
_TYPES: Final = {key: kind for kind, key in _OF_TYPE.items()}
_STATES: Final = frozenset(MemberState)
_ENCODERS: Final[Mapping[type, Callable[[bytearray, Any], None]]] = {
    ConsumerGroupValue: _put_group,
    TopicsValue: _put_topics,
    MemberValue: _put_member,
    TargetValue: _put_target,
    MemberTargetValue: _put_member_target,
    CurrentAssignmentValue: _put_current,
    RegularExpressionValue: _put_expression,
}
_DECODERS: Final[Mapping[type, Callable[[WireReader], NamedTuple]]] = {
    ConsumerGroupKey: _read_group,
    TopicsKey: _read_topics,
    MemberKey: _read_member,
    TargetKey: _read_target,
    MemberTargetKey: _read_member_target,
    CurrentAssignmentKey: _read_current,
    RegularExpressionKey: _read_expression,
}
