"""Batches that are not written, header keys and buffers of all kinds, and control records."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from seglog.core.errors import (
    CorruptRecordError,
    InvalidRecordError,
    InvalidTimestampError,
)
from seglog.core.utf8 import decode_utf8
from seglog.records.batch import check_crc, read_header
from seglog.records.record import (
    ControlRecord,
    ControlType,
    NewRecord,
    Record,
    decode_records,
    encode_batch,
    encode_records,
    end_txn_marker,
    parse_control,
)
from tests.records.made import batch_of, decode, expected

# Header keys


def test_java_utf8() -> None:
    """Pairs from `new String(bytes, UTF_8)` of a JDK 17."""
    for data, text in [
        (b"\xed\xa0\x80x", "\ufffdx"),
        (b"\xed\xa0\x80\xed\xb0\x80", "\ufffd\ufffd"),
        (b"\xed\xa0", "\ufffd"),
        (b"\xe2\x82", "\ufffd"),
        (b"\xe2\x82x", "\ufffdx"),
        (b"\xf0\x90\x80", "\ufffd"),
        (b"\xf4\x90\x80\x80", "\ufffd" * 4),
        (b"\xc0\x80", "\ufffd\ufffd"),
        (b"\xf5x\xffy", "\ufffdx\ufffdy"),
        ("aé€😀".encode(), "aé€😀"),
    ]:
        assert decode_utf8(data) == text, data


def test_header_keys_that_are_no_utf8() -> None:
    area = b"\x14\x00\x00\x00\x01\x01\x02\x04\xff\xfe\x01"
    assert decode(batch_of(area))[0].headers == (("\ufffd\ufffd", None),)


def test_buffers_whose_length_counts_no_bytes() -> None:
    numbers = memoryview(array("i", [1, 2, 3]))
    every_second = memoryview(b"a-b-c-")[::2]
    batch = encode_batch([NewRecord(numbers, key=every_second, headers=(("h", numbers[1:]),))])
    record = decode_records(batch, read_header(batch))[0]
    assert record[2:5] == (b"abc", bytes(numbers), (("h", bytes(numbers[1:])),))


@pytest.mark.parametrize("wrong", ["text", 5, [1]])
def test_values_that_are_not_bytes_raise_type_error(wrong: Any) -> None:
    for record in (NewRecord(wrong), NewRecord(b"", key=wrong), NewRecord(b"", headers=(("h", wrong),))):
        with pytest.raises(TypeError, match="bytes-like object is required"):
            encode_batch([record])


def test_null_is_not_empty() -> None:
    records = [
        NewRecord(None, None, 1, (("", None), ("", b""))),
        NewRecord(b"", b"", 1, ()),
        NewRecord(b"", None, 1, ()),
        NewRecord(None, b"", 1, ()),
    ]
    assert decode(encode_batch(records)) == expected(records)


# What we refuse to write


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"transactional": True}, "needs a producer id"),
        ({"producer_id": 1}, "needs an epoch and a sequence"),
        ({"producer_id": 1, "producer_epoch": 0}, "needs an epoch and a sequence"),
    ],
)
def test_half_a_producer(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidRecordError, match=reason):
        encode_batch([NewRecord(b"")], **options)


def test_no_records() -> None:
    with pytest.raises(InvalidRecordError, match="at least one"):
        encode_batch([])


@pytest.mark.parametrize("timestamp", [-2, 2**63])
def test_impossible_timestamps(timestamp: int) -> None:
    with pytest.raises(InvalidTimestampError, match="of record 1"):
        encode_batch([NewRecord(b""), NewRecord(b"", timestamp=timestamp)])


@pytest.mark.parametrize("offsets", [[5, 5], [6, 5], [4], [5, 2**31 + 5]])
def test_offsets_that_do_not_rise(offsets: list[int]) -> None:
    with pytest.raises(InvalidRecordError, match="in a batch at offset 5"):
        encode_records([Record(offset, 0, None, None) for offset in offsets], base_offset=5, base_timestamp=0)


# Control records


@pytest.mark.parametrize("commit", [True, False])
def test_transaction_markers(commit: bool) -> None:
    batch = end_txn_marker(
        commit=commit,
        coordinator_epoch=9,
        producer_id=77,
        producer_epoch=3,
        timestamp=1234,
        base_offset=50,
        leader_epoch=2,
    )
    header = read_header(batch)
    check_crc(batch, header)
    assert header.is_control
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 3, -1)
    assert (header.base_timestamp, header.max_timestamp, header.leader_epoch) == (1234, 1234, 2)
    (record,) = decode(batch)
    assert (record.offset, record.sequence) == (50, -1)
    assert parse_control(record) == ControlRecord(0, ControlType.COMMIT if commit else ControlType.ABORT, 9)


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        (b"\0\0\0\2", None, ControlRecord(0, ControlType.LEADER_CHANGE, None)),
        (b"\0\0\0\7", b"", ControlRecord(0, ControlType.UNKNOWN, None)),
        (b"\0\1\0\1more", b"\0\1\0\0\0\5more", ControlRecord(1, ControlType.COMMIT, 5)),
        (None, b"", "under 4 bytes"),
        (b"\0\0\0", b"", "under 4 bytes"),
        (b"\xff\xff\0\1", b"", "version -1 of a control record"),
        (b"\0\0\0\0", None, "under 6 bytes"),
        (b"\0\0\0\0", b"\0\0\0\0\0", "under 6 bytes"),
        (b"\0\0\0\0", b"\xff\xff\0\0\0\0", "version -1 of a transaction marker"),
    ],
)
def test_control_records(key: bytes | None, value: bytes | None, wanted: ControlRecord | str) -> None:
    record = Record(8, 0, key, value)
    if isinstance(wanted, ControlRecord):
        assert parse_control(record) == wanted
    else:
        with pytest.raises(CorruptRecordError, match=wanted) as info:
            parse_control(record)
        assert info.value.offset == 8
