"""Batches under a right CRC whose records are not what they should be: what a client could send on purpose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from seglog.records.batch import BATCH_OVERHEAD, read_header
from seglog.records.compression import compress
from seglog.records.record import NewRecord, encode_batch
from seglog.records.record import encode_varint as varint
from tests.records.made import batch_of

_WHEN: Final = 1_790_000_000_000
_GZIP, _SNAPPY, _LZ4, _ZSTD = 1, 2, 3, 4


def record(body: bytes) -> bytes:
    return varint(len(body)) + body


def area(
    *,
    attributes: bytes = b"\0",
    timestamp: bytes = b"\0",
    offset: bytes = b"\0",
    key: bytes = varint(1) + b"k",
    value: bytes = varint(1) + b"v",
    headers: bytes = b"\0",
) -> bytes:
    return record(attributes + timestamp + offset + key + value + headers)


def batch(data: bytes, **header: int) -> bytes:
    fields = {"base_timestamp": _WHEN, "max_timestamp": _WHEN, "records_count": 1, "last_offset_delta": 0, **header}
    return bytes(batch_of(data, **fields))


def bomb(codec: int, megabytes: int = 70) -> bytes:
    """One record whose value is so many zeros: as small as its codec makes it, and nothing is wrong with it."""
    return batch(compress(codec, area(value=varint(megabytes << 20) + bytes(megabytes << 20))), attributes=codec)


def _two(first: bytes, second: bytes) -> bytes:
    return batch(first + second, records_count=2, last_offset_delta=1)


MALFORMED: Final[Mapping[str, bytes]] = {
    "a varint of six bytes": batch(area(key=b"\x80\x80\x80\x80\x80\x01")),
    "a varlong of eleven bytes": batch(area(timestamp=b"\x80" * 10 + b"\x01")),
    "a key of -2 bytes": batch(area(key=varint(-2))),
    "a value of 2 GiB": batch(area(value=varint(2**31 - 1))),
    "-1 headers": batch(area(headers=varint(-1))),
    "2^31 - 1 headers": batch(area(headers=varint(2**31 - 1))),
    "a header key of -1 bytes": batch(area(headers=varint(1) + varint(-1))),
    "a record of -1 bytes": batch(varint(-1) + area()),
    "a record of 2 GiB": batch(varint(2**31 - 1) + area()),
    "a record that is too short": batch(record(b"\0\0")),
    "bytes behind a record's headers": batch(record(b"\0\0\0\1\1\0" + b"xyz")),
    "bytes behind the last record": batch(area() + b"xyz"),
    "fewer records than it says": batch(area(), records_count=2, last_offset_delta=1),
    "more records than it says": batch(area() + area(offset=varint(1))),
    "an offset twice": _two(area(), area()),
    "an offset that is not the next": _two(area(), area(offset=varint(5))),
    "a header that is not UTF-8": batch(area(headers=varint(1) + varint(2) + b"\xff\xfe" + varint(-1))),
    "gzip that is none": batch(area(), attributes=_GZIP),
    "snappy that is none": batch(area(), attributes=_SNAPPY),
    "lz4 that is none": batch(area(), attributes=_LZ4),
    "zstd that is none": batch(area(), attributes=_ZSTD),
    "gzip that ends": batch(compress(_GZIP, area(value=varint(500) + bytes(range(250)) * 2))[:40], attributes=_GZIP),
    "zstd that says it is gzip": batch(compress(_ZSTD, area()), attributes=_GZIP),
    "snappy of 4 GB": batch(b"\xff\xff\xff\xff\x0f" + bytes(20), attributes=_SNAPPY),
    "nothing, compressed": batch(compress(_ZSTD, b""), attributes=_ZSTD),
}
"""Under a right CRC: a topic that does not look at its records takes them, one that does refuses them."""


def sequences() -> list[tuple[int, int, int]]:
    """An idempotent producer's batches of three: base sequence, and what Kafka answers. They overlap, leave out some,
    come twice."""
    return [
        (0, 3, 0),
        (3, 3, 0),
        (3, 3, 0),
        (4, 3, 45),
        (2, 3, 45),
        (7, 3, 45),
        (0, 3, 0),
        (6, 1, 0),
        (2**31 - 1, 2, 45),
    ]


def sequenced(producer_id: int, base_sequence: int, count: int) -> bytes:
    records = [NewRecord(b"v", b"k", _WHEN) for _ in range(count)]
    made = encode_batch(records, producer_id=producer_id, producer_epoch=0, base_sequence=base_sequence)
    assert read_header(made).size == len(made) > BATCH_OVERHEAD
    return bytes(made)
