"""The names of bytes: they cover a header without gaps, and say what the decoders say."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest

from seglog.console.byte_fields import ByteField, batch_fields, entry_fields, record_fields
from seglog.core.errors import CorruptRecordError
from seglog.records.batch import BATCH_OVERHEAD, HEADER, read_header
from seglog.records.compression import Codec
from seglog.records.record import NewRecord, decode_records, encode_batch
from tests.console.asking import Asked

pytestmark = pytest.mark.xdist_group("console")
_RECORDS = [
    NewRecord(b"value", key=b"key", timestamp=1000),
    NewRecord(None, key=None, timestamp=1000 + 2**40, headers=[("a", b"1"), ("nothing", None), ("empty", b"")]),
    NewRecord(b"", key=b"", timestamp=900),
    NewRecord(bytes(range(256)) * 3, key="schlüssel".encode(), timestamp=5000),
]


def _covered(fields: list[ByteField]) -> int:
    """The end of fields that follow each other without a gap."""
    at = 0
    for one in fields:
        assert one.at == at, one
        at += one.size
    return at


def test_a_batch_header_is_named_field_by_field() -> None:
    data = bytes(encode_batch(_RECORDS, codec=Codec.ZSTD, producer_id=7, producer_epoch=1, base_sequence=3))
    fields = batch_fields(data)
    assert _covered(fields) == len(data)
    assert [one.value for one in fields[:-1]] == list(read_header(data))
    assert sum(one.size for one in fields[:-1]) == HEADER.size == BATCH_OVERHEAD
    assert "zstd" in fields[-1].note


@pytest.mark.parametrize("cut", [0, 5, 17, 40, 61, 70])
def test_cut_batches_have_as_many_names_as_bytes(cut: int) -> None:
    fields = batch_fields(bytes(encode_batch(_RECORDS))[:cut])
    assert all(one.at + one.size <= cut for one in fields if one.name != "records")


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_of_old_formats_are_named(magic: int) -> None:
    body = struct.pack(">bb", magic, 0) + (struct.pack(">q", 1234) if magic else b"")
    body += struct.pack(">i3si", 3, b"key", -1)
    data = struct.pack(">qiI", 9, len(body) + 4, 77) + body
    fields = batch_fields(data)
    assert _covered(fields) == len(data)
    named = {one.name: one.value for one in fields}
    assert (named["offset"], named["magic"], named["key"], named["valueLength"]) == (9, magic, "key", -1)
    assert named.get("timestamp") == (1234 if magic else None)


def test_records_are_named_as_they_decode() -> None:
    data = bytes(encode_batch(_RECORDS))
    header = read_header(data)
    area = data[BATCH_OVERHEAD:]
    end = 0
    for number, record in enumerate(decode_records(data, header)):
        start, end_, fields = record_fields(area, number)
        assert start == end
        end = end_
        assert _covered(fields) == end - start
        named = {one.name: one for one in fields}
        assert int(str(named["timestampDelta"].value)) + header.base_timestamp == record.timestamp
        assert named["offsetDelta"].value == number
        assert named["keyLength"].value == (-1 if record.key is None else len(record.key))
        assert named["valueLength"].value == (-1 if record.value is None else len(record.value))
        assert named["headersCount"].value == len(record.headers)
    assert end == len(area)
    with pytest.raises(CorruptRecordError, match="record 4 is not in the batch"):
        record_fields(area, 4)


@pytest.mark.parametrize("damage", [b"", b"\x80" * 30, b"\x01", b"\xfe\xff\xff\xff\x0f" + b"x" * 9, bytes(40)])
def test_damaged_records_have_an_error_and_no_other(damage: bytes) -> None:
    for number in range(3):
        with suppress(CorruptRecordError):
            record_fields(damage, number)


def test_entries_of_indexes_name_the_offset() -> None:
    (relative, position) = entry_fields("index", struct.pack(">ii", 5, 4096), 100)
    assert (relative.value, relative.note, position.value) == (5, "offset 105", 4096)
    assert [one.name for one in entry_fields("timeindex", struct.pack(">qi", 1, 2), 0)] == [
        "timestamp",
        "relativeOffset",
    ]
    assert len(entry_fields("txnindex", bytes(34), 0)) == 5
    assert entry_fields("index", b"", 0) == []


def test_the_api_gives_the_bytes_of_the_file(asked: Asked) -> None:
    for batch in asked.ask("batches", topic="flights", partition=0, base=0, count=20)["batches"]:
        where = {"topic": "flights", "partition": 0, "base": 0, "position": batch["position"]}
        found = asked.ask("bytes", **where, count=61)
        assert read_header(bytes.fromhex(found["hex"])).base_offset == batch["baseOffset"]
        for number in (0, batch["count"] - 1):
            record = asked.ask("bytes", **where, of="record", number=number)
            (read,) = asked.ask("records", topic="flights", partition=0, offset=batch["baseOffset"] + number, count=1)[
                "records"
            ]
            named = {one["name"]: one["value"] for one in record["fields"]}
            assert named["key"] == read["key"]
            assert named["offsetDelta"] == number
    beyond = asked.answer("bytes", topic="flights", partition=0, base=0, of="record", position=0, number=999)
    assert beyond.status == 422
