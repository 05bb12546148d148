"""Frames of lz4 and zstd: written as Kafka's readers need them, and walked before they are decompressed.

Both formats have a header before each block, so a walk over a few bytes for every 64 or 128 KiB finds the largest size
that a frame can decompress to. Only then is memory allocated. Positions in errors count from the start of the stream.
"""

from __future__ import annotations

from struct import Struct, iter_unpack
from typing import Final, NamedTuple

import lz4.block
import lz4.frame
import zstandard

from seglog.core.errors import CorruptRecordError, TooLargeError
from seglog.core.types import Buffer

_UINT32_LE: Final = Struct("<I")


def too_large(size: int, limit: int, position: int) -> TooLargeError:
    return TooLargeError(f"{size} decompressed bytes or more, over the limit of {limit}", position=position)


def _does_not_fit(what: str, limit: int, position: int) -> TooLargeError:
    return TooLargeError(f"{what} goes over the limit of {limit} decompressed bytes", position=position)


_P1: Final = 2654435761
_P2: Final = 2246822519
_P3: Final = 3266489917
_P4: Final = 668265263
_P5: Final = 374761393
_MASK: Final = 0xFFFFFFFF


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> 32 - bits) & _MASK


def xxh32(data: Buffer) -> int:
    """xxHash32 of ``data`` with seed 0 (``xxhash_spec.md``): the checksum of lz4 headers, and of blocks that have one.

    About 2 µs for a header and 20 ms for a block of 64 KiB. Kafka's own writers never write block checksums.

    >>> hex(xxh32(b"")), hex(xxh32(b"abc"))
    ('0x2cc5d05', '0x32d153ff')
    """
    view = memoryview(data)
    size = len(view)
    position = size & ~15
    if size >= 16:
        lanes = [_P1 + _P2 & _MASK, _P2, 0, -_P1 & _MASK]
        for words in iter_unpack("<IIII", view[:position]):
            lanes = [
                _rotate(lane + word * _P2 & _MASK, 13) * _P1 & _MASK for lane, word in zip(lanes, words, strict=True)
            ]
        a, b, c, d = lanes
        acc = _rotate(a, 1) + _rotate(b, 7) + _rotate(c, 12) + _rotate(d, 18)
    else:
        acc = _P5
    acc = acc + size & _MASK
    while size - position >= 4:
        acc = _rotate(acc + _UINT32_LE.unpack_from(view, position)[0] * _P3 & _MASK, 17) * _P4 & _MASK
        position += 4
    for byte in view[position:]:
        acc = _rotate(acc + byte * _P5 & _MASK, 11) * _P1 & _MASK
    acc = (acc ^ acc >> 15) * _P2 & _MASK
    acc = (acc ^ acc >> 13) * _P3 & _MASK
    return acc ^ acc >> 16


# lz4

_LZ4_MAGIC: Final = 0x184D2204
_LZ4_FAST: Final = 9
_LZ4_HC_LEVELS: Final = (3, 12)
_LZ4_EXPANSION: Final = 255
_LZ4_STORED: Final = 0x80000000
_LZ4_HEADER_MAGIC_0: Final = b"\x04\x22\x4d\x18\x60\x40" + bytes([xxh32(b"\x04\x22\x4d\x18\x60\x40") >> 8 & 0xFF])


def compress_lz4(data: Buffer, level: int, magic: int) -> bytes:
    lowest, highest = _LZ4_HC_LEVELS
    frame = lz4.frame.compress(
        data,
        compression_level=0 if level == _LZ4_FAST else min(max(level, lowest), highest),
        block_size=lz4.frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
        store_size=False,
    )
    return _LZ4_HEADER_MAGIC_0 + frame[len(_LZ4_HEADER_MAGIC_0) :] if magic == 0 else frame


class _Lz4Frame(NamedTuple):
    """The fields of a frame's descriptor, and the position of its first block."""

    start: int
    max_block: int
    block_checksums: bool


def _lz4_header(data: memoryview, magic: int) -> _Lz4Frame:
    """Check a frame's descriptor as ``Lz4BlockInputStream.readHeader`` does."""
    if len(data) < 7:
        raise CorruptRecordError("the lz4 frame ends in its header", position=len(data))
    if _UINT32_LE.unpack_from(data)[0] != _LZ4_MAGIC:
        raise CorruptRecordError("not an lz4 frame", position=0)
    flags, block = data[4], data[5]
    if flags & 0xC3 != 0x40 or block & 0x8F or block >> 4 < 4:
        raise CorruptRecordError(f"lz4 descriptor {flags:#04x} {block:#04x} is not valid", position=4)
    if not flags & 0x20:
        raise CorruptRecordError("lz4 blocks depend on each other, which Kafka does not read", position=4)
    end = 14 if flags & 0x08 else 6
    if len(data) <= end:
        raise CorruptRecordError("the lz4 frame ends in its header", position=len(data))
    if magic > 0 and data[end] != xxh32(data[4:end]) >> 8 & 0xFF:
        raise CorruptRecordError("the checksum of the lz4 header is wrong", position=end)
    return _Lz4Frame(end + 1, 1 << 2 * (block >> 4) + 8, bool(flags & 0x10))


def decompress_lz4(data: memoryview, limit: int, magic: int) -> bytes:
    position, max_block, block_checksums = _lz4_header(data, magic)
    parts: list[Buffer] = []
    total = 0
    while True:
        if len(data) - position < 4:
            raise CorruptRecordError("the lz4 frame ends before its end mark", position=len(data))
        word: int = _UINT32_LE.unpack_from(data, position)[0]
        size = word & ~_LZ4_STORED
        if size == 0:
            break
        start = position + 4
        position = start + size + (4 if block_checksums else 0)
        if size > max_block or position > len(data):
            raise CorruptRecordError(
                f"an lz4 block of {size} bytes; {max_block} are allowed, {len(data) - start} left", position=start - 4
            )
        block = data[start : start + size]
        if block_checksums and xxh32(block) != _UINT32_LE.unpack_from(data, start + size)[0]:
            raise CorruptRecordError("the checksum of an lz4 block is wrong", position=start)
        part = bytes(block) if word & _LZ4_STORED else _lz4_block(block, max_block, total, limit, start)
        total += len(part)
        if total > limit:
            raise too_large(total, limit, start)
        parts.append(part)
    return bytes(parts[0]) if len(parts) == 1 else b"".join(parts)


def _lz4_block(block: memoryview, max_block: int, total: int, limit: int, position: int) -> bytes:
    """One compressed block, if it yields no more than a block may and, after ``total``, one byte over ``limit``."""
    left = limit - total
    room = min(max_block, len(block) * _LZ4_EXPANSION, left + 1)
    try:
        return lz4.block.decompress(block, uncompressed_size=room)
    except lz4.block.LZ4BlockError:
        if room == left + 1:
            raise _does_not_fit("an lz4 block", limit, position) from None
        raise CorruptRecordError("not an lz4 block", position=position) from None


# zstd

_ZSTD_MAX_WINDOW: Final = 1 << 27
"""Windows over 128 MiB are refused by Kafka's reader, which keeps the library's default."""
_ZSTD_MAX_BLOCK: Final = 1 << 17
_ZSTD_SINGLE_SEGMENT: Final = 0x20
_ZSTD_POOLED_LEVEL: Final = 3
_POOL_SIZE: Final = 4

# A context is not for two threads at once, and a new one costs more than a small batch: each call takes one out.
_zstd_compressors: list[zstandard.ZstdCompressor] = []
_zstd_decompressors: list[zstandard.ZstdDecompressor] = []


def compress_zstd(data: Buffer, level: int) -> bytes:
    if level != _ZSTD_POOLED_LEVEL:
        return zstandard.ZstdCompressor(level=level).compress(data)
    try:
        compressor = _zstd_compressors.pop()
    except IndexError:
        compressor = zstandard.ZstdCompressor(level=level)
    frame = compressor.compress(data)
    if len(_zstd_compressors) < _POOL_SIZE:
        _zstd_compressors.append(compressor)
    return frame


def decompress_zstd(data: memoryview, limit: int) -> bytes:
    parts: list[bytes] = []
    total = position = 0
    while position < len(data):
        frame = _zstd_frame(data, position)
        if frame.size is not None and total + frame.size > limit:
            raise too_large(total + frame.size, limit, position)
        if frame.bound:
            part = _zstd_content(data, position, frame, total, limit)
            total += len(part)
            parts.append(part)
        position = frame.end
    return parts[0] if len(parts) == 1 else b"".join(parts)


class _ZstdFrame(NamedTuple):
    """A frame's end, the size that it claims (None: it does not say), the most that its blocks can hold, its window."""

    end: int
    size: int | None
    bound: int
    window: int


def _zstd_frame(data: memoryview, position: int) -> _ZstdFrame:
    """Walk a frame by its block headers (RFC 8878, 3.1); a skippable frame holds nothing."""
    left = len(data) - position
    if left >= 8 and _UINT32_LE.unpack_from(data, position)[0] & ~0xF == 0x184D2A50:
        size = _UINT32_LE.unpack_from(data, position + 4)[0]
        if size > left - 8:
            raise CorruptRecordError("a skippable zstd frame is incomplete", position=position)
        return _ZstdFrame(position + 8 + size, 0, 0, 0)
    try:
        header = zstandard.get_frame_parameters(data[position : position + 18])
        at = position + zstandard.frame_header_size(data[position : position + 18])
    except zstandard.ZstdError as error:
        raise CorruptRecordError(f"not a zstd frame: {error}", position=position) from None
    if header.window_size > _ZSTD_MAX_WINDOW:
        raise CorruptRecordError(f"a zstd window of {header.window_size} bytes, over 128 MiB", position=position)
    largest = min(header.window_size, _ZSTD_MAX_BLOCK)
    bound = 0
    last = 0
    while not last:
        if len(data) - at < 3:
            raise CorruptRecordError("the zstd frame ends too early", position=len(data))
        block = data[at] | data[at + 1] << 8 | data[at + 2] << 16
        last, kind, size = block & 1, block >> 1 & 3, block >> 3
        if kind == 3 or size > _ZSTD_MAX_BLOCK:
            raise CorruptRecordError(f"a zstd block of type {kind} and size {size}", position=at)
        at += 3 + (1 if kind == 1 else size)
        bound += largest if kind == 2 else size
    at += 4 if header.has_checksum else 0
    if at > len(data):
        raise CorruptRecordError("the zstd frame ends too early", position=len(data))
    claimed = None if header.content_size == zstandard.CONTENTSIZE_UNKNOWN else header.content_size
    if claimed is not None and (claimed > bound or (bound and not claimed)):
        raise CorruptRecordError(f"a zstd frame claims {claimed} bytes, its blocks hold {bound}", position=position)
    return _ZstdFrame(at, claimed, bound, header.window_size)


def _zstd_content(data: memoryview, position: int, frame: _ZstdFrame, total: int, limit: int) -> bytes:
    """The content of one frame, which with ``total`` before it is not over ``limit``."""
    left = limit - total
    room = min(frame.bound, left + 1)
    whole = data[position : frame.end]
    source = _zstd_narrow(whole, room, frame.window) if frame.size is None else whole
    try:
        decompressor = _zstd_decompressors.pop()
    except IndexError:
        decompressor = zstandard.ZstdDecompressor()
    try:
        content = decompressor.decompress(source, max_output_size=room)
    except zstandard.ZstdError as error:
        if frame.size is None and room == left + 1:
            raise _does_not_fit("a zstd frame", limit, position) from None
        raise CorruptRecordError(f"not a zstd frame: {error}", position=position) from None
    if len(_zstd_decompressors) < _POOL_SIZE:
        _zstd_decompressors.append(decompressor)
    if len(content) > left:
        raise too_large(total + len(content), limit, position)
    return content


def _zstd_narrow(frame: memoryview, room: int, window: int) -> Buffer:
    """The same frame with a window no larger than ``room`` needs.

    A frame that does not say its size makes the library allocate its window: Kafka's producers at level 22 claim
    128 MiB for 16 KiB of records. No match reaches back further than all that comes out.
    """
    log = max((max(room, min(window, _ZSTD_MAX_BLOCK)) - 1).bit_length(), 10)
    if frame[4] & _ZSTD_SINGLE_SEGMENT or 1 << log >= window:
        return frame
    narrow = bytearray(frame)
    narrow[5] = log - 10 << 3
    return narrow
