"""Compaction with the loops of `seglog.records.map_kernels` and `seglog.records.compact_kernels`: the Python around.

What the kernels leave to Python: control batches and messages of formats 0 and 1 go through `BatchFilter` one by one;
of compressed batches the records are decompressed here, filtered by the kernel and compressed again.
"""

from __future__ import annotations

import os
from struct import Struct
from typing import Any, Final

import numpy as np

from seglog.core.errors import CorruptBatchError, CorruptError, CorruptRecordError
from seglog.core.types import Buffer
from seglog.records import view
from seglog.records.batch import BATCH_OVERHEAD, CODEC_MASK, Entry, build_batch, read_header
from seglog.records.compact_kernels import INDEX_FIELDS, Action, filter_batches
from seglog.records.compression import compress, decompress
from seglog.records.machine import I64, U8
from seglog.records.map_kernels import FACTS, U64, Fact, Halt, get_key, map_batches, move_entries, put_key
from seglog.storage.clean_batch import BatchFilter, Transactions
from seglog.storage.clean_round import Round
from seglog.storage.cleaned_segment import CleanedSegment
from seglog.storage.cleaner import filter_batch, map_batch

_FIRST_SLOTS: Final = 1 << 12
_GROWTH: Final = 4
_OUTPUT: Final = 4 << 20
_ROWS: Final = 1 << 14
_SEEN: Final = 1 << 12
_INDEX_ROWS: Final = 1 << 14
_NO_BYTES: Final = np.frombuffer(b"\0", np.uint8)[:0]
_HEAD: Final = Struct(">qiibIh")
_PREFIX: Final = Struct(">qi4xb")
_STATE: Final = (Fact.SEEN, Fact.MESSAGES_READ, Fact.MESSAGES_KEPT, Fact.KEYLESS)


def _array(data: bytes) -> U8:
    """Read-only, always: a kernel is compiled anew for every kind of array that it is given."""
    return np.frombuffer(data, np.uint8) if data else _NO_BYTES


class CompiledMap:
    """`seglog.storage.offset_map.Offsets` over the kernels' table, which grows up to the slots that it may have."""

    def __init__(self, slots: int, max_entries: int) -> None:
        self.facts: I64 = np.zeros(FACTS, np.int64)
        self.max_slots = slots
        self.facts[Fact.LATEST] = -1
        self.facts[Fact.MAX_ENTRIES] = max_entries
        self.facts[Fact.MAX_SLOTS] = slots
        self.facts[Fact.SLOTS] = min(_FIRST_SLOTS, slots)
        self.facts[Fact.HASH_KEY_0 : Fact.HASH_KEY_1 + 1] = np.frombuffer(os.urandom(16), np.int64)
        self.table: U64 = np.zeros(3 * int(self.facts[Fact.SLOTS]), np.uint64)

    def __len__(self) -> int:
        return int(self.facts[Fact.ENTRIES])

    @property
    def max_entries(self) -> int:
        return int(self.facts[Fact.MAX_ENTRIES])

    @property
    def latest_offset(self) -> int:
        return int(self.facts[Fact.LATEST])

    @latest_offset.setter
    def latest_offset(self, offset: int) -> None:
        self.facts[Fact.LATEST] = offset

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
        put_key(self.table, self.facts, _array(key), offset)

    def get(self, key: bytes) -> int:
        return int(get_key(self.table, self.facts, _array(key)))


class CompiledEngine:
    """`seglog.storage.cleaner.Engine`."""

    def __init__(self, round_: Round) -> None:
        self._round = round_
        self.offsets = CompiledMap(round_.slots, round_.max_entries)
        facts = self.offsets.facts
        facts[Fact.START] = round_.first_dirty
        facts[Fact.NOW] = round_.now_ms
        facts[Fact.DELETE_RETENTION] = round_.delete_retention_ms
        facts[Fact.UPPER_BOUND] = round_.first_uncleanable
        facts[Fact.CHECK_CRC] = 1
        self._producers: I64 = np.array(sorted(round_.producers), np.int64).reshape(-1, 3)
        self._seen: I64 = np.zeros(_SEEN, np.int64)
        self._output: U8 = np.empty(_OUTPUT, np.uint8)
        self._single: U8 = np.empty(_OUTPUT, np.uint8)
        self._rows: I64 = np.empty((_ROWS, 3), np.int64)
        self._index_rows: I64 = np.empty((_INDEX_ROWS, len(INDEX_FIELDS)), np.int64)
        self.is_full = False
        self._mapped: int | None = None
        self._start()

    def _start(self) -> None:
        """Walk the log from the beginning: nothing was seen of any transaction."""
        self.transactions = Transactions(self._round.aborted)
        rows = [(*txn[:3], 0) for txn in self.transactions.aborted]
        self._aborted: I64 = np.array(rows, np.int64).reshape(-1, 4)
        self.transactions.seen = self._aborted[:, 3]  # one memory for kernels and Python
        self._batches = BatchFilter(self._round, self.offsets, self.transactions)

    @property
    def mapped(self) -> int:
        return int(self.offsets.facts[Fact.MESSAGES_READ]) if self._mapped is None else self._mapped

    @property
    def read(self) -> int:
        return self._batches.read + int(self.offsets.facts[Fact.MESSAGES_READ])

    @property
    def kept(self) -> int:
        return self._batches.kept + int(self.offsets.facts[Fact.MESSAGES_KEPT])

    @property
    def keyless(self) -> int:
        return self._batches.keyless + int(self.offsets.facts[Fact.KEYLESS])

    def _note_seen(self) -> None:
        """Producers that the kernel saw write in transactions that are not aborted."""
        facts = self.offsets.facts
        self.transactions.committed.update(self._seen[: facts[Fact.SEEN]].tolist())
        facts[Fact.SEEN] = 0

    # The map

    def map_chunk(self, chunk: bytes) -> int:
        position = 0
        facts = self.offsets.facts
        while True:
            position, halt, size = self._map_run(chunk, position)
            if halt in (Halt.END, Halt.MAP_FULL):
                self.is_full = halt == Halt.MAP_FULL
                return position
            entry = _entry(chunk, position, size)
            if halt == Halt.COMPRESSED:
                self._map_compressed(chunk, entry)
            else:
                view.check(chunk, entry)
                looked_at, self.is_full = map_batch(
                    chunk, entry, self._round.first_dirty, self.offsets, self.transactions
                )
                facts[Fact.MESSAGES_READ] += looked_at
            if self.is_full:
                return position
            position += size

    def _map_run(self, chunk: bytes, position: int) -> tuple[int, int, int]:
        """The kernel from ``position`` on, up to something that it cannot do."""
        data = _array(chunk)
        while True:
            position, halt, size = map_batches(
                data, position, len(chunk), self.offsets.facts, self.offsets.table, self._aborted, self._seen
            )
            self._note_seen()
            if halt == Halt.GROW:
                self.offsets.make_room(read_header(chunk, position).records_count)
            elif halt != Halt.SEEN:
                _raise_bad(chunk, position, halt)
                return position, halt, size

    def _map_compressed(self, chunk: bytes, entry: Entry) -> None:
        facts = self.offsets.facts
        plain = _uncompressed(chunk, entry)
        facts[Fact.CHECK_CRC] = 0
        try:
            _, halt, _ = self._map_run(plain, 0)
        except CorruptError as error:
            raise error.at(base=entry.position) from error
        finally:
            facts[Fact.CHECK_CRC] = 1
        self.is_full = halt == Halt.MAP_FULL

    # The copy

    def begin_filter(self) -> None:
        self._mapped = self.mapped
        self.offsets.facts[Fact.MESSAGES_READ] = 0
        self._start()

    def filter_chunk(self, chunk: bytes, cleaned: CleanedSegment, *, legacy_tombstones_stay: bool) -> int:
        self._batches.legacy_tombstones_stay = legacy_tombstones_stay
        position = 0
        while True:
            position, halt, size = self._filter_run(chunk, position, cleaned)
            if halt == Halt.END:
                return position
            entry = _entry(chunk, position, size)
            if halt == Halt.COMPRESSED:
                self._filter_compressed(chunk, entry, cleaned)
            else:
                view.check(chunk, entry)
                filter_batch(chunk, entry, self._batches, cleaned)
            position += size

    def _filter_run(self, chunk: bytes, position: int, cleaned: CleanedSegment) -> tuple[int, int, int]:
        """The kernel from ``position`` on, up to something that it cannot do; what it kept goes to ``cleaned``."""
        facts = self.offsets.facts
        data = _array(chunk)
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
            if halt == Halt.ROWS:
                self._rows = np.empty((size, 3), np.int64)
            elif halt == Halt.OUTPUT:
                if size > len(self._output):
                    self._output = np.empty(size, np.uint8)
            elif halt == Halt.OVERFLOW:
                raise cleaned.overflow(read_header(chunk, position).last_offset)
            elif halt != Halt.SEEN:
                _raise_bad(chunk, position, halt)
                return position, halt, size

    def _filter(self, data: U8, position: int, facts: I64, output: U8) -> tuple[int, int, int]:
        return filter_batches(
            data,
            position,
            len(data),
            output,
            facts,
            self.offsets.table,
            self._aborted,
            self._seen,
            self._producers,
            self._rows,
            self._index_rows,
        )

    def _drain(self, cleaned: CleanedSegment) -> None:
        facts = self.offsets.facts
        for row in self._index_rows[: facts[Fact.INDEX_ROWS]].tolist():
            cleaned.add_entry(*row)
        if facts[Fact.OUTPUT]:
            cleaned.write(self._output[: facts[Fact.OUTPUT]].tobytes())
        facts[Fact.OUTPUT] = facts[Fact.INDEX_ROWS] = 0
        cleaned.since_entry = int(facts[Fact.SINCE_ENTRY])
        cleaned.max_timestamp = int(facts[Fact.MAX_TIMESTAMP])
        cleaned.max_timestamp_offset = int(facts[Fact.MAX_TIMESTAMP_OFFSET])

    def _filter_compressed(self, chunk: bytes, entry: Entry, cleaned: CleanedSegment) -> None:
        """One compressed batch: its facts are its own, but for the counters."""
        facts = self.offsets.facts.copy()
        facts[Fact.CHECK_CRC] = facts[Fact.OUTPUT] = facts[Fact.INDEX_ROWS] = 0
        facts[Fact.BASE_OFFSET] = entry.offset
        plain = _uncompressed(chunk, entry)
        while True:
            position, halt, size = self._filter(_array(plain), 0, facts, self._single)
            if halt == Halt.ROWS:
                self._rows = np.empty((size, 3), np.int64)
            elif halt == Halt.OUTPUT:
                self._single = np.empty(size, np.uint8)
            else:
                break
        try:
            _raise_bad(plain, position, halt)
        except CorruptError as error:
            raise error.at(base=entry.position) from error
        for fact in _STATE:
            self.offsets.facts[fact] = facts[fact]
        self._note_seen()
        action = facts[Fact.ACTION]
        header = read_header(chunk, entry.position)
        if action == Action.VERBATIM:
            data: Buffer = chunk[entry.position : entry.position + entry.size]
            cleaned.add_batch(data, header.max_timestamp, header.last_offset)
        elif action != Action.DROPPED:
            data = self._single[: facts[Fact.OUTPUT]].tobytes()
            new = read_header(data)
            if action == Action.REWRITTEN:
                area = compress(header.codec, memoryview(data)[BATCH_OVERHEAD:])
                data = build_batch(new._replace(attributes=new.attributes | header.codec), area)
            cleaned.add_batch(data, new.max_timestamp, new.last_offset)


def _entry(chunk: bytes, position: int, size: int) -> Entry:
    offset, _, magic = _PREFIX.unpack_from(chunk, position)
    return Entry(position, size, offset, magic)


def _uncompressed(chunk: bytes, entry: Entry) -> bytes:
    """The batch at ``entry`` as it would be without its codec, but for the CRC."""
    header = read_header(chunk, entry.position)
    start = entry.position + BATCH_OVERHEAD
    try:
        area = decompress(header.codec, memoryview(chunk)[start : entry.position + entry.size])
    except CorruptError as error:
        raise error.at(base=start, offset=header.base_offset) from None
    head = bytearray(chunk[entry.position : start])
    fields: tuple[Any, ...] = (header.base_offset, BATCH_OVERHEAD + len(area) - 12, header.leader_epoch, 2, header.crc)
    _HEAD.pack_into(head, 0, *fields, header.attributes & ~CODEC_MASK)
    return b"".join((head, area))


def _raise_bad(data: bytes, position: int, halt: int) -> None:
    """Raise what the plain path says about the batch at ``position``, if a kernel found it bad."""
    if halt not in (Halt.BAD_HEADER, Halt.BAD_CRC, Halt.BAD_RECORD):
        return
    offset, length, magic = _PREFIX.unpack_from(data, position)
    entry = Entry(position, length + 12, offset, magic)
    if halt == Halt.BAD_CRC:
        view.check(data, entry)
    if 0 <= magic <= 2 and length > 0:
        view.describe(data, entry)
        view.decode(data, entry)
    if halt == Halt.BAD_RECORD:
        raise CorruptRecordError("records that cannot be", position=position, offset=offset)
    raise CorruptBatchError(f"a batch of magic {magic} and length {length}", position=position, offset=offset)
