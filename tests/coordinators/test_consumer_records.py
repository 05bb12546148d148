import json
from contextlib import suppress
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.cli.dump.decoders import decode_offsets
from seglog.coordinators.consumer_records import (
    ClassicMemberMetadata,
    ConsumerGroupKey,
    ConsumerGroupValue,
    CurrentAssignmentKey,
    CurrentAssignmentValue,
    MemberKey,
    MemberState,
    MemberTargetKey,
    MemberTargetValue,
    MemberValue,
    RegularExpressionKey,
    RegularExpressionValue,
    TargetKey,
    TargetValue,
    TopicsKey,
)
from seglog.coordinators.group_records import GroupRecord, decode, encode
from seglog.core.errors import CorruptRecordError, UnsupportedFormatError

TOPIC = UUID(int=7)
CLASSIC = ClassicMemberMetadata(9000, (("range", b"\x00\x01"),))
RECORDS: list[GroupRecord] = [
    (ConsumerGroupKey("g"), ConsumerGroupValue(5)),
    (ConsumerGroupKey("g"), ConsumerGroupValue(5, -7)),
    (MemberKey("g", "m"), MemberValue(None, None, "c", "/h", frozenset({"t", "u"}), "", 300_000, None)),
    (MemberKey("g", "m"), MemberValue("i", "r", "c", "/h", frozenset(), "t.*", 1, "range", CLASSIC)),
    (TargetKey("g"), TargetValue(5)),
    (TargetKey("g"), TargetValue(5, 1_790_000_000_000)),
    (MemberTargetKey("g", "m"), MemberTargetValue({TOPIC: frozenset({0, 300})})),
    (
        CurrentAssignmentKey("g", "m"),
        CurrentAssignmentValue(5, 4, MemberState.UNREVOKED_PARTITIONS, {TOPIC: {0: 5, 1: 3}}, {TOPIC: {2: 2}}),
    ),
    (RegularExpressionKey("g", "t.*"), RegularExpressionValue(frozenset({"t", "u"}), 9, 1_790_000_000_000)),
    (TopicsKey("g"), None),
    (MemberKey("g", "m"), None),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record[0]).__name__)
def test_a_record_is_read_as_it_was_written(record: GroupRecord) -> None:
    assert decode(*encode(record)) == record


def shown(record: GroupRecord) -> Any:
    """The value as Kafka's schemas read it."""
    _, value = decode_offsets(*encode(record), 0)
    assert value is not None
    return json.loads(value)


@pytest.mark.parametrize(
    ("record", "value"),
    [
        (RECORDS[1], {"epoch": 5, "metadataHash": -7}),
        (
            RECORDS[3],
            {
                "instanceId": "i",
                "rackId": "r",
                "clientId": "c",
                "clientHost": "/h",
                "subscribedTopicNames": [],
                "subscribedTopicRegex": "t.*",
                "rebalanceTimeoutMs": 1,
                "serverAssignor": "range",
                "classicMemberMetadata": {
                    "sessionTimeoutMs": 9000,
                    "supportedProtocols": [{"name": "range", "metadata": "AAE="}],
                },
            },
        ),
        (RECORDS[5], {"assignmentEpoch": 5, "assignmentTimestamp": 1_790_000_000_000}),
        (
            RECORDS[7],
            {
                "memberEpoch": 5,
                "previousMemberEpoch": 4,
                "state": 1,
                "assignedPartitions": [
                    {"topicId": "AAAAAAAAAAAAAAAAAAAABw", "partitions": [0, 1], "assignmentEpochs": [5, 3]}
                ],
                "partitionsPendingRevocation": [
                    {"topicId": "AAAAAAAAAAAAAAAAAAAABw", "partitions": [2], "assignmentEpochs": [2]}
                ],
            },
        ),
        (RECORDS[8], {"topics": ["t", "u"], "version": 9, "timestamp": 1_790_000_000_000}),
    ],
)
def test_kafkas_schemas_read_what_we_write(record: GroupRecord, value: object) -> None:
    assert shown(record) == {"version": "0", "data": value}


def test_member_without_classic_metadata_says_so() -> None:
    """Without the tag, Kafka takes the member for a classic one."""
    _, value = encode(RECORDS[2])
    assert value is not None
    assert value.endswith(b"\x00\x01\x00\x01\x00")


def test_records_without_epochs_have_the_members() -> None:
    """Kafka before 4.3 writes no assignment epochs (KIP-1251)."""
    key, _ = encode(RECORDS[7])
    old = b"\x00\x00" + b"\x00\x00\x00\x05\x00\x00\x00\x04\x00\x02" + TOPIC.bytes + b"\x02\x00\x00\x00\x01\x00\x01\x00"
    found = decode(key, old)
    assert found is not None
    assert found[1] == CurrentAssignmentValue(5, 4, MemberState.STABLE, {TOPIC: {1: 5}}, {})


def test_unknown_state_and_version() -> None:
    key, value = encode(RECORDS[7])
    assert value is not None
    found = decode(key, value[:10] + b"\x09" + value[11:])
    assert found is not None
    assert isinstance(found[1], CurrentAssignmentValue)
    assert found[1].state is MemberState.UNKNOWN
    with pytest.raises(UnsupportedFormatError):
        decode(key, b"\x00\x01" + value[2:])


@given(st.sampled_from([record for record in RECORDS if record[1] is not None]), st.data())
def test_damaged_records_are_refused_or_read(record: GroupRecord, data: st.DataObject) -> None:
    key, value = encode(record)
    assert value is not None
    damaged = bytearray(value)
    damaged[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    with suppress(CorruptRecordError, UnsupportedFormatError):
        decode(key, bytes(damaged[: data.draw(st.integers(0, len(value)))]))
