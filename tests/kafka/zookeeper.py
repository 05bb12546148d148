"""ZooKeeper 3.9.4 for a test, on loopback: one server, or an ensemble of three."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.kafka.jars import cache_dir, copy_jars, made_once
from tests.kafka.node import JVM_OPTIONS
from tests.kafka.process import JavaProcess, JavaServer, write_properties
from tests.kit.ports import free_port
from tests.kit.service import Services

__all__ = ["ZooKeeperEnsemble", "ZooKeeperNode"]

_VERSION = "3.9.4"
_START_SECONDS = 120.0


class ZooKeeperNode(JavaServer):
    """``with`` starts and ends it. After `stop` or `kill` the same object can `start` again, with its data and port.

    ``properties`` are added to `zookeeper.properties` and win over ours; a server of an ensemble has its ``number``.
    ``jvm_options`` are added too.
    """

    def __init__(
        self,
        data_dir: Path,
        properties: Mapping[str, str] | None = None,
        *,
        number: int | None = None,
        jvm_options: Sequence[str] = (),
    ) -> None:
        self._dir = data_dir
        self._properties = dict(properties or {})
        self._number = number
        self._jvm_options = jvm_options
        self.port = int(self._properties.get("clientPort", 0)) or free_port()

    @property
    def address(self) -> str:
        """``host:port`` for clients."""
        return f"127.0.0.1:{self.port}"

    def leave(self) -> None:
        self.kill()

    def launch(self) -> None:
        """Start without waiting."""
        self.check_stopped()
        libs = made_once(
            cache_dir() / f"zookeeper-{_VERSION}" / "libs",
            lambda target: copy_jars(Path(__file__).parent / "pom-zookeeper.xml", target),
        )
        data = self._dir / "data"
        data.mkdir(parents=True, exist_ok=True)
        if self._number is not None:
            (data / "myid").write_text(str(self._number))
        self._process = JavaProcess(
            main="org.apache.zookeeper.server.quorum.QuorumPeerMain",
            class_path=f"{libs}/*",
            arguments=[str(write_properties(self._dir / "zookeeper.properties", self._settings(data)))],
            log_file=self._dir / "zookeeper.log",
            jvm_options=("-Xmx128m", *JVM_OPTIONS[1:], *self._jvm_options),
        )

    def wait(self) -> None:
        """Until it serves."""
        self.wait_until(self.serves, _START_SECONDS)

    def serves(self) -> bool:
        """Whether it has clients: with a quorum, for one of an ensemble."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
                connection.sendall(b"srvr")
                return connection.recv(9, socket.MSG_WAITALL) == b"Zookeeper"
        except OSError:
            return False

    def _settings(self, data: Path) -> dict[str, str]:
        return {
            "dataDir": str(data),
            "clientPort": str(self.port),
            "clientPortAddress": "127.0.0.1",
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "srvr",
            # Sessions end at the tick after their time.
            "tickTime": "200",
            "minSessionTimeout": "400",
            "maxSessionTimeout": "120000",
            "initLimit": "50",
            "syncLimit": "25",
            "maxClientCnxns": "0",
            **self._properties,
        }


class ZooKeeperEnsemble(Services[ZooKeeperNode]):
    """Three servers, of which any two serve; ``properties`` as of each."""

    def __init__(self, data_dir: Path, properties: Mapping[str, str] | None = None) -> None:
        ports = [free_port() for _ in range(9)]
        servers = {
            f"server.{number}": f"127.0.0.1:{ports[number * 3 - 3]}:{ports[number * 3 - 2]}" for number in (1, 2, 3)
        }
        self.nodes = [
            ZooKeeperNode(
                data_dir / str(number),
                {"clientPort": str(ports[number * 3 - 1]), **servers, **(properties or {})},
                number=number,
            )
            for number in (1, 2, 3)
        ]

    @property
    def address(self) -> str:
        """``host:port,host:port,host:port``."""
        return ",".join(node.address for node in self.nodes)
