"""Every reason for which an append is refused, and what is written when it is not."""

from __future__ import annotations

import pytest

from seglog.core.config import LogConfig
from seglog.core.errors import (
    CorruptBatchError,
    FencedLeaderEpochError,
    InvalidRecordError,
    InvalidTimestampError,
    OutOfOrderSequenceError,
    RecordListTooLargeError,
    RecordTooLargeError,
    SeglogError,
    UnexpectedAppendOffsetError,
    UnknownLeaderEpochError,
    UnsupportedCompressionTypeError,
)
from seglog.core.types import MAX_INT32, MAX_INT64, TimestampType
from seglog.records.batch import check_crc, entries, read_header
from seglog.records.compression import Codec
from seglog.records.record import NewRecord, decode_records, encode_batch, end_txn_marker
from seglog.storage.log.admit import AppendPlan, Duplicate, Origin
from tests.records.made import batch_of
from tests.storage.log.appends import NOW_MS, PlannedLog, Traffic, made, planned, with_header

HOUR = 3_600_000
ALL_CODECS = tuple(Codec)


# A client's batch


def test_a_batch_gets_its_offset_and_epoch_and_nothing_else_changes() -> None:
    log = PlannedLog(leader_epoch=4)
    log.end_offset = 1000
    data = made(3, timestamp=NOW_MS)
    plan = planned(log, data)
    assert (plan.first_offset, plan.last_offset) == (1000, 1002)
    assert (plan.max_timestamp, plan.log_append_time) == (NOW_MS + 2, -1)
    assert plan.epoch_starts == ((4, 1000),)
    assert plan.updates is None
    assert not plan.clears_epochs
    (header,) = plan.batches
    assert header == read_header(plan.data) == read_header(data)._replace(base_offset=1000, leader_epoch=4)
    assert plan.data[16:] == data[16:]
    check_crc(plan.data, header)
    assert planned(log, data).epoch_starts == ()


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_admit_does_not_modify_its_input(kind: type[bytes]) -> None:
    data = made()
    given = kind(bytearray(data))
    planned(PlannedLog(LogConfig(message_timestamp_type=TimestampType.LOG_APPEND_TIME)), given)
    assert bytes(given) == data


def test_a_record_without_a_timestamp() -> None:
    plan = planned(PlannedLog(), bytes(encode_batch([NewRecord(b"v")])))
    assert plan.max_timestamp == -1


REFUSED = {
    "nothing": (b"", InvalidRecordError, "no batch"),
    "a torn header": (made()[:30], CorruptBatchError, "30 bytes do not form a whole batch"),
    "a torn batch": (made()[:-1], CorruptBatchError, "do not form a whole batch"),
    "bytes after it": (made() + b"\0", CorruptBatchError, "1 bytes do not form a whole batch"),
    "two batches": (made() + made(), InvalidRecordError, "more than one batch"),
    "an unknown magic": (made()[:16] + b"\3" + made()[17:], CorruptBatchError, "unknown magic 3"),
    "a flipped bit": (made()[:-1] + b"\xff", CorruptBatchError, "stored CRC"),
    "a base offset": (made(base_offset=1), InvalidRecordError, "base offset of a client's batch is 1, not 0"),
    "no records": (with_header(made(), records_count=0), InvalidRecordError, "0 records with offset deltas up to 1"),
    "too few records": (
        with_header(made(), records_count=1),
        InvalidRecordError,
        "1 records with offset deltas up to 1",
    ),
    "a negative count": (
        with_header(made(), records_count=-4, last_offset_delta=-5),
        InvalidRecordError,
        "-4 records with offset deltas up to -5",
    ),
    "the whole range": (
        with_header(made(), records_count=-(2**31), last_offset_delta=MAX_INT32),
        InvalidRecordError,
        "records with offset deltas up to 2147483647",
    ),
    "an unknown codec": (with_header(made(), attributes=5), UnsupportedCompressionTypeError, "codec 5 is unknown"),
    "a control batch": (
        bytes(end_txn_marker(commit=True, coordinator_epoch=0, producer_id=7, producer_epoch=0, timestamp=NOW_MS)),
        InvalidRecordError,
        "clients may not write control records",
    ),
    "a producer without sequence": (
        with_header(made(), producer_id=7, producer_epoch=0),
        InvalidRecordError,
        "producer 7 without a sequence or epoch: -1, 0",
    ),
    "a producer without epoch": (
        with_header(made(), producer_id=7, base_sequence=0),
        InvalidRecordError,
        "producer 7 without a sequence or epoch: 0, -1",
    ),
    "a stamp in a topic of append times": (with_header(made(), attributes=8), InvalidTimestampError, "LogAppendTime"),
    "a record from the future": (made(timestamp=NOW_MS + HOUR), InvalidTimestampError, "1 of 2 records are refused"),
    "a batch too large": (made(200), RecordTooLargeError, r"bytes; max.message.bytes is 2000"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_client_is_refused(name: str) -> None:
    data, error, reason = REFUSED[name]
    kind = TimestampType.LOG_APPEND_TIME if "append times" in name else TimestampType.CREATE_TIME
    log = PlannedLog(LogConfig(max_message_bytes=2000, message_timestamp_type=kind))
    with pytest.raises(error, match=reason):
        log.plan(data)


def test_a_client_may_not_stamp_batches_without_a_timestamp() -> None:
    data = with_header(bytes(encode_batch([NewRecord(b"v")])), attributes=8)
    with pytest.raises(InvalidTimestampError):
        PlannedLog().plan(data)


def test_a_stamp_with_a_timestamp_is_taken_off() -> None:
    """As in Kafka, the records have their own timestamps again, and the batch keeps its largest."""
    data = with_header(made(), attributes=8, max_timestamp=NOW_MS + 50)
    plan = planned(PlannedLog(), data)
    (header,) = plan.batches
    assert (header.attributes, header.max_timestamp, plan.max_timestamp) == (0, NOW_MS + 50, NOW_MS + 50)
    check_crc(plan.data, header)
    assert [record.timestamp for record in decode_records(plan.data, header)] == [NOW_MS, NOW_MS + 1]


def test_one_append_fits_into_a_segment() -> None:
    log = PlannedLog(LogConfig(segment_bytes=1000))
    with pytest.raises(RecordListTooLargeError, match="bytes in one append; a segment takes 1000"):
        log.plan(made(100))
    with pytest.raises(RecordListTooLargeError):
        log.plan(made(60) + made(60), Origin.BULK)
    with pytest.raises(RecordListTooLargeError):
        log.plan(made(60) + made(60, base_offset=60), Origin.REPLICATION)


def test_an_old_leader_does_not_write() -> None:
    log = PlannedLog(leader_epoch=3)
    planned(log, made())
    log.leader_epoch = 2
    with pytest.raises(FencedLeaderEpochError, match="leader epoch 2 appends to a log that has seen 3"):
        log.plan(made())


def test_epochs_and_offsets_end_somewhere() -> None:
    with pytest.raises(UnknownLeaderEpochError, match="2147483648 is above 2147483647"):
        PlannedLog(leader_epoch=MAX_INT32 + 1).plan(made())
    log = PlannedLog(leader_epoch=MAX_INT32)
    log.end_offset = MAX_INT64 - 2
    assert planned(log, made()).last_offset == MAX_INT64 - 1
    log.end_offset = MAX_INT64 - 1
    with pytest.raises(UnexpectedAppendOffsetError, match="2 records from offset 9223372036854775806 on"):
        log.plan(made())


# Timestamps


def test_log_append_time() -> None:
    log = PlannedLog(LogConfig(message_timestamp_type=TimestampType.LOG_APPEND_TIME))
    plan = planned(log, made(timestamp=5 * NOW_MS))
    (header,) = plan.batches
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert (plan.log_append_time, plan.max_timestamp, header.max_timestamp) == (NOW_MS, NOW_MS, NOW_MS)
    check_crc(plan.data, header)
    assert {record.timestamp for record in decode_records(plan.data, header)} == {NOW_MS}


def test_the_bounds_of_create_time_are_inclusive() -> None:
    log = PlannedLog(LogConfig(message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=2000))
    for timestamp in (NOW_MS - 1000, NOW_MS + 1999, -1):
        planned(log, made(1, timestamp=timestamp))
    for timestamp in (NOW_MS - 1001, NOW_MS + 2001, 0):
        with pytest.raises(
            InvalidTimestampError, match=f"record 0: Timestamp {timestamp} of message .* is out of range"
        ):
            log.plan(made(1, timestamp=timestamp))


def test_a_header_that_is_too_late_is_believed_only_if_the_records_agree() -> None:
    plan = planned(PlannedLog(), with_header(made(), max_timestamp=NOW_MS + 2 * HOUR))
    (header,) = plan.batches
    assert header.max_timestamp == plan.max_timestamp == NOW_MS + 1
    check_crc(plan.data, header)


def test_a_header_whose_timestamps_contradict_each_other_is_set_right() -> None:
    plan = planned(PlannedLog(), with_header(made(), max_timestamp=7))
    assert plan.max_timestamp == NOW_MS + 1
    check_crc(plan.data, plan.batches[0])


def test_a_header_that_hides_a_late_record_is_believed_unless_all_records_are_checked() -> None:
    """The one thing that is stored here and refused by Kafka (docs/differences.md)."""
    records = [NewRecord(b"v", b"k", NOW_MS), NewRecord(b"v", b"k", NOW_MS + 2 * HOUR)]
    data = with_header(encode_batch(records), max_timestamp=NOW_MS)
    assert planned(PlannedLog(), data).max_timestamp == NOW_MS
    with pytest.raises(InvalidTimestampError):
        PlannedLog(LogConfig(seglog_validate_records=True)).plan(data)


# Records


def test_a_compacted_topic_needs_keys() -> None:
    log = PlannedLog(LogConfig(cleanup_policy=frozenset({"compact", "delete"})))
    planned(log, made(key=b""))
    with pytest.raises(InvalidRecordError, match=r"5 of 5 records are refused: record 0: Compacted topic") as caught:
        log.plan(made(5, key=None))
    assert [record for record, _ in caught.value.records] == [0, 1, 2, 3, 4]


def test_late_records_without_keys() -> None:
    log = PlannedLog(LogConfig(cleanup_policy=frozenset({"compact"})))
    records = [NewRecord(b"v", None, NOW_MS), NewRecord(b"v", b"k", NOW_MS * 2)]
    with pytest.raises(InvalidTimestampError, match=r"record 0: Compacted .*; record 1: Timestamp"):
        log.plan(bytes(encode_batch(records)))


def test_records_that_cannot_be_decoded_are_seen_where_records_are_looked_at() -> None:
    data = bytes(batch_of(b"\xff" * 20, base_timestamp=NOW_MS, max_timestamp=NOW_MS))
    planned(PlannedLog(), data)
    for config in (LogConfig(seglog_validate_records=True), LogConfig(compression_type="zstd")):
        with pytest.raises(InvalidRecordError, match="the batch's CRC is right, its records are not"):
            PlannedLog(config).plan(data)


def test_a_batch_that_grows_without_end_is_refused() -> None:
    bomb = bytes(encode_batch([NewRecord(bytes(70 << 20), b"k", NOW_MS)], codec=Codec.ZSTD))
    assert len(bomb) < 20_000
    with pytest.raises(RecordTooLargeError, match="limit"):
        PlannedLog(LogConfig(seglog_validate_records=True)).plan(bomb)


# Compression


@pytest.mark.parametrize("target", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("source", ALL_CODECS)
def test_the_topics_codec(source: Codec, target: str) -> None:
    log = PlannedLog(LogConfig(compression_type=target), leader_epoch=2)
    log.end_offset = 10
    records = [NewRecord(b"v" * 50, b"k", NOW_MS, (("h", b"x"),)), NewRecord(None, b"", NOW_MS - 5)]
    data = bytes(
        encode_batch(records, codec=source, transactional=True, producer_id=7, producer_epoch=1, base_sequence=3)
    )
    plan = planned(log, data)
    (header,) = plan.batches
    assert Codec(header.codec) is Codec.parse(target)
    if header.codec == source:
        assert plan.data[16:] == data[16:]
    assert header == read_header(plan.data)
    assert (header.base_offset, header.leader_epoch, header.is_transactional) == (10, 2, True)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 1, 3)
    check_crc(plan.data, header)
    found = decode_records(plan.data, header)
    assert [(one.offset, one.timestamp, one.key, one.value, one.headers) for one in found] == [
        (10, NOW_MS, b"k", b"v" * 50, (("h", b"x"),)),
        (11, NOW_MS - 5, b"", None, ()),
    ]
    assert plan.updates is not None
    assert plan.updates.entries[7].last_sequence == 4


@pytest.mark.parametrize(
    ("name", "level"), [("gzip", 1), ("gzip", 9), ("zstd", -50), ("zstd", 19), ("lz4", 1), ("lz4", 12)]
)
def test_levels_are_the_topics(name: str, level: int) -> None:
    records = [NewRecord(b" ".join(b"%d" % (at * at) for at in range(3000)), b"k", NOW_MS)]
    log = PlannedLog(LogConfig.from_mapping({"compression.type": name, f"compression.{name}.level": level}))
    expected = encode_batch(records, codec=Codec.parse(name), level=level)
    assert planned(log, bytes(encode_batch(records))).data[16:] == expected[16:]
    assert len(expected) != len(encode_batch(records, codec=Codec.parse(name)))


def test_control_batches_are_not_compressed() -> None:
    marker = end_txn_marker(commit=True, coordinator_epoch=0, producer_id=7, producer_epoch=0, timestamp=NOW_MS)
    log = PlannedLog(LogConfig(compression_type="gzip", cleanup_policy=frozenset({"compact"})))
    plan = planned(log, bytes(marker), Origin.COORDINATOR)
    assert plan.data[16:] == marker[16:]


def test_what_recompression_makes_too_large_is_refused() -> None:
    data = bytes(encode_batch([NewRecord(bytes(5000), b"k", NOW_MS)], codec=Codec.ZSTD))
    log = PlannedLog(LogConfig(compression_type="uncompressed", max_message_bytes=1000))
    with pytest.raises(RecordTooLargeError, match="bytes after recompression"):
        log.plan(data)


# Other origins


def test_bulk_appends_follow_each_other() -> None:
    log = PlannedLog(leader_epoch=1)
    log.end_offset = 7
    data = made(2, base_offset=999, timestamp=NOW_MS + 50) + made(3, timestamp=NOW_MS) + made(1, timestamp=NOW_MS + 51)
    plan = planned(log, data, Origin.BULK)
    assert [header.base_offset for header in plan.batches] == [7, 9, 12]
    assert (plan.first_offset, plan.last_offset) == (7, 12)
    assert plan.max_timestamp == NOW_MS + 51
    assert [read_header(plan.data, entry.position) for entry in entries(plan.data)] == list(plan.batches)
    assert plan.epoch_starts == ((1, 7),)
    with pytest.raises(CorruptBatchError):
        log.plan(data + b"\0", Origin.BULK)
    with pytest.raises(InvalidRecordError, match="message of magic 1 after"):
        log.plan(data + b"\0" * 11 + b"\x0e" + b"\0" * 4 + b"\1" + b"\0" * 9, Origin.BULK)


def sequenced(sequence: int, count: int = 1) -> bytes:
    return made(count, producer_id=7, producer_epoch=0, base_sequence=sequence)


def test_a_batch_that_is_there_already_is_answered_with_its_offsets() -> None:
    log = PlannedLog()
    planned(log, made())
    planned(log, sequenced(0, 3))
    planned(log, sequenced(3))
    assert log.plan(sequenced(0, 3)) == Duplicate(2, 4, NOW_MS + 2)
    assert log.plan(sequenced(0, 3) + sequenced(3), Origin.BULK) == Duplicate(2, 5, NOW_MS)
    with pytest.raises(OutOfOrderSequenceError):  # some are there and some are not
        log.plan(sequenced(3) + sequenced(4), Origin.BULK)
    assert isinstance(log.plan(sequenced(3), Origin.COORDINATOR), AppendPlan)
    assert isinstance(log.plan(sequenced(4)), AppendPlan)
    assert len(log.plans) == 3


def test_a_plan_changes_nothing() -> None:
    log = PlannedLog()
    planned(log, sequenced(0))
    before = dict(log.producers.entries)
    assert log.plan(sequenced(1)) == log.plan(sequenced(1))
    assert log.producers.entries == before


@pytest.mark.parametrize("seed", range(8))
def test_the_short_way_of_a_plain_batch_comes_to_the_same_as_the_long_way(seed: int) -> None:
    # The oldest timestamp that is allowed keeps nothing out, but has every record looked at.
    short, long = PlannedLog(), PlannedLog(LogConfig(message_timestamp_before_max_ms=MAX_INT64 - 1))
    assert short.config.stores_as_is
    assert not long.config.stores_as_is
    traffic = Traffic(seed, codecs=ALL_CODECS)
    for _ in range(300):
        data, origin = traffic.next()
        assert _outcome(short, data, origin) == _outcome(long, data, origin)
    assert short.data == long.data
    assert short.end_offset > 100


def _outcome(log: PlannedLog, data: bytes, origin: Origin) -> AppendPlan | Duplicate | str:
    try:
        return log.append(data, origin)
    except SeglogError as error:
        return type(error).__name__


@pytest.mark.parametrize("codec", ALL_CODECS)
def test_the_largest_record_of_a_compressed_batch(codec: Codec) -> None:
    """``max.decompressed.message.bytes`` (Kafka 4.4); ``max.message.bytes`` is enough for other batches."""
    records = [
        NewRecord(b"v" * size, key, NOW_MS + size, headers)
        for size, key, headers in ((5, b"k", ()), (900, None, (("h", b"x"), ("i", None))), (0, b"", ()))
    ]
    data = bytes(encode_batch(records, codec=codec))
    largest = 900 + 2 + 1 + 1 + 2 + 1 + 1 + 2 + 2 + 2 + 1  # attributes, deltas, lengths, two headers
    planned(PlannedLog(LogConfig(max_decompressed_message_bytes=largest)), data)
    narrow = PlannedLog(LogConfig(max_decompressed_message_bytes=largest - 1))
    if codec is Codec.NONE:
        planned(narrow, data)
        return
    with pytest.raises(InvalidRecordError, match=f"Invalid record size: {largest} exceeds"):
        planned(narrow, data)
