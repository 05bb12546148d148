"""Log directories with a transaction in each state, left by a Kafka that was killed and finished by our broker, and the
other way round."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.broker.broker_thread import Wire
from tests.kafka import KafkaNode
from tests.kit import transaction_states as states
from tests.kit.broker_process import BrokerProcess
from tests.kit.ports import free_port

_CHECKPOINTS = (
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
    "log-start-offset-checkpoint",
    ".kafka_cleanshutdown",
)


def test_our_broker_completes_transactions_that_kafka_left_open(tmp_path: Path) -> None:
    ports = free_port(), free_port()
    brokers = [KafkaNode(tmp_path / "kafka", settings, ports=ports) for settings in (states.EXPIRING, states.LEAVING)]
    log_dir = brokers[0].log_dir
    left, expired = states.leave(brokers, log_dir)
    with BrokerProcess(log_dir, {**states.ONE_PARTITION, **states.FINISHING}) as ours, Wire(ours.bootstrap) as wire:
        states.check_finished(wire, left)
        states.check_new_ids(wire, left, expired)


def test_kafka_completes_transactions_that_our_broker_left_open(tmp_path: Path) -> None:
    path = tmp_path / "ours"
    brokers = [BrokerProcess(path, {**states.ONE_PARTITION, **more}) for more in (states.EXPIRING, states.LEAVING)]
    left, _ = states.leave(brokers, path)
    with KafkaNode(tmp_path / "kafka", states.FINISHING) as kafka:
        with Wire(kafka.bootstrap) as wire:
            for one in left:
                wire.create_topic(one.topic)
            states.create_internal_topics(wire)
        kafka.stop()
        _take_over(path, kafka.log_dir)
        kafka.start()
        with Wire(kafka.bootstrap) as wire:
            states.check_finished(wire, left)


def _take_over(ours: Path, kafkas: Path) -> None:
    """Put our logs into the directories that Kafka has made for the same partitions."""
    for directory in [path for path in ours.iterdir() if (path / "partition.metadata").exists()]:
        there = kafkas / directory.name
        for path in there.iterdir():
            if path.name != "partition.metadata":
                path.unlink()
        for path in directory.iterdir():
            if path.is_file() and path.name != "partition.metadata":
                shutil.copy2(path, there)
    for name in _CHECKPOINTS:
        (kafkas / name).unlink(missing_ok=True)
