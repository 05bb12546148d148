"""Replication keeps its promises whatever happens; and each rule that a bug of Kafka's past has taught is needed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

from tests.cases import case, is_long
from tests.simulation.cluster import scenario
from tests.simulation.cluster.bugs import BUGS, Bug
from tests.simulation.cluster.run import Run, run

_SEEDS = 120 if is_long() else 12
"""Of each kind of scenario; many more in `make test-long`."""
_SECONDS = 10
_TRIES = 80
"""A bug must be found within this many seeds."""


def _runs(first: int, *, unclean: bool = False, operators: bool = False) -> Iterator[Run]:
    for seed in range(first, first + _SEEDS):
        case()
        try:
            yield run(seed, unclean=unclean, operators=operators, seconds=_SECONDS)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_nothing_is_lost() -> None:
    """`python -m tests.simulation.cluster SEED seconds=10` runs one of them again.

    Clients get something done, and everything goes wrong somewhere: a world in which everything fails, or nothing,
    would keep every promise.
    """
    outcomes: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    permissions: Counter[str] = Counter()
    for one in _runs(0):
        outcomes.update(one.clients.outcomes)
        faults.update(one.nemesis.struck)
        faults.update(one.operators.done)
        if one.cluster.permissions is not None:
            permissions.update(one.cluster.permissions.done)
    assert outcomes["ok"] > _SEEDS * 50
    assert len(faults) >= 8, faults
    assert min(permissions["allowed"], permissions["denied"]) > _SEEDS, permissions


def test_unclean_election_voids_only_earlier_guarantees() -> None:
    """`python -m tests.simulation.cluster SEED seconds=10 unclean` runs one of them again."""
    for _ in _runs(1000, unclean=True):
        pass


def test_operators_and_total_power_cuts_lose_only_permitted_records() -> None:
    """`python -m tests.simulation.cluster SEED seconds=10 operators` runs one of them again."""
    for _ in _runs(2000, operators=True):
        pass


def test_a_seed_does_the_same_in_another_process() -> None:
    program = "from tests.simulation.cluster.run import run; one = run(3, seconds=10); print(one.trace, one.events)"
    told = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=Path(__file__).parents[3],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    one = run(3, seconds=10)
    assert told == {f"{one.trace} {one.events}\n"}
    assert run(4, seconds=10).trace != one.trace


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: f"{bug.number} {bug.name}".strip())
def test_a_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenario, "PRINCIPALS", 0.0)
    bug.plant(monkeypatch)
    for seed in chain((bug.seed,), range(_TRIES)):
        case()
        try:
            run(seed, scenario=bug.scenario, rates=bug.rates, seconds=_SECONDS)
        except AssertionError:
            return
    raise AssertionError(f"{_TRIES} seeds have not found it")
