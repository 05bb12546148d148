"""Records of groups against Kafka's own bytes, and against the dump's decoder, which was checked against Kafka's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from seglog.cli.dump.decoders import decode_offsets
from seglog.coordinators import consumer_records as consumer
from seglog.coordinators.group_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    GroupRecord,
    MemberMetadata,
    OffsetAndMetadata,
    OffsetCommitKey,
    decode,
    encode,
)
from seglog.core.errors import CorruptRecordError, InvalidRequestError, UnsupportedFormatError
from seglog.core.types import TopicPartition
from seglog.protocol.wire import uvarint
from seglog.records import kafka_schemas as schemas
from seglog.records.kafka_messages import Field, Message, parse_schemas
from seglog.records.record import Record
from seglog.storage.directory.log_dir import LogDir
from tests import golden
from tests.cases import case

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
TOPIC_IDS = st.none() | st.uuids().filter(lambda topic_id: topic_id.int != 0)
COMMITS = st.builds(OffsetAndMetadata, INT64, INT32, TEXTS, INT64, st.just(-1), TOPIC_IDS)
OLD_COMMITS = st.builds(
    OffsetAndMetadata, INT64, st.just(-1), TEXTS, INT64, INT64.filter(lambda at: at != -1), st.none()
)
MEMBERS = st.builds(
    MemberMetadata,
    TEXTS,
    st.none() | TEXTS,
    TEXTS,
    TEXTS,
    INT32.filter(lambda ms: ms != -1),
    INT32,
    st.binary(max_size=20),
    st.binary(max_size=20),
)
GROUPS = st.builds(
    GroupMetadataValue,
    TEXTS,
    INT32,
    st.none() | TEXTS,
    st.none() | TEXTS,
    INT64,
    st.lists(MEMBERS, max_size=3).map(tuple),
)
ENTRIES = st.one_of(
    st.tuples(st.builds(OffsetCommitKey, TEXTS, TEXTS, INT32), st.none() | COMMITS | OLD_COMMITS),
    st.tuples(st.builds(GroupMetadataKey, TEXTS), st.none() | GROUPS),
)


def shown(entry: GroupRecord) -> tuple[object, object]:
    """The record as `seglog dump --offsets-decoder` prints it."""
    key, value = encode(entry)
    key_text, value_text = decode_offsets(key, value, 0)
    assert key_text is not None
    assert value_text is not None
    return json.loads(key_text), None if value_text == "<DELETE>" else json.loads(value_text)


SHARE_OR_STREAMS = {*range(9, 16), *range(17, 24)}
"""Types of keys."""


@pytest.fixture(scope="module")
def kafkas_records(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    root = golden.unpack(tmp_path_factory.mktemp("golden"), "4.4.0")
    with LogDir.open(golden.log_dir(root)) as opened:
        return list(opened.log(*TopicPartition("__consumer_offsets", 0)).read(0, 1 << 20).records())


def test_kafkas_bytes_are_read_and_written_again(kafkas_records: list[Record]) -> None:
    kinds = set()
    for record in kafkas_records:
        assert record.key is not None
        entry = decode(record.key, record.value)
        assert (entry is None) == (record.key[1] in SHARE_OR_STREAMS)
        if entry is not None:
            kinds.add((type(entry[0]), type(entry[1])))
            assert encode(entry) == (record.key, record.value)
    no_value = type(None)
    assert kinds == {
        (OffsetCommitKey, OffsetAndMetadata),
        (OffsetCommitKey, no_value),
        (GroupMetadataKey, GroupMetadataValue),
        (GroupMetadataKey, no_value),
        (consumer.ConsumerGroupKey, consumer.ConsumerGroupValue),
        (consumer.MemberKey, consumer.MemberValue),
        (consumer.MemberKey, no_value),
        (consumer.TargetKey, consumer.TargetValue),
        (consumer.MemberTargetKey, consumer.MemberTargetValue),
        (consumer.MemberTargetKey, no_value),
        (consumer.CurrentAssignmentKey, consumer.CurrentAssignmentValue),
        (consumer.CurrentAssignmentKey, no_value),
    }


@given(ENTRIES)
def test_encoded_records_decode_to_the_same_records(entry: GroupRecord) -> None:
    case()
    assert decode(*encode(entry)) == entry


@given(st.builds(OffsetCommitKey, TEXTS, TEXTS, INT32), COMMITS | OLD_COMMITS)
def test_commits_as_the_dump_reads_them(key: OffsetCommitKey, value: OffsetAndMetadata) -> None:
    case()
    shown_key, shown_value = shown((key, value))
    assert shown_key == {"type": "1", "data": {"group": key.group, "topic": key.topic, "partition": key.partition}}
    data = {"offset": value.offset, "metadata": value.metadata, "commitTimestamp": value.commit_timestamp}
    if value.expire_timestamp != -1:
        assert shown_value == {"version": "1", "data": data | {"expireTimestamp": value.expire_timestamp}}
        return
    assert isinstance(shown_value, dict)
    topic_id = shown_value["data"].pop("topicId", None)
    assert (topic_id is None) == (value.topic_id is None)
    assert shown_value == {"version": "4", "data": data | {"leaderEpoch": value.leader_epoch}}


@given(GROUPS.filter(lambda value: value.protocol_type != "consumer"))
def test_groups_as_the_dump_reads_them(value: GroupMetadataValue) -> None:
    case()
    _, shown_value = shown((GroupMetadataKey("g"), value))
    assert isinstance(shown_value, dict)
    data = shown_value["data"]
    assert shown_value["version"] == "3"
    assert [member["memberId"] for member in data.pop("members")] == [member.member_id for member in value.members]
    assert data == {
        "protocolType": value.protocol_type,
        "generation": value.generation,
        "protocol": value.protocol,
        "leader": value.leader,
        "currentStateTimestamp": value.state_timestamp,
    }


# Older versions: written by the schema, which knows nothing of our reader.

COMMIT_SCHEMA = parse_schemas(schemas.GROUP_VALUES)[1]
GROUP_SCHEMA = parse_schemas(schemas.GROUP_VALUES)[2]


def written(message: Message, values: dict[str, object], version: int) -> bytes:
    flexible = version >= message.flexible
    out = b""
    tags = b""
    count = 0
    for field in message.fields:
        if not field.is_in(version):
            continue
        data = field_bytes(field, values[field.name], version, flexible=flexible)
        if field.tag is None:
            out += data
        else:
            count += 1
            tags += uvarint(field.tag) + uvarint(len(data)) + data
    return out + (uvarint(count) + tags if flexible else b"")


def field_bytes(field: Field, value: object, version: int, *, flexible: bool) -> bytes:
    if field.array:
        assert isinstance(value, list)
        assert isinstance(field.type, Message)
        items = b"".join(written(field.type, one, version) for one in value)
        return (uvarint(len(value) + 1) if flexible else len(value).to_bytes(4, "big")) + items
    if isinstance(value, int):
        assert isinstance(field.type, str)
        return value.to_bytes(int(field.type.removeprefix("int")) // 8, "big", signed=True)
    if isinstance(value, UUID):
        return value.bytes
    size = 4 if field.type == "bytes" else 2
    if value is None:
        return b"\0" if flexible else b"\xff" * size
    data = value.encode() if isinstance(value, str) else value
    assert isinstance(data, bytes)
    return (uvarint(len(data) + 1) if flexible else len(data).to_bytes(size, "big")) + data


@pytest.mark.parametrize("version", range(5))
@given(value=COMMITS)
def test_all_versions_of_commits(version: int, value: OffsetAndMetadata) -> None:
    case()
    values = {
        "offset": value.offset,
        "leaderEpoch": value.leader_epoch,
        "metadata": value.metadata,
        "commitTimestamp": value.commit_timestamp,
        "expireTimestamp": 77,
        "topicId": value.topic_id or UUID(int=0),
    }
    key = OffsetCommitKey("g", "t", 0)
    data = version.to_bytes(2, "big") + written(COMMIT_SCHEMA, values, version)
    expected = value._replace(
        leader_epoch=value.leader_epoch if version >= 3 else -1,
        expire_timestamp=77 if version == 1 else -1,
        topic_id=value.topic_id if version >= 4 else None,
    )
    assert decode(encode((key, None))[0], data) == (key, expected)


@given(value=COMMITS)
def test_commits_of_the_first_type_have_version_0(value: OffsetAndMetadata) -> None:
    case()
    key = OffsetCommitKey("g", "t", 0)
    old_key = b"\0\0" + encode((key, None))[0][2:]
    values = {"offset": value.offset, "metadata": value.metadata, "commitTimestamp": value.commit_timestamp}
    data = b"\0\0" + written(parse_schemas(schemas.GROUP_VALUES)[0], values, 0)
    assert decode(old_key, data) == (key, value._replace(leader_epoch=-1, topic_id=None))
    with pytest.raises(UnsupportedFormatError, match="version 1 of a group's record"):
        decode(old_key, b"\0\1" + data[2:])


@pytest.mark.parametrize("version", range(5))
@given(value=GROUPS)
def test_all_versions_of_groups(version: int, value: GroupMetadataValue) -> None:
    case()
    values: dict[str, object] = {
        "protocolType": value.protocol_type,
        "generation": value.generation,
        "protocol": value.protocol,
        "leader": value.leader,
        "currentStateTimestamp": value.state_timestamp,
        "members": [
            {
                "memberId": member.member_id,
                "groupInstanceId": member.instance_id,
                "clientId": member.client_id,
                "clientHost": member.client_host,
                "rebalanceTimeout": member.rebalance_timeout,
                "sessionTimeout": member.session_timeout,
                "subscription": member.subscription,
                "assignment": member.assignment,
            }
            for member in value.members
        ],
    }
    data = version.to_bytes(2, "big") + written(GROUP_SCHEMA, values, version)
    expected = value._replace(
        state_timestamp=value.state_timestamp if version >= 2 else -1,
        members=tuple(
            member._replace(
                instance_id=member.instance_id if version >= 3 else None,
                rebalance_timeout=member.rebalance_timeout if version >= 1 else member.session_timeout,
            )
            for member in value.members
        ),
    )
    assert decode(encode((GroupMetadataKey("g"), None))[0], data) == (GroupMetadataKey("g"), expected)


# Bytes that are no such records


def cut(data: bytes) -> Iterator[bytes]:
    return (data[:size] for size in range(len(data)))


@given(ENTRIES)
def test_truncated_records_are_refused(entry: GroupRecord) -> None:
    case()
    key, value = encode(entry)
    for short in cut(key):
        with pytest.raises(CorruptRecordError):
            decode(short, value)
    if value is not None:
        for short in cut(value):
            with pytest.raises((CorruptRecordError, UnsupportedFormatError)):
                decode(key, short)


@given(st.binary(max_size=60), st.none() | st.binary(max_size=120), st.sampled_from(["", "0001", "0002"]))
@example(b"\0\1g", None, "0002")
def test_any_bytes(key: bytes, value: bytes | None, kind: str) -> None:
    case()
    with_kind = bytes.fromhex(kind) + key
    try:
        decode(with_kind, value)
    except (CorruptRecordError, UnsupportedFormatError):
        return


def test_trailing_bytes_are_ignored_and_newer_versions_refused() -> None:
    key, value = encode((OffsetCommitKey("g", "t", 0), OffsetAndMetadata(5, 1, "m", 9)))
    assert value is not None
    assert decode(key + b"x", value + b"yz") == (OffsetCommitKey("g", "t", 0), OffsetAndMetadata(5, 1, "m", 9))
    with pytest.raises(UnsupportedFormatError, match="version 5"):
        decode(key, b"\0\5" + value[2:])
    assert decode(b"\0\x0c\0\1g", b"anything") is None


def test_a_text_too_long_for_a_record_is_refused_when_it_is_written() -> None:
    with pytest.raises(InvalidRequestError, match="32768 bytes"):
        encode((GroupMetadataKey("g" * 32768), None))


def test_millions_of_members_in_few_bytes_are_refused() -> None:
    key = encode((GroupMetadataKey("g"), None))[0]
    value = bytes.fromhex("0003000000000001ffffffff" + "00" * 8 + "7fffffff")
    with pytest.raises(CorruptRecordError, match="a collection of size 2147483647"):
        decode(key, value)
