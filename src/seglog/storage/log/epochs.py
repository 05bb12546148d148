"""Which leader epoch wrote from which offset on: what ``leader-epoch-checkpoint`` says.

Rules of KIP-101, KIP-279 and Kafka's ``LeaderEpochFileCache.java``. Invariant: epochs and start offsets of the entries
both strictly increase. An epoch's end offset is the start of the next that is known, or the log's end for the last.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Final, NamedTuple

from seglog.core.types import MAX_INT64, NO_EPOCH
from seglog.storage.formats.checkpoints import EpochEntry

UNKNOWN_OFFSET: Final = -1


class EpochEnd(NamedTuple):
    """The largest known epoch up to the one asked for, and its end (exclusive); -1 and -1 where nothing can be said."""

    epoch: int
    end_offset: int


class LeaderEpochs:
    """The entries of one partition. A method that may change them returns whether it did: write the file then."""

    __slots__ = ("_epochs", "_starts")

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        """Entries are assigned one after the other, so that the last word is that of a conflicting later one."""
        self._epochs: list[int] = []
        self._starts: list[int] = []
        for epoch, start in entries:
            self.assign(epoch, start)

    @property
    def entries(self) -> list[EpochEntry]:
        return [EpochEntry(epoch, start) for epoch, start in zip(self._epochs, self._starts, strict=True)]

    def restore(self, entries: Iterable[tuple[int, int]]) -> None:
        """Back to ``entries``, as they were before a change that could not be written."""
        self._epochs[:], self._starts[:] = [], []
        for epoch, start in entries:
            self.assign(epoch, start)

    @property
    def latest(self) -> int:
        """The last epoch, -1 if there is none."""
        return self._epochs[-1] if self._epochs else NO_EPOCH

    def __len__(self) -> int:
        return len(self._epochs)

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Let ``epoch`` begin at ``start_offset``. Entries that contradict it, being later in epoch or offset, go."""
        if epoch < 0 or start_offset < 0:
            raise ValueError(f"no leader epoch {epoch} can start at offset {start_offset}")
        epochs, starts = self._epochs, self._starts
        if epochs and epochs[-1] == epoch and start_offset >= starts[-1]:
            return False
        while epochs and (epochs[-1] >= epoch or starts[-1] >= start_offset):
            epochs.pop()
            starts.pop()
        epochs.append(epoch)
        starts.append(start_offset)
        return True

    def agree(self, epoch: int, offset: int) -> bool:
        """Let what is known agree with a batch of ``epoch`` at ``offset``, which is there; see `rescan`.

        Entries of later epochs that begin at or before it are of a history that the log no longer has: a power cut may
        bring back the end of a log that was cut off and written anew, while this file was fsynced. A batch without an
        epoch, of an old format, says nothing.
        """
        if epoch < 0:
            return False
        epochs, starts = self._epochs, self._starts
        at = kept = bisect_right(starts, offset)
        while kept and epochs[kept - 1] > epoch:
            kept -= 1
        del epochs[kept:at], starts[kept:at]
        if kept and epochs[kept - 1] == epoch:
            return kept < at
        behind = kept
        while behind < len(epochs) and epochs[behind] <= epoch:
            behind += 1
        epochs[kept:behind], starts[kept:behind] = [epoch], [offset]
        return True

    def next_start(self, offset: int) -> int:
        """Where the first epoch begins that begins behind ``offset``; beyond all offsets if there is none."""
        at = bisect_right(self._starts, offset)
        return self._starts[at] if at < len(self._starts) else MAX_INT64

    def end_offset_for(self, epoch: int, log_end: int) -> EpochEnd:
        """Where the log of a replica that ends in ``epoch`` may first differ from this one, which ends at ``log_end``.

        An epoch before the first known one ends where that one begins, because earlier records are gone. An epoch
        after the last is unknown.
        """
        if epoch == NO_EPOCH or not self._epochs or epoch > self._epochs[-1]:
            return EpochEnd(NO_EPOCH, UNKNOWN_OFFSET)
        if epoch == self._epochs[-1]:
            return EpochEnd(epoch, log_end)
        higher = bisect_right(self._epochs, epoch)
        found = self._epochs[higher - 1] if higher else epoch
        return EpochEnd(found, self._starts[higher])

    def epoch_for_offset(self, offset: int) -> int:
        """The epoch that wrote ``offset`` (or would write it next), -1 if it is before the first one."""
        at = bisect_right(self._starts, offset)
        return self._epochs[at - 1] if at else NO_EPOCH

    def truncate_from_end(self, end_offset: int) -> bool:
        """Forget the epochs that begin at or after ``end_offset``."""
        keep = bisect_left(self._starts, end_offset)
        if end_offset < 0 or keep == len(self._starts):
            return False
        del self._epochs[keep:], self._starts[keep:]
        return True

    def truncate_from_start(self, start_offset: int) -> bool:
        """Forget what was before ``start_offset``: the epoch that it lies in begins there now, earlier ones go."""
        at = bisect_right(self._starts, start_offset) - 1
        if at < 0:
            return False
        changed = at > 0 or self._starts[0] != start_offset
        del self._epochs[:at], self._starts[:at]
        self._starts[0] = start_offset
        return changed

    def clear(self) -> bool:
        changed = bool(self._epochs)
        self._epochs, self._starts = [], []
        return changed

    def copy(self) -> LeaderEpochs:
        made = LeaderEpochs()
        made._epochs, made._starts = self._epochs.copy(), self._starts.copy()
        return made
