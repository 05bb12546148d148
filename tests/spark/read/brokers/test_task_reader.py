"""Records through brokers are the records of the directory, whatever happens to connections, leaders and topics."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.client.range_fetcher import RangeFetcher
from seglog.core.errors import DataLossError, RequestFailedError, UnknownTopicError
from seglog.spark.read.brokers import source as broker_source
from seglog.testing import Broker, Cluster, TopicFixture, TopicRecord
from tests import golden
from tests.broker.python_clients import AdminClient, NewTopic
from tests.cases import case
from tests.kit.topics import write
from tests.spark.logs import make_reader, offsets, rows

COUNT = 2_000
"""Records of topic ``t``, in three partitions."""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    records = [TopicRecord(b"v%d" % number + b"x" * (number % 90), key=b"k%d" % (number % 50)) for number in range(COUNT)]
    with Broker({"t": TopicFixture(partitions=3, records=records), "empty": 2}) as broker:
        yield broker


def through(broker: Broker | Cluster, **options: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "t", "includeHeaders": "true", **options}


@pytest.mark.parametrize("version", ["4.3.0", "2.8.2"])
def test_every_topic_of_a_golden_directory_has_the_rows_of_its_files(tmp_path: Path, version: str) -> None:
    """All codecs and formats, headers, transactions, compacted and deleted offsets."""
    directory = golden.log_dir(golden.unpack(tmp_path, version))
    wanted = {"path": str(directory), "includeHeaders": "true", "until": "logEnd"}
    with Broker(copy_of=directory, settings={"log.retention.ms": "-1"}) as broker:
        chosen = {"kafka.bootstrap.servers": broker.bootstrap, "includeHeaders": "true"}
        assert sorted(rows(make_reader(chosen)), key=lambda row: row[:3]) == rows(make_reader(wanted))
        committed = {"isolationLevel": "read_committed"}
        found = sorted(rows(make_reader(chosen | committed)), key=lambda row: row[:3])
        assert found == rows(make_reader(wanted | committed))
        assert len(found) > 100


@given(
    bounds=st.tuples(st.integers(0, 600), st.integers(0, 600)).map(sorted),
    options=st.fixed_dictionaries(
        {},
        optional={
            "minPartitions": st.integers(1, 40).map(str),
            "maxRecordsPerPartition": st.integers(1, 700).map(str),
            "kafka.max.partition.fetch.bytes": st.integers(1, 5_000).map(str),
            "kafka.fetch.max.bytes": st.integers(1, 5_000).map(str),
            "keyEquals": st.integers(0, 60).map(lambda number: f"k{number}"),
        },
    ),
)
def test_any_range_by_any_tasks_and_fetch_sizes(
    broker: Broker, bounds: list[int], options: dict[str, str]
) -> None:
    case()
    low, high = bounds
    span = {
        "startingOffsets": f'{{"t": {{"0": {low}, "1": -2, "2": {low}}}}}',
        "endingOffsets": f'{{"t": {{"0": {high}, "1": -1, "2": {high}}}}}',
    }
    files = make_reader({"path": broker.data_dir, "subscribe": "t", "includeHeaders": "true", **span, **_keys(options)})
    found = rows(make_reader(through(broker, **span, **options)))
    assert sorted(found, key=lambda row: row[:3]) == rows(files)


def _keys(options: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in options.items() if name == "keyEquals"}


def test_small_partitions_share_tasks_and_requests() -> None:
    with Broker({"many": TopicFixture(partitions=300, records=[b"v"] * 900)}) as many:
        reader = make_reader({"kafka.bootstrap.servers": many.bootstrap, "subscribe": "many", "parallelism": "2"})
        assert len(list(reader.partitions())) <= 10
        assert len(offsets(reader)) == 900


def test_an_empty_topic_and_an_empty_range(broker: Broker) -> None:
    assert offsets(make_reader(through(broker, subscribe="empty"))) == []
    same = '{"t": {"0": 5, "1": 5, "2": 5}}'
    assert offsets(make_reader(through(broker, startingOffsets=same, endingOffsets=same))) == []


# What happens meanwhile


@pytest.fixture
def faulty(broker: Broker) -> Iterator[Broker]:
    yield broker
    broker.faults.clear()


@pytest.mark.parametrize("code", ["NOT_LEADER_OR_FOLLOWER", "UNKNOWN_SERVER_ERROR", "KAFKA_STORAGE_ERROR"])
def test_a_retriable_error_is_retried(faulty: Broker, code: str) -> None:
    reader = make_reader(through(faulty))
    tasks = list(reader.partitions())
    fault = faulty.fail("Fetch", error=code, topic="t", partition=1, times=2)
    assert sum(batch.num_rows for task in tasks for batch in reader.read(task)) == COUNT
    assert fault.met == 2


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
    found = [row for task in tasks for batch in reader.read(task) for row in zip(*_place(batch), strict=True)]
    assert len(found) == len(set(found)) == COUNT


def _place(batch: object) -> list[list[int]]:
    return [batch.column(name).to_pylist() for name in ("partition", "offset")]  # type: ignore[attr-defined]
