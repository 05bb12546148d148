"""The files that a task of the sink stages, without Spark: once adopted, they must equal a plain model."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import seglog
from seglog.core.errors import (
    AdoptError,
    InvalidConfigError,
    InvalidRecordError,
    InvalidTimestampError,
    RecordTooLargeError,
    SeglogError,
    UnknownTopicError,
)
from seglog.core.ground import Ground
from seglog.records.columns import HEADERS
from seglog.records.partitioner import partition_for_key
from seglog.records.record import Record
from seglog.spark.write.directories import task_writer
from seglog.spark.write.directories.commit_client import TopicTarget
from seglog.spark.write.directories.task_writer import TaskWriter, WritePlan
from seglog.spark.write.write_options import parse_write_options
from seglog.storage.adopt import StagedPart, adopt
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.offline.verify import verify
from tests.cases import case
from tests.kit.manual_clock import ManualClock
from tests.kit.memory_fs import MemoryFs

NOW = 1_700_000_000_000
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("headers", HEADERS),
        ("other", pa.int64()),
    ]
)
Row = dict[str, Any]


def batch(rows: list[Row]) -> pa.RecordBatch:
    arrays = [pa.array([row.get(name) for row in rows], SCHEMA.field(name).type) for name in SCHEMA.names]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def plan_of(directory: LogDir, **options: Any) -> WritePlan:
    targets = {
        name: TopicTarget(info.partitions, directory.log(name).config.overrides())
        for name, info in directory.topics().items()
    }
    if topic := options.get("topic"):
        targets = {topic: targets[topic]}
    return WritePlan(
        job="job",
        directory=directory.path,
        options=replace(parse_write_options({"path": "/"}), **options),
        targets=targets,
    )


def write(directory: LogDir, batches: list[pa.RecordBatch], *, task: str = "0", **options: Any) -> list[StagedPart]:
    rng = np.random.default_rng(7)
    writer = TaskWriter(plan_of(directory, **options), task, fs=directory.fs, clock=directory.clock, rng=rng)
    return writer.write(batches)


def records(directory: LogDir, topic: str, partition: int = 0) -> list[Record]:
    log, found = directory.log(topic, partition), list[Record]()
    while len(found) < log.log_end_offset:
        found += list(log.read(len(found)).records())
    return found


def as_row(record: Record) -> tuple[object, ...]:
    headers = tuple((key, None if value is None else bytes(value)) for key, value in record.headers)
    key, value = (None if data is None else bytes(data) for data in (record.key, record.value))
    return key, value, record.timestamp, headers


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[LogDir]:
    with seglog.open(tmp_path / "log", ground=Ground(clock=ManualClock(NOW))) as opened:
        opened.create_topic("a", 3)
        opened.create_topic("b", 1, {"compression.type": "lz4", "message.timestamp.type": "LogAppendTime"})
        opened.create_topic("compacted", 2, {"cleanup.policy": "compact"})
        yield opened


headers = st.none() | st.lists(
    st.fixed_dictionaries({"key": st.text(max_size=3), "value": st.none() | st.binary(max_size=3)}), max_size=2
)
rows = st.lists(
    st.fixed_dictionaries(
        {
            "key": st.binary(max_size=6),
            "value": st.none() | st.binary(max_size=60),
            "topic": st.sampled_from(["a", "b", "compacted"]),
            "partition": st.none() | st.just(0),
            "timestamp": st.none() | st.integers(0, 2**40).map(lambda ms: ms * 1000),
            "headers": headers,
        }
    ),
    max_size=40,
)


@given(st.lists(rows, max_size=4), st.sampled_from([1, 1 << 9, 1 << 20]), st.sampled_from([80, 300, 16384]))
def test_each_row_is_once_in_its_partition_in_order(
    batches: list[list[Row]], buffer_bytes: int, batch_size: int
) -> None:
    case()
    with seglog.open("/log", ground=Ground(fs=MemoryFs(), clock=ManualClock(NOW))) as directory:
        partitions = {"a": 3, "b": 1, "compacted": 2}
        small = {"segment.index.bytes": "4096"}  # the disk in memory would fill 10 MB for each index
        directory.create_topic("a", 3, small)
        directory.create_topic("b", 1, {**small, "message.timestamp.type": "LogAppendTime"})
        directory.create_topic("compacted", 2, {**small, "cleanup.policy": "compact", "compression.type": "zstd"})
        expected: dict[tuple[str, int], list[tuple[object, ...]]] = {
            (topic, number): [] for topic, count in partitions.items() for number in range(count)
        }
        for row in (row for some in batches for row in some):
            partition = row["partition"]
            if partition is None:
                partition = partition_for_key(row["key"], partitions[row["topic"]])
            stamped = row["timestamp"] is None or row["topic"] == "b"
            expected[row["topic"], partition].append(
                (
                    row["key"],
                    row["value"],
                    NOW if stamped else row["timestamp"] // 1000,
                    tuple((header["key"], header["value"]) for header in row["headers"] or ()),
                )
            )
        parts = write(directory, [batch(some) for some in batches], buffer_bytes=buffer_bytes, batch_size=batch_size)
        adopt(directory, "job", parts, "job:job", 0)
        for (topic, number), wanted in expected.items():
            assert [as_row(record) for record in records(directory, topic, number)] == wanted


def test_rows_without_key_stay_together_until_a_batch_is_full(directory: LogDir) -> None:
    some = batch([{"value": bytes(92)}] * 1000)  # a hundred bytes each, as the sticky partitioner counts
    parts = write(directory, [some, some], topic="a", batch_size=10_000)
    adopt(directory, "job", parts, "job:job", 0)
    counts = [directory.log("a", partition).log_end_offset for partition in range(3)]
    assert sum(counts) == 2000
    assert all(count % 100 == 0 for count in counts)
    assert sorted(counts)[1] > 0


def test_the_option_topic_overrides_the_column(directory: LogDir) -> None:
    parts = write(directory, [batch([{"value": b"v", "topic": "b", "partition": 2}])], topic="a")
    assert [(part.topic, part.partition) for part in parts] == [("a", 2)]


def test_nothing_leaves_nothing(directory: LogDir, tmp_path: Path) -> None:
    assert write(directory, [], topic="a") == []
    assert write(directory, [batch([])], topic="a") == []
    assert list(tmp_path.glob("log/*/.seglog")) == []


@pytest.mark.parametrize(
    ("row", "error", "message"),
    [
        ({"value": b"v"}, InvalidRecordError, "column topic is null"),
        ({"value": b"v", "topic": "c"}, UnknownTopicError, "there is no topic 'c'"),
        ({"value": b"v", "topic": "a", "partition": 3}, InvalidConfigError, "no partition 3 of topic a, which has 3"),
        ({"value": b"v", "topic": "a", "partition": -1}, InvalidConfigError, "no partition -1 of topic a"),
        ({"value": b"v", "topic": "compacted"}, InvalidRecordError, "topic compacted, which is compacted by key"),
        ({"value": bytes(2_000_000), "topic": "a"}, RecordTooLargeError, "max.message.bytes is 1048588"),
        ({"value": b"v", "topic": "a", "timestamp": (NOW + 7_200_000) * 1000}, InvalidTimestampError, ""),
        ({"value": b"v", "topic": "a", "headers": [{"key": None, "value": b""}]}, InvalidRecordError, "has no key"),
    ],
)
def test_a_refused_row_leaves_no_files(
    directory: LogDir, tmp_path: Path, row: Row, error: type[SeglogError], message: str
) -> None:
    good = {"key": b"k", "value": bytes(500), "topic": "a"}
    with pytest.raises(error) as refused:
        write(directory, [batch([good] * 10), batch([row])], buffer_bytes=1000)
    assert message in str(refused.value)
    assert [found for found in tmp_path.glob("log/*/.seglog/staging/job/*") if found.is_dir()] == []


def test_a_worker_that_does_not_see_the_directory_says_so(directory: LogDir, tmp_path: Path) -> None:
    plan = plan_of(directory, topic="a")
    elsewhere = WritePlan(job="job", directory=str(tmp_path / "no"), options=plan.options, targets=plan.targets)
    writer = TaskWriter(elsewhere, "0", fs=directory.fs, clock=directory.clock, rng=np.random.default_rng(1))
    with pytest.raises(AdoptError, match="on a file system that all workers share"):
        writer.write([batch([{"value": b"v"}])])


def test_more_partitions_than_files_may_be_open(
    directory: LogDir, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(task_writer, "MOST_OPEN", 2)
    directory.create_topic("wide", 7)
    some = [{"value": b"%d" % row, "partition": row * 5 % 7} for row in range(70)]
    parts = write(
        directory, [batch(some[start : start + 10]) for start in range(0, 70, 10)], topic="wide", buffer_bytes=1
    )
    assert len(parts) > 7
    assert len({part.directory for part in parts}) == len(parts)
    adopt(directory, "job", parts, "job:job", 0)
    for partition in range(7):
        found = [int(bytes(record.value or b"")) for record in records(directory, "wide", partition)]
        assert found == [row for row in range(70) if row * 5 % 7 == partition]
    directory.close()
    assert list(verify([str(tmp_path / "log")]).findings) == []


def test_memory_does_not_grow_with_the_rows(directory: LogDir) -> None:
    """Of 5 MB of rows and of 40 MB the same buffer of 1 MiB is held."""
    some = batch([{"key": b"%d" % row, "value": bytes(1000)} for row in range(1000)])
    write(directory, [some], topic="a")  # what is loaded and compiled once
    peaks = []
    for count in (5, 40):
        tracemalloc.start()
        write(directory, [some] * count, task=str(count), topic="a", buffer_bytes=1 << 20)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + (1 << 19)
