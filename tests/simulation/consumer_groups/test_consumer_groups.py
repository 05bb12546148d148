"""A partition has one owner at a time whatever happens, and each rule that makes it so is needed."""

from __future__ import annotations

from collections import Counter
from itertools import chain

import pytest

from tests.cases import case, is_long
from tests.simulation.consumer_groups.bugs import BUGS, Bug
from tests.simulation.consumer_groups.run import run

_SEEDS = 200 if is_long() else 8
_SECONDS = 8
_TRIES = 80
"""A bug must be found within this many seeds."""


def test_a_partition_has_one_owner_at_a_time_and_one_in_the_end() -> None:
    """`python -m tests.simulation.consumer_groups SEED seconds=8` runs one of them again. Members get something done,
    and everything goes wrong somewhere: a world in which everything fails, or nothing, would keep every promise."""
    counted: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    for seed in range(_SEEDS):
        case()
        try:
            one = run(seed, seconds=_SECONDS)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        counted += one.counted
        faults += one.faults
    assert min(counted["given"], counted["commits"]) > 40, counted
    assert min(counted["revoked"], counted["lives"]) > 15, counted
    assert len(faults) >= 8, faults


def test_a_seed_does_the_same_again() -> None:
    assert run(3, seconds=4).trace == run(3, seconds=4).trace


_BUGS = [pytest.param(bug, id=bug.name, marks=[pytest.mark.everything] if bug.is_slow else []) for bug in BUGS]


@pytest.mark.parametrize("bug", _BUGS)
def test_a_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.plant(monkeypatch)
    for seed in chain((bug.seed,), range(_TRIES)):
        case()
        try:
            run(seed, scenario=bug.scenario, rates=bug.rates, classics=bug.classics, seconds=_SECONDS)
        except AssertionError:
            return
    raise AssertionError(f"{_TRIES} seeds have not found it")
