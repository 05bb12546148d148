"""A one-node Kafka 2.8.2 with its ZooKeeper, for what newer versions no longer write: message formats 0 and 1."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path

from tests.kafka.jars import OLD, class_path
from tests.kafka.node import JVM_OPTIONS
from tests.kafka.process import JavaProcess, answers_api_versions, free_port, write_properties
from tests.kafka.started import Started

__all__ = ["ZkKafkaNode"]

_START_SECONDS = 120.0


class ZkKafkaNode(Started):
    """As `KafkaNode`, for 2.8.2: `with` starts ZooKeeper and then the broker, and ends both in the other order."""

    def __init__(self, data_dir: Path, properties: Mapping[str, str] | None = None) -> None:
        self._dir = data_dir
        self.port = free_port()
        self._zk_port = free_port(frozenset({self.port}))
        self._properties = dict(properties or {})
        self._broker: JavaProcess | None = None
        self._zookeeper: JavaProcess | None = None

    @property
    def bootstrap(self) -> str:
        """`host:port` for clients."""
        return f"127.0.0.1:{self.port}"

    @property
    def log_dir(self) -> Path:
        """The directory with `meta.properties`, the checkpoints and one directory per partition."""
        return self._dir / "log"

    def leave(self) -> None:
        self.stop()

    def leave_failed(self) -> None:
        self.kill()

    def start(self) -> None:
        """Start both and wait until the broker answers. Raises RuntimeError with the end of the log at fault."""
        if self._zookeeper is not None:
            raise RuntimeError("the node is running")
        self._dir.mkdir(parents=True, exist_ok=True)
        try:
            self._zookeeper = self._start_zookeeper()
            self._broker = self._start_broker()
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """A clean stop of the broker, then of ZooKeeper, which it needs for that."""
        broker, self._broker = self._broker, None
        try:
            if broker is not None:
                broker.stop()
        finally:
            self.kill()

    def kill(self) -> None:
        """SIGKILL to both."""
        for process in (self._broker, self._zookeeper):
            if process is not None:
                process.kill()
        self._broker = self._zookeeper = None

    def _start_zookeeper(self) -> JavaProcess:
        config = write_properties(
            self._dir / "zookeeper.properties",
            {
                "dataDir": str(self._dir / "zookeeper"),
                "clientPort": str(self._zk_port),
                "clientPortAddress": "127.0.0.1",
                "admin.enableServer": "false",
                "tickTime": "500",
            },
        )
        process = JavaProcess(
            main="org.apache.zookeeper.server.quorum.QuorumPeerMain",
            class_path=class_path(OLD),
            arguments=[str(config)],
            log_file=self._dir / "zookeeper.log",
            jvm_options=("-Xmx128m", *JVM_OPTIONS[1:]),
        )
        process.wait_until(lambda: _zookeeper_serves(self._zk_port), seconds=_START_SECONDS)
        return process

    def _start_broker(self) -> JavaProcess:
        config = write_properties(
            self._dir / "server.properties",
            {
                "broker.id": "1",
                "listeners": f"PLAINTEXT://{self.bootstrap}",
                "zookeeper.connect": f"127.0.0.1:{self._zk_port}",
                "log.dirs": str(self.log_dir),
                "offsets.topic.num.partitions": "1",
                "offsets.topic.replication.factor": "1",
                "transaction.state.log.num.partitions": "1",
                "transaction.state.log.replication.factor": "1",
                "transaction.state.log.min.isr": "1",
                "group.initial.rebalance.delay.ms": "0",
                "auto.create.topics.enable": "false",
                "log.retention.ms": "-1",
                "log.cleaner.dedupe.buffer.size": str(4 << 20),
                **self._properties,
            },
        )
        process = JavaProcess(
            main="kafka.Kafka",
            class_path=class_path(OLD),
            arguments=[str(config)],
            log_file=self._dir / "server.log",
            jvm_options=JVM_OPTIONS,
        )
        process.wait_until(lambda: answers_api_versions(self.port), seconds=_START_SECONDS)
        return process


def _zookeeper_serves(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
            connection.sendall(b"srvr")
            return connection.recv(9, socket.MSG_WAITALL) == b"Zookeeper"
    except OSError:
        return False
