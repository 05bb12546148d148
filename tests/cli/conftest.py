"""`run`: a command in this process, which saves the start of an interpreter."""

from __future__ import annotations

import pytest

from tests.cli.run import Run, run_here


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    return run_here(capfdbinary)
