"""Walks a stretch of a log file batch by batch, by their sizes, and goes on behind bytes that are not a batch."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import Final, NamedTuple, Protocol

from crc32c import crc32c

from seglog.core.errors import CorruptBatchError
from seglog.core.fs import File
from seglog.records.batch import (
    BATCH_OVERHEAD,
    BATCH_PREFIX,
    CRC_START,
    ENTRY_PREFIX,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    MIN_ENTRY,
    Entry,
    entries,
)
from seglog.storage.offline.findings import Finding, Severity, damage
from seglog.storage.offline.verify.batches import check_batch
from seglog.storage.offline.verify.summary import Facts, Summary, combine_all, hole

CHUNK: Final = 4 << 20
_FIRST: Final = 64 << 10
"""Bytes of the chunk behind damage. Chunks then double in size, so that a file with much damage is not read often."""
_LARGE: Final = 32 << 20
"""The CRC of a larger entry is checked piece by piece before memory is taken for it: its size may be wrong."""
_WINDOW: Final = 1 << 20
_SMALLEST: Final = (MIN_ENTRY, MIN_ENTRY + 8, BATCH_OVERHEAD)
"""Bytes of the smallest entry of each magic."""
_LEGACY_CRC_START: Final = 16


class Hole(NamedTuple):
    """Bytes of a file that are not a sound batch, and what is wrong with the first of them."""

    start: int
    end: int
    reason: str


class PlainCheck(Protocol):
    """Checks neighbouring entries of a chunk with `check_batch`, and stops before the first that is not a batch."""

    def __call__(self, entries: Sequence[Entry]) -> list[Summary]: ...


class CompiledWalk(Protocol):
    """The compiled loops (`seglog.storage.offline.verify.compiled_batches`) over entries that begin before ``stop``.

    ``data`` lies at ``position`` in the file. Entries that the loops do not find clean go through ``plain``. Returns
    neighbouring summaries up to the first entry that is not whole or not a batch.
    """

    def __call__(self, facts: Facts, data: bytes, position: int, stop: int, plain: PlainCheck) -> list[Summary]: ...


class StretchWalk:
    """Walks a log file from a position at which a batch should start.

    ``holes`` are bytes that are not a batch, ``undecodable`` batches with a right CRC and wrong records.
    """

    def __init__(
        self,
        file: File,
        facts: Facts,
        *,
        compiled: CompiledWalk | None = None,
    ) -> None:
        self._file = file
        self._facts = facts
        self._compiled = compiled
        self._size = file.size()
        self._parts: list[Summary] = []
        self.holes: list[Hole] = []
        self.undecodable: list[Hole] = []
        self._legacy = self._file.pread(1, MAGIC_POSITION) in (b"\x00", b"\x01")

    def run(self, start: int, end: int) -> Summary:
        """Check everything that begins from ``start`` to ``end`` (exclusive). The last batch may reach further."""
        end = min(end, self._size)
        position, wanted = start, CHUNK
        while position < end:
            before = position
            data = self._file.pread(min(wanted, self._size - position), position)
            if not data:  # the file has become shorter
                break
            position += self._chunk(data, position, end - position)
            wanted = min(wanted * 2, CHUNK)
            if position == before:
                position, wanted = self._alone(position), _FIRST
        return combine_all(self._facts, self._parts, start)

    def _chunk(self, data: bytes, position: int, stop: int) -> int:
        """Check the whole entries at the start of ``data``; return how many bytes they are."""

        def plain(entries: Sequence[Entry]) -> list[Summary]:
            summaries = []
            for entry in entries:
                checked = self._check(data, entry, position + entry.position)
                if isinstance(checked, Finding):
                    break
                summaries.append(checked)
            return summaries

        if self._compiled is not None:
            parts = self._compiled(self._facts, data, position, stop, plain)
        else:
            parts = plain(list(_whole_entries(data, stop)))
        if not parts:
            return 0
        self._parts.append(combine_all(self._facts, parts))
        return parts[-1].end - position

    def _check(self, data: bytes, entry: Entry, position: int) -> Summary | Finding:
        checked = check_batch(self._facts, data, entry, position)
        if isinstance(checked, Summary):
            self._legacy |= entry.magic < 2
            self.undecodable += [
                Hole(position, checked.end, one.reason)
                for one in checked.findings
                if one.file == self._facts.file and one.severity is Severity.DAMAGE
            ]
        return checked

    # Holes, and batches larger than a chunk

    def _alone(self, position: int) -> int:
        """Check the entry at ``position``, or note a hole there; return where to go on."""
        facts = self._facts
        size, reason = self._size_at(position)
        if reason is None and (size <= _LARGE or self._has_right_crc(position, size)):
            data = self._file.pread(size, position)
            entry = Entry(0, size, ENTRY_PREFIX.unpack_from(data)[0], data[MAGIC_POSITION])
            checked = self._check(data, entry, position)
            if isinstance(checked, Summary):
                self._parts.append(checked)
                return position + size
            reason = checked.reason
        following = self._find_sound(position + 1)
        end = self._size if following is None else following
        what = "no batch follows" if following is None else f"the next batch is at position {following}"
        reason = f"{reason or f'the CRC of a batch of {size} bytes is wrong'}; {what}"
        offset = int.from_bytes(self._file.pread(8, position), signed=True) if size else None
        self.holes.append(Hole(position, end, reason))
        self._parts.append(hole(position, end, damage(facts.file, reason, position=position, offset=offset)))
        return end

    def _size_at(self, position: int) -> tuple[int, str | None]:
        """Bytes of the entry that starts there, or why there cannot be one."""
        left = self._size - position
        if left <= MAGIC_POSITION:
            return 0, f"{left} bytes are too few for a batch"
        prefix = self._file.pread(ENTRY_PREFIX.size, position)
        _, length, _, magic = ENTRY_PREFIX.unpack_from(prefix)
        if not any(prefix):
            return 0, "zeros instead of a batch"
        if not 0 <= magic <= 2:
            return 0, f"unknown magic {magic}"
        size = length + LOG_OVERHEAD
        if size < _SMALLEST[magic]:
            return 0, f"size {size} is under the smallest possible, {_SMALLEST[magic]}"
        if size > left:
            return 0, f"the batch claims {size} bytes, but only {left} are left"
        return size, None

    def _has_right_crc(self, position: int, size: int) -> bool:
        prefix = self._file.pread(21, position)
        current = prefix[MAGIC_POSITION] == 2
        stored = int.from_bytes(prefix[17:21] if current else prefix[12:16])
        crc = 0
        at, end = position + (CRC_START if current else _LEGACY_CRC_START), position + size
        while at < end:
            data = self._file.pread(min(CHUNK, end - at), at)
            if not data:
                return False
            crc = int(crc32c(data, crc)) if current else zlib.crc32(data, crc)
            at += len(data)
        return crc == stored

    def _find_sound(self, start: int) -> int | None:
        """The start of the next entry with a right CRC, from ``start`` on.

        Prefer an entry whose offset follows those before it: the value of a record may hold a whole batch.
        """
        base = self._facts.base_offset
        reached = next((part.last_offset + 1 for part in reversed(self._parts) if part.batches), 0)
        for lowest in sorted({max(reached, base), base}, reverse=True):
            for position in self._candidates(start, lowest):
                size, reason = self._size_at(position)
                if reason is None and self._has_right_crc(position, size):
                    return position
        return None

    def _candidates(self, start: int, lowest: int) -> Iterator[int]:
        """Positions of possible headers: by magic, size, and an offset from ``lowest`` on."""
        marks = (b"\x00", b"\x01", b"\x02") if self._legacy else (b"\x02",)
        window = start
        while window < self._size - MAGIC_POSITION:
            data = self._file.pread(_WINDOW + BATCH_OVERHEAD, window)
            found = []
            if data.count(0) == len(data):
                window += _WINDOW
                continue
            for mark in marks:
                at = data.find(mark, MAGIC_POSITION)
                while 0 <= at < _WINDOW + MAGIC_POSITION:
                    if self._looks_right(data, at - MAGIC_POSITION, window, lowest):
                        found.append(window + at - MAGIC_POSITION)
                    at = data.find(mark, at + 1)
            yield from sorted(found)
            window += _WINDOW

    def _looks_right(self, data: bytes, at: int, window: int, lowest: int) -> bool:
        magic = data[at + MAGIC_POSITION]
        if len(data) - at < _SMALLEST[magic]:
            return False
        offset, length, epoch, _ = ENTRY_PREFIX.unpack_from(data, at)
        if not _SMALLEST[magic] <= length + LOG_OVERHEAD <= self._size - window - at:
            return False
        if not lowest <= offset < self._facts.limit_offset:
            return False
        if magic < 2:
            return True
        *_, attributes, delta = BATCH_PREFIX.unpack_from(data, at)
        return bool(epoch >= -1 and not attributes & 0xFF80 and delta >= 0)


def _whole_entries(data: bytes, stop: int) -> Iterator[Entry]:
    """Whole entries of ``data`` that begin before ``stop``, up to the first bytes that are not one."""
    with suppress(CorruptBatchError):
        yield from takewhile(lambda entry: entry.position < stop, entries(data))
