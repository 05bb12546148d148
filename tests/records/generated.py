"""Batches that no human would think of, and ways to damage them without the CRC noticing."""

from __future__ import annotations

from typing import Final

from hypothesis import strategies as st

from seglog.core.types import TimestampType
from seglog.records.batch import (
    BATCH_OVERHEAD,
    DELETE_HORIZON_BIT,
    BatchHeader,
    build_batch,
    compute_crc,
    read_header,
)
from seglog.records.compression import Codec, compress, decompress
from seglog.records.record import NewRecord, decode_records, encode_batch, encode_records

HEADER_KEYS: Final = st.text(max_size=6)
BYTES: Final = st.none() | st.binary(max_size=40) | st.integers(60, 300).map(lambda size: b"v" * size)
TIMESTAMPS: Final = st.sampled_from([-1, 0, 1, 1_700_000_000_000]) | st.integers(-1, 2**41)


@st.composite
def new_records(draw: st.DrawFn, max_size: int = 12) -> list[NewRecord]:
    headers = st.lists(st.tuples(HEADER_KEYS, st.none() | st.binary(max_size=8)), max_size=3)
    record = st.builds(NewRecord, value=BYTES, key=BYTES, timestamp=TIMESTAMPS, headers=headers.map(tuple))
    return draw(st.lists(record, min_size=1, max_size=max_size))


@st.composite
def batches(draw: st.DrawFn, base_offset: int = 0) -> bytes:
    """A sound batch of magic 2: any codec, both timestamp types, producers, gaps and delete horizons of the cleaner."""
    codec = draw(st.sampled_from(Codec))
    records = draw(new_records())
    append = draw(st.booleans())
    batch = encode_batch(
        records,
        base_offset=base_offset,
        codec=codec,
        timestamp_type=TimestampType.LOG_APPEND_TIME if append else TimestampType.CREATE_TIME,
        log_append_time=draw(TIMESTAMPS),
        leader_epoch=draw(st.integers(-1, 9)),
        producer_id=7,
        producer_epoch=0,
        base_sequence=draw(st.sampled_from([0, 5, 2**31 - 2])),
        transactional=draw(st.booleans()),
    )
    if draw(st.booleans()):
        return bytes(batch)
    return cleaned(batch, records, set(draw(st.lists(st.integers(0, len(records) - 1)))), draw(st.booleans()))


def cleaned(batch: bytes | bytearray, records: list[NewRecord], removed: set[int], horizon: bool) -> bytes:
    """The batch as Kafka's cleaner leaves it when the records at ``removed`` go: offsets with gaps, maybe none left."""
    header = read_header(batch)
    whole = encode_batch(records, base_offset=header.base_offset)
    plain = decode_records(whole, read_header(whole))
    kept = [record for delta, record in enumerate(plain) if delta not in removed]
    base_timestamp = 1_600_000_000_000 if horizon else header.base_timestamp
    attributes = header.attributes | DELETE_HORIZON_BIT if horizon else header.attributes
    if not kept:
        empty = header._replace(attributes=header.attributes & ~7, base_timestamp=-1, records_count=0)
        return bytes(build_batch(empty, b""))
    area = encode_records(kept, base_offset=header.base_offset, base_timestamp=base_timestamp)
    new = header._replace(attributes=attributes, base_timestamp=base_timestamp, records_count=len(kept))
    return bytes(build_batch(new, compress(header.codec, bytes(area))))


@st.composite
def damaged(draw: st.DrawFn, base_offset: int = 0) -> bytes:
    """A batch with bytes changed, inserted or gone among its records or in its header, and a right CRC again.

    Size and magic stay what they must be for the batch to be found at all.
    """
    batch = draw(batches(base_offset))
    header = read_header(batch)
    if draw(st.integers(0, 3)) == 0:
        changed = bytearray(batch)
        changed[draw(st.integers(21, 60))] = draw(st.integers(0, 255))
        return sealed(changed)
    area = bytearray(batch[BATCH_OVERHEAD:])
    inside = header.codec and area and draw(st.booleans())
    if inside:
        area = bytearray(decompress(header.codec, area))
    for _ in range(draw(st.integers(1, 3))):
        _damage(draw, area)
    return rebuilt(header, compress(header.codec, bytes(area)) if inside else area)


def _damage(draw: st.DrawFn, area: bytearray) -> None:
    at = draw(st.integers(0, len(area)))
    kind = draw(st.sampled_from(["set", "cut", "insert"]))
    if kind == "insert" or at == len(area):
        area[at:at] = draw(st.binary(max_size=6))
    elif kind == "cut":
        del area[at : at + draw(st.integers(1, 4))]
    else:
        area[at] = draw(st.sampled_from([0, 1, 2, 127, 128, 255]) | st.integers(0, 255))


def rebuilt(header: BatchHeader, area: bytes | bytearray) -> bytes:
    return bytes(build_batch(header, area))


def sealed(batch: bytearray) -> bytes:
    """The batch with the CRC of its bytes as they are."""
    batch[17:21] = compute_crc(batch, 0, len(batch)).to_bytes(4, "big")
    return bytes(batch)
