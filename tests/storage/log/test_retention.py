"""When segments are rolled, and which ones go: Kafka's rules one by one, and all of them against a slow version."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.core.config import LogConfig
from seglog.core.types import MAX_INT32
from seglog.storage.log.retention import ExpiredSegment, Reason, SegmentFacts, expired_segments, should_roll
from tests.cases import case

NOW = 1_000_000
CONFIG = LogConfig(segment_bytes=1000, segment_ms=100)


def rolls(
    config: LogConfig = CONFIG,
    *,
    size: int = 500,
    append_size: int = 10,
    last_offset: int = 60,
    max_timestamp: int = 5050,
    first_timestamp: int = 5000,
    created_ms: int = NOW,
    index_full: bool = False,
    jitter_ms: int = 0,
) -> bool:
    return should_roll(
        size=size,
        append_size=append_size,
        base_offset=50,
        last_offset=last_offset,
        max_timestamp=max_timestamp,
        first_timestamp=first_timestamp,
        created_ms=created_ms,
        index_full=index_full,
        config=config,
        jitter_ms=jitter_ms,
        clock_now_ms=lambda: NOW,
    )


def test_a_segment_rolls_when_it_would_be_too_large() -> None:
    assert not rolls()
    assert not rolls(size=990)
    assert rolls(size=991)
    assert not rolls(size=0, append_size=1000)


def test_a_segment_rolls_when_it_has_waited_by_the_records_own_time() -> None:
    assert not rolls(max_timestamp=5100)
    assert rolls(max_timestamp=5101)
    assert rolls(max_timestamp=5091, jitter_ms=10)
    assert not rolls(max_timestamp=5090, jitter_ms=10)
    assert not rolls(max_timestamp=-1)
    assert not rolls(size=0, max_timestamp=9999)  # there is nothing in it that could be old
    assert not rolls(created_ms=0)


def test_without_timestamps_the_clock_counts() -> None:
    assert not rolls(first_timestamp=-1, created_ms=NOW - 100)
    assert rolls(first_timestamp=-1, created_ms=NOW - 101)


def test_a_compacted_log_rolls_in_time_for_the_cleaner() -> None:
    config = LogConfig(
        segment_bytes=1000, segment_ms=100, cleanup_policy=frozenset({"compact"}), max_compaction_lag_ms=20
    )
    assert rolls(config, max_timestamp=5021)
    assert not rolls(config, max_timestamp=5020)


def test_a_segment_rolls_when_an_index_could_not_take_more() -> None:
    assert rolls(index_full=True)
    assert not rolls(last_offset=50 + MAX_INT32)
    assert rolls(last_offset=51 + MAX_INT32)
    assert rolls(size=0, last_offset=51 + MAX_INT32)


def log(*segments: tuple[int, int, int]) -> list[SegmentFacts]:
    """Segments of (records, bytes, newest timestamp)."""
    facts = []
    base = 0
    for at, (records, size, timestamp) in enumerate(segments):
        facts.append(SegmentFacts(base, base + records, size, timestamp, at + 1 == len(segments)))
        base += records
    return facts


def expired(
    segments: list[SegmentFacts], config: LogConfig, *, log_start: int = 0, high_watermark: int | None = None
) -> list[tuple[int, Reason]]:
    found = expired_segments(
        segments,
        config=config,
        log_start_offset=log_start,
        high_watermark=segments[-1].next_base_offset if high_watermark is None else high_watermark,
        now_ms=NOW,
    )
    return [(segment.base_offset, segment.reason) for segment in found]


KEEP = LogConfig(retention_ms=-1)


def test_nothing_expires_without_limits() -> None:
    assert expired(log((10, 100, 0), (10, 100, 0)), KEEP) == []
    assert expired(log((10, 100, 0), (10, 100, 0)), LogConfig(cleanup_policy=frozenset())) == []
    assert expired([], KEEP, high_watermark=0) == []


def test_segments_before_the_start_offset_go_whatever_the_policy() -> None:
    segments = log((10, 100, NOW), (10, 100, NOW), (10, 100, NOW))
    for policy in ({"delete"}, {"compact"}, {"compact", "delete"}, set()):
        config = LogConfig(cleanup_policy=frozenset(policy))
        assert expired(segments, config, log_start=9) == []
        assert expired(segments, config, log_start=10) == [(0, Reason.START_OFFSET)]
        assert expired(segments, config, log_start=29) == [(0, Reason.START_OFFSET), (10, Reason.START_OFFSET)]
        # the active segment never goes for its offset, even if all of it is deleted
        assert expired(segments, config, log_start=30) == [(0, Reason.START_OFFSET), (10, Reason.START_OFFSET)]


def test_the_oldest_go_until_the_log_would_be_too_small() -> None:
    segments = log((10, 100, NOW), (10, 100, NOW), (10, 50, NOW))
    for limit, bases in ((250, []), (249, []), (151, []), (150, [0]), (51, [0]), (50, [0, 10]), (1, [0, 10])):
        config = LogConfig(retention_bytes=limit)
        assert expired(segments, config) == [(base, Reason.SIZE) for base in bases], limit
    assert len(expired(segments, LogConfig(retention_bytes=0))) == 3


def test_segments_whose_newest_record_is_too_old_go() -> None:
    config = LogConfig(retention_ms=1000)
    segments = log((10, 100, NOW - 1001), (10, 100, NOW - 1000), (10, 50, NOW - 5000))
    assert expired(segments, config) == [(0, Reason.TIME)]
    future = log((10, 100, NOW + 10**9), (10, 100, 0))
    assert expired(future, config) == []  # what is behind waits for it


def test_the_active_segment_goes_with_all_others_unless_it_is_empty() -> None:
    config = LogConfig(retention_ms=1000)
    assert expired(log((10, 100, 0), (10, 100, 0)), config) == [(0, Reason.TIME), (10, Reason.TIME)]
    assert expired(log((10, 100, 0), (0, 0, 0)), config) == [(0, Reason.TIME)]
    assert expired(log((0, 0, 0)), config) == []
    assert expired(log((10, 100, 0), (0, 0, 0)), LogConfig(retention_bytes=0)) == [(0, Reason.SIZE)]


def test_nothing_at_or_beyond_the_high_watermark_goes() -> None:
    segments = log((10, 100, 0), (10, 100, 0), (10, 100, 0))
    for config in (LogConfig(retention_ms=1000), LogConfig(retention_bytes=0)):
        assert [base for base, _ in expired(segments, config, high_watermark=20)] == [0, 10]
        assert [base for base, _ in expired(segments, config, high_watermark=19)] == [0]
        assert expired(segments, config, high_watermark=9) == []


def test_the_three_reasons_in_one_round() -> None:
    segments = log((10, 100, 0), (10, 100, NOW), (10, 100, 5), (10, 100, NOW))
    config = LogConfig(retention_ms=1000, retention_bytes=200)
    assert expired(segments, config, log_start=10) == [
        (0, Reason.START_OFFSET),
        (10, Reason.SIZE),
        (20, Reason.TIME),
    ]
    assert expired_segments(
        segments, config=config, log_start_offset=10, high_watermark=40, now_ms=NOW
    )[1] == ExpiredSegment(10, 100, Reason.SIZE)  # fmt: skip


def slowly(
    segments: list[SegmentFacts], config: LogConfig, log_start: int, high_watermark: int
) -> list[tuple[int, Reason]]:
    """Segments are deleted one by one, and all facts are read again for each."""
    gone: list[tuple[int, Reason]] = []
    order = [Reason.START_OFFSET] if not config.delete else list(Reason)
    for reason in order:
        while segments:
            oldest = segments[0]
            if oldest.next_base_offset > high_watermark or (oldest.is_active and not oldest.size):
                break
            size = sum(segment.size for segment in segments)
            due = {
                Reason.START_OFFSET: not oldest.is_active and oldest.next_base_offset <= log_start,
                Reason.SIZE: config.retention_bytes >= 0 and size - oldest.size >= config.retention_bytes,
                Reason.TIME: config.retention_ms >= 0 and oldest.largest_timestamp < NOW - config.retention_ms,
            }
            if not due[reason]:
                break
            gone.append((oldest.base_offset, reason))
            segments = segments[1:]
    return gone


SEGMENTS = st.lists(
    st.tuples(st.integers(1, 5), st.integers(0, 100), st.integers(NOW - 300, NOW + 50) | st.just(-1)),
    min_size=1,
    max_size=6,
).map(lambda segments: log(*segments))


@given(
    SEGMENTS,
    st.sampled_from([-1, 0, 1, 100]),
    st.sampled_from([-1, 0, 99, 150, 400]),
    st.sampled_from([{"delete"}, {"compact"}, {"compact", "delete"}, set()]),
    st.integers(0, 30),
    st.integers(0, 30),
)
def test_retention_against_a_slow_version(
    segments: list[SegmentFacts], ms: int, size: int, policy: set[str], log_start: int, high_watermark: int
) -> None:
    case()
    config = LogConfig(retention_ms=ms, retention_bytes=size, cleanup_policy=frozenset(policy))
    found = expired(segments, config, log_start=log_start, high_watermark=high_watermark)
    assert found == slowly(segments, config, log_start, high_watermark)
    assert [base for base, _ in found] == [segment.base_offset for segment in segments[: len(found)]]


@pytest.mark.parametrize("reason", Reason)
def test_reasons_are_sentences_for_a_log_file(reason: Reason) -> None:
    assert len(reason.value) > 20
