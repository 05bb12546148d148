"""Space by key, duplicate values, and what compaction would save: one pass over all records.

Below a number of distinct keys everything is exact. Above it, the largest and most frequent keys come from a table
that drops its small half when it is full (Misra and Gries): a count is then too low by ``KeySpace.lost_records`` at the
most. Savings and duplicates then come from a sample of keys and values by their hashes, which halves whenever it is
full; their error is twice the standard error over 16 groups of the sample (jackknife).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from hashlib import blake2b
from heapq import nlargest
from typing import Final, NamedTuple

from seglog.core.errors import CorruptError
from seglog.core.fs import Fs
from seglog.records import any_magic
from seglog.records.batch import CONTROL_BIT, Entry, read_header
from seglog.records.record import Record
from seglog.storage.formats.batch_walk import walk
from seglog.storage.formats.paths import list_segments

MOST_KEYS: Final = 1_000_000
_GROUPS: Final = 16


class KeyCount(NamedTuple):
    """A key, its records, and the bytes of their keys, values and headers, uncompressed."""

    key: bytes | None
    records: int
    bytes: int


class Share(NamedTuple):
    """A share of all bytes (0 to 1), and its error; 0 if it is exact."""

    share: float
    error: float

    @property
    def is_exact(self) -> bool:
        return self.error == 0.0


class _Sample:
    """For each sampled item: bytes of all its records, bytes of one of them. Items are sampled by their hashes."""

    __slots__ = ("_limit", "_shift", "items")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._shift = 0
        self.items: dict[int, tuple[int, int]] = {}

    @property
    def is_whole(self) -> bool:
        return self._shift == 0

    def add(self, digest: int, size: int, *, keeps_first: bool) -> None:
        """``keeps_first``: the first record of an item stays; else the last."""
        if digest & ((1 << self._shift) - 1):
            return
        known = self.items.get(digest)
        if known is None:
            self.items[digest] = (size, size)
            if len(self.items) > self._limit:
                self._shift += 1
                mask = (1 << self._shift) - 1
                self.items = {one: value for one, value in self.items.items() if not one & mask}
        else:
            self.items[digest] = (known[0] + size, known[1] if keeps_first else size)

    def saved(self) -> Share:
        """The share of the bytes that would go if each item had one record."""
        groups = [(0, 0)] * _GROUPS
        for digest, (total, kept) in self.items.items():
            at = (digest >> 48) % _GROUPS
            groups[at] = groups[at][0] + total, groups[at][1] + kept
        total, kept = (sum(group[side] for group in groups) for side in (0, 1))
        share = (total - kept) / total if total else 0.0
        if self.is_whole or not total:
            return Share(share, 0.0)
        return Share(share, _jackknife([(one - other, one) for one, other in groups]))


def _jackknife(groups: list[tuple[int, int]]) -> float:
    """Twice the standard error of a ratio of sums, from the sums of groups."""
    parts, wholes = (sum(group[side] for group in groups) for side in (0, 1))
    ratios = [(parts - part) / (wholes - whole) for part, whole in groups if wholes > whole]
    if len(ratios) < 2:
        return 1.0
    mean = sum(ratios) / len(ratios)
    variance = sum((one - mean) ** 2 for one in ratios) * (len(ratios) - 1) / len(ratios)
    return 2 * float(variance**0.5)


@dataclass(slots=True)
class KeySpace:
    """What a pass over the records found. Sizes are uncompressed bytes of keys, values and headers."""

    most_keys: int = MOST_KEYS
    records: int = 0
    size: int = 0
    keyless: KeyCount = field(default_factory=lambda: KeyCount(None, 0, 0))
    tombstones: int = 0
    lost_records: int = 0
    """By how much a key's number of records may be too low."""
    lost_bytes: int = 0
    is_exact: bool = True
    _keys: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    _by_key: _Sample = field(init=False)
    _by_value: _Sample = field(init=False)

    def __post_init__(self) -> None:
        self._by_key, self._by_value = _Sample(self.most_keys), _Sample(self.most_keys)

    @property
    def distinct(self) -> int | None:
        """The number of keys; None if it is not known exactly."""
        return len(self._keys) if self.is_exact else None

    def add(self, record: Record, partition: bytes) -> None:
        """``partition`` tells equal keys of several partitions apart: compaction keeps one in each."""
        key, value = record.key, record.value
        size = len(key or b"") + len(value or b"") + sum(len(name) + len(data or b"") for name, data in record.headers)
        self.records += 1
        self.size += size
        if value is None:
            self.tombstones += 1
        elif value:
            self._by_value.add(_digest(value), len(value), keeps_first=True)
        if key is None:
            self.keyless = KeyCount(None, self.keyless.records + 1, self.keyless.bytes + size)
            return
        self._by_key.add(_digest(key, partition), size, keeps_first=False)
        records, total = self._keys.get(key, (0, 0))
        self._keys[key] = records + 1, total + size
        if len(self._keys) > self.most_keys:
            self._drop_small()

    def _drop_small(self) -> None:
        """Keep the largest quarter by bytes, and the largest quarter by records."""
        self.is_exact = False
        quarter = max(self.most_keys // 4, 1)
        kept = set(nlargest(quarter, self._keys, key=lambda key: self._keys[key][0]))
        kept.update(nlargest(quarter, self._keys, key=lambda key: self._keys[key][1]))
        dropped = [value for key, value in self._keys.items() if key not in kept]
        self.lost_records += max((records for records, _ in dropped), default=0)
        self.lost_bytes += max((size for _, size in dropped), default=0)
        self._keys = {key: self._keys[key] for key in kept}

    def largest(self, count: int) -> list[KeyCount]:
        """By bytes."""
        found = nlargest(count, self._keys.items(), key=lambda one: (one[1][1], one[0]))
        return [KeyCount(key, *value) for key, value in found]

    def most_frequent(self, count: int) -> list[KeyCount]:
        found = nlargest(count, self._keys.items(), key=lambda one: (one[1][0], one[0]))
        return [KeyCount(key, *value) for key, value in found]

    @property
    def compaction(self) -> Share:
        """The share of the bytes of records with keys that compaction would drop; tombstones stay."""
        return self._by_key.saved()

    @property
    def duplicates(self) -> Share:
        """The share of the bytes of values that repeat an earlier value."""
        return self._by_value.saved()


def _digest(data: bytes, salt: bytes = b"") -> int:
    return int.from_bytes(blake2b(data, digest_size=8, key=salt).digest())


def read_keys(fs: Fs, path: str, found: KeySpace, advance: Callable[[int], None] | None = None) -> None:
    """Add the records of a partition. `CorruptError` names file and position."""
    salt = blake2b(path.encode(errors="surrogateescape"), digest_size=16).digest()
    for segment in list_segments(fs, path):
        with closing(fs.open(segment.log, write=False)) as file:
            for entry, position, data in walk(file):
                batch = bytes(data[entry.position : entry.position + entry.size])
                alone = Entry(0, entry.size, entry.offset, entry.magic)
                if entry.magic == 2 and read_header(batch).attributes & CONTROL_BIT:
                    continue
                try:
                    any_magic.check(batch, alone)
                    for record in any_magic.iterate(batch, alone):
                        found.add(record, salt)
                except CorruptError as error:
                    raise error.at(file=segment.log, base=position, offset=entry.offset) from error
                if advance is not None:
                    advance(entry.size)
