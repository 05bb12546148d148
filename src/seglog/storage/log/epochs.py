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


_Table = tuple[tuple[int, ...], tuple[int, ...]]
"""Epochs, and the offsets at which they start."""
_NOTHING: Final[_Table] = (), ()
_FIRST: Final[_Table] = (0,), (0,)


class LeaderEpochs:
    """The entries of one partition. A method that may change them returns whether it did: write the file then.

    One thread changes them, with the log's lock held. Any thread may read: a change puts another table in the place of
    the old one, and a reader takes the table once.
    """

    __slots__ = ("_table",)

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        """Entries are assigned one after the other, so that the last word is that of a conflicting later one."""
        self._table: _Table = _NOTHING  # guarded by the log's lock
        for epoch, start in entries:
            self.assign(epoch, start)

    @property
    def entries(self) -> list[EpochEntry]:
        epochs, starts = self._table
        return [EpochEntry(epoch, start) for epoch, start in zip(epochs, starts, strict=True)]

    def restore(self, before: LeaderEpochs) -> None:
        """Back to a `copy` from before a change that could not be completed."""
        self._table = before._table

    @property
    def latest(self) -> int:
        """The last epoch, -1 if there is none."""
        epochs = self._table[0]
        return epochs[-1] if epochs else NO_EPOCH

    @property
    def is_first(self) -> bool:
        """Whether epoch 0, from the first offset on, is the only one."""
        return self._table == _FIRST

    def __len__(self) -> int:
        return len(self._table[0])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LeaderEpochs) and self._table == other._table

    __hash__ = None  # type: ignore[assignment]  # it changes

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Let ``epoch`` begin at ``start_offset``. Entries that contradict it, being later in epoch or offset, go."""
        if epoch < 0 or start_offset < 0:
            raise ValueError(f"no leader epoch {epoch} can start at offset {start_offset}")
        epochs, starts = self._table
        if epochs and epochs[-1] == epoch and start_offset >= starts[-1]:
            return False
        kept = len(epochs)
        while kept and (epochs[kept - 1] >= epoch or starts[kept - 1] >= start_offset):
            kept -= 1
        self._table = (*epochs[:kept], epoch), (*starts[:kept], start_offset)
        return True

    def agree(self, epoch: int, offset: int) -> bool:
        """Let what is known agree with a batch of ``epoch`` at ``offset``, which is there; see `rescan`.

        Entries of later epochs that begin at or before it are of a history that the log no longer has: a power cut may
        bring back the end of a log that was cut off and written again, while this file was fsynced. An earlier epoch
        that begins at the same offset has no records. A batch without an epoch, of an old format, says nothing.
        """
        if epoch < 0:
            return False
        epochs, starts = self._table
        at = kept = bisect_right(starts, offset)
        while kept and (epochs[kept - 1] > epoch or (epochs[kept - 1] < epoch and starts[kept - 1] == offset)):
            kept -= 1
        if kept and epochs[kept - 1] == epoch:
            self._table = epochs[:kept] + epochs[at:], starts[:kept] + starts[at:]
            return kept < at
        behind = at
        while behind < len(epochs) and epochs[behind] <= epoch:
            behind += 1
        self._table = (*epochs[:kept], epoch, *epochs[behind:]), (*starts[:kept], offset, *starts[behind:])
        return True

    def next_start(self, offset: int) -> int:
        """Where the first epoch begins that begins after ``offset``; beyond all offsets if there is none."""
        starts = self._table[1]
        at = bisect_right(starts, offset)
        return starts[at] if at < len(starts) else MAX_INT64

    def end_offset_for(self, epoch: int, log_end: int) -> EpochEnd:
        """Where the log of a replica that ends in ``epoch`` may first differ from this one, which ends at ``log_end``.

        An epoch before the first known one ends where that one begins, because earlier records are gone. An epoch
        after the last is unknown.
        """
        epochs, starts = self._table
        if epoch == NO_EPOCH or not epochs or epoch > epochs[-1]:
            return EpochEnd(NO_EPOCH, UNKNOWN_OFFSET)
        if epoch == epochs[-1]:
            return EpochEnd(epoch, log_end)
        higher = bisect_right(epochs, epoch)
        found = epochs[higher - 1] if higher else epoch
        return EpochEnd(found, starts[higher])

    def truncation_point(self, diverging: EpochEnd, log_end: int) -> int:
        """Where a follower whose log ends at ``log_end`` truncates it before it continues (KIP-101, KIP-279, KIP-595).

        It fetches from its log's end and names the epoch of its last batch. If the leader's log has another history,
        the leader returns ``diverging``: its latest epoch up to the follower's, and where that ends in its log. The
        follower truncates, does nothing else (KAFKA-14704), and fetches again.

        If the follower does not know that epoch, its largest one below may still have continued for longer than the
        leader's. The truncated log ends in a smaller epoch, and the next fetch asks about that
        (``getOffsetTruncationState``).
        """
        ours = self.end_offset_for(diverging.epoch, log_end)
        if ours.epoch == NO_EPOCH:
            return min(diverging.end_offset, log_end)
        if ours.epoch != diverging.epoch:
            return min(ours.end_offset, log_end)
        return min(ours.end_offset, diverging.end_offset, log_end)

    def start_of_following(self, high_watermark: int, log_end: int) -> int:
        """Where a new follower truncates before its first fetch. Only a log without epochs has nothing to ask with; it
        keeps what was committed."""
        return log_end if self.latest != NO_EPOCH else min(high_watermark, log_end)

    def epoch_for_offset(self, offset: int) -> int:
        """The epoch that wrote ``offset`` (or would write it next), -1 if it is before the first one."""
        epochs, starts = self._table
        at = bisect_right(starts, offset)
        return epochs[at - 1] if at else NO_EPOCH

    def begins_from(self, end_offset: int) -> bool:
        """Whether an epoch begins at or after ``end_offset``."""
        starts = self._table[1]
        return bool(starts) and starts[-1] >= end_offset

    def truncate_from_end(self, end_offset: int) -> bool:
        """Forget the epochs that begin at or after ``end_offset``."""
        epochs, starts = self._table
        keep = bisect_left(starts, end_offset)
        if end_offset < 0 or keep == len(starts):
            return False
        self._table = epochs[:keep], starts[:keep]
        return True

    def truncate_from_start(self, start_offset: int) -> bool:
        """Forget what was before ``start_offset``: the epoch that it lies in begins there now, earlier ones go."""
        epochs, starts = self._table
        at = bisect_right(starts, start_offset) - 1
        if at < 0:
            return False
        changed = at > 0 or starts[0] != start_offset
        self._table = epochs[at:], (start_offset, *starts[at + 1 :])
        return changed

    def clear(self) -> bool:
        changed = bool(self._table[0])
        self._table = _NOTHING
        return changed

    def copy(self) -> LeaderEpochs:
        made = LeaderEpochs()
        made._table = self._table
        return made
