"""Brokers of one cluster as real processes, and what may happen to them: kill -9, SIGSTOP, an end, a cut network."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from seglog.cli.cluster import store_view as cluster_store
from seglog.client.bootstrap import parse_bootstrap
from seglog.client.cluster import ClusterAdmin
from seglog.cluster.health import ClusterStatus, HealthFinding, judge
from tests.cluster_run.network import Loopback, Network
from tests.kafka.waiting import wait_until

SECONDS: Final = 60.0
_ROOT: Final = Path(__file__).parents[2]
SETTINGS: Final[Mapping[str, str]] = {
    "auto.create.topics.enable": "false",
    "broker.session.timeout.ms": "3000",
    "default.replication.factor": "3",
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.ms": "-1",
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": "3",
    "offsets.topic.replication.factor": "3",
    "replica.lag.time.max.ms": "2000",
}
"""What tests start from: times short, so that a run sees many of each."""


class ClusterBroker:
    """One `seglog serve --cluster`: started again and again with the same directory, number and address."""

    def __init__(
        self,
        node_id: int,
        path: Path,
        store: str,
        network: Network,
        settings: Mapping[str, str],
        more: Sequence[Path] = (),
    ) -> None:
        """``more`` log directories than that at ``path``."""
        self.node_id = node_id
        self.path = path
        self.directories = [path, *more]
        self._network = network
        self.address = network.address(node_id)
        self._store = store
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self.is_paused = False

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, f"broker {self.node_id} does not run"
        return self._process

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> Path:
        """What it said on standard error."""
        return self.path.parent / f"{self.path.name}.log"

    def begin(self) -> None:
        """Start it, and do not wait."""
        assert not self.is_running
        settings = [text for key, value in self._settings.items() for text in ("--set", f"{key}={value}")]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *self._network.prefix(self.node_id),
                    *(sys.executable, "-m", "seglog", "serve", "--json", "--log-level", "info"),
                    *("--cluster", self._store, "--node-id", str(self.node_id)),
                    *("--data-dir", ",".join(map(str, self.directories)), "--listen", self.address, *settings),
                ],
                cwd=_ROOT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
                stdout=subprocess.PIPE,
                stderr=log,
            )

    def ready(self) -> dict[str, Any]:
        """Wait until it says so; what it says."""
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], SECONDS)[0], f"not ready in {SECONDS} s: {self.log}"
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait(SECONDS)
            self.process.stdout.close()
            tail = self.log.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"broker {self.node_id} has ended with {code}:\n{tail}")
        found: dict[str, Any] = json.loads(line)
        return found

    def start(self) -> None:
        self.begin()
        self.ready()

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM, and wait: a clean end."""
        code = self._end(signal.SIGTERM)
        assert code == 0, f"broker {self.node_id} ended with {code}: {self.log.read_text(errors='replace')[-2000:]}"

    def pause(self) -> None:
        """SIGSTOP: a machine that hangs."""
        self.process.send_signal(signal.SIGSTOP)
        self.is_paused = True

    def resume(self) -> None:
        if self.is_paused:
            self.process.send_signal(signal.SIGCONT)
            self.is_paused = False

    def _end(self, number: signal.Signals) -> int:
        process = self.process
        if number != signal.SIGKILL:
            self.resume()
        self.is_paused = False
        process.send_signal(number)
        code = process.wait(SECONDS)
        assert process.stdout is not None
        process.stdout.close()
        self._process = None
        return code


class ThreeBrokers:
    """``with ThreeBrokers(path, store) as cluster``: N brokers of one cluster (three, if nothing else is said), all
    running at the start, killed at the end. ``store`` is an address; None: a SQLite file. ``more`` are further log
    directories, by the brokers' numbers."""

    def __init__(
        self,
        path: Path,
        store: str | None = None,
        *,
        count: int = 3,
        settings: Mapping[str, str] | None = None,
        own: Mapping[int, Mapping[str, str]] | None = None,
        more: Mapping[int, Sequence[Path]] | None = None,
        network: Network | None = None,
    ) -> None:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.store = store or f"sqlite:{path / 'metadata.sqlite'}"
        self.network = network or Loopback()
        self._path = path
        self._settings = {**SETTINGS, **(settings or {})}
        self.own = own or {}
        self._more = more or {}
        self.brokers: dict[int, ClusterBroker] = {}
        for node_id in range(1, count + 1):
            self.add(node_id)

    def add(self, node_id: int) -> ClusterBroker:
        """One more, which does not run yet."""
        settings = {**self._settings, **self.own.get(node_id, {})}
        path, more = self._path / f"broker-{node_id}", self._more.get(node_id, ())
        broker = ClusterBroker(node_id, path, self.store, self.network, settings, more)
        self.brokers[node_id] = broker
        return broker

    def __getitem__(self, node_id: int) -> ClusterBroker:
        return self.brokers[node_id]

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.address for broker in self.brokers.values())

    @property
    def running(self) -> list[int]:
        return [node_id for node_id, broker in self.brokers.items() if broker.is_running and not broker.is_paused]

    def __enter__(self) -> Self:
        self.network.__enter__()
        try:
            self.start_all(list(self.brokers))
            wait_until(self._see_each_other, "all brokers to see each other")
        except BaseException:
            self.close()
            raise
        return self

    def _see_each_other(self) -> bool:
        """A broker is ready before the others have heard of it."""
        for broker in self.brokers.values():
            with ClusterAdmin(parse_bootstrap(broker.address), SECONDS) as admin:
                if len(admin.racks()) < len(self.brokers):
                    return False
        return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start_all(self, nodes: Sequence[int]) -> None:
        """Those of them that do not run; all at once."""
        begun = [self.brokers[node] for node in nodes if not self.brokers[node].is_running]
        for broker in begun:
            broker.begin()
        for broker in begun:
            broker.ready()

    def heal(self) -> None:
        """Whatever was done to them: all run, and reach each other."""
        self.network.heal()
        for broker in self.brokers.values():
            broker.resume()
        self.start_all(list(self.brokers))

    def close(self) -> None:
        for broker in self.brokers.values():
            if broker.is_running:
                broker.kill()
        self.network.__exit__(None, None, None)

    # What the cluster says of itself

    def look(self) -> ClusterStatus:
        """What the store knows; it needs no broker."""
        return cluster_store.look(self.store)

    def findings(self) -> list[HealthFinding]:
        """What is wrong, as `seglog cluster status` says it."""
        return judge(self.look())

    def wait_healthy(self) -> None:
        """Until all are there, and every replica is in sync."""
        wait_until(
            lambda: len(self.look().brokers) == len(self.brokers) and not self.findings(),
            f"a healthy cluster in {self._path}",
        )

    def leader(self, topic: str, number: int) -> int | None:
        return next((one.leader for one in self.look().partitions if one.place == (topic, number)), None)
