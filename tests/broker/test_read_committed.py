"""Each way to the records shows the same committed ones. Spark's is in `tests/spark/read/test_read_committed.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

import seglog
from tests.broker.broker_thread import RunningNode
from tests.broker.python_clients import aiokafka, kafka
from tests.cli.run import run_here
from tests.kit import interleaved_transactions as interleaved
from tests.kit.interleaved_transactions import CHANGES, TOPIC, Written
from tests.kit.waiting import SECONDS

Made = tuple[Path, Written]


@pytest.fixture(scope="module", params=CHANGES)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    path = tmp_path_factory.mktemp("interleaved") / "log"
    return path, interleaved.write(path, request.param)


@pytest.fixture(scope="module")
def served(made: Made) -> Iterator[tuple[RunningNode, Written]]:
    path, written = made
    with RunningNode(path, {"log.retention.ms": "-1", "log.cleaner.enable": "false"}) as running:
        yield running, written


def test_scan(made: Made) -> None:
    path, written = made
    rows = seglog.scan(path, topics=TOPIC, columns=["offset", "value"], isolation_level="read_committed").read_all()
    assert {row["offset"]: row["value"] for row in rows.to_pylist()} == written.committed


def test_reader_of_a_log(made: Made) -> None:
    path, written = made
    with seglog.open(path) as directory:
        found = directory.log(TOPIC, 0).records(isolation="read_committed")
        assert {record.offset: record.value for record in found} == written.committed


def test_fetch_by_librdkafka(served: tuple[RunningNode, Written]) -> None:
    running, written = served
    reader: Any = Consumer(
        {
            "bootstrap.servers": running.bootstrap,
            "group.id": "reads",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    reader.assign([TopicPartition(TOPIC, 0, OFFSET_BEGINNING)])
    found: dict[int, bytes] = {}
    while (message := reader.poll(SECONDS)).error() is None:
        found[message.offset()] = message.value()
    reader.close()
    assert message.error().code() == KafkaError._PARTITION_EOF
    assert found == written.committed


def test_fetch_by_kafka_python(served: tuple[RunningNode, Written]) -> None:
    running, written = served
    reader = kafka.KafkaConsumer(
        bootstrap_servers=running.bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
    )
    partition = kafka.TopicPartition(TOPIC, 0)
    reader.assign([partition])
    reader.seek_to_beginning(partition)
    found: dict[int, bytes] = {}
    while len(found) < len(written.committed):
        found |= {one.offset: one.value for records in reader.poll(1000).values() for one in records}
    reader.close()
    assert found == written.committed


def test_fetch_by_aiokafka(served: tuple[RunningNode, Written]) -> None:
    running, written = served

    async def read() -> dict[int, bytes]:
        reader = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=running.bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
        )
        await reader.start()
        try:
            partition = aiokafka.TopicPartition(TOPIC, 0)
            reader.assign([partition])
            await reader.seek_to_beginning(partition)
            found: dict[int, bytes] = {}
            while len(found) < len(written.committed):
                got = await reader.getmany(timeout_ms=1000)
                found |= {one.offset: one.value for records in got.values() for one in records}
            return found
        finally:
            await reader.stop()

    assert asyncio.run(read()) == written.committed


def test_consume_command(served: tuple[RunningNode, Written], capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    running, written = served
    ran = run_here(capfdbinary)(
        *("consume", TOPIC, "-e", "--isolation-level", "read_committed", "--json", "-b", running.bootstrap)
    )
    assert ran.code == 0, ran.err
    assert {one["offset"]: one["value"].encode() for one in ran.objects} == written.committed
