"""`seglog serve` as a process: alone, or as a node of a cluster."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.kit.ports import free_port
from tests.kit.service import Service

SECONDS: Final = 60.0
_ROOT: Final = Path(__file__).parents[2]


class BrokerProcess(Service):
    """``with BrokerProcess(path) as broker``: started on ``path`` at the beginning, killed at the end.

    It keeps its directory, address and log file when it is started again. ``options`` are further words of the command
    line, ``prefix`` the words before it, and ``more`` further log directories.
    """

    def __init__(
        self,
        path: Path,
        settings: Mapping[str, str] | None = None,
        *,
        address: str = "",
        options: Sequence[str] = (),
        prefix: Sequence[str] = (),
        more: Sequence[Path] = (),
        log_level: str = "info",
    ) -> None:
        self.path = path
        self.directories = [path, *more]
        self.address = address or f"127.0.0.1:{free_port()}"
        self.is_paused = False
        self._command = [
            *(*prefix, sys.executable, "-m", "seglog", "serve", "--json", "--log-level", log_level),
            *("--data-dir", ",".join(map(str, self.directories)), "--listen", self.address, *options),
            *(word for key, value in (settings or {}).items() for word in ("--set", f"{key}={value}")),
        ]
        self._process: subprocess.Popen[bytes] | None = None
        self.ready_line: dict[str, Any] = {}
        """The line that the broker printed when it became ready, at its last start."""

    @property
    def bootstrap(self) -> str:
        return self.address

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, f"the broker on {self.path} does not run"
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> Path:
        """The standard error of the broker, over all of its starts."""
        return self.path.parent / f"{self.path.name}.log"

    @property
    def _tail(self) -> str:
        return self.log.read_text(errors="replace")[-6000:]

    def launch(self) -> None:
        """Start it without waiting."""
        assert not self.is_running
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=_ROOT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
                stdout=subprocess.PIPE,
                stderr=log,
            )

    def ready(self) -> dict[str, Any]:
        """Wait for its first line, which says that it serves, and return it. RuntimeError if it ends instead."""
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], SECONDS)[0], f"not ready in {SECONDS} s: {self.log}"
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the broker on {self.path} has ended with {self.end()}:\n{self._tail}")
        self.ready_line = json.loads(line)
        return self.ready_line

    def wait(self) -> None:
        self.ready()

    def start(self) -> None:
        self.launch()
        self.ready()

    def end(self, *signals: signal.Signals) -> int:
        """Send these one after the other, and wait; the exit code."""
        process = self.process
        for number in signals:
            if number != signal.SIGKILL:
                self.resume()
            process.send_signal(number)
        self.is_paused = False
        code = process.wait(SECONDS)
        assert process.stdout is not None
        process.stdout.close()
        self._process = None
        return code

    def stop(self) -> None:
        """SIGTERM, and wait. The end must be a clean one."""
        code = self.end(signal.SIGTERM)
        assert code == 0, f"the broker on {self.path} ended with {code}:\n{self._tail}"

    def kill(self) -> None:
        """SIGKILL, and wait. Nothing happens if it does not run."""
        if self._process is not None:
            self.end(signal.SIGKILL)

    def leave(self) -> None:
        self.kill()

    def pause(self) -> None:
        """SIGSTOP: the machine hangs, and connections stay open."""
        self.process.send_signal(signal.SIGSTOP)
        self.is_paused = True

    def resume(self) -> None:
        if self.is_paused:
            self.process.send_signal(signal.SIGCONT)
            self.is_paused = False
