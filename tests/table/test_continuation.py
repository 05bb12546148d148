"""Where a run starts, and which logs are refused."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from seglog.core.errors import DataLossError
from seglog.core.types import TopicPartition
from seglog.sources.ranges import PartitionExtent
from seglog.table.continuation import Continuation, check_topic, continue_from, rounds, share_files
from seglog.table.iceberg.positions import Position, Positions, changes_as_text, decode_positions, encode_positions

NAME = TopicPartition("t", 0)
OTHER = TopicPartition("t", 1)


class _Sized(NamedTuple):
    size: int


def _continue(
    at: Position | None, *, epoch: int = -1, fail: bool = True, log_start: int = 0, log_end: int = 20, until: int = 20
) -> Continuation:
    partitions = {} if at is None else {0: at}
    extent = PartitionExtent(topic_partition=NAME, log_start=log_start, log_end=log_end, until=until)
    return continue_from(
        Positions(topic="t", partitions=partitions), [extent], {NAME: 7}, {0: epoch}, fail_on_data_loss=fail
    )


def test_a_new_partition_begins_where_the_options_say() -> None:
    assert _continue(None, log_start=0, log_end=20, until=18).ranges[NAME] == (7, 18)
    assert _continue(None, log_start=9, log_end=20, until=18).ranges[NAME] == (9, 18)


def test_a_known_partition_continues_at_its_position() -> None:
    assert _continue(Position(12), log_start=0, log_end=20, until=18).ranges[NAME] == (12, 18)
    assert _continue(Position(19), log_start=0, log_end=20, until=18).ranges[NAME] == (19, 19)


def test_what_retention_deleted_is_an_error_or_named() -> None:
    with pytest.raises(DataLossError, match="up to offset 12, and the log begins at 15"):
        _continue(Position(12), log_start=15, log_end=20, until=18)
    found = _continue(Position(12), fail=False, log_start=15, log_end=20, until=18)
    assert (found.ranges[NAME], len(found.losses)) == ((15, 18), 1)


def test_a_log_that_lost_committed_records_is_refused() -> None:
    with pytest.raises(DataLossError, match="the log ends at 20"):
        _continue(Position(21), fail=False, log_start=0, log_end=20, until=20)


def test_a_log_of_another_history_is_refused() -> None:
    with pytest.raises(DataLossError, match="offset 11 of t-0 is of leader epoch 3 in the table and 4 in the log"):
        _continue(Position(12, 3), epoch=4, fail=False)
    for at, epoch in ((Position(12, 3), 3), (Position(12), 4), (Position(12, 3), -1)):
        assert _continue(at, epoch=epoch).ranges[NAME] == (12, 20)


def test_a_topic_without_an_id_is_known_by_its_name() -> None:
    for mine, theirs in ((None, "a"), ("a", None), (None, None), ("a", "a")):
        check_topic(Positions(topic="t", topic_id=mine), "t", theirs)


def test_small_ranges_share_files_and_rounds() -> None:
    small, large = _Sized(10 << 20), _Sized(200 << 20)
    assert share_files([small, small, small, small, large, small]) == [[small] * 3, [small], [large], [small]]
    assert rounds([[small], [small, small], [large]], 30 << 20) == [[[small], [small, small]], [[large]]]
    assert rounds([], 1) == []


def test_positions_survive_their_file() -> None:
    positions = Positions(topic="t", topic_id="x", partitions={3: Position(5, 2), 1: Position(9)})
    assert decode_positions(encode_positions(positions)) == positions
    assert changes_as_text({3: 4}, positions) == '{"3":[4,5,2]}'
    many = Positions(topic="t", partitions={number: Position(1) for number in range(201)})
    assert changes_as_text(dict.fromkeys(many.partitions, 0), many) == ""
