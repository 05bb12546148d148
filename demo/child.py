"""A command of seglog as a child process that reports when it is ready."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

PATIENCE: Final = 60


class Child(ABC):
    """Runs within a ``with``. ``ready`` is its report, ``errors`` the file for its standard error."""

    name: str
    ends_cleanly = False
    """Whether it ends on SIGTERM; otherwise it is killed."""

    def __init__(self, errors: Path) -> None:
        self._errors = errors
        self._process: subprocess.Popen[bytes]
        self.ready: dict[str, Any] = {}

    @property
    @abstractmethod
    def command(self) -> list[str]:
        """The arguments of ``seglog``."""

    @property
    def bootstrap(self) -> str:
        return str(self.ready["bootstrap"])

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
            raise SystemExit(f"the {self.name} did not start: {self._errors.read_text()}")
        self.ready = json.loads(line)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self.ends_cleanly:
                self._process.send_signal(signal.SIGTERM)
                self._process.wait(PATIENCE)
        finally:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()


def settings_options(settings: dict[str, str]) -> list[str]:
    """Keys of ``server.properties`` as command line options."""
    return [part for item in settings.items() for part in ("--set", "=".join(item))]
