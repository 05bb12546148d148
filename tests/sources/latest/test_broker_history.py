"""The newest values through brokers: those of the directory, and what a compacted topic's unknown point forbids."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_seglog import DefaultSource
from seglog.client.kept_connections import close_all
from seglog.core.errors import DataLossError, InvalidRecordError, OffsetOutOfRangeError
from seglog.core.types import TopicPartition
from seglog.faults.topic_fixture import TopicFixture
from seglog.testing import Broker
from tests import golden
from tests.cases import case
from tests.kafka.jars import CURRENT
from tests.sources.latest.latest_reading import latest, latest_in

COMPACT = {"cleanup.policy": "compact"}
_AS_IT_IS = {"log.retention.ms": "-1", "transaction.abort.timed.out.transaction.cleanup.interval.ms": "3600000"}
"""A broker of a copied directory deletes nothing and ends no transaction that is open there."""


@pytest.fixture
def broker() -> Iterator[Broker]:
    """``plain`` and ``compacted``, of two partitions each."""
    topics = {"plain": TopicFixture(partitions=2), "compacted": TopicFixture(partitions=2, config=COMPACT)}
    with Broker(topics) as broker:
        yield broker
    close_all()


def produce(broker: Broker, topic: str, *items: tuple[bytes, bytes | None]) -> None:
    """Each item as a batch of partition 1."""
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for key, value in items:
        producer.produce(topic, value, key, 1)
        assert producer.flush(30) == 0


def through(broker: Broker, topic: str, **options: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic, **options}


def values(broker: Broker, topic: str, **options: str) -> dict[bytes, bytes]:
    return {key: value for (_, key), (_, value) in latest(through(broker, topic, **options)).items()}


def test_every_topic_of_kafkas_directory_has_the_newest_values_of_its_files(tmp_path: Path) -> None:
    directory = golden.log_dir(golden.unpack(tmp_path, CURRENT))
    topics = sorted({name.rsplit("-", 1)[0] for name in golden.partitions(directory.parent)})
    compared = 0
    with Broker(copy_of=directory, settings=_AS_IT_IS) as broker:
        for topic in topics:
            if topic.startswith("__"):
                continue
            try:
                wanted = latest_in(directory, subscribe=topic, until="logEnd", isolationLevel="read_committed")
            except InvalidRecordError:
                continue
            assert latest(through(broker, topic, isolationLevel="read_committed")) == wanted
            compared += bool(wanted)
            case()
    close_all()
    assert compared > 5


def test_as_of_an_earlier_offset_only_where_nothing_is_compacted(broker: Broker) -> None:
    ending = {"0": 0, "1": 2}
    for topic in "plain", "compacted":
        produce(broker, topic, (b"a", b"1"), (b"b", b"2"), (b"a", b"3"))
        assert values(broker, topic) == {b"a": b"3", b"b": b"2"}
    plain = values(broker, "plain", endingOffsets=json.dumps({"plain": ending}))
    assert plain == {b"a": b"1", b"b": b"2"}
    with pytest.raises(
        OffsetOutOfRangeError, match=r"option endingOffsets: .* of compacted-1 as of offset 2 .*brokers do"
    ):
        values(broker, "compacted", endingOffsets=json.dumps({"compacted": ending}))


def test_a_topic_whose_configuration_is_hidden_counts_as_compacted(broker: Broker) -> None:
    produce(broker, "plain", (b"a", b"1"), (b"a", b"2"))
    ending = json.dumps({"plain": {"0": 0, "1": 1}})
    broker.fail("DescribeConfigs", error="TOPIC_AUTHORIZATION_FAILED")
    with pytest.raises(OffsetOutOfRangeError, match="of plain-1 as of offset 1"):
        values(broker, "plain", endingOffsets=ending)
    broker.faults.assert_all_fired()


@pytest.mark.parametrize("chosen", [{"subscribe": "plain,compacted"}, {"subscribePattern": ".*"}])
def test_a_topic_that_is_deleted_while_a_query_is_planned(broker: Broker, chosen: dict[str, str]) -> None:
    """Between the offsets and the configuration. The task notices it, and says so as any task does."""
    produce(broker, "plain", (b"a", b"1"))
    produce(broker, "compacted", (b"b", b"2"))
    broker.fail("DescribeConfigs", error="UNKNOWN_TOPIC_OR_PARTITION", times=1)
    options = {"kafka.bootstrap.servers": broker.bootstrap, **chosen}
    assert {key for _, key in latest(options)} == {b"a", b"b"}
    broker.faults.assert_all_fired()


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_topic_that_is_deleted_before_its_end_is_reached(
    broker: Broker, fails: str, caplog: pytest.LogCaptureFixture
) -> None:
    produce(broker, "compacted", (b"a", b"1"), (b"b", b"2"))
    source = DefaultSource({"view": "latest", **through(broker, "compacted", failOnDataLoss=fails)})
    reader = source.reader(schema=source.schema())
    planned = reader.partitions()
    broker.fail("Metadata", error="UNKNOWN_TOPIC_OR_PARTITION", topic="compacted", times=None)
    said = "compacted-1 was deleted while its newest values were read, up to 2"
    if fails == "true":
        with pytest.raises(DataLossError, match=said):
            _keys(reader, planned)
    else:
        assert _keys(reader, planned) == {b"a", b"b"}
        assert said in caplog.text


def _keys(reader: DataSourceReader, planned: Sequence[InputPartition]) -> set[bytes]:
    found: set[bytes] = set()
    for partition in planned:
        for batch in reader.read(partition):
            assert isinstance(batch, pa.RecordBatch)
            found.update(batch.column("key").to_pylist())
    return found


def test_a_task_of_a_compacted_topic_reads_on_to_the_end_of_that_moment(broker: Broker) -> None:
    for topic in "plain", "compacted":
        produce(broker, topic, (b"a", b"1"), (b"b", b"2"))
        source = DefaultSource({"view": "latest", **through(broker, topic)})
        reader = source.reader(schema=source.schema())
        planned = reader.partitions()
        produce(broker, topic, (b"a", b"3"), (b"b", None), (b"c", b"4"))
        found: dict[bytes, bytes] = {}
        for partition in planned:
            for batch in reader.read(partition):
                assert isinstance(batch, pa.RecordBatch)
                found |= {row["key"]: row["value"] for row in batch.to_pylist()}
        assert found == ({b"a": b"1", b"b": b"2"} if topic == "plain" else {b"a": b"3", b"c": b"4"})


def test_one_task_reads_all_of_a_compacted_partition(broker: Broker) -> None:
    for topic, tasks, rows in ("plain", 5, 10), ("compacted", 1, 3):
        produce(broker, topic, *((b"%d" % (at % 3), b"%d" % at) for at in range(10)))
        source = DefaultSource({"view": "latest-parts", "maxRecordsPerPartition": "2", **through(broker, topic)})
        reader = source.reader(schema=source.schema())
        planned = reader.partitions()
        assert sum(len(partition.value) for partition in planned) == tasks
        batches = [batch for one in planned for batch in reader.read(one)]
        assert sum(batch.num_rows for batch in batches if isinstance(batch, pa.RecordBatch)) == rows


def test_a_record_without_a_key_names_its_place(broker: Broker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("plain", b"v", partition=1)
    assert producer.flush(30) == 0
    with pytest.raises(InvalidRecordError, match=f"{TopicPartition('plain', 1)}, offset 0: a record without a key"):
        values(broker, "plain")
