"""Arrow columns to batches: byte for byte those of the plain path, whatever the columns look like."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.core.errors import InvalidConfigError, InvalidRecordError, InvalidTimestampError
from seglog.core.types import TimestampType
from seglog.records.batch import entries, read_header
from seglog.records.batch_tables import walk_batches
from seglog.records.column_decoding import Selection, decode_parts
from seglog.records.column_encoding import encode_columns
from seglog.records.columns import HEADERS
from seglog.records.compression import Codec
from seglog.records.record import NewRecord, decode_records, encode_batch
from tests.cases import case
from tests.records.generated import new_records
from tests.records.peers import as_bytes

SCHEMA = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("timestamp", pa.int64()), ("headers", HEADERS)])


def as_columns(records: list[NewRecord]) -> pa.RecordBatch:
    rows = [
        {
            "key": as_bytes(record.key),
            "value": as_bytes(record.value),
            "timestamp": record.timestamp,
            "headers": [{"key": key, "value": as_bytes(value)} for key, value in record.headers],
        }
        for record in records
    ]
    arrays = [pa.array([row[name] for row in rows], SCHEMA.field(name).type) for name in SCHEMA.names]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def sizes(data: memoryview) -> list[int]:
    return [entry.size for entry in entries(data)]


@given(
    new_records(max_size=30),
    st.integers(1, 1000),
    st.sampled_from(Codec),
    st.sampled_from([-1, 0, 2**31 - 3]),
    st.booleans(),
    st.integers(0, 2**62),
)
def test_batches_are_those_of_the_plain_path(
    records: list[NewRecord], limit: int, codec: Codec, sequence: int, append: bool, base_offset: int
) -> None:
    case()
    options: dict[str, Any] = {
        "codec": codec,
        "timestamp_type": TimestampType.LOG_APPEND_TIME if append else TimestampType.CREATE_TIME,
        "log_append_time": 5,
        "leader_epoch": 3,
    }
    if sequence >= 0:
        options |= {"producer_id": 9, "producer_epoch": 1, "transactional": append}
    data = encode_columns(
        as_columns(records), batch_bytes=limit, base_offset=base_offset, base_sequence=sequence, **options
    )
    row = 0
    for entry in entries(data):
        header = read_header(data, entry.position)
        some = records[row : row + header.records_count]
        plain = encode_batch(
            some,
            base_offset=base_offset + row,
            base_sequence=(sequence + row) % 2**31 if sequence >= 0 else -1,
            **options,
        )
        assert data[entry.position : entry.position + entry.size] == plain
        row += len(some)
        following = records[row : row + 1]
        if len(some) > 1:
            assert len(encode_batch(some)) <= limit
        if following:
            assert len(encode_batch(some + following)) > limit
    assert row == len(records)


@given(new_records(max_size=20), st.integers(0, 20), st.integers(0, 20))
def test_a_slice_is_its_rows(records: list[NewRecord], start: int, count: int) -> None:
    case()
    data = encode_columns(as_columns(records).slice(start, count))
    some = records[start : start + count]
    assert bytes(data) == (bytes(encode_batch(some)) if some else b"")


@given(new_records(max_size=20), st.sampled_from(Codec), st.integers(61, 500))
def test_decoded_columns_encode_to_the_same_batch(records: list[NewRecord], codec: Codec, limit: int) -> None:
    """From Kafka's schema back: timestamps in microseconds, null headers for none."""
    case()
    batch = bytes(encode_batch(records, codec=codec))
    (walked,) = walk_batches(batch)
    (decoded,) = decode_parts(batch, walked.table, Selection())
    columns = decoded.rows
    assert columns is not None
    assert bytes(encode_columns(columns, codec=codec, batch_bytes=1 << 20)) == batch
    cut = encode_columns(columns, codec=codec, batch_bytes=limit)
    assert [
        record._replace(offset=0)
        for entry in entries(cut)
        for record in decode_records(cut, read_header(cut, entry.position), entry.position)
    ] == [record._replace(offset=0) for record in decode_records(batch, read_header(batch))]


def encode_one(name: str, array: pa.Array, **options: Any) -> list[Any]:
    columns = pa.RecordBatch.from_arrays([array], names=[name])
    data = encode_columns(columns, **options)
    records = decode_records(data, read_header(data))
    return [getattr(record, name) for record in records]


@pytest.mark.parametrize(
    "kind", [pa.binary(), pa.string(), pa.large_binary(), pa.large_string(), pa.string_view(), pa.binary_view()]
)
def test_bytes_and_text_of_every_kind_are_keys_and_values(kind: pa.DataType) -> None:
    values = ["a", None, "", "b" * 100]
    array = pa.array(values, pa.string()).cast(kind)
    expected = [None if value is None else value.encode() for value in values]
    assert encode_one("value", array) == expected
    assert encode_one("key", array.slice(1)) == expected[1:]
    assert encode_one("key", array.slice(1, 1)) == [None]


def test_seconds_that_milliseconds_cannot_hold_are_refused() -> None:
    for seconds in (2**63 - 1, 2**63 // 1000 + 1, -(2**62)):
        with pytest.raises(InvalidTimestampError, match=f"timestamp {seconds} s of record 0"):
            encode_one("timestamp", pa.array([seconds], pa.timestamp("s")))


@pytest.mark.parametrize(("unit", "per_second"), [("s", 1), ("ms", 1000), ("us", 10**6), ("ns", 10**9)])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Zurich"])
def test_timestamps_of_every_unit(unit: str, per_second: int, zone: str | None) -> None:
    raw = pa.array([1_700_000_000 * per_second, None, 0], pa.int64())
    assert encode_one("timestamp", raw.cast(pa.timestamp(unit, zone)), default_timestamp=7) == [1_700_000_000_000, 7, 0]


def test_times_as_milliseconds_or_not_at_all() -> None:
    assert encode_one("timestamp", pa.array([5, None], pa.int64())) == [5, -1]
    assert encode_one("timestamp", pa.array([None, None], pa.timestamp("us"))) == [-1, -1]
    assert encode_one("value", pa.nulls(2)) == [None, None]
    before = pa.array([datetime(1969, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)], pa.timestamp("us", "UTC"))
    assert encode_one("timestamp", before) == [-1]


def test_headers_that_are_null_are_none() -> None:
    lists = pa.array([None, [], [{"key": "k", "value": None}], [{"key": "", "value": b""}]], HEADERS)
    assert encode_one("headers", lists) == [(), (), (("k", None),), (("", b""),)]
    assert encode_one("headers", lists.slice(2)) == [(("k", None),), (("", b""),)]
    other = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))
    assert encode_one("headers", pa.array([[{"key": "k", "value": "v"}]], other)) == [(("k", b"v"),)]


def test_columns_that_cannot_be() -> None:
    with pytest.raises(InvalidConfigError, match="column value is int64, not binary"):
        encode_one("value", pa.array([1], pa.int64()))
    with pytest.raises(InvalidConfigError, match="column timestamp is string"):
        encode_one("timestamp", pa.array(["2013"], pa.string()))
    with pytest.raises(InvalidConfigError, match="column headers"):
        encode_one("headers", pa.array(["2013"], pa.string()))
    with pytest.raises(InvalidTimestampError, match="-2 of record 1"):
        encode_one("timestamp", pa.array([5, -2], pa.int64()))
    for lists in ([[], [{"key": None, "value": b""}]], [[], [None]]):
        with pytest.raises(InvalidRecordError, match="header of record 1 has no key"):
            encode_one("headers", pa.array(lists, HEADERS))
    with pytest.raises(InvalidRecordError, match="needs an epoch"):
        encode_one("value", pa.array([b"v"], pa.binary()), producer_id=5)
    with pytest.raises(InvalidConfigError, match="level"):
        encode_one("value", pa.array([b"v"], pa.binary()), codec=Codec.ZSTD, level=99)


def test_no_rows_are_no_batches() -> None:
    assert bytes(encode_columns(as_columns([]))) == b""
    assert bytes(encode_columns(as_columns([]), codec=Codec.LZ4)) == b""


def test_the_limit_counts_the_header_of_the_batch() -> None:
    records = [NewRecord(b"x" * 10)] * 100
    one = len(encode_batch(records[:1]))
    assert set(sizes(encode_columns(as_columns(records), batch_bytes=one))) == {one}
    whole = len(encode_batch(records))
    assert sizes(encode_columns(as_columns(records), batch_bytes=whole)) == [whole]
    assert len(sizes(encode_columns(as_columns(records), batch_bytes=whole - 1))) == 2
