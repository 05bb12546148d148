"""A broker, its network and its disk by one seed: many seeds hold, and each gives the same run again."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

from tests.cases import case, is_long
from tests.simulation import scenario
from tests.simulation.bugs import BUGS, Bug
from tests.simulation.scenario import FAULTS, play

PARTS, SEEDS = (4, 500) if is_long() else (1, 30)
"""In each part; many more in `make test-long`."""
_TRIES = 40
"""A bug must be found within this many seeds."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Brokers whose disk fails say so."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


@pytest.mark.parametrize("part", range(PARTS))
def test_seeds(part: int) -> None:
    """Every promise to a client holds, whatever happens to the broker."""
    faults: Counter[str] = Counter()
    permissions: Counter[str] = Counter()
    acknowledged = resumed = lives = 0
    for seed in range(part * SEEDS, (part + 1) * SEEDS):
        case()
        done = play(seed)
        faults.update(done.rates.keys())
        acknowledged += done.truth.acknowledged
        resumed += done.truth.resumed
        lives += done.machine.life
        if done.permissions is not None:
            permissions.update(done.permissions.done)
    assert set(faults) == {*FAULTS, "read"}
    assert min(acknowledged, lives) > 3 * SEEDS
    assert resumed
    assert min(permissions["allowed"], permissions["denied"]) > SEEDS, permissions
    assert set(permissions) == {"allowed", "denied", "logged in", "not logged in"}


def test_a_seed_gives_the_same_run_in_any_process() -> None:
    said = []
    for hash_seed in ("1", "2"):
        environment = {
            **os.environ,
            "PYTHONHASHSEED": hash_seed,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        done = subprocess.run(
            [sys.executable, "-m", "tests.simulation", "2", "12", "31"],
            cwd=Path(__file__).parents[2],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        said.append(done.stdout)
    assert said[0] == said[1]
    assert said[0].count("trace") == 3
    again = [play(seed).world.trace for seed in (2, 12, 31)]
    assert all(trace in said[0] for trace in again)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenario, "READ_ERRORS", bug.read_errors)
    monkeypatch.setattr(scenario, "PRINCIPALS", bug.principals)
    bug.plant(monkeypatch)
    for seed in chain((bug.seed,), range(_TRIES)):
        case()
        try:
            play(seed)
        except AssertionError:
            return
    raise AssertionError(f"{_TRIES} seeds have not found it")
