"""A worker of Kafka Connect in distributed mode."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from tests.ecosystem.artefacts import jars
from tests.ecosystem.places import Place
from tests.kafka.process import JavaProcess, JavaServer, write_properties
from tests.kit.ports import free_port
from tests.kit.waiting import wait_until

__all__ = ["JVM", "ConnectWorker"]

_START_SECONDS: Final = 120
JVM: Final = (
    "-Xmx384m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)


class ConnectWorker(JavaServer):
    """``with ConnectWorker(place, path) as worker``: killed and started again on the same port. ``product`` is a pom
    with Connect and connectors."""

    def __init__(self, place: Place, path: Path, product: str = "connect") -> None:
        self._path = path
        self._jars = jars(product)
        self._url = f"http://127.0.0.1:{free_port()}"
        converter = "org.apache.kafka.connect.storage.StringConverter"
        self._settings = {
            "bootstrap.servers": place.bootstrap,
            "group.id": "connect",
            "key.converter": converter,
            "value.converter": converter,
            "config.storage.topic": "connect-configs",
            "offset.storage.topic": "connect-offsets",
            "status.storage.topic": "connect-status",
            **{f"{kind}.storage.replication.factor": str(place.replicas) for kind in ("config", "offset", "status")},
            "offset.storage.partitions": "3",
            "status.storage.partitions": "2",
            "offset.flush.interval.ms": "500",
            "exactly.once.source.support": "enabled",
            "scheduled.rebalance.max.delay.ms": "0",
            "session.timeout.ms": "6000",
            "heartbeat.interval.ms": "1000",
            "listeners": self._url,
            "plugin.discovery": "service_load",
            "plugin.path": str(self._jars),
            "consumer.isolation.level": "read_committed",
        }

    def launch(self) -> None:
        self.check_stopped()
        self._process = JavaProcess(
            main="org.apache.kafka.connect.cli.ConnectDistributed",
            class_path=f"{self._jars}/*",
            arguments=[str(write_properties(self._path / "connect.properties", self._settings))],
            log_file=self._path / "connect.log",
            jvm_options=JVM,
        )

    def wait(self) -> None:
        self.wait_until(lambda: self._asked("GET", "/connectors") is not None, _START_SECONDS)

    def leave(self) -> None:
        self.kill()

    def put(self, connector: str, config: Mapping[str, str]) -> None:
        """Create the connector; return when its task runs."""
        wait_until(lambda: self._asked("PUT", f"/connectors/{connector}/config", config) is not None, connector, 90)
        self.wait_running(connector)

    def wait_running(self, connector: str) -> None:
        wait_until(lambda: self._states(connector) == ["RUNNING"], f"a running task of {connector}", 120)

    def _states(self, connector: str) -> list[str]:
        status = self._asked("GET", f"/connectors/{connector}/status")
        return [one["state"] for one in status["tasks"]] if status else []

    def _asked(self, method: str, path: str, body: Mapping[str, str] | None = None) -> Any:
        """The answer; None while the worker starts or rebalances."""
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"{self._url}{path}", data, {"Content-Type": "application/json"}, method=method)
        try:
            with urlopen(request, timeout=90) as answer:
                return json.load(answer)
        except HTTPError as refused:
            if refused.code in (404, 409, 500, 503):
                return None
            raise
        except (URLError, ConnectionError, TimeoutError):
            return None
