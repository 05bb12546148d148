"""The codecs of record batches, in the framings that Kafka writes, with a limit on the decompressed size.

====== ======================================================= ================= =================================
codec  on disk                                                 levels (default)  bytes after the end of the stream
====== ======================================================= ================= =================================
gzip   RFC 1952                                                1 to 9 (-1)       members are read, others ignored
snappy xerial: a header of 16 bytes, then lengths and raw      none              streams are read, 1 to 3 bytes
       blocks of 32 KiB; a bare raw block is read too                            ignored
lz4    frame of independent blocks of 64 KiB, without          1 to 17 (9)       ignored
       checksums and size
zstd   frame                                                   -131072 to 22 (3) frames are read, others an error
====== ======================================================= ================= =================================

The last column is what Kafka's Java readers do (``GZIPInputStream``, ``SnappyInputStream``, ``Lz4BlockInputStream``,
``ZstdInputStreamNoFinalizer``). They also overlook reserved flags in a gzip header, half a xerial header after the
end, an end mark that is missing after an empty lz4 block, and a zstd frame cut off after a whole one; here these are
errors. As in Kafka, lz4 level 9 is the fast compressor and every other level the slow one; frames of linked blocks are
refused; in messages of magic 0 the lz4 header checksum is computed over too many bytes (KAFKA-3160) and not checked.

A decompressor never gets more memory than the stream can yield: claimed sizes are compared with ``limit`` and with the
largest size that the compressed bytes can expand to, before memory is allocated.
"""

from __future__ import annotations

import zlib
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

import cramjam

from seglog.core.errors import CorruptRecordError, InvalidConfigError, UnsupportedFormatError
from seglog.core.suggestions import did_you_mean
from seglog.core.types import Buffer
from seglog.records.lz4_zstd import compress_lz4, compress_zstd, decompress_lz4, decompress_zstd, too_large

DEFAULT_LIMIT: Final = 1 << 30
"""Largest decompressed size that is accepted from files, in bytes."""

_INT32_BE: Final = Struct(">i")


class Codec(IntEnum):
    """Compression codecs; the numbers are those of the attribute bits (``CompressionType.java``)."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def parse(cls, name: str) -> Codec:
        """The codec of one of Kafka's names: none, gzip, snappy, lz4, zstd (``uncompressed`` is none).

        >>> Codec.parse("zstd")
        <Codec.ZSTD: 4>
        """
        codec = _NAMES.get(name)
        if codec is None:
            raise InvalidConfigError(
                f"compression {name!r} is not one of {', '.join(_NAMES)}{did_you_mean(name, _NAMES)}"
            )
        return codec


_NAMES: Final = {codec.name.lower(): codec for codec in Codec} | {"uncompressed": Codec.NONE}


_LOWEST: Final = min(Codec)
_HIGHEST: Final = max(Codec)


class LevelRange(NamedTuple):
    """Compression levels that Kafka takes, both ends included; its default may lie outside of them."""

    lowest: int
    highest: int
    default: int


LEVELS: Final = {
    Codec.GZIP: LevelRange(1, 9, -1),
    Codec.LZ4: LevelRange(1, 17, 9),
    Codec.ZSTD: LevelRange(-131072, 22, 3),
}
"""Codecs with levels (KIP-390)."""


def check_level(codec: Codec, level: int | None) -> int:
    """``level``, the default for None, 0 for a codec without levels; `InvalidConfigError` if Kafka does not take it."""
    if codec not in LEVELS:
        return 0
    lowest, highest, default = LEVELS[codec]
    if level is None or level == default:
        return default
    if not lowest <= level <= highest:
        raise InvalidConfigError(f"{codec.name.lower()} level {level} is not in {lowest} to {highest}")
    return level


def compress(codec: int, data: Buffer, level: int | None = None, *, magic: int = 2) -> bytes:
    """``data`` as one stream of ``codec``. ``level`` None is Kafka's default; none and snappy have no levels.

    ``magic`` is the format of the message around it: 0 gets the lz4 header checksum that its readers expect.
    """
    if codec == Codec.NONE:
        return bytes(data)
    if codec == Codec.SNAPPY:
        return _compress_snappy(data)
    if not _LOWEST <= codec <= _HIGHEST:
        raise UnsupportedFormatError(f"unknown compression codec {codec}")
    level = check_level(Codec(codec), level)
    if codec == Codec.ZSTD:
        return compress_zstd(data, level)
    return compress_lz4(data, level, magic) if codec == Codec.LZ4 else zlib.compress(data, level, _GZIP_WBITS)


def decompress(codec: int, data: Buffer, *, limit: int = DEFAULT_LIMIT, magic: int = 2) -> bytes:
    """The content of a stream of ``codec``, at most ``limit`` bytes.

    Raises `CorruptRecordError` if the bytes are not such a stream, `TooLargeError` above ``limit``. Positions count
    from the start of ``data``. Never allocates more than a small multiple of ``limit``.
    """
    if codec == Codec.NONE:
        if len(data) > limit:
            raise too_large(len(data), limit, 0)
        return bytes(data)
    if not _LOWEST <= codec <= _HIGHEST:
        raise CorruptRecordError(f"unknown compression codec {codec}", position=0)
    if not len(data):
        raise CorruptRecordError(f"an empty {Codec(codec).name.lower()} stream", position=0)
    view = memoryview(data)
    if codec == Codec.ZSTD:
        return decompress_zstd(view, limit)
    if codec == Codec.LZ4:
        return decompress_lz4(view, limit, magic)
    return _decompress_snappy(view, limit) if codec == Codec.SNAPPY else _decompress_gzip(view, limit)


# gzip

_GZIP_WBITS: Final = 31
_GZIP_START: Final = b"\x1f\x8b\x08"
_GZIP_SMALLEST: Final = 19
"""Bytes of the smallest member: header 10, trailer 8, and one between. Fewer bytes after a member are ignored."""
_CHUNK: Final = 1 << 16
_FIRST_CHUNK: Final = 1 << 9
"""zlib copies the rest of a chunk after the end of a member. Chunks are small after the first member, because many tiny
members would take quadratic time."""


def _decompress_gzip(data: memoryview, limit: int) -> bytes:
    parts: list[bytes] = []
    total = position = 0
    size = _CHUNK
    while True:
        member = zlib.decompressobj(_GZIP_WBITS)
        while not member.eof:
            chunk = data[position : position + size]
            if not chunk:
                raise CorruptRecordError("the gzip stream ends too early", position=len(data))
            try:
                part = member.decompress(chunk, limit - total + 1)
            except zlib.error as error:
                raise CorruptRecordError(f"not a gzip stream: {error}", position=position) from None
            total += len(part)
            if total > limit:
                raise too_large(total, limit, position)
            parts.append(part)
            position += len(chunk)
            size = min(2 * size, _CHUNK)
        size = _FIRST_CHUNK
        position -= len(member.unused_data)
        if len(data) - position < _GZIP_SMALLEST or bytes(data[position : position + 3]) != _GZIP_START:
            return parts[0] if len(parts) == 1 else b"".join(parts)


# snappy

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_BLOCK: Final = 32 * 1024
_SNAPPY_EXPANSION: Final = 22
"""A raw block yields at most 64 bytes for each 3 (a copy with an offset of two bytes)."""


def _compress_snappy(data: Buffer) -> bytes:
    view = memoryview(data)
    parts: list[Buffer] = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK]))
        parts += (_INT32_BE.pack(len(block)), block)
    return b"".join(parts)


def _snappy_size(block: memoryview, position: int) -> int:
    """The decompressed size that a raw block claims. Raises `CorruptRecordError` if the block cannot hold as much."""
    try:
        size = int(cramjam.snappy.decompress_raw_len(block))
    except cramjam.DecompressionError as error:
        raise CorruptRecordError(f"not a snappy block: {error}", position=position) from None
    if not block or size > len(block) * _SNAPPY_EXPANSION:
        raise CorruptRecordError(f"a snappy block of {len(block)} bytes claims {size}", position=position)
    return size


def _xerial_blocks(data: memoryview) -> list[tuple[int, int]]:
    """Start and end of every raw block of a stream in xerial framing (``SnappyInputStream.hasNextChunk``).

    As there, the version in the first header is ignored, and the version in later ones is checked.
    """
    blocks: list[tuple[int, int]] = []
    position = 0
    while len(data) - position >= 4:
        if bytes(data[position : position + 4]) == _XERIAL_MAGIC[:4]:
            header = bytes(data[position : position + len(_XERIAL_HEADER)])
            if len(header) < len(_XERIAL_HEADER) or not header.startswith(_XERIAL_MAGIC):
                raise CorruptRecordError("the xerial header is incomplete", position=position)
            if position and _INT32_BE.unpack_from(header, 8)[0] < 1:
                raise CorruptRecordError("the version of a further xerial header is under 1", position=position)
            position += len(_XERIAL_HEADER)
            continue
        size: int = _INT32_BE.unpack_from(data, position)[0]
        position += 4
        if not 0 < size <= len(data) - position:
            raise CorruptRecordError(
                f"a xerial block of {size} bytes where {len(data) - position} are left", position=position - 4
            )
        blocks.append((position, position + size))
        position += size
    return blocks


def _decompress_snappy(data: memoryview, limit: int) -> bytes:
    xerial = len(data) >= len(_XERIAL_HEADER) and bytes(data[:8]) == _XERIAL_MAGIC
    blocks = _xerial_blocks(data) if xerial else [(0, len(data))]
    total = 0
    for start, end in blocks:
        total += _snappy_size(data[start:end], start)
        if total > limit:
            raise too_large(total, limit, start)
    parts: list[Buffer] = []
    for start, end in blocks:
        try:
            parts.append(bytes(cramjam.snappy.decompress_raw(data[start:end])))
        except cramjam.DecompressionError as error:
            raise CorruptRecordError(f"not a snappy block: {error}", position=start) from None
    return bytes(parts[0]) if len(parts) == 1 else b"".join(parts)
