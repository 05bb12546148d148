"""The view of tasks shows where a query would read which offsets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyspark_seglog import DefaultSource
from seglog.client.kept_connections import close_all
from seglog.testing import Broker, TopicFixture
from tests.sources.views.view_reading import Row, rows_of

COUNT = 2_000


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    config = {"internal.segment.bytes": "20000"}
    with Broker({"t": TopicFixture(config=config, records=[b"v%d" % number for number in range(COUNT)])}) as broker:
        yield broker
    close_all()


def tasks(**options: str) -> list[Row]:
    return rows_of(DefaultSource({"subscribe": "t", "view": "tasks", **options}))


def test_from_files_and_through_brokers(broker: Broker) -> None:
    both = {"path": broker.data_dir, "kafka.bootstrap.servers": broker.bootstrap}
    (files, fetched) = tasks(**both)
    assert files["directory"] == f"{broker.data_dir}/t-0"
    assert files["size"] > 1_000
    assert fetched["directory"] is None
    assert (files["startOffset"], files["endOffset"], fetched["endOffset"]) == (0, fetched["startOffset"], COUNT)
    assert (files["task"], fetched["task"]) == (0, 0)  # together they are not worth two
    assert {row["task"] for row in tasks(**both, maxBytesPerPartition="10000")} > {0, 1}


def test_of_either(broker: Broker) -> None:
    (fetched,) = tasks(**{"kafka.bootstrap.servers": broker.bootstrap})
    assert (fetched["topic"], fetched["partition"], fetched["directory"]) == ("t", 0, None)
    (files,) = tasks(path=f"{broker.data_dir}/t-0", until="logEnd", columns="endOffset, directory")
    assert files == {"endOffset": COUNT, "directory": f"{broker.data_dir}/t-0"}
    ranges = tasks(path=broker.data_dir, until="logEnd", maxRecordsPerPartition="500")
    assert [(row["task"], row["startOffset"]) for row in ranges] == [(0, 0), (1, 500), (2, 1000), (3, 1500)]
