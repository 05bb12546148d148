"""Arrow columns against the plain path and two other libraries: same bytes, same records, same errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seglog.core.errors import CorruptError, InvalidConfigError, SeglogError, TimestampRangeError, TooLargeError
from seglog.core.types import MAX_INT64, TimestampType
from seglog.records import any_magic
from seglog.records.batch import DELETE_HORIZON_BIT, BatchHeader, build_batch, entries, read_header
from seglog.records.batch_tables import walk_batches
from seglog.records.column_decoding import Selection, decode_parts
from seglog.records.columns import COLUMNS, EXTRA_SCHEMA, SCHEMA, SourcePartition, schema_of
from seglog.records.compression import Codec, compress
from seglog.records.record import NewRecord, Record, encode_batch, encode_records
from tests.cases import case
from tests.records.generated import batches, damaged, new_records
from tests.records.peers import PEERS, Peer

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ALL_COLUMNS = (*COLUMNS, *EXTRA_SCHEMA.names)


def decode(data: bytes, wanted: Selection | None = None, base: int = 0) -> Iterator[pa.RecordBatch]:
    wanted = wanted or Selection()
    for walked in walk_batches(data, base=base, rows=5):
        for decoded in decode_parts(data, walked.table, wanted, SourcePartition("t", 3), base=base):
            assert decoded.rows is not None
            yield decoded.rows


def rows(data: bytes, wanted: Selection | None = None) -> list[dict[str, Any]]:
    found = list(decode(data, wanted or Selection(columns=ALL_COLUMNS)))
    for batch in found:
        batch.validate(full=True)
    return [row for batch in found for row in batch.to_pylist()]


def as_row(record: Record, header: BatchHeader, kind: int) -> dict[str, Any]:
    return {
        "key": record.key,
        "value": record.value,
        "topic": "t",
        "partition": 3,
        "offset": record.offset,
        "timestamp": EPOCH + timedelta(milliseconds=record.timestamp),
        "timestampType": kind,
        "headers": [{"key": key, "value": value} for key, value in record.headers] or None,
        "isTombstone": record.value is None,
        "isControl": header.is_control,
        "isTransactional": header.is_transactional,
        "producerId": header.producer_id,
        "producerEpoch": header.producer_epoch,
        "sequence": record.sequence,
        "leaderEpoch": header.leader_epoch,
    }


def plain_rows(data: bytes) -> list[dict[str, Any]]:
    found = []
    for entry in entries(data):
        header = any_magic.describe(data, entry)
        kind = TimestampType.NONE if entry.magic == 0 else header.timestamp_type
        found += [as_row(record, header, int(kind)) for record in any_magic.decode(data, entry)]
    return found


segments = st.lists(st.integers(0, 3), max_size=6).flatmap(
    lambda gaps: st.tuples(*(batches(100 * index + gap) for index, gap in enumerate(gaps))).map(b"".join)
)


@given(segments, st.integers(1, 20), st.integers(1, 4000))
def test_columns_hold_the_records_of_the_plain_path(segment: bytes, max_rows: int, max_bytes: int) -> None:
    case()
    wanted = Selection(columns=ALL_COLUMNS, rows=max_rows, bytes_=max_bytes)
    assert rows(segment, wanted) == plain_rows(segment)


@given(segments, st.integers(-5, 650), st.integers(-5, 650), st.permutations(ALL_COLUMNS), st.integers(1, 14))
def test_only_selected_columns_and_offsets_are_decoded(
    segment: bytes, low: int, high: int, columns: list[str], count: int
) -> None:
    case()
    chosen = columns[:count]
    expected = [{name: row[name] for name in chosen} for row in plain_rows(segment) if low <= row["offset"] < high]
    assert rows(segment, Selection(columns=chosen, low=low, high=high)) == expected


@pytest.mark.parametrize("peer", PEERS, ids=repr)
@settings(max_examples=settings().max_examples // 3)
@given(segment=segments)
def test_columns_hold_the_records_that_others_read(peer: Peer, segment: bytes) -> None:
    case()
    for entry in entries(segment):
        batch = segment[entry.position : entry.position + entry.size]
        header = read_header(batch)
        if header.codec not in peer.codecs(2) or header.attributes & DELETE_HORIZON_BIT or not header.records_count:
            continue
        found = rows(batch, Selection(columns=("offset", "timestamp", "key", "value", "headers")))
        assert [tuple(row.values()) for row in found] == [
            (
                record.offset,
                EPOCH + timedelta(milliseconds=record.timestamp),
                record.key,
                record.value,
                [{"key": key, "value": value} for key, value in record.headers] or None,
            )
            for record in peer.read(batch)
        ]


def outcome(call: Callable[[], object]) -> tuple[Any, ...]:
    """The result or the error of a call, in a form that can be compared."""
    try:
        return ("value", call())
    except CorruptError as error:
        return (type(error), error.reason, error.position, error.offset)
    except SeglogError as error:
        return (type(error), str(error))


def plain_offsets(data: bytes) -> list[int]:
    offsets = []
    for entry in entries(data):
        try:
            any_magic.check(data, entry)
            any_magic.describe(data, entry)
            offsets += [record.offset for record in any_magic.decode(data, entry)]
        except CorruptError as error:
            raise error.at(base=0, offset=entry.offset) from None
    return offsets


@settings(max_examples=2 * settings().max_examples)
@given(damaged(100))
def test_hostile_bytes_get_the_error_of_the_plain_path(batch: bytes) -> None:
    case()
    wanted = Selection(columns=("offset", "headers"))
    found = outcome(lambda: [row["offset"] for row in rows(batch, wanted)])
    assert found == outcome(lambda: plain_offsets(batch))


@given(st.binary(max_size=300), st.booleans())
def test_random_bytes_are_read_or_refused_by_our_errors(noise: bytes, dressed: bool) -> None:
    """``dressed``: as the records of a batch that is otherwise in order."""
    case()
    header = read_header(encode_batch([NewRecord(b"v")]))
    data = bytes(build_batch(header._replace(records_count=3, last_offset_delta=9), noise)) if dressed else noise
    outcome(lambda: rows(data))


@given(new_records(), st.sampled_from([0, 1]), st.sampled_from([Codec.NONE, Codec.GZIP]), st.integers(0, 9))
def test_old_messages_come_out_by_the_same_columns(
    records: list[NewRecord], magic: int, codec: Codec, low: int
) -> None:
    case()
    messages = PEERS[0].build_legacy(records, magic, codec)
    data = messages + bytes(encode_batch(records, base_offset=100)) + messages
    expected = [row for row in plain_rows(data) if row["offset"] >= low]
    assert rows(data, Selection(columns=ALL_COLUMNS, low=low, rows=5)) == expected
    if magic == 0:
        assert {row["timestampType"] for row in expected if row["offset"] < 100} <= {-1}


def test_positions_count_from_where_the_bytes_lie_in_the_file() -> None:
    good, bad = encode_batch([NewRecord(b"v")]), bytearray(encode_batch([NewRecord(b"w")], base_offset=1))
    bad[-1] ^= 1
    with pytest.raises(CorruptError, match="CRC") as caught:
        list(decode(bytes(good + bad), base=5000))
    assert (caught.value.position, caught.value.offset) == (5000 + len(good), 1)


def test_a_bomb_is_refused_by_its_limit() -> None:
    batch = bytes(encode_batch([NewRecord(bytes(1 << 20))], codec=Codec.ZSTD))
    with pytest.raises(TooLargeError):
        rows(batch, Selection(limit=1 << 16))


def test_an_unknown_codec_is_named() -> None:
    header = read_header(encode_batch([NewRecord(b"v")]))
    batch = bytes(build_batch(header._replace(attributes=6), b"anything"))
    with pytest.raises(CorruptError, match="codec 6"):
        rows(batch)
    empty = bytes(build_batch(header._replace(attributes=6, records_count=0), b""))
    assert outcome(lambda: rows(empty)) == outcome(lambda: plain_rows(empty))


def test_times_that_microseconds_cannot_hold_are_refused_or_null_as_asked() -> None:
    times = [5, MAX_INT64 // 1000, MAX_INT64 // 1000 + 1, MAX_INT64]
    batch = bytes(encode_batch([NewRecord(b"v", timestamp=time) for time in times], base_offset=7))
    with pytest.raises(
        TimestampRangeError, match=r"t, partition 3, offset 9: the timestamp 9223372036854776 .* not milliseconds"
    ):
        list(decode(batch, Selection(columns=("timestamp",))))
    (found,) = decode(batch, Selection(columns=("timestamp",), null_timestamps=True))
    assert found.column(0).cast(pa.int64()).to_pylist() == [5000, MAX_INT64 // 1000 * 1000, None, None]
    assert [one.num_rows for one in decode(batch, Selection(columns=("offset",)))] == [4]


def test_header_keys_that_are_no_utf8_are_replaced_as_java_does() -> None:
    batch = encode_batch([NewRecord(b"v", headers=[("abc", b"1"), ("é", None)])])
    header = read_header(batch)
    area = bytes(batch[61:]).replace(b"abc", b"\xed\xa0\x80")
    (row,) = rows(bytes(build_batch(header, area)), Selection(columns=("headers",)))
    assert row["headers"] == [{"key": "\ufffd", "value": b"1"}, {"key": "é", "value": None}]


def test_rows_and_bytes_of_a_batch_are_bounded() -> None:
    small = b"".join(bytes(encode_batch([NewRecord(b"x" * 50)] * 3, base_offset=3 * n)) for n in range(50))
    sizes = [batch.num_rows for batch in decode(small, Selection(rows=10))]
    assert sum(sizes) == 150
    assert max(sizes) <= 10
    for codec in Codec:
        big = b"".join(bytes(encode_batch([NewRecord(b"x" * 1000)], base_offset=n, codec=codec)) for n in range(50))
        sizes = [batch.num_rows for batch in decode(big, Selection(bytes_=5000))]
        assert sum(sizes) == 50
        assert max(sizes) <= 5


def test_many_small_values_are_not_mixed_up() -> None:
    """Short values are copied in words that reach over the next ones' places."""
    records = [NewRecord(bytes([n]) * (n % 40), key=b"%d" % n) for n in range(200)]
    area = encode_records(
        [Record(n, 0, bytes(record.key or b""), bytes(record.value or b"")) for n, record in enumerate(records)],
        base_offset=0,
        base_timestamp=0,
    )
    for codec in Codec:
        header = BatchHeader(0, 0, 0, 2, 0, codec, 199, 0, 0, -1, -1, -1, 200)
        found = rows(bytes(build_batch(header, compress(codec, bytes(area)))))
        assert [(row["key"], row["value"]) for row in found] == [(record.key, record.value) for record in records]


def test_a_column_that_is_not_there_is_named() -> None:
    with pytest.raises(InvalidConfigError, match="no column 'vale': there are key, value"):
        schema_of(["vale"])
    assert schema_of(COLUMNS).equals(SCHEMA)
