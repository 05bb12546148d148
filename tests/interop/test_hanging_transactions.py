"""Hanging transactions are found and ended by Kafka's own tool at our broker, and by ours at Kafka's (KIP-664)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.broker.broker_thread import Wire
from tests.broker.transactional_producer import TransactionalProducer, fetch, stable_end
from tests.cli.run import run_here
from tests.clients.java_tools import Steps
from tests.clients.servers import Kind, Server
from tests.kafka.jars import CURRENT
from tests.kit.waiting import wait_until

_UNVERIFIED = {"transaction.partition.verification.enable": "false"}
_PLACE = ("--topic", "t", "--partition", "0")


@pytest.fixture
def topic() -> str:
    return "t"


def test_kafkas_tool_ends_ours(tmp_path: Path, topic: str) -> None:
    with _server("ours", tmp_path) as server, Wire(server.bootstrap) as wire:
        producer = _hang(wire, topic)
        steps = Steps(CURRENT, server.bootstrap)
        steps.add("found", "transactions", "find-hanging", *_PLACE, "--max-transaction-timeout", "1")
        steps.add("producers", "transactions", "describe-producers", *_PLACE)
        steps.add("aborted", "transactions", "abort", *_PLACE, "--start-offset", "0")
        steps.add("left", "transactions", "find-hanging", *_PLACE, "--max-transaction-timeout", "1")
        ran = steps.run()
        assert {one.code for one in ran.values()} == {0}, ran
        assert ran["found"].lines[1].split()[:3] == [topic, "0", str(producer.producer_id)]
        assert ran["producers"].lines[1].split()[0] == str(producer.producer_id)
        assert len(ran["left"].lines) == 1
        _check_ended(wire, topic)


def test_our_tool_ends_kafkas(tmp_path: Path, topic: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    run = run_here(capfdbinary)
    with _server("kafka", tmp_path) as server, Wire(server.bootstrap) as wire:
        producer = _hang(wire, topic)
        where = ("-b", server.bootstrap)
        hanging = ("transactions", "find-hanging", *_PLACE, "--max-transaction-timeout", "1", "--json", *where)
        (found,) = run(*hanging).objects
        assert (found["producerId"], found["transactionStartOffset"]) == (producer.producer_id, 0)
        ended = run("transactions", "abort", *_PLACE, "--start-offset", "0", *where)
        assert ended.code == 0, ended.err
        assert run(*hanging).objects == []
        _check_ended(wire, topic)


def _server(kind: Kind, path: Path) -> Server:
    return Server(kind, path / kind, _UNVERIFIED)


def _hang(wire: Wire, topic: str) -> TransactionalProducer:
    """A batch of a transaction that no coordinator knows of, as a broker without verification accepts it."""
    wire.create_topic(topic)
    wait_until(lambda: fetch(wire, topic).error_code == 0, "a leader")
    producer = TransactionalProducer(wire, "hangs", 0)
    assert producer.produce(topic, b"late") == 0
    assert stable_end(wire, topic) == 0
    return producer


def _check_ended(wire: Wire, topic: str) -> None:
    found = fetch(wire, topic)
    assert found.last_stable_offset == found.high_watermark == 2
    assert [one.first_offset for one in found.aborted_transactions] == [0]
