"""The broker of the demo: ``seglog serve`` as a child process."""

from __future__ import annotations

import signal
import time
from os.path import relpath
from pathlib import Path
from typing import Final

from demo.child import PATIENCE, Child, settings_options

SETTINGS: Final = {
    "group.initial.rebalance.delay.ms": "100",
    "group.min.session.timeout.ms": "1000",
    "offsets.topic.num.partitions": "4",
}
"""Short timeouts, so that a group does not wait long for its members or for a dead one."""


class Server(Child):
    """``with Server(log_dir, errors) as server``: it runs until `stop`."""

    name = "broker"

    def __init__(self, log_dir: Path, errors: Path) -> None:
        super().__init__(errors)
        self._log_dir = log_dir

    @property
    def command(self) -> list[str]:
        where = ["--data-dir", relpath(self._log_dir), "--listen", "127.0.0.1:0"]
        return ["serve", *where, *settings_options(SETTINGS)]

    @property
    def memory(self) -> int:
        """The memory of the broker in bytes; 0 on systems without ``/proc``."""
        try:
            status = Path(f"/proc/{self._process.pid}/status").read_text()
        except OSError:
            return 0
        return next((int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmRSS")), 0)

    def stop(self) -> float:
        """Stop with SIGTERM; the seconds until everything was flushed. Raises SystemExit if the broker failed."""
        start = time.perf_counter()
        self._process.send_signal(signal.SIGTERM)
        if code := self._process.wait(PATIENCE):
            raise SystemExit(f"the broker ended with {code}: {self._errors.read_text()}")
        return time.perf_counter() - start
