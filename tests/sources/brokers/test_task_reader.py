"""Records through brokers are the records of the directory, whatever happens to connections, leaders and topics."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pyspark_seglog import DefaultSource
from seglog.client.connection import BrokerConnection
from seglog.core.errors import DataLossError, RequestFailedError, UnknownTopicError
from seglog.core.types import TopicPartition as Partition
from seglog.protocol.apis import ApiKey
from seglog.sources.brokers.planning import BrokerExtent, plan
from seglog.sources.brokers.task_reader import fetch_targets
from seglog.sources.options.read_options import parse_options
from seglog.sources.planning import pack
from seglog.sources.ranges import OffsetRange
from seglog.spark.read.batch_reader import SeglogReader
from seglog.spark.read.stream_reader import SeglogStreamReader
from seglog.testing import Broker, Cluster, TopicFixture
from tests import golden
from tests.broker.python_clients import AdminClient
from tests.cases import case
from tests.kafka.jars import KafkaVersion
from tests.spark.logs import make_reader, offsets, rows
from tests.spark.stream_driver import SCHEMA

COUNT = 2_000
"""Records of topic ``t``, in three partitions."""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """Topic ``t`` in batches of a few records."""
    with Broker({"t": 3, "empty": 2}) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap, "batch.size": 1_000, "linger.ms": 60_000})
        for number in range(COUNT):
            producer.produce("t", b"v%d" % number + b"x" * (number % 90), key=b"k%d" % (number % 50))
        assert producer.flush(30) == 0
        yield broker


def through(broker: Broker | Cluster, **options: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "t", "includeHeaders": "true", **options}


@pytest.mark.parametrize("version", ["4.4.0", "2.8.2"])
def test_every_topic_of_a_golden_directory_has_the_rows_of_its_files(tmp_path: Path, version: KafkaVersion) -> None:
    """All codecs and formats, headers, transactions, compacted and deleted offsets."""
    directory = golden.log_dir(golden.unpack(tmp_path, version))
    wanted = {"path": str(directory), "includeHeaders": "true", "until": "logEnd"}
    keeps = {"log.retention.ms": "-1", "transaction.abort.timed.out.transaction.cleanup.interval.ms": "86400000"}
    with Broker(copy_of=directory, settings=keeps) as broker:
        chosen = {"kafka.bootstrap.servers": broker.bootstrap, "includeHeaders": "true"}
        assert sorted(rows(make_reader(chosen)), key=lambda row: row[:3]) == rows(make_reader(wanted))
        committed = {"isolationLevel": "read_committed"}
        found = sorted(rows(make_reader(chosen | committed)), key=lambda row: row[:3])
        assert found == rows(make_reader(wanted | committed))
        assert len(found) > 100


@settings(max_examples=settings().max_examples // 3)
@given(
    bounds=st.tuples(st.integers(0, 300), st.integers(0, 300)).map(sorted),
    options=st.fixed_dictionaries(
        {},
        optional={
            "minPartitions": st.integers(1, 40).map(str),
            "maxRecordsPerPartition": st.integers(1, 700).map(str),
            "kafka.max.partition.fetch.bytes": st.integers(1, 50_000).map(str),
            "kafka.fetch.max.bytes": st.integers(1, 50_000).map(str),
            "keyEquals": st.integers(0, 60).map(lambda number: f"k{number}"),
        },
    ),
)
def test_any_range_by_any_tasks_and_fetch_sizes(broker: Broker, bounds: list[int], options: dict[str, str]) -> None:
    case()
    low, high = bounds
    span = {
        "startingOffsets": f'{{"t": {{"0": {low}, "1": -2, "2": {low}}}}}',
        "endingOffsets": f'{{"t": {{"0": {high}, "1": -1, "2": {high}}}}}',
    }
    files = make_reader(
        {
            "path": broker.data_dir,
            "until": "logEnd",
            "subscribe": "t",
            "includeHeaders": "true",
            **span,
            **_keys(options),
        }
    )
    found = rows(make_reader(through(broker, **span, **options)))
    assert sorted(found, key=lambda row: row[:3]) == rows(files)


def _keys(options: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in options.items() if name == "keyEquals"}


def test_small_partitions_share_tasks_and_requests() -> None:
    with Broker({"many": TopicFixture(partitions=300, records=[b"v"] * 900)}) as many:
        brokers, directory = {"kafka.bootstrap.servers": many.bootstrap}, {"path": many.data_dir}
        for source in (brokers, {**directory, "until": "logEnd"}, brokers | directory):
            chosen = {**source, "subscribe": "many", "startingOffsets": "earliest", "parallelism": "2"}
            reader = make_reader(chosen)
            assert len(list(reader.partitions())) <= 10
            assert len(offsets(reader)) == 900
            stream = SeglogStreamReader(SCHEMA, parse_options(chosen, stream=True))
            begin = stream.initialOffset()
            end = stream.latestOffset(begin, ReadAllAvailable())
            assert len(stream.partitions(begin, end)) <= 10


@pytest.mark.parametrize("cores", ["1", "8", "300", "4000"])
def test_a_thousand_partitions_with_few_records_are_read_by_fewer_than_fifty_tasks(cores: str) -> None:
    partitions = [Partition("t", number) for number in range(1000)]
    extents = [BrokerExtent(topic_partition=one, log_start=0, log_end=3, until=3, topic_id=None) for one in partitions]
    ranges = dict.fromkeys(partitions, OffsetRange(0, 3))
    planned = plan(extents, ranges, {}, max_bytes=128 << 20, cores=int(cores))
    reader = make_reader({"kafka.bootstrap.servers": "none:9", "parallelism": cores})
    tasks = reader.input_partitions(planned)
    assert len(tasks) < 50
    assert [one.topic_partition for task in tasks for one in task.value] == partitions


def test_ranges_of_one_partition_in_one_task() -> None:
    """A large partition is divided, and beside thousands of small ones its ranges may share a task."""
    partition = Partition("t", 0)
    extents = [BrokerExtent(topic_partition=partition, log_start=0, log_end=90_000, until=90_000, topic_id=None)]
    extents += [
        BrokerExtent(topic_partition=Partition("t", number), log_start=0, log_end=1, until=1, topic_id=None)
        for number in range(1, 10_000)
    ]
    ranges = {one.topic_partition: OffsetRange(0, one.until) for one in extents}
    planned = plan(extents, ranges, {partition: 500.0}, max_bytes=128 << 20, cores=4)
    task = pack(planned, max_bytes=128 << 20, cores=4)[0]
    assert [one.topic_partition for one in task[:2]] == [partition, partition]
    targets = fetch_targets(task)
    assert len({one.topic_partition for one in targets}) == len(targets)
    assert (targets[0].start, targets[0].end) == (0, 90_000)


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_a_plan_asks_each_broker_once_for_each_fact(
    monkeypatch: pytest.MonkeyPatch, skewed: Broker, isolation: str
) -> None:
    asked: Counter[ApiKey] = Counter()
    send = BrokerConnection.send

    def counted(self: BrokerConnection, key: ApiKey, contents: Mapping[str, Any], **options: Any) -> None:
        asked[key] += 1
        send(self, key, contents, **options)

    monkeypatch.setattr(BrokerConnection, "send", counted)
    reader = make_reader(through(skewed, parallelism="4", isolationLevel=isolation))
    tasks = list(reader.partitions())
    bounds = 3 if isolation == "read_committed" else 2
    assert asked == {ApiKey.METADATA: 1, ApiKey.LIST_OFFSETS: bounds, ApiKey.FETCH: 2}
    # The samples show that one partition, whose batches are larger than a sample, has nearly all bytes.
    ranges = [one.topic_partition.partition for task in tasks for one in task.value]
    assert ranges.count(0) >= 3
    assert ranges.count(1) == 1


@pytest.fixture(scope="module")
def skewed() -> Iterator[Broker]:
    """Topic ``t`` with 200 large records in partition 0 and 10,000 small ones in 20 others."""
    with Broker({"t": 21}) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap, "message.max.bytes": 2_000_000})
        for _ in range(200):
            producer.produce("t", b"v" * 90_000, partition=0)
        for number in range(10_000):
            producer.produce("t", b"v", partition=1 + number % 20)
        assert producer.flush(30) == 0
        yield broker


def test_an_empty_topic_and_an_empty_range(broker: Broker) -> None:
    assert offsets(make_reader(through(broker, subscribe="empty"))) == []
    same = '{"t": {"0": 5, "1": 5, "2": 5}}'
    assert offsets(make_reader(through(broker, startingOffsets=same, endingOffsets=same))) == []


@pytest.mark.parametrize("nothing", ["{}", '{"t": []}', '{"no-such": []}'])
@pytest.mark.parametrize("view", ["records", "latest", "batches"])
def test_no_partition_assigned(broker: Broker, nothing: str, view: str) -> None:
    source = DefaultSource({"kafka.bootstrap.servers": broker.bootstrap, "assign": nothing, "view": view})
    assert list(source.reader(schema=source.schema()).partitions()) == []


def test_one_word_for_all_partitions_of_a_topic(broker: Broker) -> None:
    chosen = {"subscribe": "t,empty", "startingOffsets": '{"t": "earliest", "empty": {"0": 0, "1": -2}}'}
    reader = make_reader(through(broker, **chosen, endingOffsets='{"t": "latest", "empty": "latest"}'))
    assert len(offsets(reader)) == COUNT


def test_a_task_that_is_given_up_leaves_nothing_to_the_next(broker: Broker) -> None:
    """As with a limit: Spark stops reading, and the worker keeps its connections."""
    reader = make_reader(through(broker, **{"kafka.max.partition.fetch.bytes": "2000"}))
    (task, *_) = reader.partitions()
    next(reader.read(task))  # the rest of it is dropped
    found = places(reader, [task])
    assert [offset for _, offset in found] == list(range(len(found)))
    assert len(found) > 100


# What happens meanwhile


@pytest.fixture
def faulty(broker: Broker) -> Iterator[Broker]:
    yield broker
    broker.faults.assert_all_fired()
    broker.faults.clear()


def places(reader: SeglogReader, tasks: list[Any]) -> list[tuple[int, int]]:
    """Partition and offset of every record, by partition and in the order of arrival."""
    found = [
        place
        for task in tasks
        for batch in reader.read(task)
        for place in zip(batch.column("partition").to_pylist(), batch.column("offset").to_pylist(), strict=True)
    ]
    return sorted(found, key=lambda place: place[0])


@pytest.mark.parametrize("code", ["NOT_LEADER_OR_FOLLOWER", "UNKNOWN_SERVER_ERROR", "KAFKA_STORAGE_ERROR"])
def test_a_retriable_error_is_retried(faulty: Broker, code: str) -> None:
    reader = make_reader(through(faulty))
    tasks = list(reader.partitions())
    faulty.fail("Fetch", error=code, topic="t", partition=1, times=2)
    found = places(reader, tasks)
    assert found == sorted(found)
    assert len(set(found)) == len(found) == COUNT


@pytest.mark.parametrize("effect", ["lose", "cut", "throttle", "delay"])
def test_each_record_is_there_once_whatever_becomes_of_answers(faulty: Broker, effect: str) -> None:
    reader = make_reader(through(faulty, **{"kafka.max.partition.fetch.bytes": "2000"}))
    tasks = list(reader.partitions())
    if effect == "lose":
        faulty.lose("Fetch", nth=2, times=3)
    elif effect == "cut":
        faulty.cut("Fetch", size=700, nth=2, times=3)
    elif effect == "throttle":
        faulty.throttle("Fetch", seconds=0.05, nth=2, times=3)
    else:
        faulty.delay("Fetch", seconds=0.05, nth=2, times=3)
    found = places(reader, tasks)
    assert found == sorted(found)
    assert len(set(found)) == len(found) == COUNT


def test_an_error_that_stays_names_partition_broker_and_reason(faulty: Broker) -> None:
    reader = make_reader(through(faulty, **{"kafkaConsumer.pollTimeoutMs": "300"}))
    tasks = list(reader.partitions())
    faulty.fail("Fetch", error="NOT_LEADER_OR_FOLLOWER", topic="t", partition=1, times=None)
    message = f"t-1: no records from offset 0 on for 0.3 seconds: broker {faulty.bootstrap}: NOT_LEADER_OR_FOLLOWER"
    with pytest.raises(RequestFailedError, match=message):
        places(reader, tasks)


def test_a_missing_leader_is_looked_up_now_and_then(faulty: Broker) -> None:
    """With pauses, also if another partition of the task is done and its broker has throttled before."""
    faulty.create_topic("gone", records=[b"v"])
    reader = make_reader(through(faulty, subscribe="gone,t", **{"kafkaConsumer.pollTimeoutMs": "1500"}))
    ranges = [part for task in reader.partitions() for part in task.value if part.topic_partition.partition == 0]
    admin = AdminClient({"bootstrap.servers": faulty.bootstrap})
    admin.delete_topics(["gone"])["gone"].result(60)
    faulty.throttle("Fetch", seconds=0.05, times=None)
    lookups = faulty.delay("Metadata", seconds=0.0, times=None)
    with pytest.raises(DataLossError, match=r"gone-0 was deleted: offsets 0 to 0 of gone-0 were not read"):
        places(reader, [InputPartition(tuple(ranges))])
    assert 1 < lookups.fired < 30


def test_an_error_that_no_retry_mends_is_raised_at_once(faulty: Broker) -> None:
    reader = make_reader(through(faulty))
    tasks = list(reader.partitions())
    faulty.fail("Fetch", error="TOPIC_AUTHORIZATION_FAILED", topic="t", partition=2)
    with pytest.raises(RequestFailedError, match=r"t-2, offset 0: broker .*: TOPIC_AUTHORIZATION_FAILED"):
        places(reader, tasks)


def test_offsets_are_asked_again_while_a_leader_is_missing(faulty: Broker) -> None:
    faulty.fail("ListOffsets", error="LEADER_NOT_AVAILABLE", topic="t", partition=0, times=2)
    reader = make_reader(through(faulty, **{"fetchOffset.retryIntervalMs": "1"}))
    assert len(offsets(reader)) == COUNT


def test_a_topic_that_does_not_exist_is_named_with_the_broker(broker: Broker) -> None:
    with pytest.raises(UnknownTopicError, match=f"{broker.bootstrap}: there is no topic 'nowhere'"):
        make_reader(through(broker, subscribe="nowhere")).partitions()


def test_a_stream_waits_for_a_broker_that_starts_again(faulty: Broker) -> None:
    """A batch query fails at once, and so does a stream that begins."""
    chosen = through(faulty, startingOffsets="earliest")
    stream = SeglogStreamReader(SCHEMA, parse_options(chosen, stream=True))
    begin = stream.initialOffset()
    faulty.lose("Metadata", times=4)
    assert sum(stream.latestOffset(begin, ReadAllAvailable())["t"].values()) == COUNT
    faulty.faults.assert_all_fired()
    faulty.lose("Metadata", times=4)
    with pytest.raises(RequestFailedError, match="the broker has closed the connection"):
        make_reader(through(faulty)).partitions()
    faulty.faults.clear()


def test_no_broker_is_named_with_the_reason() -> None:
    reader = make_reader({"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"})
    with pytest.raises(RequestFailedError, match=r"no broker answers at 127\.0\.0\.1:1: Connection refused"):
        reader.partitions()


def test_records_that_were_deleted_after_planning_are_lost(caplog: pytest.LogCaptureFixture) -> None:
    with Broker({"t": [b"v"] * 100}) as broker:
        reader, lax = (make_reader(through(broker, failOnDataLoss=fails)) for fails in ("true", "false"))
        tasks = list(reader.partitions())
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for done in admin.delete_records([TopicPartition("t", 0, 40)]).values():
            done.result(60)
        with pytest.raises(DataLossError, match="t-0: offsets 0 to 39 were deleted before they were read; set option"):
            places(reader, tasks)
        with caplog.at_level(logging.WARNING, "seglog.spark"):
            assert [offset for _, offset in places(lax, tasks)] == list(range(40, 100))
    assert "data was lost: t-0: offsets 0 to 39" in caplog.text


def test_a_topic_that_was_created_again_is_another_topic() -> None:
    with Broker({"t": [b"v"] * 10}) as broker:
        reader = make_reader(through(broker))
        tasks = list(reader.partitions())
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for done in admin.delete_topics(["t"]).values():
            done.result(60)
        broker.create_topic("t", records=[b"other"] * 10)
        with pytest.raises(DataLossError, match="topic t was deleted and created again"):
            places(reader, tasks)


def test_a_task_follows_the_leader_when_a_broker_dies() -> None:
    with Cluster({"t": 1}, brokers=3) as cluster:
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "batch.size": 10_000})
        for _ in range(5000):
            producer.produce("t", b"v" * 200)
        assert producer.flush(30) == 0
        reader = make_reader(through(cluster, **{"kafka.max.partition.fetch.bytes": "20000", "parallelism": "1"}))
        (task,) = reader.partitions()
        found = []
        for number, batch in enumerate(reader.read(task)):
            found += batch.column("offset").to_pylist()
            if number == 3:
                leader = cluster.leader("t", 0)
                assert leader is not None
                cluster[leader].kill()
        assert found == list(range(5000))
