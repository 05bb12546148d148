"""A round of compaction in parts that do not know of each other: what a cluster does in place of one `clean`.

::

    stretches of the log ──map_keys──► rows by hash ──LastOffsets──► offsets that stay ──clean_part──► one new segment
                         └──► effects on transactions ──fold──► what is open where a group of segments begins ──┘

A part that is done again gives the same, so any of them may fail and be repeated. With the same round, `clean_part`
writes byte for byte what the engine writes with a map that has room for all keys. Keys are distinguished by 128 bits of
SipHash under a key that is drawn for each round, as Kafka's cleaner does by MD5, without comparing the keys: of n
keys two have the same hash with a probability of n²/2¹²⁹, 10⁻¹⁵ for half a trillion. Needs the extra ``fast``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from seglog.core.clock import SystemClock
from seglog.core.fs import Fs
from seglog.core.types import Buffer
from seglog.records.batch import BatchHeader
from seglog.records.intrinsics import I64, U8
from seglog.records.offset_kernels import U64, Fact, hash_key
from seglog.records.record import ControlRecord, ControlType
from seglog.records.survivor_kernels import ROW_WORDS, list_keys, mark, put_last, select_last
from seglog.storage.compaction.cleaner import SourceReader, Throttler, clean_group
from seglog.storage.compaction.compiled_cleaner import (
    CompiledFilter,
    CompiledMap,
    CompiledMapper,
    KernelFacts,
    as_array,
)
from seglog.storage.compaction.plain_cleaner import Transactions
from seglog.storage.compaction.round import CleanedGroup, Round, SourceSegment
from seglog.storage.log.transaction_index import AbortedTxn

BLOCK_KEYS: Final = 1 << 19
"""Rows that `map_keys` gathers before it gives them out: 12 MiB, in a table of twice that."""
_UNBOUNDED: Final = 1 << 40
_FIRST_ROWS: Final = 1 << 12


class SourceStretch(NamedTuple):
    """Bytes ``start`` to ``end`` of a source, whole batches."""

    source: SourceSegment
    start: int
    end: int


def as_rows(data: bytes) -> U64:
    """The rows in the bytes of ``rows.tobytes()``, read-only."""
    return np.frombuffer(data, np.uint64).reshape(-1, ROW_WORDS)


class KeyRows(NamedTuple):
    """Keys as rows ([n, 3]: hash, hash, offset); of the part that is to be cleaned each key's last one."""

    is_dirty: bool
    rows: U64

    def frozen(self) -> U64:
        """As they come out of bytes: `LastOffsets` takes no others, for its loops are compiled again for every kind."""
        return as_rows(self.rows.tobytes())


class TransactionEffects(NamedTuple):
    """The effects of a stretch on the log's transactions: producer, or place among the aborted ones, and its state.

    ``committed``: whether a producer has written records since its last commit. ``seen``: whether records of the
    aborted transaction were met and its marker was not.
    """

    committed: dict[int, bool]
    seen: dict[int, bool]
    messages: int
    bytes: int


class OpenTransactions(NamedTuple):
    """Where a group begins: producers with records that are not committed yet, aborted transactions begun before."""

    committed: tuple[int, ...] = ()
    seen: tuple[int, ...] = ()


def fold(effects: Iterable[TransactionEffects]) -> OpenTransactions:
    """The transactions that all stretches together, in the log's order, leave open: the last effect on each counts."""
    committed: dict[int, bool] = {}
    seen: dict[int, bool] = {}
    for one in effects:
        committed |= one.committed
        seen |= one.seen
    return OpenTransactions(
        tuple(sorted(producer for producer, is_open in committed.items() if is_open)),
        tuple(sorted(place for place, is_open in seen.items() if is_open)),
    )


def new_hash_key() -> bytes:
    """For one round; all its parts need the same."""
    return os.urandom(16)


# Keys of a stretch


def map_keys(
    fs: Fs, round_: Round, stretch: SourceStretch, key: bytes, *, most: int = BLOCK_KEYS
) -> Iterator[KeyRows | TransactionEffects]:
    """The keys of a stretch as rows, about ``most`` at a time, and last its effects. ``key`` is `new_hash_key`'s.

    Memory: ``most`` rows and those of one decompressed batch, or of 4 MiB. Raises as `clean` does.
    """
    reader = SourceReader(fs, round_.directory, Throttler(float("inf"), SystemClock(), _no_wait), _never)
    part = stretch.source._replace(size=stretch.end)
    effects = TransactionEffects({}, {}, 0, 0)
    if stretch.source.base_offset < round_.first_dirty:
        listed = KeyList(round_.first_dirty, key)
        mapper: _PartMapper = _KeyMapper(replace(round_, first_dirty=0), listed, most)
        listed.facts[Fact.START] = round_.first_dirty
        for _ in _run(mapper, reader, part, stretch.start, most):
            yield KeyRows(is_dirty=False, rows=listed.take())
        effects = mapper.effects(0)
    if stretch.source.next_base_offset > round_.first_dirty:
        offsets = CompiledMap(_UNBOUNDED, _UNBOUNDED, key)
        mapper = _PartMapper(round_, offsets, most)
        before = reader.bytes
        for _ in _run(mapper, reader, part, stretch.start, most):
            yield KeyRows(is_dirty=True, rows=_take_entries(offsets))
        effects = mapper.effects(reader.bytes - before)
    yield effects


def _run(mapper: _PartMapper, reader: SourceReader, part: SourceSegment, position: int, most: int) -> Iterator[None]:
    """Stops whenever enough keys were gathered, and at the end."""
    while position < part.size:
        position = reader.read(part, position, mapper.map_chunk, lambda: len(mapper.offsets) >= most)
        if len(mapper.offsets):
            yield


def _never() -> bool:
    return False


def _no_wait(_seconds: float) -> None:
    pass


def _take_entries(offsets: CompiledMap) -> U64:
    """All entries as rows; the map is empty then."""
    table = offsets.table.reshape(-1, ROW_WORDS)
    rows: U64 = table[table[:, 2] != 0]
    rows[:, 2] -= np.uint64(1)
    table[:] = 0
    offsets.facts[Fact.ENTRIES] = 0
    return rows


class KeyList(KernelFacts):
    """`KeyTable` of a row for each record before ``bound``, in place of a map."""

    def __init__(self, bound: int, key: bytes) -> None:
        super().__init__()
        self.facts[Fact.HASH_KEY_0 : Fact.HASH_KEY_1 + 1] = np.frombuffer(key, np.int64)
        self.rows: U64 = np.empty((_FIRST_ROWS, ROW_WORDS), np.uint64)
        self._bound = bound

    @property
    def table(self) -> U64:
        return self.rows.reshape(-1)

    @property
    def max_entries(self) -> int:
        return _UNBOUNDED

    def make_room(self, keys: int) -> None:
        rows = np.empty((max(2 * len(self.rows), len(self) + keys), ROW_WORDS), np.uint64)
        rows[: len(self)] = self.rows[: len(self)]
        self.rows = rows

    def put(self, key: bytes, offset: int) -> None:
        if offset < self._bound:
            if len(self) == len(self.rows):
                self.make_room(1)
            halves = hash_key(as_array(key), int(self.facts[Fact.HASH_KEY_0]), int(self.facts[Fact.HASH_KEY_1]))
            self.rows[len(self)] = [half % 2**64 for half in halves] + [offset]
            self.facts[Fact.ENTRIES] += 1

    def take(self) -> U64:
        """All rows; the list is empty then."""
        rows = self.rows[: len(self)].copy()
        self.facts[Fact.ENTRIES] = 0
        return rows


class _TracingTransactions(Transactions):
    """Also notes which producers' transactions, and which aborted ones, ended."""

    __slots__ = ("ended", "ended_aborted")

    def __init__(self, aborted: Sequence[AbortedTxn]) -> None:
        super().__init__(aborted)
        self.ended: set[int] = set()
        self.ended_aborted: set[int] = set()

    def on_control(self, header: BatchHeader, control: ControlRecord | None) -> bool:
        if control is not None and control.type is ControlType.COMMIT:
            self.ended.add(header.producer_id)
        if control is not None and control.type is ControlType.ABORT:
            at = self.last_begun(header)
            if at >= 0:
                self.ended_aborted.add(at)
        return super().on_control(header, control)


class _PartMapper(CompiledMapper):
    """Maps a stretch, from which it may not know how the log's transactions stand."""

    offsets: CompiledMap | KeyList
    transactions: _TracingTransactions

    def __init__(self, round_: Round, offsets: CompiledMap | KeyList, most: int) -> None:
        super().__init__(round_, offsets)
        self._most = most

    def _transactions(self, round_: Round) -> Transactions:
        return _TracingTransactions(round_.aborted)

    def _map_compressed(self, chunk: bytes, position: int) -> int:
        position = super()._map_compressed(chunk, position)
        self.is_full = len(self.offsets) >= self._most  # a chunk may have a hundred times its size in it
        return position

    def effects(self, size: int) -> TransactionEffects:
        noted = self.transactions
        committed = dict.fromkeys(noted.ended, False) | dict.fromkeys(noted.committed, True)
        begun = [at for at in range(len(noted.aborted)) if noted.seen[at]]
        seen = dict.fromkeys(noted.ended_aborted, False) | dict.fromkeys(begun, True)
        return TransactionEffects(committed, seen, self.mapped, size)


class _KeyMapper(_PartMapper):
    """Makes rows of all records instead of a map."""

    offsets: KeyList

    def _map(self, data: U8, position: int) -> tuple[int, int, int]:
        listed = self.offsets
        return list_keys(data, position, len(data), listed.facts, listed.rows, self._aborted, self._seen)


# The last offset of each key


class LastOffsets:
    """Of the keys of some hashes, all of them that the log has, the last offsets."""

    def __init__(self) -> None:
        self._map = CompiledMap(_UNBOUNDED, _UNBOUNDED, bytes(16))

    def __len__(self) -> int:
        return len(self._map)

    def put(self, rows: U64) -> None:
        """Take rows of the part that is to be cleaned, in any order; made by `as_rows`."""
        if 10 * (len(self._map) + len(rows)) > 7 * int(self._map.facts[Fact.SLOTS]):
            self._map.make_room(len(rows))
        put_last(rows, self._map.table, self._map.facts)

    def last(self) -> I64:
        """The offsets of the records that are their keys' last, ascending."""
        last = self._map.table.reshape(-1, ROW_WORDS)[:, 2]
        offsets: I64 = last[last != 0].astype(np.int64) - 1
        offsets.sort()
        return offsets

    def stay(self, rows: U64) -> I64:
        """The offsets of rows of the part that is clean, if no later record has the key; after the last `put`."""
        stays: U8 = np.empty(len(rows), np.uint8)
        select_last(rows, self._map.table, self._map.facts, stays)
        offsets: I64 = rows[stays != 0, 2].astype(np.int64)
        return offsets


# A new segment


class Survivors(KernelFacts):
    """`LastTable` of the offsets that stay of a group, a bit for each offset that it spans; at most 256 MiB, of 2³¹.

    What is untouched of it takes no memory: a group that is so sparse has few records.
    """

    def __init__(self, first: int, end: int, latest_offset: int) -> None:
        """Of offsets ``first`` to before ``end``; what is behind ``latest_offset`` is not judged."""
        super().__init__()
        self.table: U64 = np.zeros((end - first + 63) >> 6, np.uint64)
        self.facts[Fact.BY_OFFSET] = 1
        self.facts[Fact.FIRST_BIT] = first
        self.read_up_to(latest_offset)
        self._first = first

    def add(self, data: Buffer) -> None:
        """Offsets that stay, from the first one on, as 32-bit little-endian numbers."""
        offsets = np.frombuffer(data, np.uint32)
        if len(offsets) and int(offsets.max()) >= 64 * len(self.table):  # of a segment that goes on beyond the next one
            offsets = np.frombuffer(offsets[offsets < 64 * len(self.table)].tobytes(), np.uint32)
        mark(self.table, offsets)

    def is_last(self, key: bytes, offset: int) -> bool:
        del key
        bit = offset - self._first
        if not 0 <= bit < 64 * len(self.table):
            return True  # as `seglog.records.survivor_kernels.is_marked`
        return bool(int(self.table[bit >> 6]) >> (bit & 63) & 1)


def clean_part(
    fs: Fs, round_: Round, group: tuple[SourceSegment, ...], stays: Survivors, before: OpenTransactions, directory: str
) -> CleanedGroup:
    """Write the new segment of a group as ``.cleaned`` files into ``directory``; on the disk when this returns."""
    filtering = CompiledFilter(round_, stays)
    filtering.transactions.committed.update(before.committed)
    for place in before.seen:
        filtering.transactions.seen[place] = 1
    reader = SourceReader(fs, round_.directory, Throttler(float("inf"), SystemClock(), _no_wait), _never)
    return clean_group(round_, group, fs, filtering, reader, directory)
