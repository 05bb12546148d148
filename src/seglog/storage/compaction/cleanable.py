"""Which part of a log may be compacted, and how dirty it is. Pure.

Rules of Kafka 4.4's ``LogCleanerManager`` and ``LogToClean``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from seglog.core.config import LogConfig


class CleaningFacts(NamedTuple):
    """The facts about a segment that decide: milliseconds, bytes.

    ``largest_timestamp`` and ``first_timestamp`` are asked only where they count: that of the newest record, else the
    file's time of change; that of the first batch, None or negative where there is none.
    """

    base_offset: int
    size: int
    largest_timestamp: Callable[[], int]
    first_timestamp: Callable[[], int | None]


class CleanablePart(NamedTuple):
    """The part of a log from the first dirty segment to ``first_uncleanable``, where a segment begins.

    ``was_reset``: the checkpoint lay outside of the log, and the first dirty offset is the log's start instead.
    ``delay_ms`` is by how much some record is later than ``max.compaction.lag.ms`` allows.
    """

    first_dirty: int
    first_uncleanable: int
    clean_bytes: int
    cleanable_bytes: int
    delay_ms: int
    was_reset: bool

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
    bound = min(last_stable_offset, active)
    if config.min_compaction_lag_ms > 0:
        youngest = now_ms - config.min_compaction_lag_ms
        young = (facts.base_offset for facts in dirty if facts.largest_timestamp() > youngest)
        bound = min(bound, next(young, bound))
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
    )


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
