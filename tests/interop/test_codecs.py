"""Batches and Kafka's own Java classes: each reads what the other writes, and the bytes are the same."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from typing import Final

import pytest

from seglog.core.errors import SeglogError
from seglog.core.types import TimestampType
from seglog.core.utf8 import decode_utf8
from seglog.records import any_magic, legacy
from seglog.records.batch import entries, read_header
from seglog.records.compression import LEVELS, Codec, compress
from seglog.records.record import NewRecord, Record, decode_records, encode_batch, end_txn_marker
from tests.cases import case
from tests.kafka.batches import JavaBatch, Rebuild, read_batches, rebuild_batches
from tests.records.made import batch_of
from tests.records.old_messages import by_hand
from tests.records.peers import Producer
from tests.records.streams import CODECS, some_bytes

LEVELED: Final = [(codec, None) for codec in CODECS] + [
    (codec, level)
    for codec, bounds in LEVELS.items()
    for level in sorted({bounds.default, bounds.lowest, -100, -1, *range(1, bounds.highest + 1)})
    if bounds.lowest <= level or level == bounds.default
]
PRODUCERS: Final = [Producer(), Producer(7, 1, 0), Producer(2**62, 32767, 2**31 - 3, transactional=True)]


def random_records(rng: random.Random, headers: bool = True) -> list[NewRecord]:
    """Up to 40 records: null, empty, small and large keys and values, times in any order."""

    def content() -> bytes | None:
        return rng.choice([None, b"", b"key", rng.randbytes(rng.randrange(300)), some_bytes(rng.randrange(3000))])

    def one() -> NewRecord:
        pairs = [(rng.choice(["", "h", "schlüssel", "鍵"]), content()) for _ in range(rng.choice([0, 0, 1, 3]))]
        time = rng.choice([-1, 0, 1_700_000_000_000 + rng.randrange(10**6), rng.randrange(2**41)])
        return NewRecord(content(), content(), time, tuple(pairs) if headers else ())

    return [one() for _ in range(rng.choice([1, 2, 10, 40]))]


def large_records() -> list[NewRecord]:
    """About 250 KB, so that every codec needs more than one block; a part that does not compress."""
    rng = random.Random(3)
    parts = [
        some_bytes(70_000),
        rng.randbytes(70_000),
        bytes(70_000),
        *(rng.randbytes(9).hex().encode() for _ in range(2000)),
    ]
    return [NewRecord(part, b"%d" % at, 1_700_000_000_000 + at) for at, part in enumerate(parts)]


def only(outcome: Sequence[JavaBatch] | str) -> JavaBatch:
    """The one batch that Kafka read; an error of Kafka's fails the test and shows itself."""
    assert not isinstance(outcome, str), outcome
    (batch,) = outcome
    return batch


def ours(data: bytes) -> list[Record]:
    return [record for entry in entries(data) for record in any_magic.decode(data, entry)]


def flat(outcome: Sequence[JavaBatch] | str) -> list[Record]:
    assert not isinstance(outcome, str), outcome
    return [Record(*record) for batch in outcome for record in batch.records]


def test_kafka_reads_every_codec_at_every_level() -> None:
    large, small = large_records(), [NewRecord(b"", None, 5)]
    batches = [
        bytes(encode_batch(records, codec=codec, level=level, base_offset=10))
        for codec, level in LEVELED
        for records in (large, small)
    ]
    wanted = [decode_records(batch, read_header(batch)) for batch in batches]
    assert [len(records) for records in wanted] == [len(large), 1] * len(LEVELED)
    for batch, records, outcome in zip(batches, wanted, read_batches(batches), strict=True):
        read = only(outcome)
        assert [Record(*record) for record in read.records] == records
        assert (read.codec, read.last_offset) == (read_header(batch).codec, records[-1].offset)


def test_the_bytes_are_those_of_kafkas_builder() -> None:
    """Without a codec byte for byte, CRC and all: null and empty, headers, producers, both timestamp types."""
    rng = random.Random(11)
    batches: list[bytes] = []
    jobs: list[Rebuild] = []
    for number in range(300):
        case()
        producer = PRODUCERS[number % 3]
        append_time = rng.choice([None, 1_800_000_000_000])
        records = random_records(rng)
        batch = encode_batch(
            records,
            base_offset=rng.choice([0, 2**40]),
            timestamp_type=TimestampType.CREATE_TIME if append_time is None else TimestampType.LOG_APPEND_TIME,
            log_append_time=-1 if append_time is None else append_time,
            leader_epoch=rng.choice([-1, 0, 5]),
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            base_sequence=producer.sequence,
            transactional=producer.transactional,
        )
        # Kafka's reader gives LogAppendTime to every record, which would make all deltas 0: it is told CreateTime.
        source = bytearray(batch)
        source[22] &= ~8 & 0xFF
        batches.append(bytes(batch))
        jobs.append(Rebuild(bytes(source), log_append_time=append_time))
    for wanted, built in zip(batches, rebuild_batches(jobs), strict=True):
        assert wanted.hex() == built.hex()


def test_we_read_what_kafka_builds() -> None:
    """Every format, every codec and level, LogAppendTime too; headers of our description as Kafka has them."""
    rng = random.Random(12)
    jobs: list[Rebuild] = []
    for magic in (0, 1, 2):
        for codec, level in [(Codec.NONE, None), *LEVELED]:
            if magic < 2 and codec == Codec.ZSTD:
                continue
            records = large_records() if level is None else random_records(rng, headers=magic == 2)
            batch = bytes(encode_batch(records, base_offset=rng.choice([0, 2**40])))
            jobs += [Rebuild(batch, magic, codec, level, append_time) for append_time in (None, 1_800_000_000_000)]
    built = rebuild_batches(jobs)
    for job, data, outcome in zip(jobs, built, read_batches(built), strict=True):
        case()
        assert ours(data) == flat(outcome)
        assert [r.value for r in ours(data)] == [r.value for r in decode_records(job.batch, read_header(job.batch))]
        assert not isinstance(outcome, str)
        for entry, theirs in zip(entries(data), outcome, strict=True):
            any_magic.check(data, entry)
            header = any_magic.describe(data, entry)
            assert (header.magic, header.codec) == (theirs.magic, theirs.codec)
            assert (header.base_offset, header.last_offset) == (theirs.base_offset, theirs.last_offset)
            assert (header.records_count, header.max_timestamp) == (len(theirs.records), theirs.max_timestamp)
            assert header.magic == 0 or header.timestamp_type == theirs.timestamp_type


def test_kafka_reads_our_old_wrappers() -> None:
    """They are made for tests only, but by the codec that writes them: lz4 with the broken checksum in magic 0."""
    records = [record._replace(headers=()) for record in large_records()]
    messages = [by_hand(records, magic, codec, 40) for magic in (0, 1) for codec in (1, 2, 3)]
    for data, outcome in zip(messages, read_batches(messages), strict=True):
        assert ours(data) == flat(outcome)


def test_converted_messages_are_what_kafka_converts_to() -> None:
    """Kafka builds the old messages; what we make of them it reads as the same records."""
    rng = random.Random(13)
    jobs = [
        Rebuild(bytes(encode_batch(random_records(rng, headers=False), base_offset=9)), magic, codec, None, append_time)
        for magic in (0, 1)
        for codec in (0, 1, 2, 3)
        for append_time in (None, 1_800_000_000_000)
        for _ in range(5)
    ]
    old = rebuild_batches(jobs)
    new = [legacy.convert_up(data) for data in old]
    for before, after, data in zip(read_batches(old), read_batches(new), new, strict=True):
        case()
        assert flat(before) == flat(after)
        assert not isinstance(before, str)
        assert not isinstance(after, str)
        assert {batch.magic for batch in after} == {2}
        assert max(b.max_timestamp for b in after) == max(r.timestamp for b in before for r in b.records)
        assert ours(data) == flat(after)


def test_markers() -> None:
    markers = [
        bytes(
            end_txn_marker(
                commit=commit, coordinator_epoch=3, producer_id=5, producer_epoch=1, timestamp=7, base_offset=2
            )
        )
        for commit in (True, False)
    ]
    for marker, kind, outcome in zip(markers, (1, 0), read_batches(markers), strict=True):
        read = only(outcome)
        assert read.control
        (record,) = read.records
        assert (record.key, record.value) == (struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 3))
        assert Record(*record) == ours(marker)[0]


def test_header_keys_that_are_no_utf8() -> None:
    """Java's replacements, as many and at the same places; for the client and the dump show the same text."""
    rng = random.Random(14)
    pieces = [
        b"a",
        b"\xc3\xa9",
        b"\xe2\x82\xac",
        b"\xf0\x9f\x98\x80",
        b"\xed\xa0\x80",
        b"\xed\xa0",
        b"\xe2\x82",
        b"\xf0\x9f",
    ]
    pieces += [bytes([byte]) for byte in (0x7F, 0x80, 0xBF, 0xC0, 0xC2, 0xE0, 0xED, 0xEF, 0xF0, 0xF4, 0xF5, 0xFF)]
    keys = [b"".join(rng.choices(pieces, k=rng.randrange(1, 6))) for _ in range(5000)]
    keys = [key for key in keys if len(key) < 50]
    batches = [bytes(batch_of(_record_with_header(key))) for key in keys]
    for key, outcome in zip(keys, read_batches(batches), strict=True):
        case()
        ((name, _),) = only(outcome).records[0].headers
        assert decode_utf8(key) == name, key


def _record_with_header(key: bytes) -> bytes:
    body = b"\x00\x00\x00\x01\x01\x02" + bytes([2 * len(key)]) + key + b"\x01"
    return bytes([2 * len(body)]) + body


@pytest.mark.parametrize("codec", CODECS)
def test_bytes_after_the_stream(codec: Codec) -> None:
    """The table of `seglog.records.compression`: what Kafka reads over, we read over."""
    area = b"\x0c\x00\x00\x00\x01\x01\x00"
    stream = compress(codec, area)
    tails = [b"\0", b"\0\0\0", b"\0\0\0\0", b"junk", bytes(40), b"\x1f\x8b\x08" + bytes(10), compress(codec, b"")]
    batches = [bytes(batch_of(stream + tail, attributes=codec)) for tail in tails]
    batches.append(bytes(batch_of(stream + compress(codec, area[:3]), attributes=codec)))
    batches.append(bytes(batch_of(compress(codec, area[:3]) + compress(codec, area[3:]), attributes=codec)))
    for batch, outcome in zip(batches, read_batches(batches), strict=True):
        assert accepted(batch) == (None if isinstance(outcome, str) else flat(outcome)), outcome


def accepted(data: bytes) -> list[Record] | None:
    try:
        return ours(data)
    except SeglogError:
        return None
