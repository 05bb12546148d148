"""xxHash of 32 bits, which guards the headers of lz4 frames; in plain Python, for a few bytes.

The specification is ``xxhash_spec.md`` of the xxHash project. About 2 µs for a header, 20 ms for a block of 64 KiB,
which only frames with block checksums need (Kafka's own writers never set them).
"""

from __future__ import annotations

from struct import Struct, iter_unpack
from typing import Final

from seglog.core.types import Buffer

_P1: Final = 2654435761
_P2: Final = 2246822519
_P3: Final = 3266489917
_P4: Final = 668265263
_P5: Final = 374761393
_MASK: Final = 0xFFFFFFFF
_UINT32: Final = Struct("<I")


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> 32 - bits) & _MASK


def xxh32(data: Buffer) -> int:
    """xxHash32 of ``data`` with seed 0.

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
        acc = _rotate(acc + _UINT32.unpack_from(view, position)[0] * _P3 & _MASK, 17) * _P4 & _MASK
        position += 4
    for byte in view[position:]:
        acc = _rotate(acc + byte * _P5 & _MASK, 11) * _P1 & _MASK
    acc = (acc ^ acc >> 15) * _P2 & _MASK
    acc = (acc ^ acc >> 13) * _P3 & _MASK
    return acc ^ acc >> 16
