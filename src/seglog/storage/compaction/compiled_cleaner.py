"""Compaction with the loops of `seglog.records.map_kernels` and `seglog.records.compact_kernels`: the Python around.

What the kernels leave to Python: control batches and messages of formats 0 and 1 go through `BatchFilter` one by one;
runs of compressed batches are decompressed here, filtered by the kernel and compressed again.
"""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np

from seglog.core.errors import CorruptError
from seglog.core.types import Buffer
from seglog.records import any_magic
from seglog.records.batch import BATCH_OVERHEAD, Entry, build_batch, read_header
from seglog.records.compact_kernels import INDEX_FIELDS, ROW_FIELDS, Action, filter_batches
from seglog.records.compression import compress
from seglog.records.intrinsics import I64, U8
from seglog.records.map_kernels import BLOCK, Halt, map_batches
from seglog.records.offset_kernels import Fact
from seglog.storage.compaction.batch_filter import BatchFilter
from seglog.storage.compaction.cleaned_segment import CleanedSegment
from seglog.storage.compaction.compiled_offset_map import as_array
from seglog.storage.compaction.compiled_walk import Table, Walk, decompress_run, entry_at, raise_bad
from seglog.storage.compaction.offset_map import Keys, LastKnown
from seglog.storage.compaction.plain_cleaner import filter_batch, map_batch
from seglog.storage.compaction.round import Round

_OUTPUT: Final = 4 << 20
_ROWS: Final = 1 << 14
_INDEX_ROWS: Final = 1 << 14
_COUNTERS: Final = (Fact.SEEN, Fact.MESSAGES_READ, Fact.MESSAGES_KEPT, Fact.KEYLESS)


class KeyTable(Table, Keys, Protocol):
    """Where the kernels put keys."""

    def make_room(self, keys: int) -> None:
        """For ``keys`` more keys, as far as there may be."""


class LastTable(Table, LastKnown, Protocol):
    """What the kernels ask for the last offsets."""


class CompiledMapper(Walk):
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


class CompiledFilter(Walk):
    """`seglog.storage.compaction.cleaner.Filter`."""

    def __init__(self, round_: Round, offsets: LastTable) -> None:
        super().__init__(round_, offsets)
        self._offsets = offsets
        self._producers: I64 = np.array(sorted(round_.producers), np.int64).reshape(-1, 3)
        self._group: I64 = np.empty((BLOCK, 4), np.int64)
        self._output: U8 = np.empty(_OUTPUT, np.uint8)
        self._rows: I64 = np.empty((_ROWS, len(ROW_FIELDS)), np.int64)
        self._index_rows: I64 = np.empty((_INDEX_ROWS, len(INDEX_FIELDS)), np.int64)
        self._batches = BatchFilter(round_, offsets, self.transactions)

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
        self._batches.legacy_tombstones_stay = legacy_tombstones_stay
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
        cleaned.since_entry = int(facts[Fact.SINCE_ENTRY])
        cleaned.max_timestamp = int(facts[Fact.MAX_TIMESTAMP])
        cleaned.max_timestamp_offset = int(facts[Fact.MAX_TIMESTAMP_OFFSET])

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
