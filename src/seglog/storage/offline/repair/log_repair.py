"""The repair of a damaged log: which bytes stay, and which header fields have one possible value only.

The CRC of a batch does not cover its base offset, size, leader epoch and magic. If one of them is wrong and the CRC is
right, the batch is whole: its size ends where the next batch begins, its offset lies between its neighbours', and its
epoch is in the checkpoint. If that leaves one value only, the repair sets the field. It never guesses.
"""

from __future__ import annotations

import errno
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from struct import Struct
from typing import Final, NamedTuple, NoReturn

from crc32c import crc32c

from seglog.core.fs import File
from seglog.core.types import MAX_INT64, NO_EPOCH, Buffer
from seglog.records import any_magic
from seglog.records.batch import BATCH_OVERHEAD, CRC_START, LOG_OVERHEAD
from seglog.storage.log.epochs import LeaderEpochs
from seglog.storage.log.manifest import CHAINED
from seglog.storage.offline.batch_reading import read_chunks
from seglog.storage.offline.repair.replica_batches import BatchDonor, BatchRequest, Disagreement, TooMuch
from seglog.storage.offline.verify.stretch_walk import Hole, StretchWalk
from seglog.storage.offline.verify.summary import LEGACY, Facts

_INT32: Final = Struct(">i")
_INT64: Final = Struct(">q")
_LENGTH_AT: Final = 8
_EPOCH_AT: Final = 12
_MAGIC_AT: Final = 16


class Patch(NamedTuple):
    """New bytes of a header, or a replica's batches: ``data`` at ``position``; ``what`` names field and batch."""

    position: int
    data: bytes
    what: str


class Removal(NamedTuple):
    """Bytes to remove, with offsets ``first`` to ``last``; last is -1 if the offsets are not known.

    ``is_tail``: they are the end of the log.
    """

    start: int
    end: int
    first: int
    last: int
    reason: str
    is_tail: bool

    @property
    def offsets(self) -> str:
        if self.last < self.first:
            return f"the records from offset {self.first} on" if self.is_tail else "no offset"
        return f"offset {self.first}" if self.first == self.last else f"offsets {self.first} to {self.last}"


class LogRepair(NamedTuple):
    """The changes that make a log sound. ``tail_end`` is its end if batches at its end come from a replica.

    ``disputes``: damage that replicas would restore in different ways, or that is too large; if there is any, nothing
    may be changed.
    """

    patches: tuple[Patch, ...]
    gone: tuple[Removal, ...]
    tail_end: int | None = None
    disputes: tuple[str, ...] = ()

    @property
    def is_needed(self) -> bool:
        return bool(self.patches or self.gone or self.disputes)


class _BatchPlace(NamedTuple):
    """The place of a sound batch; ``base`` may be a patched offset."""

    position: int
    size: int
    base: int
    delta: int
    epoch: int

    @property
    def last(self) -> int:
        return self.base + self.delta


class PatchedFile:
    """A file with patches applied, for reading only."""

    def __init__(self, file: File, patches: Sequence[Patch]) -> None:
        self._file = file
        self._patches = sorted(patches)
        self._longest = max((len(patch.data) for patch in patches), default=0)

    @property
    def path(self) -> str:
        return self._file.path

    def size(self) -> int:
        """A patch may go beyond the end of the file."""
        return max(self._file.size(), *(patch.position + len(patch.data) for patch in self._patches), 0)

    def pread(self, length: int, position: int) -> bytes:
        length = max(min(length, self.size() - position), 0)
        data = self._file.pread(length, position).ljust(length, b"\0")
        first = bisect_left(self._patches, (position - self._longest,))
        last = bisect_left(self._patches, (position + len(data),))
        if first == last:
            return data
        changed = bytearray(data)
        for at, new, _ in self._patches[first:last]:
            start, end = max(at, position), min(at + len(new), position + len(changed))
            if start < end:
                changed[start - position : end - position] = new[start - at : end - at]
        return bytes(changed)

    def pwrite(self, data: Buffer, position: int) -> None:
        del data, position
        self._refuse()

    def truncate(self, size: int) -> None:
        del size
        self._refuse()

    def fsync(self) -> None:
        self._refuse()

    def close(self) -> None:
        """The caller closes the file below."""

    def _refuse(self) -> NoReturn:
        raise OSError(errno.EROFS, "a patched file is read-only", self.path)


def plan_log(
    file: File,
    facts: Facts,
    epochs: LeaderEpochs | None,
    end_offset: int | None,
    replica: BatchDonor | None = None,
    *,
    is_last: bool = True,
    until: int | None = None,
    history: LeaderEpochs | None = None,
) -> LogRepair:
    """Plan the repair of a log; ``epochs`` and ``end_offset`` are None if not known or not trusted.

    ``history``: the epochs by a checkpoint that no batch contradicts, also those of offsets that the log has lost.
    ``replica`` may have the batches that are damaged here; its log may be longer than the last segment (``is_last``).
    ``until``: the log had all offsets before this one, and ``replica`` may have those that are missing at its end.
    """
    tail_end: int | None = None
    disputes: list[str] = []
    walk = StretchWalk(file, facts)
    walk.run(0, file.size())
    patches: list[Patch] = []
    holes: list[Hole] = []
    for hole in walk.holes:
        restored = _restore_size(file, hole)
        patches += restored
        if not restored:
            holes.append(hole)
    if replica is not None:
        restored, tail_end, disputes = _restore_batches(
            PatchedFile(file, patches), facts, history, holes, replica, is_last=is_last, until=until
        )
        patches += restored
        starts = {patch.position for patch in restored}
        holes = [hole for hole in holes if hole.start not in starts]
    fixer = _HeaderRepair(facts, epochs, end_offset, {bad.start: bad.reason for bad in walk.undecodable})
    patched = PatchedFile(file, patches)
    fixer.run(_batches(patched, facts, holes), holes, patched.size())
    by_position = {patch.position: patch for patch in (*patches, *fixer.patches)}
    return LogRepair(
        tuple(by_position[position] for position in sorted(by_position)), tuple(fixer.gone), tail_end, tuple(disputes)
    )


def _restore_batches(
    file: PatchedFile,
    facts: Facts,
    epochs: LeaderEpochs | None,
    holes: Sequence[Hole],
    replica: BatchDonor,
    *,
    is_last: bool,
    until: int | None,
) -> tuple[list[Patch], int | None, list[str]]:
    """Patches for the holes whose bytes a replica has, the log's end if they reach it, and disputes."""
    sound = list(_batches(file, facts, holes))
    patches, tail_end = [], None
    disputes: list[str] = []
    size = file.size()
    known = () if epochs is None else tuple(epochs.entries)
    is_cut = until is not None and not (holes and holes[-1].end == size)
    for hole in (*holes, Hole(size, size, "the file ends there")) if is_cut else holes:
        at = bisect_left(sound, hole.start, key=lambda batch: batch.position)
        low = sound[at - 1].last + 1 if at else facts.base_offset
        is_tail = at == len(sound)
        high = facts.limit_offset if is_tail else sound[at].base
        end = until if until is not None and is_tail and until > low else None
        if hole.start == size and end is None:
            continue
        header = file.pread(min(CHAINED, hole.end - hole.start), hole.start)
        request = BatchRequest(low, high - 1, hole.end - hole.start, known, is_tail and is_last, end, header)
        request = request._replace(
            before=_epoch_of(sound[at - 1], epochs) if at else NO_EPOCH,
            after=NO_EPOCH if is_tail else _epoch_of(sound[at], epochs),
        )
        found = replica.find(request)
        where = f"position {hole.start}, from offset {low} on: {hole.reason}"
        if isinstance(found, Disagreement):
            disputes.append(
                f"{where}; {' and '.join(found.files)} have different batches there, each of them sound: find out "
                "which is right, and name that replica alone with repair --from"
            )
        elif isinstance(found, TooMuch):
            most = f"{found.most >> 20} MiB" if found.most >> 20 else f"{found.most} bytes"
            disputes.append(f"{where}; fsck restores {most} in a row at the most: use repair --from with a replica")
        elif found is not None:
            offsets = f"offset {found.first}" if found.first == found.last else f"offsets {found.first} to {found.last}"
            what = f"bytes of {offsets} at position {hole.start}: as in {found.file} ({hole.reason})"
            patches.append(Patch(hole.start, found.data, what))
            tail_end = found.last + 1 if is_tail else None
    return patches, tail_end, disputes


def _epoch_of(batch: _BatchPlace, epochs: LeaderEpochs | None) -> int:
    """The leader epoch of a sound batch; -1 if it has none, or if the checkpoint says that the batch's is wrong."""
    if batch.epoch == LEGACY:
        return NO_EPOCH
    if epochs is not None and epochs.entries and batch.base >= epochs.entries[0].start_offset:
        return epochs.epoch_for_offset(batch.base)
    return batch.epoch


def _restore_size(file: File, hole: Hole) -> list[Patch]:
    """Patches for a hole that is one batch of magic 2 with a right CRC, and a wrong size or magic."""
    size = hole.end - hole.start
    if size < BATCH_OVERHEAD:
        return []
    data = file.pread(size, hole.start)
    if int(crc32c(memoryview(data)[CRC_START:])) != int.from_bytes(data[17:21]):
        return []
    patches = []
    where = f"of the batch at position {hole.start}"
    length = _INT32.pack(size - LOG_OVERHEAD)
    if data[_LENGTH_AT : _LENGTH_AT + 4] != length:
        patches.append(Patch(hole.start + _LENGTH_AT, length, f"size {where}: {size}"))
    if data[_MAGIC_AT] != 2:
        patches.append(Patch(hole.start + _MAGIC_AT, b"\x02", f"magic {where}: 2"))
    offset: int = _INT64.unpack_from(data)[0]
    if offset < 0:
        positive = offset & MAX_INT64
        patches.append(Patch(hole.start, _INT64.pack(positive), f"base offset {where}: {positive}, not {offset}"))
    return patches


def _batches(file: PatchedFile, facts: Facts, holes: Sequence[Hole]) -> Iterator[_BatchPlace]:
    """The sound batches in order."""
    starts = [0, *(hole.end for hole in holes)]
    ends = [*(hole.start for hole in holes), file.size()]
    for start, end in zip(starts, ends, strict=True):
        for chunk in read_chunks(file, start, end):
            for entry in chunk.entries:
                header = any_magic.describe(chunk.data, entry, limit=facts.limit)
                epoch = header.leader_epoch if entry.magic == 2 else LEGACY
                position = chunk.position + entry.position
                yield _BatchPlace(position, entry.size, header.base_offset, header.last_offset_delta, epoch)


class _HeaderRepair:
    """Corrects offsets and epochs, with a view of the next two batches."""

    def __init__(
        self, facts: Facts, epochs: LeaderEpochs | None, end_offset: int | None, undecodable: Mapping[int, str]
    ) -> None:
        self._undecodable = undecodable
        self._epochs = epochs if epochs is not None and epochs.entries else None
        self._first_offset = facts.base_offset
        self._end_offset = end_offset
        self._limit = facts.limit_offset if end_offset is None else end_offset
        self.patches: list[Patch] = []
        self.gone: list[Removal] = []

    def run(self, batches: Iterator[_BatchPlace], holes: Sequence[Hole], size: int) -> None:
        low = self._first_offset
        window = list(islice(batches, 2))
        waiting = list(holes)
        while window:
            window += islice(batches, 1)
            here = window.pop(0)
            broken: list[Hole] = []
            while waiting and waiting[0].start < here.position:
                broken.append(waiting.pop(0))
            for hole in broken:
                self.gone.append(Removal(hole.start, hole.end, low, here.base - 1, hole.reason, is_tail=False))
            base = self._base_of(here, low, window, follows=not broken)
            reason = self._undecodable.get(here.position)
            if base is None or reason is not None:
                high = window[0].base if window else here.last + 1 if base is not None else self._limit
                reason = reason or f"offsets {here.base} to {here.last} do not fit between its neighbours"
                self.gone.append(
                    Removal(here.position, here.position + here.size, low, high - 1, reason, is_tail=False)
                )
                continue
            if base != here.base:
                what = f"base offset of the batch at position {here.position}: {base}, not {here.base}"
                stored = base + here.delta if here.epoch == LEGACY else base  # a wrapper stores its last offset
                self.patches.append(Patch(here.position, _INT64.pack(stored), what))
            self._fix_epoch(here, base)
            low = base + here.delta + 1
        if waiting:
            last = self._end_offset - 1 if self._end_offset is not None else -1
            self.gone.append(Removal(waiting[0].start, size, low, last, waiting[0].reason, is_tail=True))

    def _base_of(self, here: _BatchPlace, low: int, ahead: Sequence[_BatchPlace], *, follows: bool) -> int | None:
        """The only possible base offset; None if there are several."""
        high = ahead[0].base if ahead else self._limit
        if low <= here.base and here.last < high:
            return here.base
        if follows and low + here.delta + 1 == high:
            return low
        if low <= here.base and len(ahead) > 1 and here.last + ahead[0].delta + 2 == ahead[1].base:
            return here.base  # the next one's is wrong
        if low <= here.base and len(ahead) == 1 and here.last + ahead[0].delta + 2 == self._limit:
            return here.base
        return None

    def _fix_epoch(self, here: _BatchPlace, base: int) -> None:
        epochs = self._epochs
        if epochs is None or here.epoch in (LEGACY, NO_EPOCH) or base < epochs.entries[0].start_offset:
            return
        expected = epochs.epoch_for_offset(base)
        if expected != here.epoch:
            what = f"leader epoch of the batch at position {here.position}: {expected}, not {here.epoch}"
            self.patches.append(Patch(here.position + _EPOCH_AT, _INT32.pack(expected), what))
