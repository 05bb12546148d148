"""Bytes for codecs to chew on."""

from __future__ import annotations

import random
from typing import Final

from hypothesis import strategies as st

from seglog.records.compression import Codec

CODECS: Final = [codec for codec in Codec if codec != Codec.NONE]
MIB: Final = 1 << 20


def some_bytes(size: int, seed: int = 1) -> bytes:
    """Text that compresses as JSON does, about 3 to 1."""
    rng = random.Random(seed)
    words = [rng.randbytes(rng.randrange(3, 9)).hex().encode() for _ in range(200)]
    return b" ".join(rng.choices(words, k=size // 8 + 1))[:size]


CONTENTS: Final = st.binary(max_size=400) | st.builds(
    some_bytes, st.sampled_from([1000, 32768, 32769, 65536, 65537, 140_000]), st.integers(0, 9)
)
