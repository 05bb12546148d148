"""A one-node Kafka 4.4.0 (KRaft) for a test, on loopback, with its data in a directory of the test's."""

from __future__ import annotations

import base64
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.kafka.jars import CURRENT, KafkaVersion, class_path
from tests.kafka.process import JavaProcess, JavaServer, answers_api_versions, write_properties
from tests.kit.ports import free_port

__all__ = ["JVM_OPTIONS", "KafkaNode"]

_START_SECONDS = 120.0
_FORMAT_SECONDS = 180.0

JVM_OPTIONS = (
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",  # a node lives for seconds: starting soon counts, peak speed does not
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.storage.internals.log=info",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
)


class KafkaNode(JavaServer):
    """Formats `data_dir/log` if it is new, starts, and on leaving the `with` stops cleanly.

    After `stop()` or `kill()` the same object can `start()` again on the same directory and ports. `properties` are
    added to `server.properties` and win over ours; `jvm` are the options of its JVM; `ports` are those of broker and
    controller. One of several has their `quorum`: the cluster's id, and `--initial-controllers`. Times are
    milliseconds, as in Kafka's own names.
    """

    version: KafkaVersion = CURRENT

    def __init__(
        self,
        data_dir: Path,
        properties: Mapping[str, str] | None = None,
        *,
        jvm: Sequence[str] = JVM_OPTIONS,
        ports: tuple[int, int] | None = None,
        quorum: tuple[str, str] | None = None,
    ) -> None:
        self._dir = data_dir
        self._jvm = tuple(jvm)
        self.port, self._controller_port = ports or (free_port(), free_port())
        self._cluster_id, self._controllers = quorum or (new_id(), "")
        self._properties = dict(properties or {})

    @property
    def bootstrap(self) -> str:
        """`host:port` for clients."""
        return f"127.0.0.1:{self.port}"

    @property
    def log_dir(self) -> Path:
        """The directory with `meta.properties`, the checkpoints and one directory per partition."""
        return self._dir / "log"

    @property
    def server_log(self) -> Path:
        """The file with the output of the server."""
        return self._dir / "server.log"

    def leave(self) -> None:
        self.stop()

    def leave_failed(self) -> None:
        """A test that failed wants its own error, soon, and not a complaint about the stop."""
        self.kill()

    def launch(self) -> None:
        """Start without waiting."""
        self.check_stopped()
        self._dir.mkdir(parents=True, exist_ok=True)
        config = write_properties(self._dir / "server.properties", {**self.settings(), **self._properties})
        if not (self.log_dir / "meta.properties").exists():
            self.format(config)
        self._process = JavaProcess(
            main="kafka.Kafka",
            class_path=class_path(self.version),
            arguments=[str(config)],
            log_file=self.server_log,
            jvm_options=self._jvm,
        )

    def wait(self) -> None:
        """Until the broker answers."""
        self.wait_until(lambda: answers_api_versions(self.port), _START_SECONDS)

    def settings(self) -> dict[str, str]:
        controller = f"127.0.0.1:{self._controller_port}"
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.bootstrap.servers": controller,
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://{controller}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(self.log_dir),
            "offsets.topic.num.partitions": "1",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.num.partitions": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            # From 4.4 on a target assignment is computed beside the heartbeats, and is there at some later one.
            "group.consumer.assignor.offload.enable": "false",
            "auto.create.topics.enable": "false",
            # Tests write records with fixed timestamps in the past: retention by time would delete them, and their
            # producers would be forgotten ten minutes after a log was made.
            "log.retention.ms": "-1",
            "producer.id.expiration.check.interval.ms": "86400000",
            "log.cleaner.dedupe.buffer.size": str(4 << 20),
        }

    def format_options(self) -> list[str]:
        """More words for the command that formats the directory."""
        return []

    def format(self, config: Path) -> None:
        """Make the directory that the broker needs at its first start."""
        who = ["--initial-controllers", self._controllers] if self._controllers else ["--standalone"]
        command = ["java", *JVM_OPTIONS, "-cp", class_path(CURRENT), "kafka.tools.StorageTool"]
        command += ["format", *who, "-t", self._cluster_id, "-c", str(config), *self.format_options()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_FORMAT_SECONDS, check=False)
        if done.returncode:
            raise RuntimeError(f"StorageTool format failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")


def new_id() -> str:
    """One of a cluster or a directory, as Kafka writes ids."""
    return base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=").replace("-", "A")
