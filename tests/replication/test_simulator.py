"""Replication keeps its promises whatever happens; and each rule that a bug of Kafka's past has taught is needed."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections import Counter
from itertools import chain

import pytest

from tests.cases import case
from tests.replication.bugs import BUGS, Bug
from tests.replication.run import run

_SEEDS = 40
_SECONDS = 10
"""A test's; four tests side by side."""
_TRIES = 60
"""In so many seeds a bug has to be found."""


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Failed disks and lost pages are logged loudly. Other tests of this process look at what is logged."""
    caplog.set_level(logging.CRITICAL, logger="seglog")


def _run(first: int, *, unclean: bool = False) -> None:
    for seed in range(first, first + _SEEDS):
        case()
        try:
            run(seed, unclean=unclean, seconds=_SECONDS)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.parametrize("first", range(0, 4 * _SEEDS, _SEEDS))
def test_nothing_is_lost(first: int) -> None:
    """`python -m tests.replication SEED seconds=10` runs one of them again."""
    _run(first)


def test_an_unclean_election_takes_back_what_was_before_it_and_nothing_else() -> None:
    """`python -m tests.replication SEED seconds=10 unclean` runs one of them again."""
    _run(1000, unclean=True)


def test_the_same_seed_does_the_same_in_another_process() -> None:
    program = "from tests.replication.run import run; one = run(3, seconds=10); print(one.trace, one.events)"
    told = {
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
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
