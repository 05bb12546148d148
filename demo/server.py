"""The broker of the demo: ``seglog serve`` as a child, as anybody would start it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from os.path import relpath
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

SETTINGS: Final = {
    "group.initial.rebalance.delay.ms": "100",
    "group.min.session.timeout.ms": "1000",
    "offsets.topic.num.partitions": "4",
}
"""A group need not wait long for its members, nor for one that is dead."""
_PATIENCE: Final = 60


class Server:
    """``with Server(log_dir, errors) as server``: it runs until `stop`. ``ready`` is what it said when it was."""

    def __init__(self, log_dir: Path, errors: Path) -> None:
        self._log_dir = log_dir
        self._errors = errors
        self._process: subprocess.Popen[bytes]
        self.ready: dict[str, Any] = {}

    @property
    def command(self) -> list[str]:
        settings = [part for item in SETTINGS.items() for part in ("--set", "=".join(item))]
        return ["serve", "--data-dir", relpath(self._log_dir), "--listen", "127.0.0.1:0", *settings]

    @property
    def bootstrap(self) -> str:
        return str(self.ready["bootstrap"])

    @property
    def memory(self) -> int:
        """Bytes that it takes, where ``/proc`` says so; else 0."""
        try:
            status = Path(f"/proc/{self._process.pid}/status").read_text()
        except OSError:
            return 0
        return next((int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmRSS")), 0)

    def __enter__(self) -> Self:
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "seglog", *self.command, "--json"],
                stdout=subprocess.PIPE,
                stderr=errors,
                process_group=0,  # Ctrl-C is for the demo, which then stops it
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the broker did not start: {self._errors.read_text()}")
        self.ready = json.loads(line)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def stop(self) -> float:
        """As a service manager stops it; seconds until everything was flushed. SystemExit if it says that it failed."""
        start = time.perf_counter()
        self._process.send_signal(signal.SIGTERM)
        if code := self._process.wait(_PATIENCE):
            raise SystemExit(f"the broker ended with {code}: {self._errors.read_text()}")
        return time.perf_counter() - start
