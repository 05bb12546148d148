"""The decisions of a stream: shares of a limit, waiting, losses."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.core.errors import DataLossError, InvalidConfigError
from seglog.core.types import TopicPartition
from seglog.sources.ranges import OffsetRange
from seglog.sources.stream_planning import (
    Lag,
    StreamPartition,
    check_targets,
    is_too_little,
    lag_between,
    latest_offsets,
    offsets_from_json,
    offsets_to_json,
    parse_progress_offsets,
    plan_batch,
    rate_limit,
    remaining_targets,
    report_losses,
)
from tests.cases import case


def at(**offsets: int) -> dict[TopicPartition, int]:
    """``at(a0=5)``: partition 0 of topic a at offset 5."""
    return {TopicPartition(name[:1], int(name[1:])): offset for name, offset in offsets.items()}


def state(log_start: int, until: int, log_end: int | None = None) -> StreamPartition:
    return StreamPartition(log_start, until, until if log_end is None else log_end)


def states(**found: tuple[int, int]) -> dict[TopicPartition, StreamPartition]:
    return {
        partition: state(*found[f"{partition.topic}{partition.partition}"])
        for partition in at(**dict.fromkeys(found, 0))
    }


# Offsets as JSON


def test_offsets_are_written_by_topic_and_number() -> None:
    written = offsets_to_json(at(b0=1, a10=2, a9=3))
    assert [(topic, list(found)) for topic, found in written.items()] == [("a", ["9", "10"]), ("b", ["0"])]
    assert offsets_from_json(written) == at(b0=1, a10=2, a9=3)


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {"a": 1},
        {"a": {"x": 1}},
        {"a": {"0": "1"}},
        {"a": {"0": -1}},
        {"a": {"0": True}},
        {"a": {"99999999999": 1}},
        {"logOffset": 3},
    ],
)
def test_a_checkpoint_of_another_source_is_refused(value: object) -> None:
    with pytest.raises(InvalidConfigError, match="this checkpoint belongs to another source"):
        offsets_from_json(value)


# Limits


def test_shares_are_rounded_down_and_up_below_one() -> None:
    start, latest = at(a0=0, a1=100, a2=0), at(a0=1000, a1=101, a2=499)
    # 1500 behind, 10 wanted: 6.67, 0.007 and 3.33.
    assert rate_limit(10, start, latest, {}) == at(a0=6, a1=101, a2=3)


def test_a_new_partition_starts_at_its_log_start() -> None:
    assert rate_limit(10, at(a0=90), at(a0=100, a1=60), at(a0=0, a1=50)) == at(a0=95, a1=55)


def test_partitions_without_news_stay_and_one_that_went_back_is_handed_on() -> None:
    assert rate_limit(10, at(a0=5, a1=7), at(a0=5, a1=3), {}) == at(a0=5, a1=3)


@given(
    limit=st.integers(1, 10**18),
    partitions=st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 10**6)), min_size=1, max_size=8),
)
def test_a_limit_is_shared_out(limit: int, partitions: list[tuple[int, int]]) -> None:
    case()
    start = {TopicPartition("t", number): begin for number, (begin, _) in enumerate(partitions)}
    latest = {TopicPartition("t", number): begin + size for number, (begin, size) in enumerate(partitions)}
    ends = rate_limit(limit, start, latest, {})
    total = sum(size for _, size in partitions)
    for number, (begin, size) in enumerate(partitions):
        partition = TopicPartition("t", number)
        taken = ends[partition] - begin
        assert 0 <= taken <= size
        if size:
            assert taken >= 1
            assert taken == size or taken >= Fraction(limit * size, total) - 1 - Fraction(limit, 10**15)
    taken_in_all = sum(ends.values()) - sum(start.values())
    assert taken_in_all <= limit + len(partitions)
    if total <= limit:
        assert taken_in_all == total


@given(
    limit=st.integers(1, 50),
    sizes=st.lists(st.integers(0, 300), min_size=1, max_size=5),
)
def test_limited_batches_reach_the_end(limit: int, sizes: list[int]) -> None:
    case()
    latest = {TopicPartition("t", number): size for number, size in enumerate(sizes)}
    position: Mapping[TopicPartition, int] = dict.fromkeys(latest, 0)
    for _ in range(sum(sizes) + 1):
        following = rate_limit(limit, position, latest, {})
        if following == position:
            break
        position = following
    assert position == latest


def test_too_little_is_counted_over_all_partitions() -> None:
    assert is_too_little(10, at(a0=0), at(a0=9), {})
    assert not is_too_little(10, at(a0=0), at(a0=10), {})
    assert is_too_little(10, at(a0=0), at(a0=4, a1=105), at(a1=100))
    assert not is_too_little(9, at(a0=0), at(a0=4, a1=105), at(a1=100))


# Where the logs end


def test_an_older_high_watermark_is_not_a_loss() -> None:
    found = {TopicPartition("a", 0): state(0, 50, 80)}
    assert latest_offsets(found, at(a0=60)) == at(a0=60)
    assert latest_offsets(found, at(a0=80)) == at(a0=80)
    assert latest_offsets(found, at(a0=81)) == at(a0=50)
    assert latest_offsets(found, {}) == at(a0=50)


# Batches and losses


def test_a_batch_with_a_new_partition() -> None:
    planned = plan_batch(at(a0=3), at(a0=5, a1=7), states(a0=(0, 5), a1=(0, 9)))
    assert planned == ({TopicPartition("a", 0): OffsetRange(3, 5), TopicPartition("a", 1): OffsetRange(0, 7)}, ())


@pytest.mark.parametrize(
    ("start", "end", "found", "ranges", "loss"),
    [
        (at(a0=3), at(a0=5), states(a0=(4, 9)), at(a0=4), "a-0 starts at offset 4, but was read only to 3"),
        (at(a0=3), at(a0=5), states(a0=(7, 9)), {}, "a-0 starts at offset 7, but was read only to 3"),
        (at(a0=3), at(a0=5), states(a0=(0, 4)), at(a0=3), "a-0 ends at offset 4, but was to be read to 5"),
        (at(a0=3), at(a0=5), states(a0=(0, 1)), {}, "a-0 ends at offset 1, but was to be read to 5"),
        (at(a0=3), at(a0=2), states(a0=(0, 2)), {}, "a-0 ends at offset 2, before the offset 3"),
        (at(a0=3, a1=0), at(a1=0), states(a1=(0, 2)), {}, "a-0 was deleted"),
        (at(a0=3), at(a0=5), {}, {}, "a-0 was deleted"),
        ({}, at(a0=5), {}, {}, "a-0 was deleted"),
        ({}, at(a0=5), states(a0=(2, 9)), at(a0=2), "a-0 is new and starts at offset 2 instead of 0"),
    ],
)
def test_reports_losses(
    start: dict[TopicPartition, int],
    end: dict[TopicPartition, int],
    found: dict[TopicPartition, StreamPartition],
    ranges: dict[TopicPartition, int],
    loss: str,
) -> None:
    planned = plan_batch(start, end, found)
    assert {partition: offsets.start for partition, offsets in planned.ranges.items()} == ranges
    assert len(planned.losses) == 1
    assert loss in planned.losses[0]


def test_nothing_to_read_is_not_a_loss() -> None:
    # All that was read is deleted since; nothing that was to be read.
    assert plan_batch(at(a0=3), at(a0=3), states(a0=(7, 9))) == ({}, ())
    assert plan_batch(at(a0=3), at(a0=3), {}) == ({}, ())


def test_the_first_batch_again() -> None:
    found = states(a0=(0, 200), a1=(0, 5))
    # It was pinned at 100; asked anew, latest is 200, and there is a partition more.
    assert plan_batch(at(a0=200, a1=5), at(a0=100), found, replays_first=True) == ({}, ())
    assert len(plan_batch(at(a0=200, a1=5), at(a0=100), found).losses) == 2
    # One of format("kafka") was not empty: what it was to read is read.
    planned = plan_batch(at(a0=0), at(a0=100), found, replays_first=True)
    assert planned == ({TopicPartition("a", 0): OffsetRange(0, 100)}, ())


_OFFSET = st.integers(0, 12)
_PARTITIONS = st.sampled_from([TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)])
_OFFSETS = st.dictionaries(_PARTITIONS, _OFFSET)


@given(
    start=_OFFSETS,
    end=_OFFSETS,
    found=st.dictionaries(_PARTITIONS, st.tuples(_OFFSET, _OFFSET).map(lambda pair: state(min(pair), max(pair)))),
    replays_first=st.booleans(),
)
def test_each_planned_offset_is_read_or_reported_as_lost(
    start: dict[TopicPartition, int],
    end: dict[TopicPartition, int],
    found: dict[TopicPartition, StreamPartition],
    replays_first: bool,
) -> None:
    case()
    planned = plan_batch(start, end, found, replays_first=replays_first)
    for partition, last in end.items():
        there = found.get(partition, state(0, 0))
        begin = start.get(partition, there.log_start)
        wanted = set(range(begin, last))
        reads = set(range(*planned.ranges.get(partition, (0, 0))))
        assert reads == wanted & set(range(there.log_start, there.log_end))
        if wanted - reads:
            assert any(f" {partition} " in loss for loss in planned.losses)
    assert set(planned.ranges) <= set(end)
    if not replays_first:
        assert all(any(f" {gone} " in loss for loss in planned.losses) for gone in set(start) - set(end))
    # An empty first batch is not a loss, unless the log was cut below its end.
    is_empty = all(start.get(p, 0) > end[p] or start.get(p, 0) == end[p] <= found[p].log_end for p in end if p in found)
    if replays_first and found.keys() >= end.keys() and is_empty:
        assert not [loss for loss in planned.losses if "new" not in loss and "deleted" not in loss]


def test_losses_fail_or_warn() -> None:
    said: list[str] = []
    report_losses((), fail=True, warn=said.append)
    report_losses(["partition a-0 was deleted"], fail=False, warn=said.append)
    assert len(said) == 1
    assert "partition a-0 was deleted" in said[0]
    with pytest.raises(DataLossError, match=r"partition a-0 was deleted.*failOnDataLoss=false"):
        report_losses(["partition a-0 was deleted"], fail=True, warn=said.append)
    with pytest.raises(DataLossError, match="12 in all"):
        report_losses([f"loss {number}" for number in range(12)], fail=True, warn=said.append)


# AvailableNow


def test_targets_hold() -> None:
    check_targets(at(a0=9, a1=2), at(a0=5, a1=2), states(a0=(0, 20), a1=(2, 2)))


@pytest.mark.parametrize(
    ("end", "found", "message"),
    [
        (at(a0=10), states(a0=(0, 20)), "found a-0 to 9 at its start, but a batch ends at 10"),
        (at(a0=5, a1=1), states(a0=(0, 20), a1=(0, 9)), "found no partition a-1 at its start"),
        (at(a0=5), {}, "partition a-0 disappeared"),
        (at(a0=5), states(a0=(0, 4)), "partition a-0 was truncated to offset 4"),
    ],
)
def test_targets_that_are_missed(
    end: dict[TopicPartition, int], found: dict[TopicPartition, StreamPartition], message: str
) -> None:
    with pytest.raises(DataLossError, match=message):
        check_targets(at(a0=9), end, found)


def test_targets_without_what_is_gone() -> None:
    """With failOnDataLoss=false a loss does not fail the run, but another query at the same checkpoint does."""
    check_targets(at(a0=9), at(a0=5), {}, fail=False)
    check_targets(at(a0=9), at(a0=5), states(a0=(0, 4)), fail=False)
    check_targets(at(a1=9), at(a0=5, a1=9), states(a1=(0, 9)), fail=False)
    with pytest.raises(DataLossError, match="found a-0 to 9 at its start, but a batch ends at 10"):
        check_targets(at(a0=9), at(a0=10), states(a0=(0, 20)), fail=False)
    assert remaining_targets(at(a0=9, a1=5, b0=3), at(a0=4, b0=7)) == at(a0=4, b0=3)


# Lag


def test_lag_is_least_most_and_mean() -> None:
    assert lag_between(at(a0=5, a1=2), at(a0=5, a1=8, a2=3)) == Lag(0, 6, 3.0)
    assert lag_between(at(a0=5), {}) is None


@pytest.mark.parametrize("text", [None, "", "null", "3", '{"logOffset": 3}', '{"a": {"0": ', 5, "[" * 100_000])
def test_offsets_of_other_sources_are_no_lag(text: object) -> None:
    assert parse_progress_offsets(text) is None


def test_offsets_of_a_progress() -> None:
    assert parse_progress_offsets('{"a":{"0":5}}') == at(a0=5)
