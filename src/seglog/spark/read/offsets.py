"""Up to and from which offset each partition is read: what options say, made into numbers. Pure.

Offsets are those of the next record to read. The rules are those of Spark's Kafka connector
(``KafkaOffsetReaderAdmin.scala``), except that offsets outside of a log are found when a query is planned.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from seglog.core.errors import InvalidConfigError, OffsetOutOfRangeError
from seglog.core.types import TopicPartition
from seglog.spark.options import values as options_text
from seglog.spark.read.ranges import OffsetRange, PartitionExtent

LATEST: Final = -1
EARLIEST: Final = -2
"""The numbers that stand for an offset which is looked up, in options as in the protocol."""

Offsets = int | Mapping[TopicPartition, int]
"""EARLIEST, LATEST, or an offset for each partition (in which -2 and -1 are allowed as well)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AtTime:
    """The first offset whose record has this timestamp (ms) or a later one; one for all, or one for each partition.

    ``strategy`` says what a start is where no record is that late; an end is the latest offset then.
    """

    timestamps: int | Mapping[TopicPartition, int]
    strategy: Literal["error", "latest"] = "error"


Bound = Offsets | AtTime
FindByTime = Callable[[PartitionExtent, int], int | None]
"""The first offset of a partition, not below its log start, at or after a timestamp in ms; None if there is none."""

DATA_LOSS_HINT: Final = "set option failOnDataLoss to false to go on without what is gone"


class Resolved(NamedTuple):
    """The ranges to read, and in words what they leave out of what was asked for (``failOnDataLoss=false``)."""

    ranges: Mapping[TopicPartition, OffsetRange]
    losses: Sequence[str]


def parse_offsets(name: str, value: str) -> Offsets:
    """``earliest``, ``latest`` or ``{"topic": {"0": 12}}``."""
    word = value.strip().lower()
    if word in ("earliest", "latest"):
        return EARLIEST if word == "earliest" else LATEST
    example = f"{options_text.OFFSETS_EXAMPLE}, or earliest, or latest"
    return options_text.per_partition(name, value, low=EARLIEST, example=example)


def format_offsets(offsets: Mapping[TopicPartition, int]) -> str:
    """The reverse, in a fixed order.

    >>> format_offsets({TopicPartition("t", 1): 7, TopicPartition("t", 0): 5})
    '{"t":{"0":5,"1":7}}'
    """
    found: dict[str, dict[str, int]] = {}
    for partition in sorted(offsets):
        found.setdefault(partition.topic, {})[str(partition.partition)] = offsets[partition]
    return json.dumps(found, separators=(",", ":"))


def resolve(
    extents: Sequence[PartitionExtent],
    starting: Bound,
    ending: Bound,
    find_by_time: FindByTime,
    *,
    fail_on_data_loss: bool = True,
) -> Resolved:
    """The offsets to read of each partition.

    Offsets for partitions must name exactly the partitions that are read. An offset outside of a log raises
    `OffsetOutOfRangeError`, with ``fail_on_data_loss=False`` the nearest one that is there is taken. An end below its
    start raises `InvalidConfigError`.
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
    return Resolved(ranges, losses)


def resolve_bound(
    side: Literal["starting", "ending"],
    extents: Sequence[PartitionExtent],
    bound: Bound,
    find_by_time: FindByTime,
) -> dict[TopicPartition, int]:
    """One side of the ranges; offsets that were given as numbers are as they are, also outside of the log."""
    name = option_name(side, bound)
    given = bound.timestamps if isinstance(bound, AtTime) else bound
    if not isinstance(given, int):
        _check_same_partitions(name, set(given), {extent.topic_partition for extent in extents})
    found = {}
    for extent in extents:
        value = given if isinstance(given, int) else given[extent.topic_partition]
        if isinstance(bound, AtTime):
            offset = _at_time(extent, value, find_by_time)
            if offset is None and side == "starting" and bound.strategy == "error":
                raise OffsetOutOfRangeError(
                    f"option {name}: {extent.topic_partition} has no record with timestamp {value} or a later one "
                    "(startingOffsetsByTimestampStrategy=latest starts behind the last record then)"
                )
            found[extent.topic_partition] = extent.until if offset is None else offset
        else:
            found[extent.topic_partition] = {EARLIEST: extent.log_start, LATEST: extent.until}.get(value, value)
    return found


def _at_time(extent: PartitionExtent, timestamp: int, find_by_time: FindByTime) -> int | None:
    """As a broker answers: a record at or behind the high watermark is not there."""
    offset = find_by_time(extent, timestamp)
    return offset if offset is not None and offset < extent.until else None


def option_name(side: Literal["starting", "ending"], bound: Bound) -> str:
    """The option that such a bound comes from."""
    if not isinstance(bound, AtTime):
        return f"{side}Offsets"
    return f"{side}Timestamp" if isinstance(bound.timestamps, int) else f"{side}OffsetsByTimestamp"


def _check_same_partitions(name: str, given: set[TopicPartition], read: set[TopicPartition]) -> None:
    if given == read:
        return
    missing, foreign = sorted(read - given), sorted(given - read)
    which = f"leaves out {missing[0]}" if missing else f"names {foreign[0]}, which is not read"
    raise InvalidConfigError(
        f"option {name} {which}: it must name all partitions that are read and no other"
        + ("" if "Timestamp" in name else " (-2 is earliest, -1 latest)")
    )
