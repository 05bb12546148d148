"""Messages of magic 0 and 1: read as two other libraries read them, refused when wrong, converted to magic 2."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.core.errors import (
    CorruptBatchError,
    CorruptError,
    CorruptRecordError,
    SeglogError,
    TooLargeError,
    UnsupportedFormatError,
)
from seglog.core.types import MAX_INT64, TimestampType
from seglog.records import any_magic, legacy
from seglog.records.batch import Entry, entries, read_header
from seglog.records.compression import Codec, compress
from seglog.records.record import NewRecord, Record, encode_batch
from tests.cases import case
from tests.records.generated import batches
from tests.records.old_messages import (
    MAGICS,
    OLD_CODECS,
    RECORDS,
    SOME,
    by_hand,
    expected,
    message_set,
    the_entry,
)
from tests.records.peers import PEERS, Peer, seal_legacy, wrapper

# Reading


@MAGICS
@pytest.mark.parametrize("peer", PEERS, ids=str)
@given(records=RECORDS, first=st.integers(0, 2**40), data=st.data())
def test_we_read_what_others_write(
    peer: Peer, magic: int, records: list[NewRecord], first: int, data: st.DataObject
) -> None:
    case()
    codec = data.draw(st.sampled_from(peer.codecs(magic)))
    messages = message_set(peer, records, magic, codec, first)
    ours: list[Record] = []
    theirs: list[Record] = []
    for entry in entries(messages):
        legacy.check_crc(messages, entry)
        ours += legacy.decode(messages, entry)
        theirs += peer.read_legacy(messages[entry.position : entry.position + entry.size], magic)
    assert ours == expected(records, magic, first)
    assert ours == theirs


@MAGICS
@pytest.mark.parametrize("codec", OLD_CODECS[1:])
@given(records=RECORDS, first=st.integers(0, 2**40))
def test_every_codec(magic: int, codec: Codec, records: list[NewRecord], first: int) -> None:
    case()
    message = by_hand(records, magic, codec, first)
    entry = the_entry(message)
    assert legacy.decode(message, entry) == expected(records, magic, first)
    header = legacy.describe(message, entry)
    assert (header.base_offset, header.last_offset) == (first, first + len(records) - 1)
    assert (header.records_count, header.codec, header.size) == (len(records), codec, len(message))
    assert header.max_timestamp == (max(record.timestamp for record in records) if magic else -1)


def test_a_message_field_by_field() -> None:
    data = b"xyz" + PEERS[0].build_legacy([NewRecord(b"value", None, 77)], 1, 0, 9)
    message = legacy.read_message(data, Entry(3, len(data) - 3, 9, 1))
    crc = zlib.crc32(data[3 + 16 :])
    assert message == legacy.LegacyMessage(9, 27, crc, 1, 0, 77, None, b"value")
    assert (message.codec, message.timestamp_type) == (Codec.NONE, TimestampType.CREATE_TIME)


def test_a_wrapper_field_by_field() -> None:
    data = by_hand(SOME, 1, Codec.GZIP, 10, append_time=5555)
    message = legacy.read_message(data, the_entry(data))
    assert (message.offset, message.codec, message.timestamp) == (12, Codec.GZIP, 5555)
    assert message.timestamp_type == TimestampType.LOG_APPEND_TIME
    old = by_hand(SOME, 0, Codec.GZIP, 10)
    assert legacy.read_message(old, the_entry(old)).timestamp_type == TimestampType.NONE


def test_log_append_time_of_the_wrapper_is_that_of_its_messages() -> None:
    data = by_hand(SOME, 1, Codec.GZIP, 10, append_time=5555)
    assert [record.timestamp for record in legacy.decode(data, the_entry(data))] == [5555, 5555, 5555]
    header = legacy.describe(data, the_entry(data))
    assert (header.timestamp_type, header.max_timestamp) == (TimestampType.LOG_APPEND_TIME, 5555)


def test_magic_0_in_a_wrapper_of_magic_1_has_no_timestamp() -> None:
    data = by_hand(SOME, 1, Codec.GZIP, 10, append_time=5555, inner=0)
    records = legacy.decode(data, the_entry(data))
    assert [(record.offset, record.timestamp) for record in records] == [(10, -1), (11, -1), (12, -1)]


def test_a_wrapper_at_offset_0() -> None:
    """Some versions of librdkafka send relative offsets in a wrapper of offset 0 (``DeepRecordsIterator``)."""
    inside = PEERS[0].build_legacy(SOME, 1, 0, 4)
    data = wrapper(1, Codec.GZIP, 0, compress(Codec.GZIP, inside))
    assert [record.offset for record in legacy.decode(data, the_entry(data))] == [4, 5, 6]


def test_offsets_with_gaps() -> None:
    """As the cleaner leaves them: what counts is the last message's offset."""
    inside = b"".join(PEERS[0].build_legacy([record], 1, 0, at) for at, record in zip((0, 3, 7), SOME, strict=True))
    data = wrapper(1, Codec.SNAPPY, 107, compress(Codec.SNAPPY, inside))
    assert [record.offset for record in legacy.decode(data, the_entry(data))] == [100, 103, 107]


def test_describing_without_a_look_inside() -> None:
    data = by_hand(SOME, 1, Codec.GZIP, 10)
    header = legacy.describe(data, the_entry(data), deep=False)
    assert (header.base_offset, header.last_offset, header.records_count) == (12, 12, -1)
    assert (header.leader_epoch, header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1, -1)


@given(batches(base_offset=5))
def test_one_view_of_all_formats(batch: bytes) -> None:
    case()
    old = by_hand(SOME, 0, Codec.LZ4, 0)
    data = old + by_hand(SOME, 1, Codec.GZIP, 3) + batch
    first, second, third = entries(data)
    for entry in (first, second, third):
        any_magic.check(data, entry)
    assert [record.offset for entry in (first, second) for record in any_magic.decode(data, entry)] == [
        0,
        1,
        2,
        3,
        4,
        5,
    ]
    assert any_magic.describe(data, second).base_offset == 3
    assert any_magic.describe(data, third) == read_header(batch)
    assert len(any_magic.decode(data, third)) == any_magic.describe(data, third).records_count
    flipped = bytearray(data)
    flipped[first.position + 20] ^= 1
    flipped[third.position + 40] ^= 1
    for entry in (first, third):
        with pytest.raises(CorruptBatchError, match="CRC"):
            any_magic.check(flipped, entry)


# What is refused


@MAGICS
def test_zstd(magic: int) -> None:
    data = wrapper(magic, Codec.ZSTD, 5, compress(Codec.ZSTD, b"anything"))
    with pytest.raises(UnsupportedFormatError, match=f"zstd in a message of magic {magic} at offset 5"):
        legacy.decode(data, the_entry(data))


@MAGICS
@pytest.mark.parametrize(
    ("value", "codec", "reason"),
    [
        (None, Codec.GZIP, "without a value"),
        (b"", Codec.GZIP, "empty gzip stream"),
        (b"junk", Codec.GZIP, "not a gzip stream"),
        (compress(Codec.GZIP, b""), Codec.GZIP, "0 bytes are not a message"),
        (compress(Codec.GZIP, bytes(26)), Codec.GZIP, "size 0 is under the smallest"),
        (b"x", 5, "unknown compression codec 5"),
    ],
)
def test_bad_wrappers(magic: int, value: bytes | None, codec: int, reason: str) -> None:
    data = b"...." + wrapper(magic, codec, 5, value)
    (entry,) = entries(data, 4)
    with pytest.raises(CorruptRecordError if "size" not in reason else CorruptBatchError, match=reason) as info:
        legacy.decode(data, entry)
    assert (info.value.position, info.value.offset) == (4, 5)


@MAGICS
def test_bad_messages_in_wrappers(magic: int) -> None:
    good = PEERS[0].build_legacy(SOME, magic, 0, 0)
    flipped = bytearray(good)
    flipped[-1] ^= 1
    nested = by_hand(SOME, magic, Codec.GZIP, 0)
    batch = bytes(encode_batch([NewRecord(b"")]))
    for inside, reason in [
        (good[:-1], "bytes are not a message"),
        (good + b"x", "1 bytes are not a message"),
        (bytes(flipped), "stored CRC"),
        (nested, "a compressed message in a compressed message"),
        (batch, "stored CRC"),
    ]:
        data = wrapper(magic, Codec.SNAPPY, 7, compress(Codec.SNAPPY, inside))
        with pytest.raises(CorruptError, match=reason) as info:
            legacy.decode(data, the_entry(data))
        assert (info.value.position, info.value.offset) == (0, 7)


def test_wrappers_with_impossible_offsets_are_refused() -> None:
    inside = PEERS[0].build_legacy(SOME, 1, 0, 4)
    data = wrapper(1, Codec.GZIP, 5, compress(Codec.GZIP, inside))
    with pytest.raises(CorruptRecordError, match="under the 6 of its last message"):
        legacy.decode(data, the_entry(data))
    inside = PEERS[0].build_legacy(SOME[:1], 1, 0, MAX_INT64) + PEERS[0].build_legacy(SOME[1:2], 1, 0, 1)
    data = wrapper(1, Codec.GZIP, MAX_INT64, compress(Codec.GZIP, inside))
    with pytest.raises(CorruptRecordError, match="of a message in it"):
        legacy.decode(data, the_entry(data))
    inside = PEERS[0].build_legacy(SOME, 0, 0, 100)
    data = wrapper(0, Codec.GZIP, 5, compress(Codec.GZIP, inside))
    with pytest.raises(CorruptRecordError, match="offsets from 100 to 5"):
        legacy.describe(data, the_entry(data))


@MAGICS
@pytest.mark.parametrize(
    ("at", "value", "reason"),
    [
        (0, -9, "a key or value of -9 bytes"),
        (0, 2**31 - 1, "a key or value of 2147483647 bytes, 6 are left"),
        (0, 3, "a message ends before the size of its value"),
        (5, -2, "a key or value of -2 bytes"),
        (5, 2, "a key or value of 2 bytes, 1 are left"),
        (5, 0, "1 bytes too many"),
        (5, -1, "1 bytes too many"),
    ],
)
def test_sizes_that_do_not_add_up(magic: int, at: int, value: int, reason: str) -> None:
    data = bytearray(PEERS[0].build_legacy([NewRecord(b"v", b"k", 1)], magic, 0, 3))
    struct.pack_into(">i", data, (18, 26)[magic] + at, value)
    with pytest.raises(CorruptRecordError, match=reason) as info:
        legacy.decode(seal_legacy(data), the_entry(bytes(data)))
    assert info.value.position >= 18
    assert info.value.offset == 3


def test_a_message_too_small_for_its_magic() -> None:
    data = bytearray(PEERS[0].build_legacy([NewRecord(None, None, 1)], 0, 0, 3))
    data[16] = 1
    with pytest.raises(CorruptRecordError, match="no message of magic 1 in 26 bytes"):
        legacy.decode(seal_legacy(data), the_entry(bytes(data)))


def test_a_negative_offset() -> None:
    data = PEERS[0].build_legacy([NewRecord(None, None, 1)], 1, 0, 0)
    data = b"\xff" * 8 + data[8:]
    with pytest.raises(CorruptRecordError, match="offset -1"):
        legacy.decode(data, the_entry(data))


@MAGICS
def test_a_bomb(magic: int) -> None:
    data = wrapper(magic, Codec.GZIP, 0, compress(Codec.GZIP, bytes(1 << 22)))
    with pytest.raises(TooLargeError, match="1048576"):
        legacy.decode(data, the_entry(data), limit=1 << 20)


def outcome(data: bytes) -> None:
    """Anything but an error of ours fails the test."""
    try:
        for entry in entries(data):
            legacy.read_message(data, entry)
            legacy.describe(data, entry, limit=1 << 20)
        legacy.convert_up(data, limit=1 << 20)
    except SeglogError as error:
        str(error)


@given(st.sampled_from([0, 1]), st.integers(0, 15), st.binary(max_size=200), st.integers(-1, 2**63 - 1))
def test_random_messages(magic: int, attributes: int, body: bytes, offset: int) -> None:
    case()
    head = struct.pack(">qiIbb", offset, 6 + len(body), 0, magic, attributes)
    outcome(seal_legacy(bytearray(head + body)))
    outcome(wrapper(magic, attributes & 3, max(offset, 0), compress(attributes & 3, body, magic=magic)))


@MAGICS
@given(records=RECORDS, codec=st.sampled_from(OLD_CODECS), data=st.data())
def test_damaged_messages(magic: int, records: list[NewRecord], codec: Codec, data: st.DataObject) -> None:
    """Bytes changed inside of a wrapper, CRCs of both kinds right."""
    case()
    inside = bytearray(PEERS[0].build_legacy(records, magic, 0, 0))
    at = data.draw(st.integers(0, len(inside) - 1))
    inside[at] ^= 1 << data.draw(st.integers(0, 7))
    try:
        for entry in list(entries(bytes(inside))):
            body = memoryview(inside)[entry.position : entry.position + entry.size]
            body[12:16] = struct.pack(">I", zlib.crc32(body[16:]))
    except CorruptBatchError:
        return
    outcome(bytes(inside) if codec == Codec.NONE else wrapper(magic, codec, 50, compress(codec, inside, magic=magic)))


@MAGICS
@pytest.mark.parametrize("codec", OLD_CODECS)
def test_every_prefix(magic: int, codec: Codec) -> None:
    """Cut anywhere and made to fit, CRC and all: never fewer records without an error."""
    whole = by_hand(SOME, magic, codec, 4) if codec else PEERS[0].build_legacy(SOME[:1], magic, 0, 4)
    for end in range(26, len(whole)):
        case()
        cut = bytearray(whole[:end])
        struct.pack_into(">i", cut, 8, end - 12)
        with pytest.raises(CorruptError):
            legacy.decode(seal_legacy(cut), the_entry(bytes(cut)))
