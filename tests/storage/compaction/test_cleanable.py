"""Which part of a log may be compacted: Kafka's bounds (``LogCleanerManagerTest.scala`` has most of these cases)."""

from __future__ import annotations

import pytest

from seglog.core.config import LogConfig
from seglog.core.types import MAX_INT64
from seglog.storage.compaction.cleanable import CleanablePart, CleaningFacts, cleanable_part
from seglog.storage.compaction.round import SourceSegment, group_sources

NOW = 1_000_000


def _segments(*times: int, size: int = 100) -> list[CleaningFacts]:
    """Segments of ten offsets each, all records of one at one time; the last one is active."""

    def facts(base: int, ms: int) -> CleaningFacts:
        return CleaningFacts(base, size, lambda: ms, lambda: ms)

    return [facts(at * 10, ms) for at, ms in enumerate(times)]


def _part(
    segments: list[CleaningFacts],
    checkpoint: int | None = None,
    *,
    start: int = 0,
    end: int | None = None,
    stable: int | None = None,
    **keys: int,
) -> CleanablePart:
    log_end = len(segments) * 10 if end is None else end
    return cleanable_part(
        segments,
        checkpoint=checkpoint,
        log_start_offset=start,
        log_end_offset=log_end,
        last_stable_offset=log_end if stable is None else stable,
        config=LogConfig.from_mapping({name.replace("_", "."): value for name, value in keys.items()}),
        now_ms=NOW,
    )


def test_all_but_the_active_segment_of_a_log_that_was_never_cleaned() -> None:
    part = _part(_segments(1, 2, 3, 4))
    assert part == CleanablePart(0, 30, clean_bytes=0, cleanable_bytes=300, delay_ms=0, was_reset=False)
    assert part.ratio == 1.0


def test_what_was_cleaned_counts_as_clean() -> None:
    part = _part(_segments(1, 2, 3, 4, 5), checkpoint=30)
    assert (part.first_dirty, part.first_uncleanable) == (30, 40)
    assert (part.clean_bytes, part.cleanable_bytes) == (300, 100)
    assert part.ratio == 0.25
    assert not part.is_due(0.25)
    assert part.is_due(0.24)


def test_nothing_is_dirty_after_a_round() -> None:
    part = _part(_segments(1, 2, 3), checkpoint=20)
    assert (part.first_dirty, part.first_uncleanable, part.cleanable_bytes, part.ratio) == (20, 20, 0, 0.0)
    assert not part.is_due(0.0)


@pytest.mark.parametrize(("checkpoint", "start"), [(5, 10), (41, 0)])
def test_a_checkpoint_outside_of_the_log_is_the_logs_start(checkpoint: int, start: int) -> None:
    part = _part(_segments(1, 2, 3, 4), checkpoint, start=start)
    assert (part.first_dirty, part.was_reset) == (start, True)


def test_a_checkpoint_at_the_logs_end_is_in_it() -> None:
    assert not _part(_segments(1, 2), 20).was_reset


@pytest.mark.parametrize(("stable", "bound"), [(0, 0), (9, 0), (10, 10), (25, 20), (30, 30), (39, 30), (40, 30)])
def test_not_beyond_the_segment_of_the_last_stable_offset(stable: int, bound: int) -> None:
    assert _part(_segments(1, 2, 3, 4), stable=stable).first_uncleanable == bound


def test_not_beyond_the_first_segment_that_is_too_young() -> None:
    segments = _segments(NOW - 500, NOW - 99, NOW - 500, NOW)
    assert _part(segments, min_compaction_lag_ms=100).first_uncleanable == 10
    assert _part(segments, min_compaction_lag_ms=99).first_uncleanable == 30
    assert _part(segments).first_uncleanable == 30


def test_a_segment_that_is_clean_may_be_young() -> None:
    segments = _segments(NOW, NOW - 500, NOW - 500, NOW)
    assert _part(segments, 10, min_compaction_lag_ms=100).first_uncleanable == 30


def test_a_dirty_offset_inside_of_a_segment_counts_its_bytes_twice_as_in_kafka() -> None:
    part = _part(_segments(1, 2, 3, 4), checkpoint=15)
    assert (part.first_uncleanable, part.clean_bytes, part.cleanable_bytes) == (30, 200, 200)


def test_the_bound_may_come_before_the_first_dirty_offset() -> None:
    part = _part(_segments(1, 2, 3, 4), checkpoint=15, stable=17)
    assert (part.first_dirty, part.first_uncleanable, part.cleanable_bytes) == (15, 10, 0)


def test_records_that_waited_too_long_are_due_whatever_the_ratio() -> None:
    segments = _segments(NOW - 900, NOW - 800, NOW)
    part = _part(segments, 10, max_compaction_lag_ms=300)
    assert part.delay_ms == 500
    assert part.is_due(1.0)
    assert _part(segments, 10, max_compaction_lag_ms=800).delay_ms == 0
    assert _part(segments, 20, max_compaction_lag_ms=300).delay_ms == 0


def test_segments_without_timestamps_wait_for_the_ratio() -> None:
    segments = [CleaningFacts(base, 100, lambda: 5, lambda: None) for base in (0, 10)]
    assert _part(segments, max_compaction_lag_ms=1).delay_ms == 0


def test_no_file_is_read_for_a_lag_that_is_off() -> None:
    def never() -> int:
        raise AssertionError("asked")

    segments = [CleaningFacts(base, 100, never, never) for base in (0, 10)]
    assert _part(segments, max_compaction_lag_ms=MAX_INT64).first_uncleanable == 10


def test_an_empty_log() -> None:
    part = _part([CleaningFacts(0, 0, lambda: 1, lambda: None)], end=0)
    assert (part.first_uncleanable, part.ratio) == (0, 0.0)
    assert not part.is_due(0.0)


def _source(base: int, following: int, size: int, index: int = 0, times: int = 0) -> SourceSegment:
    return SourceSegment(base, following, size, index, times, 0)


def _bases(sources: list[SourceSegment], segment: int = 100, index: int = 100, end: int = 1_000) -> list[list[int]]:
    groups = group_sources(sources, segment_bytes=segment, index_bytes=index, first_uncleanable=end)
    return [[source.base_offset for source in group] for group in groups]


def test_neighbours_are_grouped_as_long_as_they_fit() -> None:
    sources = [_source(at * 10, at * 10 + 10, size) for at, size in enumerate([60, 40, 1, 99, 100, 300, 0, 0])]
    assert _bases(sources) == [[0, 10], [20, 30], [40], [50], [60, 70]]
    assert _bases([]) == []


def test_indexes_bound_a_group_too() -> None:
    assert _bases([_source(0, 10, 1, 60), _source(10, 20, 1, 41)]) == [[0], [10]]
    assert _bases([_source(0, 10, 1, 0, 60), _source(10, 20, 1, 0, 41)]) == [[0], [10]]
    assert _bases([_source(0, 10, 1, 60, 60), _source(10, 20, 1, 40, 40)]) == [[0, 10]]


def test_a_group_spans_no_more_offsets_than_an_index_can_say() -> None:
    far = 2**31
    assert _bases([_source(0, far - 1, 1), _source(far - 1, far, 1)], end=far) == [[0, far - 1]]
    assert _bases([_source(0, far, 1), _source(far, far + 1, 1)], end=far + 1) == [[0], [far]]
    three = [_source(0, 5, 1), _source(5, far + 5, 1), _source(far + 5, far + 6, 1)]
    assert _bases(three, end=far + 6) == [[0], [5], [far + 5]]
    assert _bases([_source(0, 5, 1), _source(5, far + 5, 0)], end=far + 5) == [[0, 5]], (
        "an empty segment has no offsets"
    )
