"""A broker that is stopped cleanly while a stock idempotent producer writes: the producer gets no fatal error, and each
record is in the log once and in order."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from tests.broker.python_clients import NewTopic
from tests.cases import case, is_long
from tests.kit.broker_process import BrokerProcess
from tests.kit.cluster import SeglogCluster
from tests.kit.topics import create_topics, values
from tests.kit.waiting import wait_until

ROUNDS = 8 if is_long() else 2
MORE = 300
"""Records that are acknowledged before each stop, and after the last start."""
_SECONDS = 60
_FLUSHED = {"flush.messages": "1"}
"""Batches wait for the disk, so that some are appended and not acknowledged at any time."""
_ONE_REPLICA = {"default.replication.factor": "1", "min.insync.replicas": "1", "offsets.topic.replication.factor": "1"}


class IdempotentLoad:
    """Writes numbers to partition 0 of ``t`` in batches of one record, five requests in flight."""

    def __init__(self, bootstrap: str) -> None:
        self.acknowledged = self.sent = 0
        self.errors: list[KafkaError] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="idempotent-load")
        self._producer: Any = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 0,
                "batch.num.messages": 1,
                "queue.buffering.max.messages": 50,
                "reconnect.backoff.max.ms": 200,
                "error_cb": self._failed,
                "log_level": 0,
            }
        )

    def _failed(self, error: KafkaError) -> None:
        if error.code() == KafkaError._FATAL:
            self.errors.append(error)

    def _delivered(self, error: KafkaError | None, _: object) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.errors.append(error)

    def _run(self) -> None:
        while not self._is_over.is_set() and not self.errors:
            try:
                self._producer.produce("t", str(self.sent).encode(), partition=0, on_delivery=self._delivered)
            except BufferError:
                self._producer.poll(0.01)
            except KafkaException as error:
                self.errors.append(error.args[0])
            else:
                self.sent += 1
                self._producer.poll(0)
        self._producer.flush(_SECONDS)

    def wait_for_more(self) -> None:
        wanted = self.acknowledged + MORE
        wait_until(lambda: self.acknowledged >= wanted or bool(self.errors), f"{MORE} more acknowledged records")
        assert not self.errors, self.errors

    @contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            self._thread.join()


def _check(bootstrap: str, load: IdempotentLoad) -> None:
    assert not load.errors, load.errors
    assert load.acknowledged == load.sent
    assert values(bootstrap, "t") == [str(number) for number in range(load.sent)]


@pytest.mark.timeout(300)
def test_stops_of_a_broker_that_is_alone_are_exact(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "alone") as broker:
        create_topics(broker.bootstrap, NewTopic("t", 1, 1, config=_FLUSHED))
        load = IdempotentLoad(broker.bootstrap)
        with load.running():
            for _ in range(ROUNDS):
                load.wait_for_more()
                broker.stop()
                broker.start()
                case()
            load.wait_for_more()
        _check(broker.bootstrap, load)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("count", "replicas"),
    [
        pytest.param(1, 1, id="one replica", marks=pytest.mark.everything),
        pytest.param(3, 3, id="three replicas"),
    ],
)
def test_controlled_shutdowns_in_a_cluster_are_exact(count: int, replicas: int, tmp_path: Path) -> None:
    settings = _ONE_REPLICA if replicas == 1 else {}
    with SeglogCluster(tmp_path / "cluster", count=count, settings=settings) as cluster:
        create_topics(cluster.bootstrap, NewTopic("t", 1, replicas, config=_FLUSHED))
        load = IdempotentLoad(cluster.bootstrap)
        with load.running():
            for _ in range(ROUNDS):
                load.wait_for_more()
                leader = cluster.leader("t", 0)
                assert leader is not None
                cluster[leader].stop()
                cluster[leader].start()
                cluster.wait_healthy()
                case()
            load.wait_for_more()
        _check(cluster.bootstrap, load)
