"""Records of magic 2: there and back, against two other libraries, byte for byte, and with bytes that are wrong."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from seglog.core.errors import (
    CorruptBatchError,
    CorruptRecordError,
    TooLargeError,
)
from seglog.core.types import MAX_INT32, MAX_INT64, TimestampType
from seglog.records.batch import BATCH_OVERHEAD, DELETE_HORIZON_BIT, check_crc, read_header
from seglog.records.compression import Codec, compress
from seglog.records.record import (
    NewRecord,
    Record,
    decode_records,
    encode_batch,
    encode_records,
    encode_varint,
    iter_records,
)
from tests.cases import case
from tests.records.generated import new_records
from tests.records.made import BODY, ONE, batch_of, decode, expected
from tests.records.peers import PEERS, Peer, Producer

PRODUCERS = st.sampled_from([Producer(), Producer(7, 1, 0), Producer(2**62, 32767, MAX_INT32 - 3, transactional=True)])


# There and back


@given(new_records(), st.sampled_from(Codec), PRODUCERS, st.integers(0, 2**62))
def test_round_trip(records: list[NewRecord], codec: Codec, producer: Producer, base_offset: int) -> None:
    case()
    batch = encode_batch(
        records,
        base_offset=base_offset,
        codec=codec,
        leader_epoch=3,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        base_sequence=producer.sequence,
        transactional=producer.transactional,
    )
    header = read_header(batch)
    check_crc(batch, header)
    wanted = expected(records, base_offset, producer.sequence)
    assert decode_records(batch, header) == wanted
    assert list(iter_records(memoryview(b"before" + batch + b"after"), header, 6)) == wanted
    assert header.size == len(batch)
    assert header.max_timestamp == max(record.timestamp for record in records)
    assert header.base_timestamp == records[0].timestamp
    assert header.is_transactional == producer.transactional


@pytest.mark.parametrize("peer", PEERS, ids=str)
@given(records=new_records(), data=st.data())
def test_others_read_what_we_write(peer: Peer, records: list[NewRecord], data: st.DataObject) -> None:
    case()
    batch = encode_batch(records, base_offset=12, codec=data.draw(st.sampled_from(peer.codecs(2))))
    assert peer.read(bytes(batch)) == expected(records, 12)


@pytest.mark.parametrize("peer", PEERS, ids=str)
@given(records=new_records(), producer=PRODUCERS, data=st.data())
def test_we_read_what_others_write(
    peer: Peer, records: list[NewRecord], producer: Producer, data: st.DataObject
) -> None:
    """Without a timestamp of -1 in front, for which aiokafka writes 0 into the header."""
    case()
    records[0] = records[0]._replace(timestamp=abs(records[0].timestamp))
    batch = peer.build(records, data.draw(st.sampled_from(peer.codecs(2))), producer)
    check_crc(batch, read_header(batch))
    assert decode(batch) == expected(records, sequence=producer.sequence)


@pytest.mark.parametrize("peer", PEERS, ids=str)
@given(records=new_records(), producer=PRODUCERS)
def test_same_bytes_as_others(peer: Peer, records: list[NewRecord], producer: Producer) -> None:
    """They write leader epochs of 0 or -1."""
    case()
    records[0] = records[0]._replace(timestamp=abs(records[0].timestamp))
    theirs = peer.build(records, 0, producer)
    ours = encode_batch(
        records,
        leader_epoch=read_header(theirs).leader_epoch,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        base_sequence=producer.sequence,
        transactional=producer.transactional,
    )
    assert ours.hex() == theirs.hex()


def test_log_append_time_is_every_records_timestamp() -> None:
    records = [NewRecord(b"a", timestamp=5), NewRecord(b"b", timestamp=99)]
    batch = encode_batch(records, timestamp_type=TimestampType.LOG_APPEND_TIME, log_append_time=42)
    header = read_header(batch)
    assert (header.base_timestamp, header.max_timestamp) == (5, 42)
    assert [record.timestamp for record in decode(batch)] == [42, 42]


def test_timestamps_count_from_the_delete_horizon() -> None:
    kept = [Record(3, 1000, b"k", None), Record(9, 1500, b"l", b"v")]
    area = encode_records(kept, base_offset=1, base_timestamp=8000)
    batch = batch_of(
        area,
        attributes=DELETE_HORIZON_BIT,
        base_offset=1,
        base_timestamp=8000,
        max_timestamp=1500,
        last_offset_delta=11,
        records_count=2,
    )
    assert read_header(batch).delete_horizon_ms == 8000
    assert decode(batch) == kept


def test_an_emptied_batch_has_no_records() -> None:
    assert decode(batch_of(b"", records_count=0, last_offset_delta=7)) == []


@given(st.integers(-(2**63), MAX_INT64))
@example(-(2**63))
@example(MAX_INT64)
def test_varint(value: int) -> None:
    """Against the definition, not against our reader."""
    case()
    encoded = encode_varint(value)
    raw = 0
    for shift, byte in enumerate(encoded):
        raw |= (byte & 127) << 7 * shift
    assert (raw >> 1 ^ -(raw & 1)) == value
    assert all(byte > 127 for byte in encoded[:-1])
    assert encoded[-1] < 128
    assert len(encoded) == max(1, -(-raw.bit_length() // 7))


@given(st.lists(st.integers(0, 2**31 - 1), min_size=1, unique=True).map(sorted), st.integers(0, 2**62))
def test_sparse_offsets(deltas: list[int], base: int) -> None:
    case()
    records = [Record(base + delta, 5, None, b"") for delta in deltas]
    area = encode_records(records, base_offset=base, base_timestamp=5)
    batch = batch_of(area, base_offset=base, base_timestamp=5, last_offset_delta=MAX_INT32, records_count=len(records))
    assert decode(batch) == records


# What the header and the records must agree on


def test_the_smallest_record() -> None:
    assert decode(batch_of(ONE)) == [Record(0, 0, None, None)]


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize(
    ("area", "header", "reason"),
    [
        (ONE, {"records_count": 2}, "2 records do not fit"),
        (ONE, {"records_count": MAX_INT32}, "do not fit"),
        (ONE + b"\x00" * 7, {"records_count": 2}, "a record of 0 bytes"),
        (ONE, {"records_count": 0}, "says it has none"),
        (ONE + b"\x00", {}, "1 bytes remain"),
        (ONE + ONE, {}, "7 bytes remain"),
        (ONE + ONE, {"records_count": 2, "last_offset_delta": 1}, "offset delta 0 after 0"),
        (b"\x0c\x00\x00\x02\x01\x01\x00", {}, "offset delta 1 after -1 in a batch whose last is 0"),
        (b"\x0c\x00\x00\x01\x01\x01\x00", {}, "offset delta -1"),
        (b"\x0e" + BODY, {}, "a record of 7 bytes, 6 are left"),
        (b"\x0e" + BODY + b"\x00", {}, "end -1 bytes from its end"),
        (b"\x0c" + BODY[:5] + b"\x02", {}, "1 headers in 0 bytes"),
        (b"\x0b" + BODY, {}, "a record of -6 bytes"),
        (b"\x0a" + BODY, {}, "a record of 5 bytes"),
        (b"\x0c\x00\x00\x00\x03\x01\x00", {}, "length -2"),
        (b"\x0c\x00\x00\x00\x01\x03\x00", {}, "length -2"),
        (b"\x0c\x00\x00\x00\x01\x02\x00", {}, "continues after the end"),
        (b"\x0c\x00\x00\x00\x01\x01\x01", {}, "-1 headers"),
        (b"\x10\x00\x00\x00\x01\x01\x02\x01\x01", {}, "a header without a key"),
        (b"\x10\x00\x00\x00\x01\x01\x02\x02\x01", {}, "continues after the end"),
        (b"\x10\x00\x00\x00\x01\x01\x04\x00\x01", {}, "2 headers in 2 bytes"),
        (b"\x10\x00\x00\x00\xfe\xff\xff\xff\x0f", {}, "continues after the end"),
        (b"\x14\x00\x00\x00\xff\xff\xff\xff\x1f\x01\x00", {}, "too many bits"),
        (b"\x16\x00\x00\x00\x81\x80\x80\x80\x80\x00\x01\x00", {}, "too many bits"),
        (b"\x1e\x00" + b"\xff" * 9 + b"\x02\x00\x01\x01\x00", {}, "too many bits"),
        (b"\x1e\x00" + b"\xfe" + b"\xff" * 8 + b"\x01\x00\x01\x01\x00", {"base_timestamp": 1}, "beyond 64 bits"),
    ],
)
def test_refused(codec: Codec, area: bytes, header: dict[str, int], reason: str) -> None:
    batch = batch_of(compress(codec, area), attributes=int(codec), **header)
    with pytest.raises(CorruptRecordError, match=reason) as info:
        decode(batch)
    assert info.value.offset is not None
    assert info.value.position == BATCH_OVERHEAD if codec else info.value.position >= BATCH_OVERHEAD


def test_padded_varints_are_read_as_kafka_reads_them() -> None:
    padded = b"\x14\x00\x80\x80\x00\x00\x81\x80\x00\x01\x00"
    assert decode(batch_of(padded)) == [Record(0, 0, None, None)]


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ({"magic": 1}, "magic is 1"),
        ({"base_offset": -1}, "base offset -1"),
        ({"last_offset_delta": -1}, "last offset delta -1"),
        ({"records_count": -1}, "record count -1"),
        ({"length": 48}, "batch length 48"),
        ({"length": 57}, "the batch claims 69 bytes, but only 68 are left"),
        ({"length": MAX_INT32}, "only 68 are left"),
    ],
)
def test_refused_headers(header: dict[str, int], reason: str) -> None:
    batch = batch_of(ONE)
    with pytest.raises(CorruptBatchError, match=reason):
        decode_records(batch, read_header(batch)._replace(**header))


def test_positions_count_from_the_buffer() -> None:
    batch = batch_of(ONE + b"\x0c\x00\x00\x02\x01\x03\x00", records_count=2, last_offset_delta=1, base_offset=70)
    with pytest.raises(CorruptRecordError) as info:
        decode_records(bytes(100) + batch, read_header(batch), 100)
    assert (info.value.position, info.value.offset) == (100 + BATCH_OVERHEAD + 7, 71)


def test_iteration_gives_what_comes_before_the_damage() -> None:
    batch = batch_of(ONE + b"\x0c\x00\x00\x02\x01\x03\x00", records_count=2, last_offset_delta=1)
    records = iter_records(batch, read_header(batch))
    assert next(records).offset == 0
    with pytest.raises(CorruptRecordError):
        next(records)


def test_the_limit() -> None:
    batch = encode_batch([NewRecord(bytes(5000))], codec=Codec.ZSTD)
    assert len(decode(batch, limit=5009)) == 1
    with pytest.raises(TooLargeError, match="5008") as info:
        decode(batch, limit=5008)
    assert info.value.position == BATCH_OVERHEAD


def test_an_unknown_codec() -> None:
    with pytest.raises(CorruptRecordError, match="codec 7"):
        decode(batch_of(ONE, attributes=7))
    with pytest.raises(CorruptRecordError, match="codec 5"):
        decode(batch_of(b"", attributes=5, records_count=0))
