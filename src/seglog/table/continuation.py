"""Where a run continues a table, and whether the log is still the one that the table was made from. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from seglog.core.errors import DataLossError, InvalidConfigError
from seglog.core.types import TopicPartition
from seglog.sources.offsets import DATA_LOSS_HINT
from seglog.sources.planning import SizedRange
from seglog.sources.ranges import OffsetRange, PartitionExtent
from seglog.table.iceberg.positions import Position, Positions

WORTH_A_FILE: Final = 32 << 20
"""Bytes of log. Neighbouring ranges share a file until they have this many."""

R = TypeVar("R", bound=SizedRange)
T = TypeVar("T")


class Continuation(NamedTuple):
    """The offsets to add of each partition, and the records that are missing before them (``failOnDataLoss=false``)."""

    ranges: Mapping[TopicPartition, OffsetRange]
    losses: Sequence[str]


def check_topic(positions: Positions, topic: str, topic_id: str | None) -> None:
    """Raise `InvalidConfigError` if the table is of another topic, or of one that was deleted and created again."""
    if positions.topic != topic:
        raise InvalidConfigError(f"the table has the records of topic {positions.topic!r}, not of {topic!r}")
    if None not in (positions.topic_id, topic_id) and positions.topic_id != topic_id:
        raise InvalidConfigError(
            f"topic {topic!r} was created again: its id was {positions.topic_id} and is {topic_id} now, so its offsets "
            "begin anew. Keep the table as it is, and build another one"
        )


def continue_from(
    positions: Positions,
    extents: Sequence[PartitionExtent],
    starts: Mapping[TopicPartition, int],
    epochs: Mapping[int, int],
    *,
    fail_on_data_loss: bool,
    hint: str = DATA_LOSS_HINT,
) -> Continuation:
    """The ranges of a run.

    A partition of the table continues at its position, a new one begins at ``starts``. ``epochs``: by partition, the
    log's leader epoch of the offset before its position, -1 if unknown. Raises `DataLossError` if the log begins above
    the table's end, or if the table has records that the log lost to a truncation.
    """
    ranges: dict[TopicPartition, OffsetRange] = {}
    losses: list[str] = []
    for extent in extents:
        name = extent.topic_partition
        position = positions.partitions.get(name.partition)
        if position is None:
            start = extent.nearest(starts[name])
            ranges[name] = OffsetRange(start, extent.until)
            continue
        _check_same_history(name, position, extent.log_end, epochs.get(name.partition, -1))
        start = position.upto
        if start < extent.log_start:
            loss = f"the table has {name} up to offset {start}, and the log begins at {extent.log_start}"
            if fail_on_data_loss:
                raise DataLossError(f"{loss}; {hint}")
            losses.append(loss)
            start = extent.log_start
        ranges[name] = OffsetRange(start, max(start, extent.until))
    return Continuation(ranges, losses)


def _check_same_history(name: TopicPartition, position: Position, log_end: int, log_epoch: int) -> None:
    upto, epoch = position
    if upto > log_end:
        raise DataLossError(
            f"the table has {name} up to offset {upto}, and the log ends at {log_end}: it has lost records that were "
            "committed, or it is another log. Build another table, or roll this one back to a snapshot below that"
        )
    if -1 not in (epoch, log_epoch) and epoch != log_epoch:
        raise DataLossError(
            f"offset {upto - 1} of {name} is of leader epoch {epoch} in the table and {log_epoch} in the log: the log "
            "was truncated after its records were committed, or it is another log. Build another table, or roll this "
            "one back to a snapshot below that"
        )


def share_files(ranges: Sequence[R]) -> list[list[R]]:
    """Groups of neighbouring ranges, each for one file."""
    return _runs(ranges, [one.size for one in ranges], WORTH_A_FILE)


def rounds(groups: Sequence[list[R]], limit: int) -> list[list[list[R]]]:
    """Runs of groups that are committed together: of at most ``limit`` bytes of log, or one group."""
    return _runs(groups, [sum(one.size for one in group) for group in groups], limit)


def _runs(items: Sequence[T], sizes: Sequence[int], limit: int) -> list[list[T]]:
    runs: list[list[T]] = []
    held = 0
    for item, size in zip(items, sizes, strict=True):
        if not runs or held + size > limit:
            runs.append([])
            held = 0
        runs[-1].append(item)
        held += size
    return runs
