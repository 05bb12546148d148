"""Errors of a failing disk are true: an application that believes them has each of its values once."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.cases import case, is_long
from tests.simulation.failing_disk.bugs import BUGS, Bug
from tests.simulation.failing_disk.run import run

_SEEDS = 1000 if is_long() else 12
_TRIES = 40
"""A bug must be found within this many seeds."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Logs whose disk fails say so."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def test_each_value_is_written_once() -> None:
    """`python -m tests.simulation.failing_disk SEED` runs one of them again."""
    counted: Counter[str] = Counter()
    for seed in range(_SEEDS):
        case()
        try:
            counted += run(seed).counted
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    for name in ("append", "take", "append: full", "take: full", "append: offline", "take: offline", "kill"):
        assert counted[name] >= _SEEDS // 6, counted


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.plant(monkeypatch)
    for seed in range(_TRIES):
        case()
        try:
            run(seed)
        except AssertionError:
            return
    raise AssertionError(f"{_TRIES} seeds have not found it")
