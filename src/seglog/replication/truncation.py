"""The follower's side of a partition: where its log must be cut before it goes on (KIP-101, KIP-279, KIP-595). Pure.

A follower asks for what comes after its log's end and says which epoch wrote its last batch. If the leader's log has
another history, it answers with the epoch up to which they agree and where that ends there. The follower cuts, does
nothing else (KAFKA-14704), and asks again.
"""

from __future__ import annotations

from seglog.core.types import NO_EPOCH
from seglog.storage.log.epochs import EpochEnd, LeaderEpochs


def truncation_point(diverging: EpochEnd, epochs: LeaderEpochs, log_end: int) -> int:
    """Where to cut when the leader says that its latest epoch up to ours is ``diverging`` and where that ends there.

    If we do not know that epoch, our largest one below it may still have gone on for longer than the leader's: what is
    left after the cut ends in a smaller epoch, and the next question is about that (``getOffsetTruncationState``).
    """
    ours = epochs.end_offset_for(diverging.epoch, log_end)
    if ours.epoch == NO_EPOCH:
        return min(diverging.end_offset, log_end)
    if ours.epoch != diverging.epoch:
        return min(ours.end_offset, log_end)
    return min(ours.end_offset, diverging.end_offset, log_end)


def start_of_reading(epochs: LeaderEpochs, high_watermark: int, log_end: int) -> int:
    """Where a new follower cuts before its first question: only a log without epochs has nothing to ask with, and
    keeps what was committed."""
    return log_end if epochs.latest != NO_EPOCH else min(high_watermark, log_end)
