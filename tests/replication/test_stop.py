"""A clean stop in a cluster, while batches that are in the log wait for a flush."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer

from seglog.core.error_codes import ErrorCode
from seglog.protocol.apis import ApiKey
from seglog.records.record import NewRecord, encode_batch
from seglog.storage.log.log import Log
from tests.broker.broker_thread import Wire
from tests.kit.ports import free_port
from tests.replication.brokers import SOON, Node, cluster, is_whole

BATCHES = 5
"""As many as an idempotent producer has in flight."""


class HeldFlushes:
    """Flushes of the logs of a topic wait, in their threads, until ``may_go``."""

    def __init__(self, topic: str, patch: pytest.MonkeyPatch) -> None:
        self.may_go = threading.Event()
        flush: Callable[[Log], None] = Log.flush

        def held(log: Log) -> None:
            if log.topic_partition.topic == topic and threading.current_thread() is not threading.main_thread():
                assert self.may_go.wait(SOON)
            flush(log)

        patch.setattr(Log, "flush", held)


class Idempotent:
    """A stock idempotent producer that sends each record in a separate batch."""

    def __init__(self, bootstrap: str) -> None:
        self.acknowledged: list[int] = []
        self.errors: list[KafkaError] = []
        self._producer: Any = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 0,
                "batch.num.messages": 1,
                "reconnect.backoff.max.ms": 200,
                "error_cb": self._failed,
                "log_level": 0,
            }
        )

    def send(self, count: int) -> None:
        for _ in range(count):
            self._producer.produce("t", b"tea", partition=0, on_delivery=self._delivered)

    def _failed(self, error: KafkaError) -> None:
        if error.code() == KafkaError._FATAL:
            self.errors.append(error)

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        if error is None:
            self.acknowledged.append(message.offset())
        else:
            self.errors.append(error)

    async def flush(self) -> None:
        await asyncio.to_thread(self._producer.flush, SOON)


def test_a_stop_answers_batches_that_are_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The snapshot of the stop has the producer's last batch only. If the stop refused the five, the next start would
    take their repetition for batches out of order, which is fatal to the producer."""
    settings = {"listeners": f"PLAINTEXT://127.0.0.1:{free_port()}", "min.insync.replicas": "1"}

    async def run() -> None:
        held = HeldFlushes("t", monkeypatch)
        async with cluster(tmp_path, 1, settings) as (node,):
            topic_id = await node.create("t", [[1]], {"flush.messages": "1"})
            await node.until(lambda: (topic_id, 0) in node.replicas.by_key and node.replica(topic_id).leads)
            producer = Idempotent(node.bootstrap)
            producer.send(BATCHES)
            log = node.replica(topic_id).log
            await node.until(lambda: log.log_end_offset == BATCHES)
            stopping = asyncio.create_task(node.stop())
            await asyncio.wait([stopping], timeout=0.3)
            assert not stopping.done()
            held.may_go.set()
            await stopping
            again = await Node(tmp_path, 1, settings).started()
            try:
                await again.decide()
                producer.send(1)
                await producer.flush()
                assert producer.errors == []
                assert sorted(producer.acknowledged) == list(range(BATCHES + 1))
                assert again.replica(topic_id).log.log_end_offset == BATCHES + 1
            finally:
                await again.stop()

    asyncio.run(run())


def test_the_last_replica_in_sync_says_that_it_does_not_lead_when_it_stops(tmp_path: Path) -> None:
    """Its ISR is too small to commit what waits, and it cannot wait for more replicas. Kafka's controller takes the
    partition from a broker that stops, also without another leader, and ``DelayedProduce`` then answers case B: the
    producer looks for the leader, and its batch is there if this log survives."""

    async def run() -> None:
        async with cluster(tmp_path, 2) as (one, two):
            topic_id = await one.create("t", [[1, 2]], {"min.insync.replicas": "2"})
            await one.until(lambda: is_whole([one, two], topic_id))
            await two.stop()
            with Wire(one.bootstrap) as wire:
                asking = asyncio.create_task(asyncio.to_thread(_produce, wire))
                log = one.replica(topic_id).log
                await one.until(lambda: log.log_end_offset == 1)
                await one.put(topic_id, lambda state: replace(state, isr=(one.me,)))
                progress = one.replica(topic_id).progress
                assert progress is not None
                await one.until(lambda: not progress.has_enough)
                assert not asking.done()
                await one.stop()
                assert await asking == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert log.high_watermark == 0

    asyncio.run(run())


def _produce(wire: Wire) -> int:
    """The code for a batch of one record with acks=all."""
    batch = bytes(encode_batch([NewRecord(b"tea")]))
    topics = [{"name": "t", "partition_data": [{"index": 0, "records": batch}]}]
    answer = wire.ask(ApiKey.PRODUCE, 12, transactional_id=None, acks=-1, timeout=60_000, topic_data=topics)
    return int(answer.responses[0].partition_responses[0].error_code)
