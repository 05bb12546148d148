"""Forty scripts of faults with each client; `python -m tests.clients.fault_run` writes the verdicts."""

from __future__ import annotations

import json

import pytest

from tests.clients.fault_run import FAULT_CLIENTS, PATH, run


@pytest.mark.everything
@pytest.mark.parametrize("name", FAULT_CLIENTS)
def test_verdicts_are_those_of_the_guide(name: str) -> None:
    """But for counts, which depend on time."""

    def kinds(verdicts: dict[str, str]) -> dict[str, str]:
        return {case: verdict.split()[0] for case, verdict in verdicts.items()}

    assert kinds(run(name)["verdicts"]) == kinds(json.loads(PATH.read_text())[name]["verdicts"])
