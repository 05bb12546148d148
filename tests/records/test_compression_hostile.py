"""Streams that are cut, damaged or random, and streams that claim or yield too much."""

from __future__ import annotations

import gzip
import tracemalloc
from collections.abc import Callable
from typing import Final

import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from seglog.core.errors import CorruptError, CorruptRecordError, TooLargeError
from seglog.records.compression import Codec, compress, decompress
from tests.cases import case
from tests.records.streams import CODECS, CONTENTS, MIB, some_bytes


@pytest.mark.parametrize("codec", CODECS)
def test_an_empty_stream(codec: Codec) -> None:
    with pytest.raises(CorruptRecordError, match="empty") as info:
        decompress(codec, b"")
    assert info.value.position == 0


def tried(codec: Codec, stream: bytes | bytearray, magic: int = 2) -> bytes | CorruptError:
    """The decompressed stream, at most a mebibyte, or our error. Any other exception fails the test."""
    try:
        return decompress(codec, stream, limit=MIB, magic=magic)
    except CorruptError as error:
        return error


def bounded(result: bytes | CorruptError, size: int) -> bool:
    """At most a mebibyte came out, or an error that says where in the stream."""
    return 0 <= result.position <= size if isinstance(result, CorruptError) else len(result) <= MIB


@pytest.mark.parametrize("magic", [0, 2])
@pytest.mark.parametrize("codec", CODECS)
def test_every_prefix(codec: Codec, magic: int) -> None:
    """A stream that ends too early is an error that says where; snappy may end between two blocks."""
    data = some_bytes(70_000)
    stream = compress(codec, data, magic=magic)
    for end in [*range(1, 200), *range(200, len(stream), 251), *range(len(stream) - 200, len(stream))]:
        case()
        result = tried(codec, stream[:end], magic)
        assert bounded(result, end)
        if isinstance(result, bytes):
            assert codec == Codec.SNAPPY
            assert data.startswith(result)
            assert len(result) % 32768 == 0


@given(st.sampled_from(CODECS), st.binary(max_size=200), st.sampled_from([0, 2]))
def test_random_bytes(codec: Codec, data: bytes, magic: int) -> None:
    """Random bytes, alone and after the first bytes of a real stream, which lead past the header."""
    case()
    for start in (b"", compress(codec, b"some bytes, some bytes, some bytes", magic=magic)[:7]):
        assert bounded(tried(codec, start + data, magic), len(start + data))


@given(
    st.sampled_from(CODECS), CONTENTS, st.lists(st.tuples(st.integers(0), st.integers(1, 255)), min_size=1, max_size=4)
)
def test_flipped_bytes(codec: Codec, data: bytes, flips: list[tuple[int, int]]) -> None:
    case()
    stream = bytearray(compress(codec, data))
    for at, bits in flips:
        stream[at % len(stream)] ^= bits
    assert bounded(tried(codec, stream), len(stream))


def unsized_zstd(size: int) -> bytes:
    compressor = zstandard.ZstdCompressor(3).compressobj()
    return b"".join(compressor.compress(bytes(MIB)) for _ in range(size // MIB)) + compressor.flush()


BOMBS: Final[dict[str, tuple[Codec, Callable[[], bytes]]]] = {
    "gzip": (Codec.GZIP, lambda: gzip.compress(bytes(64 * MIB), 9)),
    "gzip, many members": (Codec.GZIP, lambda: gzip.compress(bytes(MIB), 9) * 64),
    "snappy": (Codec.SNAPPY, lambda: compress(Codec.SNAPPY, bytes(64 * MIB))),
    "snappy, raw": (Codec.SNAPPY, lambda: bytes(cramjam.snappy.compress_raw(bytes(64 * MIB)))),
    "lz4": (Codec.LZ4, lambda: compress(Codec.LZ4, bytes(64 * MIB))),
    "lz4, large blocks": (Codec.LZ4, lambda: lz4.frame.compress(bytes(64 * MIB), block_linked=False, block_size=7)),
    "zstd": (Codec.ZSTD, lambda: compress(Codec.ZSTD, bytes(64 * MIB))),
    "zstd, size unknown": (Codec.ZSTD, lambda: unsized_zstd(64 * MIB)),
    "zstd, many frames": (Codec.ZSTD, lambda: compress(Codec.ZSTD, bytes(MIB)) * 64),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs(name: str) -> None:
    """64 MiB of zeros and a limit of 4 MiB: refused, and less than a few times the limit was ever taken."""
    codec, make = BOMBS[name]
    bomb = make()
    limit = 4 * MIB
    tracemalloc.start()
    try:
        with pytest.raises(TooLargeError, match=str(limit)):
            decompress(codec, bomb, limit=limit)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2.5 * limit


@pytest.mark.parametrize(
    ("codec", "stream", "reason"),
    [
        # A raw snappy block of 5 bytes that claims 4 GiB - 1.
        (Codec.SNAPPY, b"\xff\xff\xff\xff\x0f", "claims 4294967295"),
        (Codec.SNAPPY, compress(Codec.SNAPPY, b"")[:16] + b"\0\0\0\5\xff\xff\xff\xff\x0f", "claims 4294967295"),
        (Codec.SNAPPY, compress(Codec.SNAPPY, b"")[:16] + b"\x7f\xff\xff\xff\0", "a xerial block of 2147483647"),
        (Codec.SNAPPY, compress(Codec.SNAPPY, b"")[:16] + b"\xff\xff\xff\xff\0", "a xerial block of -1"),
        (
            Codec.SNAPPY,
            compress(Codec.SNAPPY, b"x") + b"\x82SNAPPY\0" + bytes(8),
            "the version of a further xerial header",
        ),
        (Codec.SNAPPY, compress(Codec.SNAPPY, b"x") + b"\x82SNAPPY\0" + bytes(7), "xerial header is incomplete"),
        # A block of a mebibyte in a frame of blocks of 64 KiB.
        (Codec.LZ4, bytes.fromhex("04224d18604082") + b"\0\0\x10\0" + bytes(MIB), "65536 are allowed"),
        (Codec.LZ4, bytes.fromhex("04224d18604082") + b"\xff\xff\xff\x7f", "65536 are allowed"),
        # One raw block of nothing, and 1 GiB - 1 claimed.
        (Codec.ZSTD, bytes.fromhex("28b52ffda0 ffffff3f 010000"), "over 128 MiB"),
        (Codec.ZSTD, bytes.fromhex("28b52ffda0 ffffff03 010000"), "claims 67108863 bytes, its blocks hold 0"),
        # A window of 2 GiB; of 128 MiB and a block of the reserved type.
        (Codec.ZSTD, bytes.fromhex("28b52ffd 00 a8 010000"), "over 128 MiB"),
        (Codec.ZSTD, bytes.fromhex("28b52ffd 00 88 070000"), "type 3"),
        # A dictionary that nobody has.
        (Codec.ZSTD, bytes.fromhex("28b52ffd 01 58 07 0b000061 "), "not a zstd frame"),
    ],
)
def test_claims(codec: Codec, stream: bytes, reason: str) -> None:
    """Refused for what is claimed, with a limit that would allow it, before memory is taken."""
    tracemalloc.start()
    try:
        with pytest.raises(CorruptRecordError, match=reason):
            decompress(codec, stream, limit=1 << 32)
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()


def test_a_zstd_frame_of_8_kib_that_claims_256_mib() -> None:
    """It is true, and there is room: nothing is wrong with it."""
    stream = compress(Codec.ZSTD, bytes(256 * MIB))
    assert len(stream) < 9000
    assert len(decompress(Codec.ZSTD, stream, limit=256 * MIB)) == 256 * MIB


def test_a_large_window_for_little_data_is_not_taken() -> None:
    """Kafka's producers at zstd level 22 claim a window of 128 MiB for every batch: the same frame, the window cut."""
    compressor = zstandard.ZstdCompressor(22).compressobj()
    data = some_bytes(16384)
    stream = compressor.compress(data) + compressor.flush()
    assert zstandard.get_frame_parameters(stream).window_size == 128 * MIB
    before = _address_space()
    assert decompress(Codec.ZSTD, stream) == data
    assert _address_space() - before < 64 * MIB


def _address_space() -> int:
    """Bytes of memory that the process has asked for, from Linux's /proc."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[0]) * 4096
