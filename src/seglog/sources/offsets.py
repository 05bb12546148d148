"""Resolve the bounds of options into the first and last offset of each partition. Pure.

An offset is that of the next record to read. The rules are those of Spark's Kafka connector
(``KafkaOffsetReaderAdmin.scala``), except that an offset outside of a log is an error when the query is planned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, NamedTuple, TypeVar

from seglog.core.errors import InvalidConfigError, OffsetOutOfRangeError
from seglog.core.suggestions import did_you_mean
from seglog.core.types import TopicPartition
from seglog.sources.options.read_options import EARLIEST, LATEST, Bound, TimestampBound, option_name
from seglog.sources.options.rules import EVERY
from seglog.sources.ranges import OffsetRange, PartitionExtent

E = TypeVar("E", bound=PartitionExtent)
FindByTime = Callable[[Sequence[tuple[E, int]]], list[int | None]]
"""The first offset, not below the log start, at or after a timestamp in ms, of each partition; None if there is none.

All partitions together, because brokers are asked for many at once.
"""

DATA_LOSS_HINT: Final = "set option failOnDataLoss to false to continue without the missing records"


class ResolvedRanges(NamedTuple):
    """The ranges to read, and descriptions of what they lack (``failOnDataLoss=false``)."""

    ranges: Mapping[TopicPartition, OffsetRange]
    losses: Sequence[str]


def resolve(
    extents: Sequence[E],
    starting: Bound,
    ending: Bound,
    find_by_time: FindByTime[E],
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
    extents: Sequence[E],
    bound: Bound,
    find_by_time: FindByTime[E],
) -> dict[TopicPartition, int]:
    """One side of the ranges. Offsets given as numbers are returned unchanged, even outside of the log."""
    name = option_name(side, bound)
    given = bound.timestamps if isinstance(bound, TimestampBound) else bound
    if not isinstance(given, int):
        given = _of_each(name, given, {extent.topic_partition for extent in extents})
    values = [given if isinstance(given, int) else given[extent.topic_partition] for extent in extents]
    if not isinstance(bound, TimestampBound):
        ends = [{EARLIEST: extent.log_start, LATEST: extent.until} for extent in extents]
        return {
            extent.topic_partition: end.get(value, value)
            for extent, value, end in zip(extents, values, ends, strict=True)
        }
    found = {}
    offsets = find_by_time(list(zip(extents, values, strict=True)))
    for extent, value, offset in zip(extents, values, offsets, strict=True):
        # A broker does not consider records at or above the high watermark.
        if offset is None or offset >= extent.until:
            if side == "starting" and bound.strategy == "error":
                raise OffsetOutOfRangeError(
                    f"option {name}: {extent.topic_partition} has no record with timestamp {value} or a later one "
                    "(with startingOffsetsByTimestampStrategy=latest it would start after the last record)"
                )
            offset = extent.until
        found[extent.topic_partition] = offset
    return found


def _of_each(name: str, bound: Mapping[TopicPartition, int], read: set[TopicPartition]) -> dict[TopicPartition, int]:
    """``bound`` with a value for each partition to read, also of topics that have one for `EVERY` partition."""
    words = {one.topic: value for one, value in bound.items() if one.partition == EVERY}
    for topic in sorted(set(words) - {one.topic for one in read}):
        raise InvalidConfigError(f"option {name} names topic {topic!r}, which is not read{_nearest(topic, read)}")
    found = {one: value for one, value in bound.items() if one.partition != EVERY}
    found |= {one: words[one.topic] for one in read if one.topic in words}
    _check_same_partitions(name, set(found), read)
    return found


def _check_same_partitions(name: str, given: set[TopicPartition], read: set[TopicPartition]) -> None:
    if given == read:
        return
    missing, foreign = sorted(read - given), sorted(given - read)
    which = f"leaves out {missing[0]}" if missing else f"names {foreign[0]}, which is not read"
    near = "".join(_nearest(one.topic, read) for one in foreign[:1])
    raise InvalidConfigError(
        f"option {name} {which}: it must name exactly the partitions that are read"
        + ("" if "Timestamp" in name else " (-2 is earliest, -1 latest)")
        + (f"; it has {foreign[0]}{near}" if near else "")
    )


def _nearest(topic: str, read: set[TopicPartition]) -> str:
    topics = {one.topic for one in read}
    return "" if topic in topics else did_you_mean(topic, sorted(topics), cutoff=0.7)
