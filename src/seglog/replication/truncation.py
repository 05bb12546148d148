"""Where a follower truncates its log before it continues (KIP-101, KIP-279, KIP-595). Pure.

A follower fetches from its log's end and names the epoch of its last batch. If the leader's log has another history,
the leader returns the last common epoch and where that epoch ends in its log. The follower truncates, does nothing else
(KAFKA-14704), and fetches again.
"""

from __future__ import annotations

from seglog.core.types import NO_EPOCH
from seglog.storage.log.epochs import EpochEnd, LeaderEpochs


def truncation_point(diverging: EpochEnd, epochs: LeaderEpochs, log_end: int) -> int:
    """Return the offset at which to truncate. ``diverging`` is the leader's latest epoch up to the follower's, and
    where it ends.

    If the follower does not know that epoch, its largest one below may still have continued for longer than the
    leader's. The truncated log ends in a smaller epoch, and the next fetch asks about that
    (``getOffsetTruncationState``).
    """
    ours = epochs.end_offset_for(diverging.epoch, log_end)
    if ours.epoch == NO_EPOCH:
        return min(diverging.end_offset, log_end)
    if ours.epoch != diverging.epoch:
        return min(ours.end_offset, log_end)
    return min(ours.end_offset, diverging.end_offset, log_end)


def start_of_reading(epochs: LeaderEpochs, high_watermark: int, log_end: int) -> int:
    """Return where a new follower truncates before its first fetch. Only a log without epochs has nothing to ask with;
    it keeps what was committed."""
    return log_end if epochs.latest != NO_EPOCH else min(high_watermark, log_end)
