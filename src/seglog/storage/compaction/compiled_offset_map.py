"""The offset map of compaction as a table that the compiled loops of `seglog.records.map_kernels` work on."""

from __future__ import annotations

import os
from typing import Final

import numpy as np

from seglog.records.intrinsics import I64, U8
from seglog.records.offset_kernels import FACTS, U64, Fact, get_key, move_entries, put_key

_FIRST_SLOTS: Final = 1 << 12
_GROWTH: Final = 4
_NO_BYTES: Final = np.frombuffer(b"\0", np.uint8)[:0]


def as_array(data: bytes) -> U8:
    """Read-only, always: a kernel is compiled anew for every kind of array that it is given."""
    return np.frombuffer(data, np.uint8) if data else _NO_BYTES


class WithFacts:
    """The kernels' settings, state and counters, by `Fact`."""

    def __init__(self) -> None:
        self.facts: I64 = np.zeros(FACTS, np.int64)
        self.latest_offset = -1

    def __len__(self) -> int:
        return int(self.facts[Fact.ENTRIES])

    @property
    def latest_offset(self) -> int:
        return int(self.facts[Fact.LATEST])

    @latest_offset.setter
    def latest_offset(self, offset: int) -> None:
        self.facts[Fact.LATEST] = offset


class CompiledMap(WithFacts):
    """`offset_map.Offsets` over the kernels' table, which grows up to the slots that it may have."""

    def __init__(self, slots: int, max_entries: int, hash_key: bytes | None = None) -> None:
        """``hash_key`` (16 bytes) is drawn anew unless maps are to be compared with each other."""
        super().__init__()
        self.max_slots = slots
        self.facts[Fact.MAX_ENTRIES] = max_entries
        self.facts[Fact.MAX_SLOTS] = slots
        self.facts[Fact.SLOTS] = min(_FIRST_SLOTS, slots)
        self.facts[Fact.HASH_KEY_0 : Fact.HASH_KEY_1 + 1] = np.frombuffer(hash_key or os.urandom(16), np.int64)
        self.table: U64 = np.zeros(3 * int(self.facts[Fact.SLOTS]), np.uint64)

    @property
    def max_entries(self) -> int:
        return int(self.facts[Fact.MAX_ENTRIES])

    def make_room(self, keys: int) -> None:
        """Grow for ``keys`` more keys, as far as the table may."""
        slots = int(self.facts[Fact.SLOTS])
        wanted = min(max(_GROWTH * slots, 2 * (len(self) + keys)), self.max_slots)
        if wanted > slots:
            table = np.zeros(3 * wanted, np.uint64)
            move_entries(self.table, table, wanted)
            self.table = table
            self.facts[Fact.SLOTS] = wanted

    def put(self, key: bytes, offset: int) -> None:
        if 10 * len(self) >= 7 * int(self.facts[Fact.SLOTS]):
            self.make_room(1)
        put_key(self.table, self.facts, as_array(key), offset)

    def is_last(self, key: bytes, offset: int) -> bool:
        return offset >= self.get(key)

    def get(self, key: bytes) -> int:
        """The offset of ``key``, -1 if it is not in the map."""
        return int(get_key(self.table, self.facts, as_array(key)))
