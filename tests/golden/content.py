"""The records of the golden set: the same on every run, and rich in the cases that decoders get wrong."""

from __future__ import annotations

import random
from collections.abc import Iterator

from tests.kafka.records import Headers, Record

__all__ = ["START_MS", "batches", "keyed", "plain"]

START_MS = 1_700_000_000_000
"""2023-11-14T22:13:20Z, so that no file depends on the day it was made."""

_WORDS = ("segment", "offset", "index", "batch", "epoch", "fence", "commit", "lag", "héllo", "Straße", "日本語", "🦀")
_HEADERS: tuple[Headers, ...] = (
    (),
    (("trace", b"00-4bf92f3577b34da6-01"),),
    (("trace", b""), ("trace", None)),
    (("", b"empty key"), ("ключ", "значение".encode())),
    (("big", bytes(range(32, 127)) * 3),),
)
# From one byte to ten: every length of a varint occurs, and -1 and 0 are told apart.
_VALUES: tuple[bytes | None, ...] = (None, b"", b"\x00", b"x" * 63, b"y" * 64, b"z" * 200, b"\xff\xfe\x80\x00binary")


def batches(seed: int, count: int, *, headers: bool = True) -> Iterator[list[Record]]:
    """`count` batches of 1 to 12 records: null, empty and unicode keys and values, timestamps that also step back."""
    dice = random.Random(seed)
    now = START_MS
    for _ in range(count):
        batch = []
        for _ in range(dice.choice((1, 1, 2, 3, 5, 12))):
            now += dice.choice((0, 1, 7, 1000, -500))
            batch.append(_odd(dice, now, headers=headers))
        yield batch


def plain(
    seed: int, count: int, *, size: int = 3, step_ms: int = 1000, headers: bool = False
) -> Iterator[list[Record]]:
    """`count` batches of `size` ordinary records, each batch `step_ms` after the one before."""
    dice = random.Random(seed)
    for number in range(count):
        now = START_MS + number * step_ms
        yield [
            Record(
                key=f"key-{dice.randrange(50)}".encode(),
                value=_text(dice, 12).encode(),
                timestamp=now + at,
                headers=dice.choice(_HEADERS) if headers else (),
            )
            for at in range(size)
        ]


def keyed(seed: int, count: int, *, keys: int = 20, size: int = 5, tombstones: float = 0.15) -> Iterator[list[Record]]:
    """`count` batches for a compacted topic: `keys` different keys, a share of `tombstones` among the values."""
    dice = random.Random(seed)
    for number in range(count):
        yield [
            Record(
                key=f"key-{dice.randrange(keys)}".encode(),
                value=None if dice.random() < tombstones else f"{number}/{at} {_text(dice, 6)}".encode(),
                timestamp=START_MS + number * 1000 + at,
            )
            for at in range(size)
        ]


def _odd(dice: random.Random, now: int, *, headers: bool) -> Record:
    key = dice.choice((None, b"", f"key-{dice.randrange(9)}".encode(), "schlüssel-ß-鍵".encode(), b"k" * 150))
    value = dice.choice((*_VALUES, _text(dice, 3).encode(), _text(dice, 40).encode(), _text(dice, 9).encode() * 12))
    return Record(key=key, value=value, timestamp=now, headers=dice.choice(_HEADERS) if headers else ())


def _text(dice: random.Random, words: int) -> str:
    return " ".join(dice.choice(_WORDS) for _ in range(words))
