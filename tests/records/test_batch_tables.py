"""Tables of batches against the plain path: same headers, same verdicts, same places."""

from __future__ import annotations

import random
import zlib

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from seglog.core.errors import CorruptError, UnsupportedFormatError
from seglog.records import intrinsics
from seglog.records.batch import check_header, entries, read_header
from seglog.records.batch_kernels import Stop, Verdict
from seglog.records.batch_tables import BATCH_DTYPE, BatchTable, byte_array, check_compressed, header_of, walk_batches
from seglog.records.record import NewRecord, decode_records, encode_batch
from tests.cases import case
from tests.records.generated import batches, damaged, sealed


def check_all(data: bytes, base: int = 0) -> BatchTable:
    tables = []
    for table, _, _ in walk_batches(data, base=base, check_records=True, rows=3):
        check_compressed(data, table, base=base)
        tables.append(table)
    return np.concatenate(tables)


def plain_error(batch: bytes) -> CorruptError | UnsupportedFormatError | None:
    header = read_header(batch)
    try:
        check_header(header)
        decode_records(batch, header)
    except (CorruptError, UnsupportedFormatError) as error:
        return error
    return None


def plain_walk(data: bytes) -> tuple[int, CorruptError | None]:
    """How many batches there are, and what ended the walk."""
    count = 0
    try:
        for _ in entries(data):
            count += 1
    except CorruptError as error:
        return count, error
    return count, None


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 767, 768, 769, 3071, 3072, 3073, 16384, 70_001])
def test_checksums_are_those_of_the_libraries(size: int) -> None:
    data = random.Random(size).randbytes(size + 5)
    array = byte_array(data)
    assert intrinsics.crc32c(array, 3, 3 + size) == crc32c(data[3 : 3 + size])
    assert intrinsics.crc32c_by_table(array, 3, 3 + size) == crc32c(data[3 : 3 + size])
    assert intrinsics.crc32(array, 3, 3 + size) == zlib.crc32(data[3 : 3 + size])


@given(st.data())
def test_a_sound_segment_is_walked_as_the_plain_path_walks_it(data: st.DataObject) -> None:
    case()
    segment = b"".join(data.draw(batches(base)) for base in range(0, data.draw(st.integers(0, 7)) * 100, 100))
    table = check_all(segment, base=1000)
    plain = list(entries(segment))
    assert table["position"].tolist() == [entry.position + 1000 for entry in plain]
    assert table["verdict"].tolist() == [Verdict.OK] * len(plain)
    for row, entry in zip(table, plain, strict=True):
        header = read_header(segment, entry.position)
        assert header_of(row) == header
        records = decode_records(segment, header, entry.position)
        assert int(row["last_delta"]) == (records[-1].offset - header.base_offset if records else -1)
        if records:
            assert int(row["largest_timestamp"]) == max(record.timestamp for record in records)


@settings(max_examples=2 * settings().max_examples)
@given(damaged())
def test_hostile_records_get_the_verdict_of_the_plain_path(batch: bytes) -> None:
    case()
    (row,) = check_all(batch, base=50)
    error = plain_error(batch)
    assert (row["verdict"] != Verdict.OK) == (error is not None), error
    if row["bad_record"] >= 0 and not read_header(batch).codec:
        assert isinstance(error, CorruptError)
        assert row["bad_position"] == error.position + 50


def test_every_bit_flip_under_the_crc_is_found() -> None:
    batch = encode_batch([NewRecord(b"value", b"key", 5, [("h", None)])])
    for bit in range(17 * 8, len(batch) * 8):
        flipped = bytearray(batch)
        flipped[bit // 8] ^= 1 << bit % 8
        assert check_all(bytes(flipped))["verdict"].tolist() == [Verdict.CRC]


def test_a_bad_batch_does_not_end_the_walk() -> None:
    batch = encode_batch([NewRecord(b"v")])
    bad = bytearray(batch)
    bad[-1] ^= 1
    table = check_all(bytes(batch + bad + batch))
    assert table["verdict"].tolist() == [Verdict.OK, Verdict.CRC, Verdict.OK]
    assert table["computed_crc"][1] != table["crc"][1] == table["crc"][0]


@given(st.binary(max_size=80), st.booleans())
def test_a_walk_stops_where_the_plain_path_stops(tail: bytes, cut: bool) -> None:
    case()
    batch = bytes(encode_batch([NewRecord(b"v" * 40)]))
    data = batch + (batch[: len(tail)] if cut else tail)
    walks = list(walk_batches(data))
    found = sum(len(walk.table) for walk in walks)
    last = walks[-1]
    count, error = plain_walk(data)
    assert found == count
    if error is None:
        assert last.stop == (Stop.END if last.position == len(data) else Stop.TORN)
    else:
        assert last.stop in (Stop.MAGIC, Stop.SIZE)
        assert error.position == last.position


def test_hostile_counts_are_refused_before_memory_is_taken() -> None:
    batch = bytearray(encode_batch([NewRecord(b"v")]))
    batch[57:61] = (2**31 - 1).to_bytes(4, "big")
    assert check_all(sealed(batch))["verdict"].tolist() == [Verdict.COUNT]


def test_messages_of_old_formats_are_rows_too() -> None:
    body = b"\x01\x00" + (1234).to_bytes(8, "big") + b"\xff\xff\xff\xff" + b"\x00\x00\x00\x02hi"
    message = zlib.crc32(body).to_bytes(4, "big") + body
    entry = (77).to_bytes(8, "big") + len(message).to_bytes(4, "big") + message
    bad = entry[:-1] + b"o"
    table = check_all(entry + bad)
    assert table["verdict"].tolist() == [Verdict.OK, Verdict.CRC]
    assert table["magic"].tolist() == [1, 1]
    assert table["base_offset"].tolist() == [77, 77]
    assert table["max_timestamp"].tolist() == [1234, 1234]
    assert table.dtype == BATCH_DTYPE
