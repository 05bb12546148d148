"""Messages of magic 0 and 1 as batches of magic 2."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.core.errors import CorruptBatchError, InvalidTimestampError
from seglog.core.types import TimestampType
from seglog.records import any_magic, legacy
from seglog.records.batch import check_crc, entries, read_header
from seglog.records.compression import Codec
from seglog.records.record import NewRecord, encode_batch
from tests.cases import case
from tests.records.old_messages import MAGICS, OLD_CODECS, RECORDS, SOME, by_hand, expected, the_entry
from tests.records.peers import PEERS, seal_legacy


@MAGICS
@pytest.mark.parametrize("codec", OLD_CODECS)
@given(records=RECORDS, first=st.integers(0, 2**40))
def test_converted_records_stay_what_they_are(magic: int, codec: Codec, records: list[NewRecord], first: int) -> None:
    case()
    old = by_hand(records, magic, codec, first) if codec else PEERS[0].build_legacy(records, magic, 0, first)
    new = legacy.convert_up(old)
    entry = the_entry(new)
    header = read_header(new)
    check_crc(new, header)
    assert any_magic.decode(new, entry) == expected(records, magic, first)
    assert (header.magic, header.codec, header.leader_epoch) == (2, codec, -1)
    assert (header.base_offset, header.last_offset) == (first, first + len(records) - 1)
    timestamps = [record.timestamp for record in records] if magic else [-1]
    assert (header.base_timestamp, header.max_timestamp) == (timestamps[0], max(timestamps))
    assert new == encode_batch(
        [record._replace(timestamp=record.timestamp if magic else -1) for record in records],
        base_offset=first,
        codec=codec,
    )


def test_one_batch_for_each_wrapper_and_each_run() -> None:
    one = PEERS[0].build_legacy(SOME, 1, 0, 0)
    data = one + by_hand(SOME, 1, Codec.LZ4, 3) + by_hand(SOME, 1, Codec.LZ4, 6) + PEERS[0].build_legacy(SOME, 0, 0, 20)
    data += encode_batch([NewRecord(b"new")], base_offset=40, leader_epoch=1)
    headers = [any_magic.describe(new, entry) for new in [legacy.convert_up(data)] for entry in entries(new)]
    assert [(h.base_offset, h.records_count, h.codec) for h in headers] == [
        (0, 3, 0),
        (3, 3, Codec.LZ4),
        (6, 3, Codec.LZ4),
        (20, 3, 0),
        (40, 1, 0),
    ]
    assert headers[-1].leader_epoch == 1


def test_runs_end_at_a_size_and_where_offsets_fall() -> None:
    data = PEERS[0].build_legacy([NewRecord(bytes(100), None, at) for at in range(10)], 1, 0, 0)
    new = legacy.convert_up(data, run_bytes=3 * 134)
    assert [read_header(new, entry.position).records_count for entry in entries(new)] == [3, 3, 3, 1]
    new = legacy.convert_up(data, run_bytes=1)
    assert [read_header(new, entry.position).records_count for entry in entries(new)] == [1] * 10
    falling = PEERS[0].build_legacy(SOME, 1, 0, 5) + PEERS[0].build_legacy(SOME, 1, 0, 6)
    new = legacy.convert_up(falling)
    assert [read_header(new, entry.position).base_offset for entry in entries(new)] == [5, 6]
    far = PEERS[0].build_legacy(SOME, 1, 0, 5) + PEERS[0].build_legacy(SOME, 1, 0, 2**31 + 5)
    assert len(list(entries(legacy.convert_up(far)))) == 2


def test_log_append_times() -> None:
    """Messages of one append have one time; where it changes a new batch begins, which can have but one."""
    times = [70, 70, 80]
    data = b""
    for offset, (time, record) in enumerate(zip(times, SOME, strict=True)):
        message = bytearray(PEERS[0].build_legacy([record._replace(timestamp=time)], 1, 0, offset))
        message[17] = 8
        data += seal_legacy(message)
    data += by_hand(SOME, 1, Codec.GZIP, 3, append_time=90)
    new = legacy.convert_up(data)
    headers = [read_header(new, entry.position) for entry in entries(new)]
    assert [(h.records_count, h.max_timestamp) for h in headers] == [(2, 70), (1, 80), (3, 90)]
    assert {h.timestamp_type for h in headers} == {TimestampType.LOG_APPEND_TIME}
    assert [r.timestamp for e in entries(new) for r in any_magic.decode(new, e)] == [70, 70, 80, 90, 90, 90]


def test_damaged_old_messages_are_not_converted() -> None:
    one = PEERS[0].build_legacy(SOME[:1], 1, 0, 0)
    with pytest.raises(CorruptBatchError, match="5 bytes are not a whole message") as info:
        legacy.convert_up(one + b"12345")
    assert info.value.position == len(one)
    flipped = bytearray(one)
    flipped[-1] ^= 1
    with pytest.raises(CorruptBatchError, match="CRC"):
        legacy.convert_up(bytes(flipped))
    early = bytearray(one)
    early[18:26] = struct.pack(">q", -2)
    with pytest.raises(InvalidTimestampError, match="timestamp -2"):
        legacy.convert_up(seal_legacy(early))
