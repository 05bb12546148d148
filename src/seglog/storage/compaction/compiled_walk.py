"""What the two compiled looks at a log share: transactions, runs of compressed batches, what a kernel found bad."""

from __future__ import annotations

from bisect import bisect_right
from struct import Struct
from typing import Final, NamedTuple, Protocol

import numpy as np

from seglog.core.errors import CorruptBatchError, CorruptError, CorruptRecordError
from seglog.records import any_magic
from seglog.records.batch import (
    BATCH_OVERHEAD,
    CODEC_MASK,
    CONTROL_BIT,
    BatchHeader,
    Entry,
    check_crc,
    entries,
    read_header,
)
from seglog.records.compression import decompress
from seglog.records.intrinsics import I64
from seglog.records.map_kernels import BLOCK, Halt
from seglog.records.offset_kernels import U64, Fact
from seglog.storage.compaction.batch_filter import Transactions
from seglog.storage.compaction.round import Round

_RUN: Final = 4 << 20
"""Decompressed bytes of batches that are filtered together; a single batch may have more."""
_SEEN: Final = 1 << 12
_HEAD: Final = Struct(">qiibIh")
_PREFIX: Final = Struct(">qi4xb")


class Table(Protocol):
    """What the kernels work on: their table, and settings, state and counters by `Fact`."""

    @property
    def facts(self) -> I64: ...
    @property
    def table(self) -> U64: ...


class Walk:
    """What both looks at a log have in common: its transactions, as kernels and Python see them on the way."""

    def __init__(self, round_: Round, table: Table) -> None:
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
        self.transactions.seen = self._aborted[:, 3]  # one memory for kernels and Python

    def _transactions(self, round_: Round) -> Transactions:
        return Transactions(round_.aborted)

    def _note_seen(self) -> None:
        """Producers that the kernel saw write in transactions that are not aborted."""
        self.transactions.committed.update(self._seen[: self._facts[Fact.SEEN]].tolist())
        self._facts[Fact.SEEN] = 0


class Run(NamedTuple):
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


def decompress_run(chunk: bytes, position: int) -> Run:
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
    return Run(b"".join(parts), batches, starts)


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
