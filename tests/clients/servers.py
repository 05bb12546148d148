"""Our broker and Kafka's, started, stopped, killed and started again in the same way, with the same settings."""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from tests.kafka import KafkaNode
from tests.kit.broker_process import BrokerProcess
from tests.kit.ports import free_port
from tests.kit.service import Service

Kind = Literal["ours", "kafka"]
SETTINGS: Final = {
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "log.retention.ms": "-1",
    "offsets.topic.num.partitions": "1",
}


class Server(Service):
    """``with Server("ours", path) as server``: a process that can be killed. Clients are told the port ``advertised``,
    if there is one, and not the broker's own."""

    def __init__(
        self, kind: Kind, path: Path, settings: Mapping[str, str] | None = None, *, advertised: int | None = None
    ) -> None:
        self.kind = kind
        wanted = {**SETTINGS, **(settings or {})}
        if advertised is not None:
            wanted["advertised.listeners"] = f"PLAINTEXT://127.0.0.1:{advertised}"
        if kind == "kafka":
            node = KafkaNode(path, wanted)
            self.port = node.port
            self._node: KafkaNode | BrokerProcess = node
        else:
            self.port = free_port()
            self._node = BrokerProcess(path, wanted, address=f"127.0.0.1:{self.port}")
        self.bootstrap = f"127.0.0.1:{advertised or self.port}"

    def start(self) -> None:
        self._node.start()

    def leave(self) -> None:
        self._node.stop()

    def leave_failed(self) -> None:
        self._node.kill()

    def stop(self) -> None:
        self._node.stop()

    def kill(self) -> None:
        """SIGKILL."""
        self._node.kill()

    def pause(self) -> None:
        """SIGSTOP: its connections stay open, and nothing is answered."""
        os.kill(self._node.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self._node.pid, signal.SIGCONT)

    @property
    def log_dir(self) -> Path:
        """The directory with the partitions' directories."""
        return self._node.log_dir if isinstance(self._node, KafkaNode) else self._node.path

    def codecs(self, topic: str) -> list[int]:
        """The codec of each batch in partition 0, by the attributes in its header on the disk."""
        (segment,) = (self.log_dir / f"{topic}-0").glob("*.log")
        data = segment.read_bytes()
        found, position = [], 0
        # A file of Kafka's may be allocated beyond its last batch; there the length is 0.
        while position + 61 <= len(data) and (size := struct.unpack_from(">i", data, position + 8)[0]):
            found.append(struct.unpack_from(">h", data, position + 21)[0] & 7)
            position += 12 + size
        return found
