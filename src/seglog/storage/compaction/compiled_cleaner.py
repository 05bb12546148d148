"""Compaction with compiled loops: the offset map as their table, and the Python around them.

The loops are in `seglog.records.map_kernels` and `seglog.records.compact_kernels`. They leave control batches and
messages of formats 0 and 1 to `BatchCleaner`. Runs of compressed batches are decompressed here, filtered by a kernel
and compressed again.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from struct import Struct
from typing import Final, NamedTuple, Protocol

import numpy as np

from seglog.core.errors import CorruptBatchError, CorruptError, CorruptRecordError
from seglog.core.types import Buffer
from seglog.records import any_magic
from seglog.records.batch import (
    BATCH_OVERHEAD,
    CODEC_MASK,
    CONTROL_BIT,
    BatchHeader,
    Entry,
    build_batch,
    check_crc,
    entries,
    read_header,
)
from seglog.records.compact_kernels import INDEX_FIELDS, ROW_FIELDS, Action, filter_batches
from seglog.records.compression import compress, decompress
from seglog.records.intrinsics import I64, U8
from seglog.records.map_kernels import BLOCK, Halt, map_batches
from seglog.records.offset_kernels import FACTS, U64, Fact, get_key, move_entries, put_key
from seglog.storage.compaction.cleaned_segment import CleanedSegment
from seglog.storage.compaction.offset_map import Keys, LastKnown
from seglog.storage.compaction.plain_cleaner import BatchCleaner, Transactions, filter_batch, map_batch
from seglog.storage.compaction.round import Round

_FIRST_SLOTS: Final = 1 << 12
_GROWTH: Final = 4
_NO_BYTES: Final = np.frombuffer(b"\0", np.uint8)[:0]


def as_array(data: bytes) -> U8:
    """Read-only, always: a kernel is compiled again for every kind of array that it is given."""
    return np.frombuffer(data, np.uint8) if data else _NO_BYTES


class KernelFacts:
    """The kernels' settings, state and counters, by `Fact`."""

    def __init__(self) -> None:
        self.facts: I64 = np.zeros(FACTS, np.int64)
        self.read_up_to(-1)

    def __len__(self) -> int:
        return int(self.facts[Fact.ENTRIES])

    @property
    def latest_offset(self) -> int:
        return int(self.facts[Fact.LATEST])

    def read_up_to(self, offset: int) -> None:
        self.facts[Fact.LATEST] = offset


class CompiledMap(KernelFacts):
    """`offset_map.Offsets` over the kernels' table, which grows up to the slots that it may have."""

    def __init__(self, slots: int, max_entries: int, hash_key: bytes | None = None) -> None:
        """``hash_key`` (16 bytes) is drawn again unless maps are to be compared with each other."""
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


_RUN: Final = 4 << 20
"""Decompressed bytes of batches that are filtered together; a single batch may have more."""
_SEEN: Final = 1 << 12
_HEAD: Final = Struct(">qiibIh")
_PREFIX: Final = Struct(">qi4xb")


class KernelTable(Protocol):
    """The memory of the kernels: their table, and settings, state and counters by `Fact`."""

    @property
    def facts(self) -> I64: ...
    @property
    def table(self) -> U64: ...


class CompiledPass:
    """Shared by mapper and filter: the round's settings, and its transactions in memory that the kernels see too."""

    def __init__(self, round_: Round, table: KernelTable) -> None:
        facts = table.facts
        facts[Fact.START] = round_.first_dirty
        facts[Fact.NOW] = round_.now_ms
        facts[Fact.DELETE_RETENTION] = round_.delete_retention_ms
        facts[Fact.UPPER_BOUND] = round_.first_uncleanable
        facts[Fact.CHECK_CRC] = 1
        facts[Fact.MESSAGES_READ] = 0
        self._facts = facts
        self._scratch: U64 = np.empty((BLOCK, 4), np.uint64)
        self._seen: I64 = np.zeros(_SEEN, np.int64)
        self.transactions = self._transactions(round_)
        rows = [(*txn[:3], 0) for txn in self.transactions.aborted]
        self._aborted: I64 = np.array(rows, np.int64).reshape(-1, 4)
        self.transactions.keep_seen_in(self._aborted[:, 3])  # one memory for kernels and Python

    def _transactions(self, round_: Round) -> Transactions:
        return Transactions(round_.aborted)

    def _note_seen(self) -> None:
        """Producers that the kernel saw write in transactions that are not aborted."""
        self.transactions.committed.update(self._seen[: self._facts[Fact.SEEN]].tolist())
        self._facts[Fact.SEEN] = 0


class CompressedRun(NamedTuple):
    """Neighbouring compressed batches of a chunk: where they are, and ``data``, in which none has its codec.

    The i-th one begins at ``starts[i]`` in ``data``, whose CRCs are not right.
    """

    data: bytes
    batches: list[Entry]
    starts: list[int]

    @property
    def end(self) -> int:
        """Behind the last one in the chunk."""
        return self.batches[-1].position + self.batches[-1].size

    def batch_at(self, place: int) -> Entry:
        return self.batches[bisect_right(self.starts, place) - 1]

    def placed(self, error: CorruptError) -> CorruptError:
        """An error about ``data`` as one about the batch in the chunk, in whose records it is."""
        entry = self.batch_at(error.position)
        return type(error)(error.reason, position=entry.position, offset=error.offset)


def decompress_run(chunk: bytes, position: int) -> CompressedRun:
    """The compressed batches from ``position`` on; the first is one. CRCs are checked."""
    batches: list[Entry] = []
    starts: list[int] = []
    parts: list[bytes] = []
    size = 0
    for entry in entries(chunk, position):
        if entry.magic < 2 or size >= _RUN:
            break
        header = read_header(chunk, entry.position)
        if not header.codec or not header.records_count or header.attributes & CONTROL_BIT:
            break
        check_crc(chunk, header, entry.position)
        head, area = _without_codec(chunk, entry, header)
        batches.append(entry)
        starts.append(size)
        parts += (head, area)
        size += len(head) + len(area)
    return CompressedRun(b"".join(parts), batches, starts)


def _without_codec(chunk: bytes, entry: Entry, header: BatchHeader) -> tuple[bytes, bytes]:
    start = entry.position + BATCH_OVERHEAD
    try:
        area = decompress(header.codec, memoryview(chunk)[start : entry.position + entry.size])
    except CorruptError as error:
        raise error.at(base=start, offset=header.base_offset) from None
    length = BATCH_OVERHEAD + len(area) - 12
    attributes = header.attributes & ~CODEC_MASK
    head = _HEAD.pack(header.base_offset, length, header.leader_epoch, 2, header.crc, attributes)
    return head + chunk[entry.position + _HEAD.size : start], area


def entry_at(chunk: bytes, position: int, size: int) -> Entry:
    offset, _, magic = _PREFIX.unpack_from(chunk, position)
    return Entry(position, size, offset, magic)


def raise_bad(data: bytes, position: int, halt: int) -> None:
    """Raise what the plain path says about the batch at ``position``, if a kernel found it bad."""
    if halt not in (Halt.BAD_HEADER, Halt.BAD_CRC, Halt.BAD_RECORD):
        return
    offset, length, magic = _PREFIX.unpack_from(data, position)
    entry = Entry(position, length + 12, offset, magic)
    if halt == Halt.BAD_CRC:
        any_magic.check(data, entry)
    if 0 <= magic <= 2 and length > 0:
        any_magic.describe(data, entry)
        any_magic.decode(data, entry)
    if halt == Halt.BAD_RECORD:
        raise CorruptRecordError("records that cannot be", position=position, offset=offset)
    raise CorruptBatchError(f"a batch of magic {magic} and length {length}", position=position, offset=offset)


_OUTPUT: Final = 4 << 20
_ROWS: Final = 1 << 14
_INDEX_ROWS: Final = 1 << 14
_COUNTERS: Final = (Fact.SEEN, Fact.MESSAGES_READ, Fact.MESSAGES_KEPT, Fact.KEYLESS)


class KeyTable(KernelTable, Keys, Protocol):
    """Where the kernels put keys."""

    def make_room(self, keys: int) -> None:
        """For ``keys`` more keys, as far as there may be."""


class LastTable(KernelTable, LastKnown, Protocol):
    """The table in which the kernels find the last offsets."""


class CompiledMapper(CompiledPass):
    """`seglog.storage.compaction.cleaner.Mapper`."""

    def __init__(self, round_: Round, offsets: KeyTable) -> None:
        super().__init__(round_, offsets)
        self.offsets = offsets
        self.is_full = False
        self._start = round_.first_dirty

    @property
    def mapped(self) -> int:
        return int(self._facts[Fact.MESSAGES_READ])

    def map_chunk(self, chunk: bytes) -> int:
        position = 0
        facts = self._facts
        while True:
            position, halt, size = self._map_run(chunk, position)
            if halt == Halt.COMPRESSED:
                position = self._map_compressed(chunk, position)
                if self.is_full:
                    return position
                continue
            if halt in (Halt.END, Halt.MAP_FULL):
                self.is_full = halt == Halt.MAP_FULL
                return position
            entry = entry_at(chunk, position, size)
            any_magic.check(chunk, entry)
            looked_at, self.is_full = map_batch(chunk, entry, self._start, self.offsets, self.transactions)
            facts[Fact.MESSAGES_READ] += looked_at
            if self.is_full:
                return position
            position += size

    def _map_run(self, chunk: bytes, position: int) -> tuple[int, int, int]:
        """The kernel from ``position`` on, up to something that it cannot do."""
        data = as_array(chunk)
        while True:
            position, halt, size = self._map(data, position)
            self._note_seen()
            if halt == Halt.GROW:
                self.offsets.make_room(read_header(chunk, position).records_count)
            elif halt != Halt.SEEN:
                raise_bad(chunk, position, halt)
                return position, halt, size

    def _map(self, data: U8, position: int) -> tuple[int, int, int]:
        table = self.offsets.table
        return map_batches(data, position, len(data), self._facts, table, self._aborted, self._seen, self._scratch)

    def _map_compressed(self, chunk: bytes, position: int) -> int:
        """The compressed batches from ``position`` on; where the first that is left begins."""
        facts = self._facts
        run = decompress_run(chunk, position)
        facts[Fact.CHECK_CRC] = 0
        try:
            at, halt, _ = self._map_run(run.data, 0)
        except CorruptError as error:
            raise run.placed(error) from error
        finally:
            facts[Fact.CHECK_CRC] = 1
        self.is_full = halt == Halt.MAP_FULL
        return run.batch_at(at).position if self.is_full else run.end


class CompiledFilter(CompiledPass):
    """`seglog.storage.compaction.cleaner.Filter`."""

    def __init__(self, round_: Round, offsets: LastTable) -> None:
        super().__init__(round_, offsets)
        self._offsets = offsets
        self._producers: I64 = np.array(sorted(round_.producers), np.int64).reshape(-1, 3)
        self._group: I64 = np.empty((BLOCK, 4), np.int64)
        self._output: U8 = np.empty(_OUTPUT, np.uint8)
        self._rows: I64 = np.empty((_ROWS, len(ROW_FIELDS)), np.int64)
        self._index_rows: I64 = np.empty((_INDEX_ROWS, len(INDEX_FIELDS)), np.int64)
        self._batches = BatchCleaner(round_, offsets, self.transactions)

    @property
    def read(self) -> int:
        return self._batches.read + int(self._facts[Fact.MESSAGES_READ])

    @property
    def kept(self) -> int:
        return self._batches.kept + int(self._facts[Fact.MESSAGES_KEPT])

    @property
    def keyless(self) -> int:
        return self._batches.keyless + int(self._facts[Fact.KEYLESS])

    def filter_chunk(self, chunk: bytes, cleaned: CleanedSegment, *, legacy_tombstones_stay: bool) -> int:
        self._batches.keep_legacy_tombstones(legacy_tombstones_stay=legacy_tombstones_stay)
        position = 0
        while True:
            position, halt, size = self._filter_run(chunk, position, cleaned)
            if halt == Halt.END:
                return position
            if halt == Halt.COMPRESSED:
                position = self._filter_compressed(chunk, position, cleaned)
                continue
            entry = entry_at(chunk, position, size)
            any_magic.check(chunk, entry)
            filter_batch(chunk, entry, self._batches, cleaned)
            position += size

    def _filter_run(self, chunk: bytes, position: int, cleaned: CleanedSegment) -> tuple[int, int, int]:
        """The kernel from ``position`` on, up to something that it cannot do; what it kept goes to ``cleaned``."""
        facts = self._facts
        data = as_array(chunk)
        facts[Fact.BASE_OFFSET] = cleaned.base_offset
        facts[Fact.INTERVAL] = cleaned.interval
        facts[Fact.SINCE_ENTRY] = cleaned.since_entry
        facts[Fact.MAX_TIMESTAMP] = cleaned.max_timestamp
        facts[Fact.MAX_TIMESTAMP_OFFSET] = cleaned.max_timestamp_offset
        while True:
            facts[Fact.FILE_POSITION] = cleaned.position
            position, halt, size = self._filter(data, position, facts, self._output)
            self._note_seen()
            self._drain(cleaned)
            if halt == Halt.OVERFLOW:
                raise cleaned.overflow(read_header(chunk, position).last_offset)
            if not self._made_room(halt, size):
                raise_bad(chunk, position, halt)
                return position, halt, size

    def _filter(self, data: U8, position: int, facts: I64, output: U8) -> tuple[int, int, int]:
        return filter_batches(
            data,
            position,
            len(data),
            output,
            facts,
            self._offsets.table,
            self._aborted,
            self._seen,
            self._producers,
            self._rows,
            self._index_rows,
            self._scratch,
            self._group,
        )

    def _drain(self, cleaned: CleanedSegment) -> None:
        facts = self._facts
        for row in self._index_rows[: facts[Fact.INDEX_ROWS]].tolist():
            cleaned.add_entry(*row)
        if facts[Fact.OUTPUT]:
            cleaned.write(self._output[: facts[Fact.OUTPUT]].tobytes())
        facts[Fact.OUTPUT] = facts[Fact.INDEX_ROWS] = 0
        cleaned.wrote(
            since_entry=int(facts[Fact.SINCE_ENTRY]),
            max_timestamp=int(facts[Fact.MAX_TIMESTAMP]),
            max_timestamp_offset=int(facts[Fact.MAX_TIMESTAMP_OFFSET]),
        )

    def _made_room(self, halt: int, size: int) -> bool:
        """Whether the kernel can go on, since it stopped for want of room and has it now."""
        if halt == Halt.ROWS:
            self._rows = np.empty((size, len(ROW_FIELDS)), np.int64)
        elif halt == Halt.OUTPUT and size > len(self._output):
            self._output = np.empty(size, np.uint8)
        return halt in (Halt.ROWS, Halt.OUTPUT, Halt.SEEN)

    def _filter_compressed(self, chunk: bytes, position: int, cleaned: CleanedSegment) -> int:
        """The compressed batches from ``position`` on; where the next one begins that is none."""
        run = decompress_run(chunk, position)
        data = as_array(run.data)
        facts = self._facts.copy()
        facts[Fact.CHECK_CRC] = 0
        facts[Fact.SINGLE] = 1
        at = 0
        while True:
            facts[Fact.OUTPUT] = facts[Fact.INDEX_ROWS] = 0
            at, halt, size = self._filter(data, at, facts, self._output)
            for fact in _COUNTERS:
                self._facts[fact] = facts[fact]
            self._note_seen()
            facts[Fact.SEEN] = 0
            for action, start, length, place in self._index_rows[: facts[Fact.INDEX_ROWS]].tolist():
                if action != Action.DROPPED:
                    self._add_compressed(chunk, run.batch_at(place), action, start, length, cleaned)
            if not self._made_room(halt, size):
                break
        try:
            raise_bad(run.data, at, halt)
        except CorruptError as error:
            raise run.placed(error) from error
        return run.end

    def _add_compressed(
        self, chunk: bytes, entry: Entry, action: int, start: int, length: int, cleaned: CleanedSegment
    ) -> None:
        """Write what the kernel made of one batch: ``length`` bytes of the output from ``start`` on."""
        if action == Action.VERBATIM:
            data: Buffer = chunk[entry.position : entry.position + entry.size]
            header = read_header(data)
        else:
            data = self._output[start : start + length].tobytes()
            header = read_header(data)
            if action == Action.REWRITTEN:
                codec = read_header(chunk, entry.position).codec
                area = compress(codec, memoryview(data)[BATCH_OVERHEAD:])
                data = build_batch(header._replace(attributes=header.attributes | codec), area)
        cleaned.add_batch(data, header.max_timestamp, header.last_offset)
