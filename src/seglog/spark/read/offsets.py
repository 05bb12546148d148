"""Resolve the bounds of options into the first and last offset of each partition. Pure.

An offset is that of the next record to read. The rules are those of Spark's Kafka connector
(``KafkaOffsetReaderAdmin.scala``), except that an offset outside of a log is an error when the query is planned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from seglog.core.errors import InvalidConfigError, OffsetOutOfRangeError
from seglog.core.types import TopicPartition
from seglog.spark.options.read_options import EARLIEST, LATEST, Bound, TimestampBound, option_name
from seglog.spark.read.ranges import OffsetRange, PartitionExtent

FindByTime = Callable[[PartitionExtent, int], int | None]
"""The first offset of a partition, not below its log start, at or after a timestamp in ms; None if there is none."""

DATA_LOSS_HINT: Final = "set option failOnDataLoss to false to continue without the missing records"


class ResolvedRanges(NamedTuple):
    """The ranges to read, and descriptions of what they lack (``failOnDataLoss=false``)."""

    ranges: Mapping[TopicPartition, OffsetRange]
    losses: Sequence[str]


def resolve(
    extents: Sequence[PartitionExtent],
    starting: Bound,
    ending: Bound,
    find_by_time: FindByTime,
    *,
    fail_on_data_loss: bool = True,
) -> ResolvedRanges:
    """The offsets to read of each partition.

    Offsets by partition must name exactly the partitions that are read. An offset outside of a log raises
    `OffsetOutOfRangeError`; with ``fail_on_data_loss=False`` the nearest existing one is used. An end below its start
    raises `InvalidConfigError`.
    """
    firsts = resolve_bound("starting", extents, starting, find_by_time)
    lasts = resolve_bound("ending", extents, ending, find_by_time)
    names = option_name("starting", starting), option_name("ending", ending)
    ranges: dict[TopicPartition, OffsetRange] = {}
    losses: list[str] = []
    for extent in extents:
        partition = extent.topic_partition
        bounds = firsts[partition], lasts[partition]
        outside = [
            f"option {name}: {partition} has log start offset {extent.log_start} and {extent.bound} {extent.until}; "
            f"{offset} is outside"
            for name, offset in zip(names, bounds, strict=True)
            if extent.nearest(offset) != offset
        ]
        if outside and fail_on_data_loss:
            raise OffsetOutOfRangeError(f"{outside[0]}; {DATA_LOSS_HINT}")
        if not outside and bounds[0] > bounds[1]:
            raise InvalidConfigError(f"{partition}: {names[0]} {bounds[0]} is above {names[1]} {bounds[1]}")
        losses += outside
        first, last = extent.nearest(bounds[0]), extent.nearest(bounds[1])
        ranges[partition] = OffsetRange(first, max(first, last))
    return ResolvedRanges(ranges, losses)


def resolve_bound(
    side: Literal["starting", "ending"],
    extents: Sequence[PartitionExtent],
    bound: Bound,
    find_by_time: FindByTime,
) -> dict[TopicPartition, int]:
    """One side of the ranges. Offsets given as numbers are returned unchanged, even outside of the log."""
    name = option_name(side, bound)
    given = bound.timestamps if isinstance(bound, TimestampBound) else bound
    if not isinstance(given, int):
        _check_same_partitions(name, set(given), {extent.topic_partition for extent in extents})
    found = {}
    for extent in extents:
        value = given if isinstance(given, int) else given[extent.topic_partition]
        if isinstance(bound, TimestampBound):
            offset = _at_time(extent, value, find_by_time)
            if offset is None and side == "starting" and bound.strategy == "error":
                raise OffsetOutOfRangeError(
                    f"option {name}: {extent.topic_partition} has no record with timestamp {value} or a later one "
                    "(with startingOffsetsByTimestampStrategy=latest it would start after the last record)"
                )
            found[extent.topic_partition] = extent.until if offset is None else offset
        else:
            found[extent.topic_partition] = {EARLIEST: extent.log_start, LATEST: extent.until}.get(value, value)
    return found


def _at_time(extent: PartitionExtent, timestamp: int, find_by_time: FindByTime) -> int | None:
    """Like a broker's answer, which ignores records at or above the high watermark."""
    offset = find_by_time(extent, timestamp)
    return offset if offset is not None and offset < extent.until else None


def _check_same_partitions(name: str, given: set[TopicPartition], read: set[TopicPartition]) -> None:
    if given == read:
        return
    missing, foreign = sorted(read - given), sorted(given - read)
    which = f"leaves out {missing[0]}" if missing else f"names {foreign[0]}, which is not read"
    raise InvalidConfigError(
        f"option {name} {which}: it must name exactly the partitions that are read"
        + ("" if "Timestamp" in name else " (-2 is earliest, -1 latest)")
    )
