from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from seglog.core.errors import InvalidConfigError, OffsetOutOfRangeError
from seglog.core.types import TopicPartition
from seglog.sources.offsets import ResolvedRanges, resolve
from seglog.sources.options.read_options import EARLIEST, LATEST, Bound, TimestampBound, parse_offsets
from seglog.sources.options.rules import EVERY
from seglog.sources.ranges import OffsetRange, PartitionExtent

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def extent(partition: TopicPartition, log_start: int, until: int, log_end: int, bound: str) -> PartitionExtent:
    return PartitionExtent(
        topic_partition=partition,
        log_start=log_start,
        log_end=log_end,
        until=until,
        bound=bound,
    )


EXTENTS = [
    extent(A0, 10, 100, 100, "log end offset"),
    extent(A1, 0, 50, 60, "high watermark (checkpoint)"),
]
TIMES = {A0: {1000: 20, 2000: 99}, A1: {1000: 0, 2000: 55}}
"""In A1, the record with timestamp 2000 is above the high watermark."""


def find_by_time(wanted: Sequence[tuple[PartitionExtent, int]]) -> list[int | None]:
    return [TIMES[extent.topic_partition].get(timestamp) for extent, timestamp in wanted]


def resolved(starting: Bound, ending: Bound, *, fail_on_data_loss: bool = True) -> ResolvedRanges:
    return resolve(EXTENTS, starting, ending, find_by_time, fail_on_data_loss=fail_on_data_loss)


def ranges(starting: Bound, ending: Bound) -> Mapping[TopicPartition, OffsetRange]:
    found = resolved(starting, ending)
    assert found.losses == []
    return found.ranges


def test_offsets() -> None:
    assert ranges(EARLIEST, LATEST) == {A0: (10, 100), A1: (0, 50)}
    assert ranges({A0: 20, A1: EARLIEST}, {A0: LATEST, A1: 40}) == {A0: (20, 100), A1: (0, 40)}
    assert ranges({A0: 100, A1: 0}, LATEST)[A0] == (100, 100)
    every = TopicPartition("a", EVERY)
    assert ranges({every: EARLIEST}, {every: LATEST}) == {A0: (10, 100), A1: (0, 50)}
    assert ranges({every: EARLIEST}, {A0: 20, A1: 20}) == {A0: (10, 20), A1: (0, 20)}


def test_times() -> None:
    assert ranges(TimestampBound(timestamps=1000), LATEST) == {A0: (20, 100), A1: (0, 50)}
    assert ranges(EARLIEST, TimestampBound(timestamps=2000)) == {A0: (10, 99), A1: (0, 50)}
    assert ranges(TimestampBound(timestamps=2000, strategy="latest"), LATEST) == {A0: (99, 100), A1: (50, 50)}
    each = TimestampBound(timestamps={A0: 2000, A1: 1000})
    assert ranges(each, TimestampBound(timestamps={A0: 9999, A1: 9999})) == {A0: (99, 100), A1: (0, 50)}
    with pytest.raises(OffsetOutOfRangeError, match="option startingTimestamp: a-1 has no record with timestamp 2000"):
        ranges(TimestampBound(timestamps=2000), LATEST)
    with pytest.raises(OffsetOutOfRangeError, match=r"option startingOffsetsByTimestamp: a-0 has no .* 9999"):
        ranges(TimestampBound(timestamps={A0: 9999, A1: 1000}), LATEST)


@pytest.mark.parametrize(
    ("starting", "ending", "error", "message"),
    [
        ({A0: 20}, LATEST, InvalidConfigError, "option startingOffsets leaves out a-1"),
        (EARLIEST, {A0: 20, A1: 20, B0: 1}, InvalidConfigError, "option endingOffsets names b-0, which is not read"),
        (
            {TopicPartition("a", EVERY): EARLIEST, TopicPartition("b", EVERY): EARLIEST},
            LATEST,
            InvalidConfigError,
            "option startingOffsets names topic 'b', which is not read",
        ),
        ({TopicPartition("b", EVERY): EARLIEST}, LATEST, InvalidConfigError, "names topic 'b', which is not read"),
        ({TopicPartition("A", EVERY): EARLIEST}, LATEST, InvalidConfigError, r"is not read; did you mean a\?"),
        (
            TimestampBound(timestamps={TopicPartition("A", 0): 1}),
            LATEST,
            InvalidConfigError,
            r"leaves out a-0: it must name exactly the partitions that are read; it has A-0; did you mean a\?",
        ),
        (
            TimestampBound(timestamps={A0: 1}),
            LATEST,
            InvalidConfigError,
            "option startingOffsetsByTimestamp leaves out a-1",
        ),
        ({A0: 30, A1: 0}, {A0: 20, A1: 1}, InvalidConfigError, "a-0: startingOffsets 30 is above endingOffsets 20"),
        (
            {A0: 30, A1: 0},
            TimestampBound(timestamps=1000),
            InvalidConfigError,
            "a-0: startingOffsets 30 is above endingTimestamp 20",
        ),
        (
            {A0: 9, A1: 0},
            LATEST,
            OffsetOutOfRangeError,
            "startingOffsets: a-0 has log start offset 10 and log end offset 100; 9 is outside; set option fail",
        ),
        (
            EARLIEST,
            {A0: LATEST, A1: 51},
            OffsetOutOfRangeError,
            r"option endingOffsets: a-1 .* and high watermark \(checkpoint\) 50; 51 is outside",
        ),
        (EARLIEST, {A0: 5, A1: LATEST}, OffsetOutOfRangeError, "5 is outside"),
        ({A0: 101, A1: 0}, LATEST, OffsetOutOfRangeError, "101 is outside"),
    ],
)
def test_names_bounds_that_cannot_be_resolved(
    starting: Bound, ending: Bound, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        resolved(starting, ending)


def test_without_fail_on_data_loss_reads_the_rest_and_warns() -> None:
    found = resolved({A0: 3, A1: 70}, {A0: 200, A1: LATEST}, fail_on_data_loss=False)
    assert found.ranges == {A0: (10, 100), A1: (50, 50)}
    assert [loss.split("; ")[1] for loss in found.losses] == ["3 is outside", "200 is outside", "70 is outside"]
    assert resolved(EARLIEST, {A0: 3, A1: 1}, fail_on_data_loss=False).ranges[A0] == (10, 10)


def test_offsets_as_text() -> None:
    text = '{"a":{"0":12,"10":-1},"b":{"0":-2}}'
    offsets = parse_offsets(text)
    assert offsets == {A0: 12, TopicPartition("a", 10): LATEST, B0: EARLIEST}
    assert isinstance(offsets, Mapping)
    assert (parse_offsets("Earliest "), parse_offsets("LATEST")) == (EARLIEST, LATEST)
