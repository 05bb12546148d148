"""`seglog serve` as a process, and what it costs: memory, file descriptors, what it says."""

from __future__ import annotations

import os
import re
import resource
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from seglog.protocol.apis import ApiKey
from tests.broker.broker_thread import Wire
from tests.kit.broker_process import BrokerProcess
from tests.kit.waiting import wait_until

_PATIENCE = 60
MEGABYTE = 1 << 20


class ServedBroker(BrokerProcess):
    """``with ServedBroker(path) as served``: a separate server, which must end cleanly on SIGTERM."""

    def __init__(self, path: Path, settings: Mapping[str, str] | None = None, *, log_level: str = "warning") -> None:
        quick = {"offsets.topic.num.partitions": "1", "group.initial.rebalance.delay.ms": "0"}
        super().__init__(path / "log", {**quick, **(settings or {})}, log_level=log_level)
        self._sockets_at_rest = 0

    def leave(self) -> None:
        self.stop()

    def leave_failed(self) -> None:
        self.kill()

    def connect(self) -> socket.socket:
        host, _, port = self.bootstrap.rpartition(":")
        return socket.create_connection((host, int(port)), timeout=_PATIENCE)

    @property
    def memory(self) -> int:
        """Bytes that are resident."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None, status
        return int(found[1]) * 1024

    @property
    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def allow_descriptors(self, number: int) -> None:
        """It may have so many, as after ``ulimit -n``."""
        resource.prlimit(self.pid, resource.RLIMIT_NOFILE, (number, number))

    @property
    def sockets(self) -> int:
        """How many are open."""
        descriptors = Path(f"/proc/{self.pid}/fd")
        return sum(_target(descriptors / number).startswith("socket:") for number in os.listdir(descriptors))

    def ready(self) -> dict[str, Any]:
        line = super().ready()
        self._sockets_at_rest = self.sockets
        return line

    def has_come_to_rest(self) -> bool:
        """Whether it has the sockets of its start and a few, as soon as it has noticed that its clients are gone.

        Not those of a test's beginning: clients of the test before may be among them.
        """
        most = self._sockets_at_rest + 5
        try:
            wait_until(lambda: self.sockets <= most, f"{most} sockets")
        except RuntimeError:
            return False
        return True

    def check_quiet(self) -> None:
        """It has met nothing that it did not foresee."""
        said = self.log.read_text()
        assert "could not be answered" not in said, said[-6000:]
        assert "Traceback" not in said, said[-6000:]
        assert "level=critical" not in said, said[-6000:]


class Other:
    """Another client, that produces to and reads from its own topic all the time; how long it waits, in seconds."""

    def __init__(self, served: ServedBroker, topic: str = "quiet") -> None:
        self._served = served
        self._topic = topic
        self._is_over = threading.Event()
        self._answered = threading.Condition()
        self.times: list[float] = []
        self.error: Exception | None = None

    def ask(self, number: int) -> None:
        """``number`` rounds, one after the other."""
        with Wire(self._served.bootstrap) as wire:
            wire.ask(ApiKey.METADATA, topics=[{"name": self._topic}], allow_auto_topic_creation=True)
            for _ in range(number):
                self._once(wire)

    def _once(self, wire: Wire) -> None:
        begun = time.monotonic()
        wire.ask(ApiKey.LIST_OFFSETS, 5, replica_id=-1, topics=[_latest(self._topic)])
        with self._answered:
            self.times.append(time.monotonic() - begun)
            self._answered.notify_all()

    @contextmanager
    def asking(self) -> Iterator[Self]:
        """Meanwhile it goes on, in a thread."""
        self.times.clear()
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield self
        finally:
            self._is_over.set()
            thread.join()
            self._is_over.clear()
        if self.error is not None:
            raise self.error

    def wait_for(self, number: int) -> None:
        """Until it has been answered so many times more."""
        wanted = len(self.times) + number
        with self._answered:
            self._answered.wait_for(lambda: len(self.times) >= wanted or self.error is not None)

    def _run(self) -> None:
        try:
            with Wire(self._served.bootstrap) as wire:
                while not self._is_over.wait(0.002):
                    self._once(wire)
        except Exception as error:
            with self._answered:
                self.error = error
                self._answered.notify_all()
            raise

    @property
    def p99(self) -> float:
        return sorted(self.times)[int(len(self.times) * 0.99)]


def _latest(topic: str) -> dict[str, object]:
    return {"name": topic, "partitions": [{"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}]}


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except FileNotFoundError:  # closed meanwhile
        return ""


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def read_until_closed(connection: socket.socket) -> bytes:
    """All that comes; how it ends does not matter."""
    data = bytearray()
    try:
        while piece := connection.recv(1 << 16):
            data += piece
    except ConnectionError:
        pass
    return bytes(data)
