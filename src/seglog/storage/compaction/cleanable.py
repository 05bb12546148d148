"""Which part of a log may be compacted, and how dirty it is. Pure.

Rules of Kafka 4.4's ``LogCleanerManager`` and ``LogToClean``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import NamedTuple

from seglog.core.config import LogConfig
from seglog.core.types import MAX_INT64


class CleaningFacts(NamedTuple):
    """The facts about a segment that decide: milliseconds, bytes.

    ``largest_timestamp`` and ``first_timestamp`` are asked only where they count: that of the newest record, else the
    file's time of change; that of the first batch, None or negative where there is none.
    """

    base_offset: int
    size: int
    largest_timestamp: Callable[[], int]
    first_timestamp: Callable[[], int | None]


class Bound(Enum):
    """Why a round of compaction ends where it does."""

    ACTIVE = "the active segment begins here"
    LAST_STABLE = "the last stable offset is in this segment"
    YOUNG = "the segment has a record that is younger than min.compaction.lag.ms"


class CleanablePart(NamedTuple):
    """The part of a log from the first dirty segment to ``first_uncleanable``, where a segment begins.

    ``was_reset``: the checkpoint lay outside of the log, and the first dirty offset is the log's start instead.
    ``delay_ms`` is by how much some record is later than ``max.compaction.lag.ms`` allows. ``bound`` is the rule that
    ends the part.
    """

    first_dirty: int
    first_uncleanable: int
    clean_bytes: int
    cleanable_bytes: int
    delay_ms: int
    was_reset: bool
    bound: Bound = Bound.ACTIVE

    @property
    def ratio(self) -> float:
        """Dirty bytes that may be cleaned over all that a round reads; 0 in an empty log."""
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0

    def is_due(self, min_ratio: float) -> bool:
        return self.ratio > min_ratio or (self.delay_ms > 0 and self.cleanable_bytes > 0)


def cleanable_part(
    segments: Sequence[CleaningFacts],
    *,
    checkpoint: int | None,
    log_start_offset: int,
    log_end_offset: int,
    last_stable_offset: int,
    config: LogConfig,
    now_ms: int,
) -> CleanablePart:
    """Bounds and sizes of what a round would clean; ``segments`` are all of the log's, the last one is active.

    It begins at the checkpoint, the end of the last round. It ends before the active segment, the last stable offset,
    and the first segment with a record younger than ``min.compaction.lag.ms``: whichever comes first, rounded down to
    where a segment begins.
    """
    first_dirty = log_start_offset if checkpoint is None else checkpoint
    was_reset = not log_start_offset <= first_dirty <= log_end_offset
    if was_reset:
        first_dirty = log_start_offset
    active = segments[-1].base_offset
    dirty = _between(segments, first_dirty, active)
    bound, rule = (last_stable_offset, Bound.LAST_STABLE) if last_stable_offset < active else (active, Bound.ACTIVE)
    if config.min_compaction_lag_ms > 0:
        young = next((facts.base_offset for facts in dirty if now_ms < _old_enough_ms(facts, config)), bound)
        if young < bound:
            bound, rule = young, Bound.YOUNG
    bound = max(first_dirty, bound)
    after = _between(segments, bound, active)
    first_uncleanable = after[0].base_offset if after else active
    cleanable = _between(segments, min(first_dirty, first_uncleanable), first_uncleanable)
    return CleanablePart(
        first_dirty=first_dirty,
        first_uncleanable=first_uncleanable,
        clean_bytes=sum(facts.size for facts in segments if facts.base_offset < first_dirty),
        cleanable_bytes=sum(facts.size for facts in cleanable),
        delay_ms=_delay(dirty, now_ms - config.max_compaction_lag_ms),
        was_reset=was_reset,
        bound=rule,
    )


def due_ms(
    segments: Sequence[CleaningFacts],
    *,
    checkpoint: int | None,
    log_start_offset: int,
    log_end_offset: int,
    last_stable_offset: int,
    config: LogConfig,
    now_ms: int,
) -> int | None:
    """The first millisecond from ``now_ms`` on at which a round is due if nothing more is appended; None: never.

    Time only adds to what is cleanable. It does so when a segment passes ``min.compaction.lag.ms`` or
    ``max.compaction.lag.ms``, so only these moments are asked about.
    """
    dirty = segments[:-1]
    moments = {now_ms}
    if config.min_compaction_lag_ms > 0:
        moments.update(_old_enough_ms(facts, config) for facts in dirty)
    firsts = [first for facts in dirty if (first := facts.first_timestamp()) is not None and first > 0]
    moments.update(first + config.max_compaction_lag_ms + 1 for first in firsts)
    ordered = sorted(moment for moment in moments if now_ms <= moment <= MAX_INT64)

    def is_due(moment: int) -> bool:
        part = cleanable_part(
            segments,
            checkpoint=checkpoint,
            log_start_offset=log_start_offset,
            log_end_offset=log_end_offset,
            last_stable_offset=last_stable_offset,
            config=config,
            now_ms=moment,
        )
        return part.is_due(config.min_cleanable_dirty_ratio)

    at = bisect_left(ordered, x=True, key=is_due)
    return ordered[at] if at < len(ordered) else None


def _old_enough_ms(facts: CleaningFacts, config: LogConfig) -> int:
    """The first millisecond at which all of a segment has waited for ``min.compaction.lag.ms``."""
    return facts.largest_timestamp() + config.min_compaction_lag_ms


def _between(segments: Sequence[CleaningFacts], start: int, end: int) -> Sequence[CleaningFacts]:
    """The segments from the one that holds ``start`` to before ``end`` (``LogSegments.values``)."""
    if start >= end:
        return ()
    floor = max((facts.base_offset for facts in segments if facts.base_offset <= start), default=start)
    return [facts for facts in segments if floor <= facts.base_offset < end]


def _delay(dirty: Iterable[CleaningFacts], clean_until: int) -> int:
    """How long ago the oldest dirty segment had to be cleaned, in ms; 0 if it had not."""
    if clean_until <= 0:  # with the default lag no timestamp is old enough, and none needs to be read from its file
        return 0
    firsts = [first for facts in dirty if (first := facts.first_timestamp()) is not None and first > 0]
    return max(0, clean_until - min(firsts)) if firsts else 0
