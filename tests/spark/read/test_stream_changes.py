"""A stream's reader over logs that change under it: written, rolled, compacted, deleted. No JVM."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadMaxRows

import seglog
from seglog.core.errors import DataLossError, InvalidConfigError, OffsetOutOfRangeError
from seglog.records.record import NewRecord
from tests import golden
from tests.cases import case
from tests.spark.stream_driver import (
    SMALL,
    START_MS,
    Checkpoint,
    Driver,
    KilledError,
    append,
    offsets,
    options,
    reader,
)

# Logs that are written meanwhile


def mark(logs: seglog.LogDir) -> None:
    """Let others know of the high watermark: a lone log's is checkpointed up to where it was flushed."""
    logs.flush()
    logs.checkpoint()


def test_up_to_the_high_watermark_of_a_directory_in_use(logs: seglog.LogDir) -> None:
    chosen = {"path": str(logs.path), "startingOffsets": "earliest"}
    append(logs.log("t"), 5)
    mark(logs)
    append(logs.log("t"), 5)
    checkpoint = Checkpoint()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="seglog: .* is in use: seglog reads up to the high watermarks")
        driver = Driver(checkpoint, chosen)
        driver.drain()
        assert offsets(checkpoint.rows()) == list(range(5))
        mark(logs)
        driver.drain()
        assert offsets(checkpoint.rows()) == list(range(10))
        # A checkpoint may know more than the high watermark that was written last: that is no loss.
        append(logs.log("t"), 5)
        mark(logs)
        append(logs.log("t"), 5)
        further = Checkpoint()
        further.offsets, further.commits = {0: '{"t":{"0":17,"1":0}}'}, {0}
        driver = Driver(further, chosen)
        assert not driver.trigger() or further.rows() == []
        mark(logs)
        driver.drain()
        assert offsets(further.rows()) == [17, 18, 19]


def test_a_batch_that_was_decided_by_a_later_high_watermark(tmp_path: Path) -> None:
    root = golden.unpack(tmp_path, "4.4.0")
    (golden.log_dir(root) / "replication-offset-checkpoint").write_text("0\n1\ntxn 0 0\n")
    stream = reader(
        golden.log_dir(root), subscribe="txn", until="highWatermark", **{"kafka.isolation.level": "read_committed"}
    )
    committed = golden.expected_records(root, "txn-0", isolation="read_committed")
    tasks = stream.partitions({"txn": {"0": 1}}, {"txn": {"0": committed[-1].offset + 1}})
    found = [offset for task in tasks for batch in stream.read(task) for offset in batch.column("offset").to_pylist()]
    assert found == [record.offset for record in committed if record.offset >= 1]


def test_an_incomplete_batch_is_not_read_yet(logs: seglog.LogDir, tmp_path: Path) -> None:
    append(logs.log("t"), 6)
    logs.close()
    source = Path(logs.path) / "t-0" / f"{0:020d}.log"
    target = tmp_path / "copy" / "t-0" / source.name
    target.parent.mkdir(parents=True)
    whole = source.read_bytes()
    target.write_bytes(whole[:-1])
    checkpoint = Checkpoint()
    driver = Driver(checkpoint, options(tmp_path / "copy"))
    driver.drain()
    assert offsets(checkpoint.rows()) == [0, 1, 2]
    target.write_bytes(whole)
    driver.drain()
    assert offsets(checkpoint.rows()) == list(range(6))


def test_compaction_between_planning_and_reading(tmp_path: Path) -> None:
    with seglog.open(tmp_path / "log") as directory:
        compact = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.001", **SMALL}
        directory.create_topic("c", config=compact)
        log = directory.log("c")
        for number in range(120):
            log.append_records([NewRecord(b"%d" % number, b"key-%d" % (number % 5), START_MS + number)])
        stream = reader(directory.path)
        begin = stream.initialOffset()
        stream.latestOffset(begin, ReadMaxRows(1))
        tasks = stream.partitions(begin, {"c": {"0": 120}})
        assert directory.run_compaction()
        found = [
            offset for task in tasks for batch in stream.read(task) for offset in batch.column("offset").to_pylist()
        ]
        assert found[-5:] == [115, 116, 117, 118, 119]
        assert len(found) < 120
        assert found == sorted(set(found))


# Losses


def test_a_start_outside_of_the_log(logs: seglog.LogDir) -> None:
    append(logs.log("t"), 100)
    logs.log("t").delete_records(40)
    logs.checkpoint()
    for offset, nearest in ((5, 40), (101, 100)):
        start = f'{{"t": {{"0": {offset}, "1": 0}}}}'
        with pytest.raises(DataLossError, match=f"startingOffsets {offset} of t-0 .* has offsets 40 to 100"):
            reader(logs.path, startingOffsets=start).initialOffset()
        with pytest.warns(UserWarning, match=f"startingOffsets {offset} of t-0"):
            found = reader(logs.path, startingOffsets=start, failOnDataLoss="false").initialOffset()
        assert found == {"t": {"0": nearest, "1": 0}}


def _lost(logs: seglog.LogDir, chosen: dict[str, str]) -> Checkpoint:
    """A stream that has read ten of partition 0, and all of partition 1."""
    append(logs.log("t", 0), 10)
    append(logs.log("t", 1), 10)
    checkpoint = Checkpoint()
    Driver(checkpoint, chosen).drain()
    return checkpoint


def test_records_deleted_before_they_were_read(logs: seglog.LogDir) -> None:
    checkpoint = _lost(logs, options(logs.path))
    append(logs.log("t"), 90)
    logs.log("t").delete_records(50)
    logs.checkpoint()
    with pytest.raises(DataLossError, match=r"t-0 starts at offset 50, but was read only to 10.*failOnDataLoss=false"):
        Driver(checkpoint, options(logs.path)).drain()
    with pytest.warns(UserWarning, match="t-0 starts at offset 50, but was read only to 10"):
        Driver(checkpoint, options(logs.path, failOnDataLoss="false")).drain()
    assert offsets(checkpoint.rows()) == [*range(10), *range(50, 100)]


@pytest.mark.parametrize("chosen", [{}, {"subscribe": "t,u"}, {"subscribePattern": "[tu]"}])
def test_a_topic_deleted_under_a_stream(logs: seglog.LogDir, chosen: dict[str, str]) -> None:
    logs.create_topic("u")
    checkpoint = _lost(logs, options(logs.path, **chosen))
    logs.delete_topic("t")
    append(logs.log("u"), 3)
    with pytest.raises(DataLossError, match=r"partition t-0 was deleted|there is no topic 't'"):
        Driver(checkpoint, options(logs.path, **chosen)).drain()
    with pytest.warns(UserWarning, match=r"partition t-0 was deleted|there is no topic 't'"):
        Driver(checkpoint, options(logs.path, failOnDataLoss="false", **chosen)).drain()
    assert [row for row in checkpoint.rows() if row[0] == "u"] == [("u", 0, offset) for offset in range(3)]


def test_stream_of_a_topic_deleted_and_created_again(logs: seglog.LogDir) -> None:
    checkpoint = _lost(logs, options(logs.path))
    logs.delete_topic("t")
    logs.create_topic("t", partitions=2)
    append(logs.log("t"), 4)
    with pytest.raises(DataLossError, match="t-0 ends at offset 4, before the offset 10"):
        Driver(checkpoint, options(logs.path)).drain()
    with pytest.warns(UserWarning, match="t-0 ends at offset 4, before the offset 10"):
        Driver(checkpoint, options(logs.path, failOnDataLoss="false")).drain()
    append(logs.log("t"), 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        Driver(checkpoint, options(logs.path, failOnDataLoss="false")).drain()
    assert offsets(checkpoint.rows())[10:] == [4, 5, 6]


@pytest.mark.parametrize("count", [10, 40])
@pytest.mark.parametrize("planned", [False, True], ids=["from the start", "between batches"])
def test_a_topic_created_again_with_as_many_records_is_a_loss(logs: seglog.LogDir, planned: bool, count: int) -> None:
    """Its offsets alone look as if it had only grown."""
    logs.create_topic("u")
    for topic in ("t", "u"):
        append(logs.log(topic), 10)
    checkpoint = Checkpoint()
    if planned:
        Driver(checkpoint, options(logs.path)).drain()
    chosen = {} if planned else {"startingOffsets": "latest"}
    failing = Driver(checkpoint, options(logs.path, **chosen))
    going = Driver(checkpoint, options(logs.path, failOnDataLoss="false", **chosen))
    for driver in (failing, going):
        assert not driver.trigger() or not planned
    logs.delete_topic("t")
    logs.create_topic("t", partitions=2)
    append(logs.log("t"), count)
    append(logs.log("u"), 3)
    said = "partition t-0 is of a topic that was created again; the former one was read up to offset 10"
    with pytest.raises(DataLossError, match=said):
        failing.trigger()
    with pytest.warns(UserWarning, match=said) as warned:
        going.drain()
    assert len(warned) == 1
    found = [row[2] for row in checkpoint.rows() if row[0] == "t" and row[1] == 0]
    assert found == [*(range(10) if planned else ()), *range(10, count)]
    assert ("u", 0, 12) in checkpoint.rows()


def test_records_deleted_between_plan_and_read_are_a_loss(logs: seglog.LogDir) -> None:
    append(logs.log("t"), 300)
    stream = reader(logs.path)
    begin = stream.initialOffset()
    stream.latestOffset(begin, ReadMaxRows(1))
    (task, *_) = stream.partitions(begin, {"t": {"0": 300, "1": 0}})
    logs.log("t").delete_records(290)
    logs.log("t").delete_old_segments()
    logs.close()
    for path in (Path(logs.path) / "t-0").glob("*.deleted"):
        path.unlink()
    with pytest.raises(OffsetOutOfRangeError):
        list(stream.read(task))


def test_a_checkpoint_of_another_kind_of_source_is_refused(logs: seglog.LogDir) -> None:
    with pytest.raises(InvalidConfigError, match="this checkpoint belongs to another source"):
        reader(logs.path).latestOffset({"logOffset": 3}, ReadMaxRows(1))


def test_targets_that_went_away_fail_the_run(logs: seglog.LogDir) -> None:
    append(logs.log("t"), 30)
    checkpoint = Checkpoint()
    chosen = options(logs.path, maxOffsetsPerTrigger="10")
    driver = Driver(checkpoint, chosen, available_now=True)
    driver.trigger()
    logs.delete_topic("t")
    with pytest.raises(DataLossError, match=r"disappeared during Trigger\.AvailableNow"):
        driver.drain()


@pytest.mark.parametrize("again", [0, 4, 40])
def test_available_now_goes_on_without_a_topic_that_vanishes(logs: seglog.LogDir, again: int) -> None:
    """Deleted, or also made again: shorter, or longer than before."""
    logs.create_topic("u")
    for topic in ("t", "u"):
        append(logs.log(topic), 30)
    checkpoint = Checkpoint()
    chosen = options(logs.path, maxOffsetsPerTrigger="20", failOnDataLoss="false")
    driver = Driver(checkpoint, chosen, available_now=True)
    driver.trigger()
    driver.trigger()
    logs.delete_topic("t")
    if again:
        logs.create_topic("t", partitions=2)
        append(logs.log("t"), again)
    append(logs.log("u"), 5)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        driver.drain()
    assert [row[2] for row in checkpoint.rows() if row[0] == "u"] == list(range(30))
    assert any("partition t-0" in str(one.message) for one in said)
    assert sum(row[0] == "t" for row in checkpoint.rows()) <= 30
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        Driver(checkpoint, chosen, available_now=True).drain()
    assert [row[2] for row in checkpoint.rows() if row[0] == "u"] == list(range(35))


@pytest.mark.parametrize("fails", ["true", "false"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"subscribe": "t"}, {"subscribe": "u"}),
        ({"subscribePattern": "t|w"}, {"subscribePattern": "u.*"}),
        ({"assign": '{"t": [0]}'}, {"assign": '{"t": [1], "u": [0]}'}),
        ({"subscribe": "t"}, {"assign": "{}"}),
    ],
)
@pytest.mark.parametrize("kill_at", [None, 3, 7])
def test_sources_whose_order_was_exchanged(
    logs: seglog.LogDir, fails: str, before: dict[str, str], after: dict[str, str], kill_at: int | None
) -> None:
    """The offsets of one source come to the other, also in a batch that has to be repeated."""
    logs.create_topic("u")
    for topic in ("t", "u"):
        append(logs.log(topic), 5)
    checkpoint = Checkpoint()
    with suppress(KilledError):
        Driver(checkpoint, options(logs.path, **before), kill_at=kill_at).drain()
    said = r"offsets in the checkpoint are of topics t, .* does not select: were the sources of the query reordered"
    with pytest.raises(InvalidConfigError, match=said):
        Driver(checkpoint, options(logs.path, failOnDataLoss=fails, **after)).drain()


# Everything at once

_ACTION = st.one_of(
    st.tuples(st.just("append"), st.integers(0, 2), st.integers(1, 8)),
    st.tuples(st.just("roll"), st.integers(0, 2), st.just(0)),
    st.tuples(st.just("topic"), st.just(0), st.just(0)),
    st.tuples(st.just("delete"), st.integers(0, 2), st.just(0)),
    st.tuples(st.just("trigger"), st.just(0), st.just(0)),
    st.tuples(st.just("restart"), st.just(0), st.integers(0, 1)),
    st.tuples(st.just("kill"), st.integers(0, 9), st.integers(0, 1)),
)


@settings(max_examples=40)
@given(
    actions=st.lists(_ACTION, min_size=3, max_size=25),
    limit=st.sampled_from([None, 1, 4, 1000]),
    start=st.sampled_from(["earliest", "latest"]),
)
def test_reads_every_record_once_and_in_order_through_any_change(
    actions: list[tuple[str, int, int]], limit: int | None, start: str
) -> None:
    case()
    with TemporaryDirectory() as scratch, seglog.open(Path(scratch) / "log") as directory:
        directory.create_topic("t0")
        chosen = options(directory.path, startingOffsets=start, subscribePattern="t.*")
        if limit is not None:
            chosen["maxOffsetsPerTrigger"] = str(limit)
        checkpoint = Checkpoint()
        driver = Driver(checkpoint, chosen)
        for action, which, number in actions:
            topics = sorted(directory.topic_names())
            log = directory.log(topics[which % len(topics)])
            match action:
                case "append":
                    append(log, number)
                case "roll":
                    log.roll()
                case "topic" if len(topics) < 3:
                    directory.create_topic(f"t{len(topics)}")
                case "delete":
                    _delete_what_was_read(directory, checkpoint)
                case "trigger":
                    driver.trigger()
                case "restart":
                    driver = Driver(checkpoint, chosen, available_now=bool(number))
                case "kill":
                    dying = Driver(checkpoint, chosen, available_now=bool(number), kill_at=which)
                    append(directory.log("t0"), 1)
                    with suppress(KilledError):
                        dying.drain()
                    driver = Driver(checkpoint, chosen)
        Driver(checkpoint, chosen).drain()
        _check_complete(directory, checkpoint)


def _delete_what_was_read(directory: seglog.LogDir, checkpoint: Checkpoint) -> None:
    for topic, partitions in checkpoint.committed().items():
        directory.log(topic).delete_records(partitions["0"])
    directory.checkpoint()


def _check_complete(directory: seglog.LogDir, checkpoint: Checkpoint) -> None:
    begin = json.loads(checkpoint.offsets[0])
    rows = checkpoint.rows()
    assert max(Counter(rows).values(), default=1) == 1
    for topic in directory.topic_names():
        first = begin.get(topic, {"0": 0})["0"]
        assert [row[2] for row in rows if row[0] == topic] == list(range(first, directory.log(topic).log_end_offset))
