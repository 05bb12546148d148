"""`run`: a command in this process, which saves the start of an interpreter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from seglog.cli.main import main
from tests.cli.run import Ran

Run = Callable[..., Ran]


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    def run_command(*arguments: str | Path) -> Ran:
        capfdbinary.readouterr()
        code = main([str(argument) for argument in arguments])
        out, err = capfdbinary.readouterr()
        return Ran(code=code, out=out, err=err.decode())

    return run_command
