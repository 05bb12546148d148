"""Records of magic 2 with bytes that are wrong behind a CRC that is right: an error of ours, or records."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from seglog.core.errors import SeglogError
from seglog.records.batch import BATCH_OVERHEAD, build_batch, read_header
from seglog.records.compression import Codec, compress
from seglog.records.record import Record, encode_records
from tests.cases import case
from tests.records.generated import batches, damaged
from tests.records.made import batch_of, decode


def outcome(batch: bytes | bytearray) -> list[Record] | None:
    """The records, or None if our error was raised; anything else fails the test."""
    try:
        return decode(batch)
    except SeglogError:
        return None


@given(st.binary(max_size=300))
def test_random_bytes(data: bytes) -> None:
    case()
    outcome(data)


@given(st.binary(max_size=200), st.integers(0, 7), st.integers(-1, 40), st.integers(-1, 40))
def test_random_records(area: bytes, codec: int, count: int, last: int) -> None:
    """The CRC is right, and so is the stream if there is a codec."""
    case()
    data = compress(codec, area) if codec in tuple(Codec) else area
    records = outcome(batch_of(data, attributes=codec, records_count=count, last_offset_delta=last))
    assert records is None or len(records) == count


@given(damaged())
def test_damaged_batches(batch: bytes) -> None:
    """A damaged batch that is still accepted reads the same after it is encoded again."""
    case()
    records = outcome(batch)
    if records:
        header = read_header(batch)
        area = encode_records(records, base_offset=header.base_offset, base_timestamp=header.base_timestamp)
        again = build_batch(header._replace(attributes=header.attributes & ~7), area)
        assert decode(again) == records


@given(batches())
def test_every_prefix(batch: bytes) -> None:
    """A batch cut anywhere, its header made to fit and its CRC right: an error, or nothing was cut."""
    header = read_header(batch)
    for end in range(BATCH_OVERHEAD, len(batch)):
        case()
        cut = bytes(build_batch(header, batch[BATCH_OVERHEAD:end]))
        assert outcome(cut) is None


@given(batches(), st.binary(min_size=1, max_size=9))
def test_trailing_bytes(batch: bytes, extra: bytes) -> None:
    """After lz4 everything is left out, after gzip and snappy some things are (see `seglog.records.compression`)."""
    case()
    header = read_header(batch)
    longer = outcome(bytes(build_batch(header, batch[BATCH_OVERHEAD:] + extra)))
    if header.codec in (Codec.NONE, Codec.ZSTD):
        assert longer is None
    else:
        assert longer in (None, decode(batch))


@given(batches(), st.data())
def test_bit_flips(batch: bytes, data: st.DataObject) -> None:
    case()
    at = data.draw(st.integers(BATCH_OVERHEAD * 8, max(len(batch) * 8 - 1, BATCH_OVERHEAD * 8)))
    area = bytearray(batch[BATCH_OVERHEAD:])
    if area:
        area[at // 8 - BATCH_OVERHEAD] ^= 1 << at % 8
    outcome(bytes(build_batch(read_header(batch), area)))
