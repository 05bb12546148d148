"""One Java process: started, waited for by an event, ended by its own id; and a server that is one, again and again."""

from __future__ import annotations

import socket
import struct
import subprocess
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.kit.service import Service

__all__ = ["JavaProcess", "JavaServer", "answers_api_versions", "write_properties"]

_STOP_SECONDS = 180.0
_POLL_SECONDS = 0.05
_LOG_TAIL_BYTES = 4000
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


class JavaServer(Service):
    """One Java process, again and again. `launch` sets ``_process``."""

    _process: JavaProcess | None = None

    @property
    def pid(self) -> int:
        """Of its process, while it runs."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        """Start and wait until it answers. Raises RuntimeError with the end of its log."""
        self.launch()
        self.wait()

    @abstractmethod
    def launch(self) -> None:
        """Start without waiting."""

    @abstractmethod
    def wait(self) -> None:
        """Return when it answers."""

    def check_stopped(self) -> None:
        if self._process is not None:
            raise RuntimeError("the server is running")

    def wait_until(self, answers: Callable[[], bool], seconds: float) -> None:
        if self._process is None:
            raise RuntimeError("the server is not running")
        try:
            self._process.wait_until(answers, seconds=seconds)
        except BaseException:
            self._process = None  # it was killed
            raise

    def stop(self) -> None:
        """A clean stop (SIGTERM). Of a broker: logs flushed, indexes trimmed, producer snapshots and checkpoints
        written."""
        process, self._process = self._process, None
        if process is not None:
            process.stop()

    def kill(self) -> None:
        """SIGKILL. Of a broker: no checkpoint, no `.kafka_cleanshutdown`, indexes still pre-allocated."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()


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
