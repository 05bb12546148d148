"""Decides what a stream reads next and what it lost, from offsets alone: no files, no clock.

The rules are those of Spark's Kafka connector 4.2 (``KafkaMicroBatchStream.scala``, ``KafkaOffsetReaderAdmin.scala``),
so that a query takes the same steps after it moves to the files. An offset is that of the next record to read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from math import ceil, floor
from typing import Any, NamedTuple
from uuid import UUID

from seglog.core.errors import DataLossError, InvalidConfigError
from seglog.core.types import MAX_INT32, MAX_INT64, TopicPartition
from seglog.sources.ranges import OffsetRange

StreamOffsets = Mapping[TopicPartition, int]
"""The next offset to read of each partition."""


def offsets_to_json(offsets: StreamOffsets) -> dict[str, dict[str, int]]:
    """Offsets in the form of a checkpoint of ``format("kafka")``: ``{"topic": {"0": 123}}``, in a fixed order.

    >>> offsets_to_json({TopicPartition("t", 10): 7, TopicPartition("t", 2): 5})
    {'t': {'2': 5, '10': 7}}
    """
    out: dict[str, dict[str, int]] = {}
    for topic_partition in sorted(offsets):
        out.setdefault(topic_partition.topic, {})[str(topic_partition.partition)] = offsets[topic_partition]
    return out


def offsets_from_json(value: object) -> dict[TopicPartition, int]:
    """The offsets in a line of a checkpoint; `InvalidConfigError` if it belongs to another source.

    >>> offsets_from_json({"t": {"0": 123}})
    {TopicPartition(topic='t', partition=0): 123}
    """
    offsets: dict[TopicPartition, int] = {}
    if not isinstance(value, dict):
        raise _not_offsets(value)
    for topic, partitions in value.items():
        if not isinstance(topic, str) or not isinstance(partitions, dict):
            raise _not_offsets(value)
        for number, offset in partitions.items():
            if not isinstance(number, str) or not re.fullmatch(r"[0-9]{1,10}", number) or int(number) > MAX_INT32:
                raise _not_offsets(value)
            if not isinstance(offset, int) or isinstance(offset, bool) or not 0 <= offset <= MAX_INT64:
                raise _not_offsets(value)
            offsets[TopicPartition(topic, int(number))] = offset
    return offsets


def _not_offsets(value: object) -> InvalidConfigError:
    return InvalidConfigError(
        f"the checkpoint's offsets are {str(value)[:200]}, not as in {{'flights': {{'0': 1234}}}}: this checkpoint "
        'belongs to another source. seglog continues checkpoints of format("kafka") and format("seglog")'
    )


def check_selected(offsets: StreamOffsets, selects: Callable[[TopicPartition], bool]) -> None:
    """Raise `InvalidConfigError` if the offsets of a checkpoint are all of partitions that the source does not select.

    Spark keeps the offsets of a query's sources in their order, so they are probably another source's. That is not a
    loss of data.
    """
    if not offsets or any(map(selects, offsets)):
        return
    topics = sorted({partition.topic for partition in offsets})
    named = ", ".join(topics[:10]) + (" …" if len(topics) > 10 else "")
    raise InvalidConfigError(
        f"the offsets in the checkpoint are of topics {named}, whose partitions this source does not select: were the "
        "sources of the query reordered, or the topics in its options replaced? A query continues its checkpoint only "
        "with its sources in their former order; a query of other topics needs a checkpoint of its own"
    )


class StreamPartition(NamedTuple):
    """The current state of a partition: readable from ``log_start`` to before ``until``, which is at most ``log_end``.

    ``until`` is the high watermark, the last stable offset or the log end, depending on options.
    """

    log_start: int
    until: int
    log_end: int


StreamPartitions = Mapping[TopicPartition, StreamPartition]
TopicIds = Mapping[str, UUID]
"""Of the topics that have one."""


def latest_offsets(states: StreamPartitions, start: StreamOffsets) -> dict[TopicPartition, int]:
    """The end of each existing partition, but not below the stream's position while the log reaches that far.

    A broker checkpoints high watermarks only every few seconds; an earlier run of the query, or a reader of another
    replica, may have seen a later one. That is not a loss: there is nothing new yet.
    """
    return {
        partition: start[partition] if state.until < start.get(partition, 0) <= state.log_end else state.until
        for partition, state in states.items()
    }


def wait_where_known(states: StreamPartitions, known: StreamOffsets) -> dict[TopicPartition, StreamPartition]:
    """``states`` while a broker's directory is missing: a partition of ``known`` that the other directories do not
    have, or not up to there, stays at its known offset, with nothing new.

    >>> wait_where_known({}, {TopicPartition("t", 0): 7})
    {TopicPartition(topic='t', partition=0): StreamPartition(log_start=7, until=7, log_end=7)}
    """
    found = dict(states)
    for partition, offset in known.items():
        state = states.get(partition)
        if state is None or state.log_end < offset:
            found[partition] = StreamPartition(offset, offset, offset)
    return found


def rate_limit(
    limit: int, start: StreamOffsets, latest: StreamOffsets, log_starts: StreamOffsets
) -> dict[TopicPartition, int]:
    """The end of a batch of about ``limit`` offsets, shared among partitions in proportion to their lag.

    A share is rounded down, or up to 1, so that no partition starves. A partition missing in ``start`` begins at its
    ``log_starts``.
    """
    begins = {partition: start.get(partition, log_starts.get(partition, end)) for partition, end in latest.items()}
    sizes = {partition: max(end - begins[partition], 0) for partition, end in latest.items()}
    total = float(sum(sizes.values()))
    if total < 1:
        return dict(latest)
    ends = dict(latest)
    for partition, size in sizes.items():
        if size:
            share = limit * (size / total)
            taken = ceil(share) if share < 1 else floor(share)
            ends[partition] = min(latest[partition], begins[partition] + taken)
    return ends


def is_too_little(min_offsets: int, start: StreamOffsets, latest: StreamOffsets, log_starts: StreamOffsets) -> bool:
    """Whether fewer than ``minOffsetsPerTrigger`` are new."""
    new = sum(end - start.get(partition, log_starts.get(partition, end)) for partition, end in latest.items())
    return new < min_offsets


class BatchPlan(NamedTuple):
    """The ranges of a batch, and a sentence for each loss."""

    ranges: Mapping[TopicPartition, OffsetRange]
    losses: tuple[str, ...]


def plan_batch(
    start: StreamOffsets,
    end: StreamOffsets,
    states: StreamPartitions,
    *,
    replays_first: bool = False,
    unselected: Collection[TopicPartition] = (),
) -> BatchPlan:
    """The ranges from ``start`` to ``end`` for the partitions in ``end``, and the losses. Partitions that are in
    ``start`` only are deleted, or they exist and are ``unselected``.

    ``replays_first``: after a stop between planning and committing the first batch, Spark repeats it with a new
    ``start`` and the old ``end``. Then a start above the end means that the batch was empty, and a partition that only
    ``start`` has is newer than the batch.
    """
    ranges: dict[TopicPartition, OffsetRange] = {}
    losses: list[str] = []
    if not replays_first:
        losses += [
            f"partition {gone} "
            + ("is not selected by the options any more" if gone in unselected else "was deleted")
            + f"; it was read up to offset {start[gone]}"
            for gone in sorted(set(start) - set(end))
        ]
    for partition in sorted(end):
        state = states.get(partition)
        if state is None:
            if start.get(partition, 0) < end[partition]:
                first_lost = f"offset {start[partition]}" if partition in start else "its start"
                losses.append(
                    f"partition {partition} was deleted; it was to be read from {first_lost} to {end[partition]}"
                )
            continue
        first, last = start.get(partition), end[partition]
        if first is None:
            first = state.log_start
            if first > 0:
                losses.append(f"partition {partition} is new and starts at offset {first} instead of 0")
        if last < first:
            if not replays_first:
                losses.append(
                    f"partition {partition} ends at offset {last}, before the offset {first} to read from: it was "
                    "deleted and created again, or truncated"
                )
            continue
        if first < state.log_start and first < last:
            losses.append(f"partition {partition} starts at offset {state.log_start}, but was read only to {first}")
            first = min(state.log_start, last)
        if last > state.log_end:
            losses.append(f"partition {partition} ends at offset {state.log_end}, but was to be read to {last}")
            last = max(state.log_end, first)
        if first < last:
            ranges[partition] = OffsetRange(first, last)
    return BatchPlan(ranges, tuple(losses))


def report_losses(losses: Collection[str], *, fail: bool, warn: Callable[[str], None]) -> None:
    """Raise a `DataLossError` if ``fail``, else ``warn`` once, about all losses."""
    if not losses:
        return
    said = "; ".join(list(losses)[:10]) + (f" … {len(losses)} in all" if len(losses) > 10 else "")
    if fail:
        raise DataLossError(
            f"records that this stream had not read yet are out of its reach: {said}. Retention removed them, the "
            "topic was deleted, or the query has changed. With option failOnDataLoss=false the stream continues "
            "without them"
        )
    warn(f"this stream lost records and continues (failOnDataLoss=false): {said}")


def remaining_targets(targets: StreamOffsets, latest: StreamOffsets) -> dict[TopicPartition, int]:
    """The targets of ``AvailableNow`` with ``failOnDataLoss=false``, without partitions that are gone, and not beyond
    the ends of logs that became shorter.

    >>> a, b = TopicPartition("t", 0), TopicPartition("t", 1)
    >>> remaining_targets({a: 9, b: 5}, {a: 20})
    {TopicPartition(topic='t', partition=0): 9}
    """
    return {partition: min(end, latest[partition]) for partition, end in targets.items() if partition in latest}


def check_targets(targets: StreamOffsets, end: StreamOffsets, states: StreamPartitions, *, fail: bool = True) -> None:
    """With ``AvailableNow``: raise a `DataLossError` if a batch ends beyond its targets, or if it must ``fail`` after a
    loss, beyond the logs."""
    for partition in sorted(end if fail else set(end) & set(states)):
        if partition not in targets or end[partition] > targets[partition]:
            known = f"{partition} to {targets[partition]}" if partition in targets else f"no partition {partition}"
            raise DataLossError(
                f"Trigger.AvailableNow found {known} at its start, but a batch ends at {end[partition]}: another query "
                "uses this checkpoint, or the topic was created again. Start the query again"
            )
    if not fail:
        return
    gone = sorted(set(targets) - set(states))
    if gone:
        raise DataLossError(f"partition {gone[0]} disappeared during Trigger.AvailableNow. Start the query again")
    for partition in sorted(end):
        if states[partition].log_end < end[partition]:
            raise DataLossError(
                f"partition {partition} was truncated to offset {states[partition].log_end} during "
                f"Trigger.AvailableNow, but a batch ends at {end[partition]}. Start the query again"
            )


def recreated(position: StreamOffsets, before: TopicIds, now: TopicIds) -> list[str]:
    """A sentence for each partition of ``position`` whose topic has another id than ``before``. The position is one in
    the log of the former topic, so records of the new one would be passed over without a word if it is as long.

    >>> old, new = UUID(int=1), UUID(int=2)
    >>> recreated({TopicPartition("t", 0): 0, TopicPartition("t", 1): 7}, {"t": old, "u": old}, {"t": new})
    ['partition t-1 is of a topic that was created again; the former one was read up to offset 7']
    """
    others = {topic for topic, one in now.items() if before.get(topic, one) != one}
    return [
        f"partition {partition} is of a topic that was created again; the former one was read up to offset {offset}"
        for partition, offset in sorted(position.items())
        if partition.topic in others and offset
    ]


class Lag(NamedTuple):
    """The smallest, largest and mean lag of partitions, in offsets."""

    min: int
    max: int
    avg: float


def lag_between(consumed: StreamOffsets, latest: StreamOffsets) -> Lag | None:
    """The distance from ``consumed`` to ``latest`` over the partitions of ``latest``; None if there is none.

    As with Spark's Kafka connector, a partition that was not consumed from counts from 0.
    """
    behind = [end - consumed.get(partition, 0) for partition, end in latest.items()]
    return Lag(min(behind), max(behind), sum(behind) / len(behind)) if behind else None


def parse_progress_offsets(text: Any) -> dict[TopicPartition, int] | None:
    """The offsets of a source in a query's progress; None where it has none, or ones of another kind of source."""
    try:
        return offsets_from_json(json.loads(text)) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
