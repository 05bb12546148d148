"""When a segment is full, and which segments are old enough to go. Pure; rules of Kafka 4.4.

Rolling: ``LogSegment.shouldRoll``. Deletion: ``UnifiedLog.deleteOldSegments``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

from seglog.core.config import LogConfig
from seglog.core.types import MAX_INT32


def should_roll(
    size: int,
    append_size: int,
    base_offset: int,
    last_offset: int,
    max_timestamp: int,
    first_timestamp: int,
    created_ms: int,
    index_full: bool,
    config: LogConfig,
    jitter_ms: int,
    clock_now_ms: Callable[[], int],
) -> bool:
    """Whether an append of ``append_size`` bytes needs a new segment.

    It does when the active one, of ``size`` bytes, would grow over ``segment.bytes``; when it has waited for more than
    ``segment.ms`` less ``jitter_ms``; when one of its indexes is full; and when the append's last offset is more than
    2^31-1 above ``base_offset``, which an index cannot say. What has waited is the time between the segment's first
    batch and this append by their timestamps, so that a replica rolls where its leader did; only where the first
    batch has none (``first_timestamp`` < 0) it is the clock's time since the segment was made.
    """
    if size > config.segment_bytes - append_size or index_full or last_offset - base_offset > MAX_INT32:
        return True
    if size == 0:
        return False
    waited = max_timestamp - first_timestamp if first_timestamp >= 0 else clock_now_ms() - created_ms
    return waited > config.max_segment_ms - jitter_ms


class Reason(Enum):
    """Why a segment goes."""

    START_OFFSET = "all of it is before the log's start offset"
    SIZE = "the log is larger than retention.bytes"
    TIME = "its newest record is older than retention.ms"


class SegmentFacts(NamedTuple):
    """The facts about a segment that retention needs. ``next_base_offset`` is the log's end for the active one.

    ``largest_timestamp`` is that of its newest record, or the file's modification time where no record has any (ms).
    """

    base_offset: int
    next_base_offset: int
    size: int
    largest_timestamp: int
    is_active: bool


class ExpiredSegment(NamedTuple):
    base_offset: int
    size: int
    reason: Reason


def expired_segments(
    segments: Sequence[SegmentFacts],
    *,
    config: LogConfig,
    log_start_offset: int,
    high_watermark: int,
    now_ms: int,
) -> list[ExpiredSegment]:
    """The segments that go, oldest first; the active one only if it has data and all others go too.

    Deletion begins at the oldest segment and ends at the first that stays, and at the high watermark: the log's start
    must not pass what is replicated. Start offset first, then size, then time. Without ``delete`` in the cleanup
    policy only those before the start offset go.
    """
    remaining = list(segments)
    gone: list[ExpiredSegment] = []

    def take_while(expired: Callable[[SegmentFacts], bool], reason: Reason) -> None:
        while remaining:
            oldest = remaining[0]
            if (
                high_watermark < oldest.next_base_offset
                or (oldest.is_active and oldest.size == 0)
                or not expired(oldest)
            ):
                return
            gone.append(ExpiredSegment(oldest.base_offset, oldest.size, reason))
            del remaining[0]

    take_while(lambda facts: not facts.is_active and facts.next_base_offset <= log_start_offset, Reason.START_OFFSET)
    if not config.delete:
        return gone
    if config.retention_bytes >= 0:
        excess = sum(facts.size for facts in remaining) - config.retention_bytes

        def is_excess(facts: SegmentFacts) -> bool:
            nonlocal excess
            excess -= facts.size
            return excess >= 0

        take_while(is_excess, Reason.SIZE)
    if config.retention_ms >= 0:
        take_while(lambda facts: now_ms - facts.largest_timestamp > config.retention_ms, Reason.TIME)
    return gone
