"""A one-node Kafka 2.8.2 with its ZooKeeper, for what newer versions no longer write: message formats 0 and 1."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.kafka.jars import OLD
from tests.kafka.node import KafkaNode
from tests.kafka.zookeeper import ZooKeeperNode

__all__ = ["ZkKafkaNode"]


class ZkKafkaNode(KafkaNode):
    """As `KafkaNode`, for 2.8.2: `start` starts ZooKeeper first, `stop` and `kill` end it last."""

    version = OLD

    def __init__(self, data_dir: Path, properties: Mapping[str, str] | None = None) -> None:
        super().__init__(data_dir, properties)
        self._zookeeper = ZooKeeperNode(data_dir / "zookeeper")

    def start(self) -> None:
        try:
            super().start()
        except BaseException:
            self.kill()
            raise

    def launch(self) -> None:
        self._zookeeper.start()
        super().launch()

    def stop(self) -> None:
        try:
            super().stop()
        finally:
            self._zookeeper.kill()

    def kill(self) -> None:
        super().kill()
        self._zookeeper.kill()

    def settings(self) -> dict[str, str]:
        kept = ("log.dirs", "log.retention.ms", "log.cleaner.dedupe.buffer.size", "auto.create.topics.enable")
        of_all = super().settings()
        return {
            "broker.id": "1",
            "listeners": f"PLAINTEXT://{self.bootstrap}",
            "zookeeper.connect": self._zookeeper.address,
            "offsets.topic.num.partitions": "1",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            **{key: of_all[key] for key in kept},
        }

    def format(self, config: Path) -> None:
        """2.8 makes its directory itself."""
