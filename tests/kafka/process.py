"""One Java process that is ours: started, waited for by an event, ended by its own id."""

from __future__ import annotations

import os
import random
import socket
import struct
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

__all__ = ["JavaProcess", "answers_api_versions", "free_port", "write_properties"]

_STOP_SECONDS = 180.0
_POLL_SECONDS = 0.05
_LOG_TAIL_BYTES = 4000
# Below the range from which the kernel takes ports for outgoing connections: a port that was free while we looked is
# still free when the server binds it. Until then, and while the server is down, nobody listens there: each process of
# pytest-xdist has ports of its own, and gives none out twice for a long time.
_PORTS = range(18_000, 32_000)
_LANES = 8
_lane = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _LANES
_given: deque[int] = deque(maxlen=500)
# Not the one that hypothesis seeds.
_chance = random.SystemRandom()
_LOOPBACK = "127.0.0.1"


class JavaProcess:
    """`java` with its output in a log file; every error carries the tail of that file."""

    def __init__(
        self,
        *,
        main: str,
        class_path: str,
        arguments: Sequence[str],
        log_file: Path,
        jvm_options: Sequence[str] = (),
    ) -> None:
        self.log_file = log_file
        command = ["java", *jvm_options, "-cp", class_path, main, *arguments]
        with log_file.open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._main = main

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until(self, ready: Callable[[], bool], *, seconds: float) -> None:
        """Ask `ready` until it says yes. Raises RuntimeError if the process ends or the time is up; it is then dead."""
        deadline = time.monotonic() + seconds
        try:
            while not ready():
                if self._ended_within(_POLL_SECONDS):
                    raise RuntimeError(self._complaint(f"ended with {self._process.returncode} before it was ready"))
                if time.monotonic() > deadline:
                    raise RuntimeError(self._complaint(f"was not ready after {seconds:.0f} s"))
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """SIGTERM, then wait. Raises RuntimeError if it had to be killed: its files are not those of a clean stop."""
        if self._process.poll() is not None:
            return
        self._process.terminate()
        if not self._ended_within(_STOP_SECONDS):
            self.kill()
            raise RuntimeError(self._complaint(f"did not stop within {_STOP_SECONDS:.0f} s and was killed"))

    def kill(self) -> None:
        """SIGKILL, then wait: what a power cut leaves, but for what the kernel still writes."""
        self._process.kill()
        self._process.wait()

    def _ended_within(self, seconds: float) -> bool:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _complaint(self, what: str) -> str:
        tail = self.log_file.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
        return f"{self._main} {what}; the end of {self.log_file}:\n{tail}"


def free_port(taken: frozenset[int] = frozenset()) -> int:
    """A loopback port nobody listens on, not one of `taken`."""
    for port in _chance.sample(_PORTS[_lane::_LANES], 1000):
        if port in taken or port in _given:
            continue
        with socket.socket() as probe:
            try:
                probe.bind((_LOOPBACK, port))
            except OSError:
                continue
            _given.append(port)
            return port
    raise RuntimeError(f"no free port between {_PORTS.start} and {_PORTS.stop}")


def answers_api_versions(port: int) -> bool:
    """Whether a broker answers ApiVersions v0 on the port; Kafka does so only once it is unfenced and serves."""
    body = struct.pack(">hhih", 18, 0, 1, -1)  # api key, version, correlation id, null client id
    try:
        with socket.create_connection((_LOOPBACK, port), timeout=2) as connection:
            connection.sendall(struct.pack(">i", len(body)) + body)
            answer = connection.recv(8, socket.MSG_WAITALL)
    except OSError:
        return False
    return len(answer) == 8 and answer[4:] == body[4:8]


def write_properties(path: Path, properties: Mapping[str, str]) -> Path:
    """A Java properties file; backslashes are doubled, no value of ours holds a line end."""
    lines = [f"{key}={value}".replace("\\", "\\\\") for key, value in properties.items()]
    path.write_text("\n".join(lines) + "\n")
    return path
