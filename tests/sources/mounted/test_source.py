"""Records from a mounted directory and through brokers together are those of the brokers, whatever the mount is."""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadMaxRows

from pyspark_seglog import DefaultSource
from seglog.records.batch import build_batch, entries, read_header
from seglog.records.record import decode_records, encode_records
from seglog.sources.mounted.planning import MountedRange, Part, SharedRange
from seglog.spark.read.batch_reader import SeglogReader
from seglog.spark.read.stream_reader import SeglogStreamReader
from seglog.testing import Broker, TopicFixture
from seglog.testing.directory_copy import copy_directory
from tests import golden
from tests.broker.python_clients import AdminClient
from tests.cases import case
from tests.kit import interleaved_transactions as interleaved
from tests.spark.brokers import Brokers
from tests.spark.logs import batches, make_reader, offsets, rows

COUNT: Final = 1_500
"""Records of topic ``t``, in three partitions."""
SMALL: Final = {"internal.segment.bytes": "6000", "index.interval.bytes": "500", "retention.ms": "-1"}

KEEPS: Final = {"log.retention.ms": "-1"}


def produce(broker: Broker, topic: str, numbers: Sequence[int], partitions: int = 1) -> None:
    """In batches of a few records."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "batch.size": 1_000, "linger.ms": 60_000})
    for number in numbers:
        value, key = b"v%d" % number + b"x" * (number % 90), b"k%d" % (number % 50)
        producer.produce(topic, value, key, partition=number % partitions)
    assert producer.flush(30) == 0


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"t": TopicFixture(partitions=3, config=SMALL)}) as broker:
        produce(broker, "t", range(COUNT), partitions=3)
        yield broker


def both(broker: Broker, mount: str | Path | None = None, **options: str) -> dict[str, str]:
    """Options that name the broker and ``mount``, or the broker's own directory."""
    through = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "t", "includeHeaders": "true"}
    return {**through, "path": str(mount or broker.data_dir), **options}


def fetched(options: dict[str, str]) -> dict[str, str]:
    """The same through the brokers alone."""
    return {name: value for name, value in options.items() if name != "path"}


def in_order(found: Sequence[tuple[object, ...]]) -> list[Any]:
    return sorted(found, key=lambda row: row[:3])


def parts_of(tasks: Sequence[Any]) -> list[Part]:
    return [part for task in tasks for shared in task.value for part in shared.parts]


def from_files(reader: SeglogReader) -> int:
    """How many offsets its tasks read from files."""
    return sum(part.offsets.size for part in parts_of(reader.partitions()) if isinstance(part, MountedRange))


def assert_same(options: dict[str, str]) -> None:
    assert in_order(rows(make_reader(options))) == in_order(rows(make_reader(fetched(options))))


def test_sealed_segments_come_from_files_and_the_rest_from_the_broker(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    options = both(broker)
    with caplog.at_level(logging.INFO, "seglog.spark"):
        assert_same(options)
    covered = from_files(make_reader(options))
    assert COUNT * 0.8 < covered < COUNT
    assert f"{covered} of {COUNT} offsets are read from files" in caplog.text
    assert "through the brokers, not from" not in caplog.text


def test_files_are_read_without_a_broker(broker: Broker) -> None:
    reader = make_reader(both(broker))
    files = [part for part in parts_of(reader.partitions()) if isinstance(part, MountedRange)]
    tasks = [InputPartition((SharedRange(parts=(part,)),)) for part in files]
    broker.fail("Fetch", error="TOPIC_AUTHORIZATION_FAILED", times=None)
    try:
        read = sum(batch.num_rows for task in tasks for batch in reader.read(task))
    finally:
        broker.faults.clear()
    assert read == sum(part.offsets.size for part in files) > COUNT / 2


@settings(max_examples=settings().max_examples // 4)
@given(
    bounds=st.tuples(st.integers(0, COUNT // 3), st.integers(0, COUNT // 3)).map(sorted),
    options=st.fixed_dictionaries(
        {},
        optional={
            "minPartitions": st.integers(1, 40).map(str),
            "maxRecordsPerPartition": st.integers(30, 700).map(str),
            "maxBytesPerPartition": st.integers(5_000, 50_000).map(str),
            "keyEquals": st.integers(0, 60).map(lambda number: f"k{number}"),
            "mode": st.just("permissive"),
            "isolationLevel": st.just("read_committed"),
        },
    ),
)
def test_any_range_by_any_tasks(broker: Broker, bounds: list[int], options: dict[str, str]) -> None:
    case()
    low, high = bounds
    span = {
        "startingOffsets": f'{{"t": {{"0": {low}, "1": -2, "2": {low}}}}}',
        "endingOffsets": f'{{"t": {{"0": {high}, "1": -1, "2": {high}}}}}',
    }
    assert_same(both(broker, **span, **options))


@pytest.mark.parametrize("option", ["minPartitions", "maxRecordsPerPartition"])
def test_options_that_divide_make_the_tasks_of_brokers_alone(broker: Broker, option: str) -> None:
    options = both(broker, **{option: "17"})
    alone = [[(one.topic_partition, one.offsets) for one in task.value] for task in _tasks(fetched(options))]
    shared = [
        [(one.parts[0].topic_partition, (one.parts[0].offsets.start, one.parts[-1].offsets.end)) for one in task.value]
        for task in _tasks(options)
    ]
    assert shared == alone
    assert max(len(one.parts) for task in _tasks(options) for one in task.value) > 1


def _tasks(options: dict[str, str]) -> Sequence[Any]:
    return make_reader(options).partitions()


# Mounts that are something else


@pytest.fixture
def changing() -> Iterator[Broker]:
    """A broker that a test changes."""
    with Broker({"t": TopicFixture(config=SMALL)}, settings=KEEPS) as broker:
        produce(broker, "t", range(1_000))
        yield broker


def copied(broker: Broker, tmp_path: Path) -> Path:
    """Its directory as it is now. The broker leads in a new epoch afterwards."""
    broker.stop()
    copy_directory(broker.data_dir, str(tmp_path / "copy"))
    broker.start()
    return tmp_path / "copy"


def assert_refused(options: dict[str, str], reason: str) -> None:
    with pytest.warns(UserWarning, match=f"is read through the brokers, not from .*: {reason}"):
        assert from_files(make_reader(options)) == 0
    with pytest.warns(UserWarning, match=reason):
        assert_same(options)


def test_a_directory_of_another_cluster(changing: Broker) -> None:
    with Broker({"t": TopicFixture(config=SMALL)}) as other:
        produce(other, "t", range(2_000, 3_000))
        assert_refused(both(changing, other.data_dir), "it belongs to cluster .*, and the brokers to")


def test_a_mount_that_is_away(changing: Broker, tmp_path: Path) -> None:
    assert_refused(both(changing, tmp_path / "nothing"), "path .* does not exist")


def test_a_topic_that_was_created_again(changing: Broker, tmp_path: Path) -> None:
    mount = copied(changing, tmp_path)
    create_again(changing)
    assert_refused(both(changing, mount), "it is of a topic of the same name with another id")


def create_again(broker: Broker) -> None:
    """The same topic, with other records in the same leader epoch."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for done in admin.delete_topics(["t"]).values():
        done.result(60)
    broker.create_topic("t", config=SMALL)
    produce(broker, "t", range(5_000, 6_000))


def test_a_compacted_topic() -> None:
    # The cleaner would leave one segment, and then nothing is read from files anyway.
    config = {**SMALL, "cleanup.policy": "compact", "min.compaction.lag.ms": "3600000"}
    with Broker({"t": TopicFixture(config=config)}) as broker:
        produce(broker, "t", range(500))
        assert_refused(both(broker), "the topic is compacted")


def test_a_cluster_that_does_not_answer_about_epochs(changing: Broker) -> None:
    changing.fail("OffsetForLeaderEpoch", error="NOT_LEADER_OR_FOLLOWER", times=None)
    assert_refused(both(changing), "the leader does not answer about its epochs")


def test_a_cluster_that_does_not_describe_the_topic(changing: Broker) -> None:
    changing.fail("DescribeConfigs", error="TOPIC_AUTHORIZATION_FAILED", times=None)
    assert_refused(both(changing), "the brokers do not say whether it is compacted")


def test_an_old_copy_is_read_as_far_as_it_goes(changing: Broker, tmp_path: Path) -> None:
    mount = copied(changing, tmp_path)
    produce(changing, "t", range(1_000, 2_000))
    options = both(changing, mount)
    assert 500 < from_files(make_reader(options)) < 1_000
    assert_same(options)


def test_deleted_records_are_not_read_from_a_copy(changing: Broker, tmp_path: Path) -> None:
    mount = copied(changing, tmp_path)
    admin = AdminClient({"bootstrap.servers": changing.bootstrap})
    for done in admin.delete_records([TopicPartition("t", 0, 400)]).values():
        done.result(60)
    options = both(changing, mount)
    assert from_files(make_reader(options)) > 100
    assert offsets(make_reader(options)) == list(range(400, 1_000))
    assert_same(options)


# Mounts that change after planning


def planned(broker: Broker, mount: Path, **options: str) -> tuple[SeglogReader, list[Any]]:
    reader = make_reader(both(broker, mount, **options))
    tasks = list(reader.partitions())
    assert from_files(reader) > 500
    return reader, tasks


def assert_read_through_brokers(
    broker: Broker, reader: SeglogReader, tasks: list[Any], caplog: pytest.LogCaptureFixture, reason: str
) -> None:
    """The rows are those of the broker; the log says how many of them were not read from files, and why."""
    with caplog.at_level(logging.WARNING, "seglog.spark"):
        found = [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]
    wanted = [row for batch in batches(make_reader(fetched(both(broker)))) for row in batch.to_pylist()]
    assert found == wanted
    told = rf"of \d+ offsets of t-0, from \d+ on, are read through the brokers, not from .*: .*{reason}"
    assert re.search(told, caplog.text)


def test_segments_that_were_deleted(changing: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mount = copied(changing, tmp_path)
    reader, tasks = planned(changing, mount)
    for log in sorted((mount / "t-0").glob("*.log"))[2:]:
        log.unlink()
    assert_read_through_brokers(changing, reader, tasks, caplog, "No such file")


def test_a_worker_without_the_mount(changing: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mount = copied(changing, tmp_path)
    reader, tasks = planned(changing, mount)
    mount.rename(tmp_path / "elsewhere")
    assert_read_through_brokers(changing, reader, tasks, caplog, "")


def test_a_worker_that_sees_another_directory(
    changing: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mount = copied(changing, tmp_path)
    reader, tasks = planned(changing, mount)
    with Broker({"t": TopicFixture(config=SMALL)}) as other:
        produce(other, "t", range(2_000, 3_000))
        shutil.rmtree(mount)
        copied(other, tmp_path)
    assert_read_through_brokers(changing, reader, tasks, caplog, "this host has directory")


def test_a_directory_that_is_now_of_another_topic(changing: Broker, tmp_path: Path) -> None:
    """Its records have the same offsets, in the same leader epoch."""
    mount = copied(changing, tmp_path)
    _, tasks = planned(changing, mount)
    lax = make_reader(both(changing, mount, failOnDataLoss="false"))
    shutil.rmtree(mount)
    create_again(changing)
    copied(changing, tmp_path)
    assert [batch for task in tasks for batch in lax.read(task)] == []


def test_bytes_that_are_damaged(changing: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mount = copied(changing, tmp_path)
    log = sorted((mount / "t-0").glob("*.log"))[1]
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)
    reader, tasks = planned(changing, mount)
    assert_read_through_brokers(changing, reader, tasks, caplog, "")


def test_batches_of_another_epoch(changing: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As after a power cut that brought back the end of a log, and not its file of epochs."""
    mount = copied(changing, tmp_path)
    change_batches(mount, lambda batch: batch[:12] + (99).to_bytes(4, "big") + batch[16:])
    reader, tasks = planned(changing, mount)
    assert_read_through_brokers(changing, reader, tasks, caplog, "its batches have other leader epochs")


def test_batches_that_are_missing(changing: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As a cleaner left them when the topic was compacted for a while."""
    mount = copied(changing, tmp_path)
    change_batches(mount, lambda _: b"")
    reader, tasks = planned(changing, mount)
    assert_read_through_brokers(changing, reader, tasks, caplog, "offsets are missing between its batches")


def test_records_that_are_missing(changing: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mount = copied(changing, tmp_path)
    change_batches(mount, without_its_last_record)
    reader, tasks = planned(changing, mount)
    assert_read_through_brokers(changing, reader, tasks, caplog, "records are missing in its batches")


def change_batches(mount: Path, change: Callable[[bytes], bytes]) -> None:
    """Change a batch in the middle of the second segment, and remove the index, whose positions are no longer right."""
    log = sorted((mount / "t-0").glob("*.log"))[1]
    data = log.read_bytes()
    found = [data[one.position : one.position + one.size] for one in entries(data)]
    found[len(found) // 2] = change(found[len(found) // 2])
    log.write_bytes(b"".join(found))
    log.with_suffix(".index").unlink()


def without_its_last_record(batch: bytes) -> bytes:
    """The same batch as a cleaner writes it, which keeps the last offset."""
    header = read_header(batch)
    kept = decode_records(batch, header)[:-1]
    area = encode_records(kept, base_offset=header.base_offset, base_timestamp=header.base_timestamp)
    return bytes(build_batch(header._replace(records_count=len(kept)), area))


# Histories of the log


def test_a_diverged_follower_is_read_up_to_where_it_diverges(tmp_path: Path) -> None:
    """A deposed leader has records above the high watermark that the later leader never had, at the same offsets."""
    replicas = Brokers(tmp_path, count=2)
    replicas.lead(1, 1)
    replicas.append(1, 60)
    replicas.follow(2, 1)
    replicas.append(1, 60, value=b"only here ")  # 60 to 119, in epoch 1
    replicas.lead(2, 2)
    replicas.append(2, 90)  # 60 to 149, in epoch 2
    replicas.commit(150, 2)
    replicas.close()
    with Broker(data_dir=tmp_path / "b2", settings=KEEPS) as broker:
        options = both(broker, tmp_path / "b1")
        assert 40 < from_files(make_reader(options)) <= 60
        assert_same(options)
        whole = both(broker, f"{tmp_path}/b*")  # of several replicas the one that has the most
        assert 100 < from_files(make_reader(whole)) < 150
        assert_same(whole)


def test_a_follower_that_only_lags_is_read_to_its_end(tmp_path: Path) -> None:
    replicas = Brokers(tmp_path, count=2)
    for epoch in (1, 3, 4):
        replicas.lead(1, epoch)
        replicas.append(1, 40)
    replicas.follow(2, 1)
    replicas.lead(1, 7)
    replicas.append(1, 40)
    replicas.commit(160, 1)
    replicas.close()
    with Broker(data_dir=tmp_path / "b1", settings=KEEPS) as broker:
        options = both(broker, tmp_path / "b2")
        assert 90 < from_files(make_reader(options)) < 120
        assert_same(options)


@pytest.mark.parametrize("change", ["written", "records deleted"])
def test_transactions(tmp_path: Path, change: interleaved.Change) -> None:
    """Interleaved, aborted, and one that stays open, over many segments."""
    written = interleaved.write(tmp_path / "log", change)
    with Broker(copy_of=tmp_path / "log", settings=KEEPS) as broker:
        options = both(broker, tmp_path / "log", subscribe=interleaved.TOPIC)
        assert_same(options)
        committed = {**options, "isolationLevel": "read_committed"}
        assert from_files(make_reader(committed)) > len(written.committed) / 2
        found = {row[2]: row[6] for row in rows(make_reader(committed))}
        assert found == written.committed
        assert_same({**committed, "includeControl": "true"})


@pytest.mark.parametrize("start", range(0, 300, 23))
def test_transactions_from_any_offset(interleaved_broker: tuple[Broker, Path], start: int) -> None:
    broker, mount = interleaved_broker
    span = {
        "startingOffsets": f'{{"{interleaved.TOPIC}": {{"0": {start}}}}}',
        "endingOffsets": f'{{"{interleaved.TOPIC}": {{"0": {start + 40}}}}}',
    }
    options = both(broker, mount, subscribe=interleaved.TOPIC, isolationLevel="read_committed", **span)
    assert_same(options)


@pytest.fixture(scope="module")
def interleaved_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, Path]]:
    path = tmp_path_factory.mktemp("interleaved") / "log"
    interleaved.write(path, "written")
    with Broker(copy_of=path, settings=KEEPS) as broker:
        yield broker, path


def test_a_mount_without_a_snapshot_of_transactions(tmp_path: Path) -> None:
    interleaved.write(tmp_path / "log", "written")
    with Broker(copy_of=tmp_path / "log", settings=KEEPS) as broker:
        for snapshot in (tmp_path / "log").glob("*/*.snapshot"):
            snapshot.unlink()
        options = both(broker, tmp_path / "log", subscribe=interleaved.TOPIC, isolationLevel="read_committed")
        assert_refused(options, "it has no snapshot of its transactions")


def test_a_directory_of_kafka(tmp_path: Path) -> None:
    """All codecs, headers, transactions, leader epochs, compacted and deleted offsets, as Kafka 4.4 wrote them."""
    directory = golden.log_dir(golden.unpack(tmp_path, "4.4.0"))
    with Broker(copy_of=directory, settings=KEEPS) as broker:
        options = both(broker, directory)
        del options["subscribe"]
        assert from_files(make_reader(options)) > 1_000
        assert_same(options)
        assert_same({**options, "isolationLevel": "read_committed"})


def test_a_directory_of_a_kafka_without_topic_ids(tmp_path: Path) -> None:
    directory = golden.log_dir(golden.unpack(tmp_path, "2.8.2"))
    with Broker(copy_of=directory, settings=KEEPS) as broker:
        options = both(broker, directory)
        del options["subscribe"]
        assert_refused(options, "it has no topic id")


# Streams and views


def test_a_stream_moves_between_both_and_brokers(broker: Broker) -> None:
    options = both(broker, startingOffsets="earliest", columns="partition, offset")
    found: list[tuple[int, int]] = []
    position: dict[str, Any] | None = None
    for number in range(5):
        source = DefaultSource(options if number % 2 else fetched(options))
        stream = source.streamReader(source.schema())
        assert isinstance(stream, SeglogStreamReader)
        start = stream.initialOffset() if position is None else position
        end = stream.latestOffset(start, ReadMaxRows(COUNT // 4))
        if end == start:  # the first batch pins the start
            end = stream.latestOffset(start, ReadMaxRows(COUNT // 4))
        tasks = stream.partitions(start, end)
        assert (number % 2 == 1) == any(isinstance(part, MountedRange) for part in _parts_if_shared(tasks))
        for task in tasks:
            for batch in stream.read(task):
                assert isinstance(batch, pa.RecordBatch)
                found += [(row["partition"], row["offset"]) for row in batch.to_pylist()]
        position = json.loads(json.dumps(end))
    assert sorted(found) == [(partition, offset) for partition in range(3) for offset in range(COUNT // 3)]


def _parts_if_shared(tasks: Sequence[Any]) -> list[Part]:
    return parts_of([task for task in tasks if isinstance(task.value[0], SharedRange)])


def test_views(broker: Broker) -> None:
    def view(options: dict[str, str], name: str) -> list[dict[str, Any]]:
        source = DefaultSource({**options, "view": name})
        reader = source.reader(source.schema())
        found = (batch for task in reader.partitions() for batch in reader.read(task))
        return [row for batch in found if isinstance(batch, pa.RecordBatch) for row in batch.to_pylist()]

    options = both(broker)
    assert view(options, "batches") == view(fetched(options), "batches")
    with pytest.warns(UserWarning, match="is in use"):
        assert len(view(options, "segments")) > 6
