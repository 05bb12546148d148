"""Replication keeps its promises whatever happens; and each rule that a bug of Kafka's past has taught is needed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest

from tests.cases import case
from tests.simulation.cluster.bugs import BUGS, Bug
from tests.simulation.cluster.run import run

_SEEDS = 30
_SECONDS = 10
_TRIES = 80
"""In so many seeds a bug must be found."""


def _run(first: int, *, unclean: bool = False, operators: bool = False) -> None:
    for seed in range(first, first + _SEEDS):
        case()
        try:
            run(seed, unclean=unclean, operators=operators, seconds=_SECONDS)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.parametrize("first", range(0, 2 * _SEEDS, _SEEDS))
def test_nothing_is_lost(first: int) -> None:
    """`python -m tests.simulation.cluster SEED seconds=10` runs one of them again."""
    _run(first)


def test_an_unclean_election_takes_back_what_was_before_it_and_nothing_else() -> None:
    """`python -m tests.simulation.cluster SEED seconds=10 unclean` runs one of them again."""
    _run(1000, unclean=True)


def test_operators_and_power_cuts_of_everything_lose_what_they_may_and_nothing_else() -> None:
    """`python -m tests.simulation.cluster SEED seconds=10 operators` runs one of them again."""
    _run(2000, operators=True)


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


def test_clients_get_something_done_and_everything_goes_wrong_somewhere() -> None:
    """A world in which everything fails, or nothing, would keep every promise."""
    outcomes: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    for seed in range(12):
        one = run(seed, seconds=8)
        outcomes.update(one.clients.outcomes)
        faults.update(one.nemesis.struck)
        faults.update(one.operators.done)
    assert outcomes["ok"] > 12 * 50
    assert len(faults) >= 8, faults


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: f"{bug.number} {bug.name}".strip())
def test_a_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.plant(monkeypatch)
    for seed in chain((bug.seed,), range(_TRIES)):
        case()
        try:
            run(seed, scenario=bug.scenario, rates=bug.rates, seconds=_SECONDS)
        except AssertionError:
            return
    raise AssertionError(f"{_TRIES} seeds have not found it")
