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


class Hold(Enum):
    """Why a segment stays, whatever its age."""

    HIGH_WATERMARK = "its end is not replicated: it is above the high watermark"
    EMPTY = "it is the active segment and empty"
    NO_RULE = "no rule of the topic deletes it"
    OLDER = "an older segment stays, and deletion begins at the oldest"


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


class SegmentFate(NamedTuple):
    """When a segment goes, and by which rule; ``reason`` is None if none takes it, and ``hold`` says why.

    ``due_ms`` is the first millisecond at which the rule of time holds; None: it goes at the next check. Because of
    ``waits_for``, the base offset of an older segment, it stays or goes no earlier; None if it does not wait.
    """

    base_offset: int
    size: int
    reason: Reason | None
    due_ms: int | None
    hold: Hold | None
    waits_for: int | None

    def is_due(self, now_ms: int) -> bool:
        return self.reason is not None and (self.due_ms is None or now_ms >= self.due_ms)


def fates(
    segments: Sequence[SegmentFacts], *, config: LogConfig, log_start_offset: int, high_watermark: int
) -> list[SegmentFate]:
    """The fate of each segment if nothing more is appended, oldest first.

    Deletion begins at the oldest segment and ends at the first that stays, and at the high watermark: the log's start
    must not pass what is replicated. Start offset first, then size, then time. Without ``delete`` in the cleanup
    policy only those before the start offset go. The active one goes only if it has data and all others go too.
    """
    found: list[SegmentFate] = []
    reason: Reason = Reason.START_OFFSET
    excess: int | None = None
    due_ms: int | None = None
    waits_for: int | None = None
    remaining = sum(facts.size for facts in segments)
    for facts in segments:
        hold = _hold(facts, high_watermark)
        if reason is Reason.START_OFFSET and (facts.is_active or facts.next_base_offset > log_start_offset or hold):
            reason, excess = Reason.SIZE, remaining - config.retention_bytes if config.retention_bytes >= 0 else None
        if reason is Reason.SIZE and (not config.delete or excess is None or excess < facts.size or hold):
            reason = Reason.TIME
        if reason is Reason.TIME and hold is None:
            if not config.delete or config.retention_ms < 0:
                hold = Hold.NO_RULE
            elif due_ms is None or expires_ms(facts, config) > due_ms:
                due_ms, waits_for = expires_ms(facts, config), None
        if hold is not None:
            found.append(SegmentFate(facts.base_offset, facts.size, None, None, hold, None))
            after, older = (hold, None) if hold is Hold.NO_RULE else (Hold.OLDER, facts.base_offset)
            found += [
                SegmentFate(one.base_offset, one.size, None, None, after, older) for one in segments[len(found) :]
            ]
            return found
        if excess is not None:
            excess -= facts.size
        remaining -= facts.size
        found.append(SegmentFate(facts.base_offset, facts.size, reason, due_ms, None, waits_for))
        if reason is Reason.TIME and waits_for is None:
            waits_for = facts.base_offset
    return found


def expires_ms(facts: SegmentFacts, config: LogConfig) -> int:
    """The first millisecond at which ``retention.ms`` alone lets a segment go."""
    return facts.largest_timestamp + config.retention_ms + 1


def _hold(facts: SegmentFacts, high_watermark: int) -> Hold | None:
    if high_watermark < facts.next_base_offset:
        return Hold.HIGH_WATERMARK
    return Hold.EMPTY if facts.is_active and facts.size == 0 else None


def expired_segments(
    segments: Sequence[SegmentFacts],
    *,
    config: LogConfig,
    log_start_offset: int,
    high_watermark: int,
    now_ms: int,
) -> list[ExpiredSegment]:
    """The segments that go now, oldest first: those whose fate is due."""
    found = fates(segments, config=config, log_start_offset=log_start_offset, high_watermark=high_watermark)
    return [
        ExpiredSegment(fate.base_offset, fate.size, fate.reason)
        for fate in found
        if fate.reason is not None and fate.is_due(now_ms)
    ]
