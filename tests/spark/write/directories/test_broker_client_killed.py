"""Drivers that die, or come back, at any request of a commit into a directory that a broker has open."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import pytest

from tests.broker.broker_thread import RunningNode
from tests.cases import case, is_long
from tests.spark.write.brokers.sink_runs import (
    SECONDS,
    Steps,
    apart,
    join,
    left_open,
    threads_as_processes,
    written,
)
from tests.spark.write.directories.broker_runs import DirectoryRun, counted_exchanges

FIRST: Final[Sequence[Sequence[int]]] = ([*range(0, 16, 2), 1, 3], [*range(16, 32, 2)])
"""Two segments of partition 0 that are taken over, and a small one of partition 1."""
AGAIN: Final[Sequence[Sequence[int]]] = ([*range(16, 32, 2), 1], [3, *range(0, 16, 2)])
NEXT: Final[Sequence[Sequence[int]]] = ([*range(32, 48, 2), 5],)
BOTH: Final = sorted(value for tasks in (FIRST, NEXT) for task in tasks for value in task)
_STEP: Final = 1 if is_long() else 6


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    path = tmp_path_factory.mktemp("killed") / "log"
    with RunningNode(path) as running, threads_as_processes(), counted_exchanges():
        yield running


_numbers = itertools.count()


def run_of(node: RunningNode, number: int) -> DirectoryRun:
    return DirectoryRun(node.path, f"q{number}", topic=f"t{number}")


def count(node: RunningNode) -> int:
    """The requests of one batch."""
    counted, run = Steps(), run_of(node, next(_numbers))
    join(apart(lambda: run.batch(0, FIRST), counted))
    assert counted.count > 15
    return counted.count


@pytest.mark.parametrize("sent", [False, True], ids=["before a request", "after a request"])
def test_a_driver_dies(node: RunningNode, sent: bool) -> None:
    """The batch is repeated with other tasks, as nothing says that they are the same."""
    for stop_at in range(int(sent), count(node), _STEP):
        case()
        run = run_of(node, next(_numbers))
        join(apart(partial(run.batch, 0, FIRST), Steps(stop_at, sent=sent)))
        run.batch(0, AGAIN)
        run.batch(1, NEXT)
        assert written(node.bootstrap, run.topic) == BOTH, f"killed at request {stop_at}"
        assert left_open(node.bootstrap, run.query) == []


def test_a_driver_comes_back(node: RunningNode) -> None:
    """A driver hangs at a request while another repeats its batch and writes the next; then it continues."""
    for stop_at in range(0, count(node), _STEP):
        case()
        run = run_of(node, next(_numbers))
        at = Steps(stop_at, waits=True)
        zombie = apart(partial(run.batch, 0, FIRST), at)
        assert at.stands.wait(SECONDS)
        run.batch(0, AGAIN)
        at.go_on()
        join(zombie)
        run.batch(1, NEXT)
        assert written(node.bootstrap, run.topic) == BOTH, f"stopped at request {stop_at}"
        assert left_open(node.bootstrap, run.query) == []
