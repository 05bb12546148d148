"""Run the command in its own process, or in this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import seglog.cli.main
from seglog.cli.main import main

_SOURCE = str(Path(seglog.cli.main.__file__).parents[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """The output of a command and its exit code."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @property
    def objects(self) -> list[dict[str, Any]]:
        """The JSON documents of stdout, one a line."""
        return [json.loads(line) for line in self.text.split("\n") if line]


Run = Callable[..., Ran]


def run_here(capture: pytest.CaptureFixture[bytes]) -> Run:
    """A function that runs `seglog` in this process and returns the output that pytest captured."""

    def run(*arguments: str | Path) -> Ran:
        capture.readouterr()
        code = main([str(argument) for argument in arguments])
        out, err = capture.readouterr()
        return Ran(code=code, out=out, err=err.decode())

    return run


def seglog_command(*arguments: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> Ran:
    """Run `seglog` in a separate process, not on a terminal."""
    done = subprocess.run(
        _command(arguments),
        capture_output=True,
        cwd=cwd,
        env={**_environment(), **(env or {})},
        timeout=300,
        check=False,
    )
    return Ran(code=done.returncode, out=done.stdout, err=done.stderr.decode())


def printed_on(terminal: int) -> bytes:
    """All output on the other end of a terminal, until its process ends; closes this end."""
    printed = b""
    while True:
        try:
            part = os.read(terminal, 1000)
        except OSError:  # the other end is closed
            part = b""
        if not part:
            os.close(terminal)
            return printed
        printed += part


def start_seglog(*arguments: str | Path, stdout: int = subprocess.PIPE, columns: int = 200) -> subprocess.Popen[bytes]:
    """Start `seglog` in its own process and do not wait; stdout is a pipe by default."""
    return subprocess.Popen(
        _command(arguments), stdout=stdout, env={**_environment(), "TERM": "xterm", "COLUMNS": str(columns)}
    )


def _command(arguments: tuple[str | Path, ...]) -> list[str]:
    return [sys.executable, "-m", "seglog", *map(str, arguments)]


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": _SOURCE}
