"""A stream's reader as Spark calls it, over logs that our engine writes at the same time: no JVM."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import seglog
from seglog.core.errors import InvalidConfigError, OffsetOutOfRangeError, UnknownTopicError
from tests.kit.manual_clock import ManualClock
from tests.spark.stream_driver import (
    START_MS,
    Checkpoint,
    Driver,
    KilledError,
    append,
    offsets,
    options,
    reader,
)


def test_batch_0_says_where_the_stream_begins(logs: seglog.LogDir) -> None:
    append(logs.log("t"), 5)
    checkpoint = Checkpoint()
    driver = Driver(checkpoint, options(logs.path, startingOffsets="latest"))
    assert driver.trigger()
    assert checkpoint.offsets == {0: '{"t": {"0": 5, "1": 0}}'}
    assert checkpoint.rows() == []
    append(logs.log("t"), 2)
    assert driver.trigger()
    assert checkpoint.rows() == [("t", 0, 5), ("t", 0, 6)]
    assert not driver.trigger()


@pytest.mark.parametrize("kill_at", range(8))
def test_a_start_at_latest_loses_nothing_when_killed(logs: seglog.LogDir, kill_at: int) -> None:
    append(logs.log("t"), 5)
    checkpoint = Checkpoint()
    with pytest.raises(KilledError):
        Driver(checkpoint, options(logs.path, startingOffsets="latest"), kill_at=kill_at).drain()
    append(logs.log("t"), 5)
    for _ in range(2):  # again and again killed before the batch is committed
        with pytest.raises(KilledError):
            Driver(checkpoint, options(logs.path, startingOffsets="latest"), kill_at=1).drain()
        append(logs.log("t"), 5)
    Driver(checkpoint, options(logs.path, startingOffsets="latest")).drain()
    append(logs.log("t"), 5)
    Driver(checkpoint, options(logs.path, startingOffsets="latest")).drain()
    first = 5 if kill_at >= 2 else 20  # from the second step on batch 0 is in the checkpoint
    assert offsets(checkpoint.rows()) == list(range(first, 25))


def test_a_limit_is_kept_and_shared_out(logs: seglog.LogDir) -> None:
    append(logs.log("t", 0), 100)
    append(logs.log("t", 1), 4)
    checkpoint = Checkpoint()
    Driver(checkpoint, options(logs.path, maxOffsetsPerTrigger="52")).drain()
    assert [len(rows) for rows in checkpoint.sink.values()] == [0, 52, 52]
    assert checkpoint.offsets[1] == '{"t": {"0": 50, "1": 2}}'


def test_available_now_reads_to_the_ends_at_its_start(logs: seglog.LogDir) -> None:
    append(logs.log("t"), 30)
    checkpoint = Checkpoint()
    driver = Driver(checkpoint, options(logs.path, maxOffsetsPerTrigger="10"), available_now=True)
    assert driver.trigger()
    append(logs.log("t"), 30)
    logs.create_topic("u")
    append(logs.log("u"), 1)
    driver.drain()
    assert offsets(checkpoint.rows()) == list(range(30))
    assert len(checkpoint.offsets) == 4
    assert driver.reader.reportLatestOffset() == {"t": {"0": 30, "1": 0}}
    Driver(checkpoint, options(logs.path), available_now=True).drain()
    assert offsets([row for row in checkpoint.rows() if row[0] == "t"]) == list(range(60))
    assert ("u", 0, 0) in checkpoint.rows()
    Driver(checkpoint, options(logs.path), available_now=True).drain()
    assert len(checkpoint.rows()) == 61


def test_available_now_continues_after_an_uncommitted_first_batch(logs: seglog.LogDir) -> None:
    append(logs.log("t"), 5)
    checkpoint = Checkpoint()
    with pytest.raises(KilledError):
        Driver(checkpoint, options(logs.path), available_now=True, kill_at=3).drain()
    assert list(checkpoint.offsets) == [0]
    Driver(checkpoint, options(logs.path), available_now=True).drain()
    assert offsets(checkpoint.rows()) == list(range(5))


def test_available_now_is_not_put_off_by_a_minimum(logs: seglog.LogDir) -> None:
    append(logs.log("t"), 25)
    checkpoint = Checkpoint()
    Driver(
        checkpoint, options(logs.path, minOffsetsPerTrigger="10", maxOffsetsPerTrigger="10"), available_now=True
    ).drain()
    assert offsets(checkpoint.rows()) == list(range(25))


def test_waits_for_the_minimum_but_not_beyond_the_delay(logs: seglog.LogDir) -> None:
    append(logs.log("t"), 1)
    clock, checkpoint = ManualClock(), Checkpoint()
    limits = {"minOffsetsPerTrigger": "10", "maxOffsetsPerTrigger": "12", "maxTriggerDelay": "30s"}
    driver = Driver(checkpoint, options(logs.path, **limits), clock=clock)
    driver.drain()  # the first batch does not wait
    assert offsets(checkpoint.rows()) == [0]
    append(logs.log("t"), 9)
    clock.advance(29_999)
    assert not driver.trigger()
    clock.advance(1)
    assert driver.trigger()
    assert offsets(checkpoint.rows()) == list(range(10))
    append(logs.log("t"), 9)
    assert not driver.trigger()
    append(logs.log("t"), 9)
    assert driver.trigger()  # enough, and not more than the maximum
    assert not driver.trigger()
    assert offsets(checkpoint.rows()) == list(range(22))


def test_trigger_once_reads_everything(logs: seglog.LogDir) -> None:
    append(logs.log("t"), 25)
    checkpoint = Checkpoint()
    Driver(checkpoint, options(logs.path, maxOffsetsPerTrigger="10")).trigger(ReadAllAvailable())
    assert offsets(checkpoint.rows()) == list(range(25))
    latest = Checkpoint()
    Driver(latest, options(logs.path, startingOffsets="latest")).trigger(ReadAllAvailable())
    assert latest.offsets == {0: '{"t": {"0": 25, "1": 0}}'}


def test_new_partitions_and_new_topics_are_read_from_their_start(logs: seglog.LogDir) -> None:
    append(logs.log("t"), 3)
    checkpoint = Checkpoint()
    chosen = options(logs.path, subscribePattern="[tu]", startingOffsets="latest")
    driver = Driver(checkpoint, chosen)
    driver.drain()
    logs.create_topic("u")
    logs.create_topic("w")
    append(logs.log("u"), 4)
    append(logs.log("w"), 4)
    driver.drain()
    assert checkpoint.rows() == [("u", 0, offset) for offset in range(4)]


def test_a_pattern_that_nothing_matches_yet(logs: seglog.LogDir) -> None:
    checkpoint = Checkpoint()
    driver = Driver(checkpoint, options(logs.path, subscribePattern="u.*", startingOffsets="latest"))
    driver.drain()
    assert checkpoint.offsets == {0: "{}"}
    assert driver.reader.reportLatestOffset() is None
    logs.create_topic("u1")
    append(logs.log("u1"), 2)
    driver.drain()
    assert checkpoint.rows() == [("u1", 0, 0), ("u1", 0, 1)]


@pytest.mark.parametrize("nothing", ["{}", '{"t": []}'])
def test_a_stream_of_no_partition_waits(logs: seglog.LogDir, nothing: str) -> None:
    append(logs.log("t"), 4)
    checkpoint = Checkpoint()
    for _ in range(2):
        Driver(checkpoint, options(logs.path, assign=nothing)).drain()
    assert (set(checkpoint.offsets.values()), checkpoint.rows()) == ({"{}"}, [])


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ({"startingOffsets": '{"t": {"0": 3, "1": -1}}'}, {0: 3, 1: 6}),
        ({"startingOffsets": '{"t": "latest"}'}, {0: 9, 1: 6}),
        ({"startingOffsets": '{"t": "Earliest"}'}, {0: 0, 1: 0}),
        ({"startingTimestamp": str(START_MS + 4000)}, {0: 4, 1: 4}),
        ({"startingOffsetsByTimestamp": f'{{"t": {{"0": {START_MS + 2500}, "1": {START_MS}}}}}'}, {0: 3, 1: 0}),
        (
            {"startingTimestamp": str(START_MS + 7000), "startingOffsetsByTimestampStrategy": "latest"},
            {0: 7, 1: 6},
        ),
    ],
)
def test_starts(logs: seglog.LogDir, start: dict[str, str], expected: dict[int, int]) -> None:
    append(logs.log("t", 0), 9)
    append(logs.log("t", 1), 6)
    checkpoint = Checkpoint()
    Driver(checkpoint, options(logs.path, **start)).drain()
    assert {number: offsets(checkpoint.rows(), number) for number in (0, 1)} == {
        0: list(range(expected[0], 9)),
        1: list(range(expected[1], 6)),
    }


def test_a_start_behind_the_last_record_in_time_is_refused(logs: seglog.LogDir) -> None:
    append(logs.log("t", 0), 9)
    with pytest.raises(OffsetOutOfRangeError, match="t-1 has no record with timestamp"):
        reader(logs.path, startingTimestamp=str(START_MS)).initialOffset()


def test_an_end_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="option endingOffsets: a stream has no end"):
        reader(tmp_path, endingOffsets="latest")
    with pytest.raises(InvalidConfigError, match="option view is 'batches': a stream has only the view records"):
        reader(tmp_path, view="batches")


def test_refuses_an_unknown_topic(logs: seglog.LogDir) -> None:
    with pytest.raises(UnknownTopicError, match="there is no topic 'x'"):
        reader(logs.path, subscribe="x").initialOffset()
