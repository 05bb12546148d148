"""A broker, its network and its disk by one seed: many seeds hold, and each gives the same run again."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.cases import case
from tests.in_memory import directory_in_memory
from tests.simulation.scenario import FAULTS, play

PARTS = 4
SEEDS = 500 if settings.default is not None and settings.default.max_examples > 1000 else 30
"""In each part; many more in `make test-long`."""


@pytest.fixture
def store() -> Iterator[Path]:
    """A place for metadata, in memory where there is some."""
    logging.disable(logging.CRITICAL)  # brokers whose disk fails say so
    try:
        with directory_in_memory() as directory:
            yield directory
    finally:
        logging.disable(logging.NOTSET)


@pytest.mark.parametrize("part", range(PARTS))
def test_seeds(part: int, store: Path) -> None:
    """What clients are told holds, whatever happens to the broker."""
    faults: Counter[str] = Counter()
    acknowledged = resumed = lives = 0
    for seed in range(part * SEEDS, (part + 1) * SEEDS):
        case()
        done = play(seed, store)
        faults.update(done.rates.keys())
        acknowledged += done.truth.acknowledged
        resumed += done.truth.resumed
        lives += done.machine.life
    assert set(faults) == set(FAULTS)
    assert min(acknowledged, lives) > 3 * SEEDS
    assert resumed


def test_a_seed_gives_the_same_run_in_any_process(store: Path) -> None:
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
    again = [play(seed, store).world.trace for seed in (2, 12, 31)]
    assert all(trace in said[0] for trace in again)
