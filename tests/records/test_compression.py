"""Codecs: framing, levels, what follows a stream, and what we say when asked for the impossible."""

from __future__ import annotations

import gzip
import random
import struct
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import cramjam
import lz4.block
import lz4.frame
import pytest
import zstandard
from aiokafka import codec as aio
from hypothesis import example, given
from hypothesis import strategies as st

from seglog.core.errors import (
    CorruptRecordError,
    InvalidConfigError,
    TooLargeError,
    UnsupportedFormatError,
)
from seglog.records.compression import LEVELS, Codec, compress, decompress
from seglog.records.lz4_zstd import xxh32
from tests.cases import case
from tests.records.streams import CODECS, CONTENTS, some_bytes

LEVELED: Final = [(codec, None) for codec in CODECS] + [
    (codec, level)
    for codec, bounds in LEVELS.items()
    for level in sorted({bounds.default, bounds.lowest, *range(max(bounds.lowest, -3), bounds.highest + 1)})
]
"""Every codec at its default, every level but most of zstd's negative ones."""


# There and back


@given(CONTENTS, st.sampled_from(LEVELED), st.sampled_from([0, 1, 2]))
@example(b"", (Codec.GZIP, None), 2)
@example(b"", (Codec.SNAPPY, None), 2)
@example(b"", (Codec.LZ4, None), 2)
@example(b"", (Codec.ZSTD, None), 2)
def test_round_trip(data: bytes, leveled: tuple[Codec, int | None], magic: int) -> None:
    case()
    codec, level = leveled
    stream = compress(codec, data, level, magic=magic)
    assert decompress(codec, stream, magic=magic) == data
    if data:
        assert decompress(codec, memoryview(bytearray(stream)), magic=magic, limit=len(data)) == data
        with pytest.raises(TooLargeError, match=str(len(data) - 1)):
            decompress(codec, stream, magic=magic, limit=len(data) - 1)


@pytest.mark.parametrize(("codec", "level"), LEVELED, ids=lambda value: str(getattr(value, "name", value)))
def test_every_level_for_other_readers(codec: Codec, level: int | None) -> None:
    data = some_bytes(100_000)
    readers: dict[Codec, list[Callable[[bytes], bytes]]] = {
        Codec.GZIP: [gzip.decompress, aio.gzip_decode],
        Codec.SNAPPY: [aio.snappy_decode],
        Codec.LZ4: [lz4.frame.decompress, aio.lz4_decode],
        Codec.ZSTD: [zstandard.ZstdDecompressor().decompress, aio.zstd_decode],
    }
    stream = compress(codec, data, level)
    for read in readers[codec]:
        assert read(stream) == data


@given(CONTENTS)
def test_streams_of_other_writers(data: bytes) -> None:
    """Other block sizes, checksums, sizes claimed and unknown, windows of all sizes."""
    case()
    streams = [
        (Codec.GZIP, gzip.compress(data)),
        (Codec.GZIP, aio.gzip_encode(data)),
        (Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(data))),
        (Codec.SNAPPY, aio.snappy_encode(data)),
        (Codec.SNAPPY, aio.snappy_encode(data, xerial_blocksize=500)),
        (Codec.LZ4, aio.lz4_encode(data)),
    ]
    streams += [
        (
            Codec.LZ4,
            lz4.frame.compress(data, block_linked=False, block_size=size, store_size=store, content_checksum=store),
        )
        for size in (4, 5, 6, 7)
        for store in (False, True)
    ]
    streams += [
        (Codec.ZSTD, zstandard.ZstdCompressor(level, write_content_size=size, write_checksum=not size).compress(data))
        for level in (-50, 1, 19)
        for size in (False, True)
    ]
    unsized = zstandard.ZstdCompressor(3).compressobj()
    streams.append((Codec.ZSTD, unsized.compress(data) + unsized.flush()))
    for codec, stream in streams:
        assert decompress(codec, stream) == data
        if data:
            assert decompress(codec, stream, limit=len(data)) == data
            with pytest.raises(TooLargeError):
                decompress(codec, stream, limit=len(data) - 1)


# Framing


def test_snappy_is_framed_as_snappy_java_does() -> None:
    data = some_bytes(70_000)
    stream = compress(Codec.SNAPPY, data)
    assert stream[:16] == bytes.fromhex("82534e41505059000000000100000001")
    position, sizes = 16, []
    while position < len(stream):
        (size,) = struct.unpack_from(">i", stream, position)
        sizes.append(len(cramjam.snappy.decompress_raw(stream[position + 4 : position + 4 + size])))
        position += 4 + size
    assert sizes == [32768, 32768, 70_000 - 65536]


def test_version_in_a_xerial_header_is_ignored() -> None:
    """snappy-java does not either; some clients write it with its bytes the wrong way round."""
    stream = compress(Codec.SNAPPY, b"some bytes")
    assert decompress(Codec.SNAPPY, stream[:8] + bytes.fromhex("0100000001000000") + stream[16:]) == b"some bytes"


def test_lz4_is_framed_as_kafka_wants_it() -> None:
    """Version 1, independent blocks of 64 KiB, no checksum, no size: flags 0x60, block descriptor 0x40."""
    data = random.Random(1).randbytes(65536) + bytes(65536)
    for level in (None, 1, 3, 9, 12, 17):
        stream = compress(Codec.LZ4, data, level)
        assert stream[:7] == bytes.fromhex("04224d18604082")
        assert struct.unpack_from("<I", stream, 7)[0] == 65536 | 1 << 31, "what does not compress is stored"
        assert stream.endswith(bytes(4))


def test_lz4_in_magic_0_has_the_broken_header_checksum() -> None:
    """KAFKA-3160: xxHash of the magic number and the descriptor instead of the descriptor alone."""
    data = some_bytes(1000)
    broken, right = compress(Codec.LZ4, data, magic=0), compress(Codec.LZ4, data, magic=1)
    assert broken[6] == xxh32(broken[:6]) >> 8 & 255
    assert broken[6] != right[6]
    assert broken[:6] + broken[7:] == right[:6] + right[7:]
    assert decompress(Codec.LZ4, broken, magic=0) == data
    assert decompress(Codec.LZ4, right, magic=0) == data
    for magic in (1, 2):
        with pytest.raises(CorruptRecordError, match="checksum of the lz4 header") as info:
            decompress(Codec.LZ4, broken, magic=magic)
        assert info.value.position == 6


def test_lz4_block_checksums() -> None:
    data = some_bytes(200_000)
    stream = bytearray(
        lz4.frame.compress(data, block_linked=False, block_checksum=True, block_size=4, store_size=False)
    )
    assert decompress(Codec.LZ4, stream) == data
    (size,) = struct.unpack_from("<I", stream, 7)
    stream[11 + size] ^= 1
    with pytest.raises(CorruptRecordError, match="checksum of an lz4 block"):
        decompress(Codec.LZ4, stream)


def test_lz4_linked_blocks_are_refused_as_by_kafka() -> None:
    stream = lz4.frame.compress(some_bytes(200_000), block_linked=True)
    with pytest.raises(CorruptRecordError, match="depend on each other"):
        decompress(Codec.LZ4, stream)


@pytest.mark.parametrize(("data", "digest"), [(b"", 0x02CC5D05), (b"a", 0x550D7456), (b"abc", 0x32D153FF)])
def test_xxhash(data: bytes, digest: int) -> None:
    assert xxh32(data) == digest


@given(st.binary(min_size=1, max_size=300))
def test_xxhash_against_lz4(data: bytes) -> None:
    """The library's frames end in the hash of their content."""
    case()
    frame = lz4.frame.compress(data, content_checksum=True)
    assert struct.unpack("<I", frame[-4:])[0] == xxh32(data)


def test_threads_do_not_share_a_context() -> None:
    """zstd's contexts are kept between calls, and a call gives the interpreter free."""
    contents = [some_bytes(20_000 + seed, seed) for seed in range(8)]

    def there_and_back(data: bytes) -> bool:
        return all(decompress(Codec.ZSTD, compress(Codec.ZSTD, data)) == data for _ in range(50))

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(there_and_back, contents))


# What follows the end


def test_further_members_and_frames() -> None:
    one, two = some_bytes(70_000), b"two"
    for codec in (Codec.GZIP, Codec.SNAPPY, Codec.ZSTD):
        stream = compress(codec, one) + compress(codec, two) + compress(codec, b"") + compress(codec, one)
        assert decompress(codec, stream) == one + two + one
        with pytest.raises(TooLargeError):
            decompress(codec, stream, limit=2 * len(one) + 2)
    assert decompress(Codec.LZ4, compress(Codec.LZ4, one) + compress(Codec.LZ4, two)) == one


@pytest.mark.parametrize("extra", [b"\0", b"junk", bytes(40), b"\x1f\x8b\x08" + bytes(10)])
def test_trailing_bytes(extra: bytes) -> None:
    data = some_bytes(5000)
    assert decompress(Codec.GZIP, compress(Codec.GZIP, data) + extra) == data
    assert decompress(Codec.LZ4, compress(Codec.LZ4, data) + extra) == data
    with pytest.raises(CorruptRecordError) as info:
        decompress(Codec.ZSTD, compress(Codec.ZSTD, data) + extra)
    assert info.value.position == len(compress(Codec.ZSTD, data))
    if len(extra) < 4:
        assert decompress(Codec.SNAPPY, compress(Codec.SNAPPY, data) + extra) == data
    else:
        with pytest.raises(CorruptRecordError, match="xerial block"):
            decompress(Codec.SNAPPY, compress(Codec.SNAPPY, data) + extra)


def test_a_second_gzip_member_that_is_broken_is_an_error() -> None:
    stream = gzip.compress(b"one")
    with pytest.raises(CorruptRecordError, match="too early"):
        decompress(Codec.GZIP, stream + gzip.compress(some_bytes(100))[:-9])


def test_skippable_zstd_frames() -> None:
    skip = struct.pack("<II", 0x184D2A53, 5) + b"hello"
    data = some_bytes(500)
    assert decompress(Codec.ZSTD, skip + compress(Codec.ZSTD, data) + skip) == data
    with pytest.raises(CorruptRecordError, match="skippable"):
        decompress(Codec.ZSTD, skip[:-1])


def test_many_tiny_gzip_members_take_linear_time() -> None:
    """A member costs zlib a copy of all that it was given behind its end: 100 GB here, if that were the rest. 0.5 s."""
    stream = gzip.compress(b"", mtime=0) * 100_000
    start = time.process_time()
    assert decompress(Codec.GZIP, stream) == b""
    assert time.process_time() - start < 8


# Names and levels


def test_names() -> None:
    assert [Codec.parse(name) for name in ("none", "gzip", "snappy", "lz4", "zstd", "uncompressed")] == [
        *Codec,
        Codec.NONE,
    ]
    with pytest.raises(InvalidConfigError, match="'LZ4' is not one of none, gzip"):
        Codec.parse("LZ4")


@pytest.mark.parametrize(
    ("codec", "level"),
    [(Codec.GZIP, 0), (Codec.GZIP, 10), (Codec.LZ4, 0), (Codec.LZ4, 18), (Codec.ZSTD, 23), (Codec.ZSTD, -131073)],
)
def test_levels_that_kafka_does_not_take(codec: Codec, level: int) -> None:
    with pytest.raises(InvalidConfigError, match=f"level {level} is not in"):
        compress(codec, b"", level)


@pytest.mark.parametrize("codec", [-1, 5, 7])
def test_unknown_codecs(codec: int) -> None:
    with pytest.raises(UnsupportedFormatError):
        compress(codec, b"x")
    with pytest.raises(CorruptRecordError):
        decompress(codec, b"x")


def test_lz4_literal_runs_do_not_outgrow_the_bound() -> None:
    """The densest lz4 block there is: one byte and a match of the rest, 255 times as long as its bytes."""
    block = lz4.block.compress(bytes(65536), mode="high_compression", compression=12, store_size=False)
    assert len(block) * 255 >= 65536
    assert decompress(Codec.LZ4, compress(Codec.LZ4, bytes(65536), 12)) == bytes(65536)


def test_gzip_checksums_are_checked() -> None:
    stream = bytearray(zlib.compress(some_bytes(100), 6, 31))
    stream[-5] ^= 1
    with pytest.raises(CorruptRecordError, match="gzip"):
        decompress(Codec.GZIP, stream)
