"""Compares leader epochs of batches, which no CRC covers, with ``leader-epoch-checkpoint``. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from seglog.core.types import NO_EPOCH
from seglog.storage.log.epochs import LeaderEpochs
from seglog.storage.offline.findings import Finding, damage, note
from seglog.storage.offline.verify.summary import LEGACY, EpochRun

Runs = Sequence[tuple[str, EpochRun]]
"""Runs of batches of one epoch, each with its file, in the order of the log."""


def check_epochs(
    file: str, epochs: LeaderEpochs | None, runs: Runs, *, log_start: int | None, log_end: int, at_rest: bool
) -> Iterator[Finding]:
    """Check all ``runs``; ``epochs`` is None if the checkpoint is missing or damaged, ``log_start`` if not known.

    Batches before the first epoch of the checkpoint are legal if records were deleted, or if the topic changed to an
    old message format and back, which empties the checkpoint.
    """
    if epochs is not None and epochs.entries and epochs.entries[-1].start_offset > log_end:
        epoch, start = epochs.entries[-1]
        make = damage if at_rest else note
        yield make(file, f"epoch {epoch} begins at offset {start}, the log ends at {log_end}", offset=start)
    known_from = epochs.entries[0].start_offset if epochs is not None and epochs.entries else None
    previous = NO_EPOCH
    for at, (log, run) in enumerate(runs):
        if run.epoch in (LEGACY, NO_EPOCH):
            continue
        reason: str | None = None
        make = damage
        if run.epoch < 0:
            reason = f"leader epoch {run.epoch} is negative"
        elif epochs is None or known_from is None or run.first_offset < known_from:
            if run.epoch < previous:
                reason = f"leader epoch {run.epoch} comes after {previous}"
            elif epochs is not None and known_from is not None:
                reason = _before_the_first(epochs, run, log_start)
                if reason is not None and run.epoch < epochs.entries[0].epoch:
                    make = note
                    if any(later.epoch == LEGACY for _, later in runs[at:] if later.first_offset < known_from):
                        reason = None
        else:
            reason = _differs(epochs, run)
        if reason is not None:
            yield make(log, reason, position=run.position, offset=run.first_offset)
        previous = max(previous, run.epoch)


def _before_the_first(epochs: LeaderEpochs, run: EpochRun, log_start: int | None) -> str | None:
    """Why a run that begins before the first epoch of the checkpoint is wrong; None if it is legal."""
    first = epochs.entries[0]
    says = f"the first in the checkpoint is {first.epoch}, from {first.start_offset} on"
    if run.epoch > first.epoch:
        return f"leader epoch {run.epoch}; {says}"
    if run.epoch < first.epoch and run.last_offset >= first.start_offset:
        return f"leader epoch {run.epoch} up to offset {run.last_offset}; {says}"
    if run.epoch == first.epoch and run.last_offset >= first.start_offset and _differs(epochs, run, end_only=True):
        return _differs(epochs, run, end_only=True)
    if log_start is not None and min(run.last_offset, first.start_offset - 1) >= log_start:
        return f"leader epoch {run.epoch}; {says}, and the log starts at {log_start}"
    return None


def _differs(epochs: LeaderEpochs, run: EpochRun, *, end_only: bool = False) -> str | None:
    for offset in (run.last_offset,) if end_only else (run.first_offset, run.last_offset):
        expected = epochs.epoch_for_offset(offset)
        if expected != run.epoch:
            return f"leader epoch {run.epoch} at offset {offset}; by the checkpoint it is {expected}"
    return None
