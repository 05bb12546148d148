"""Transactions are whole or absent whatever happens, and each rule that makes them so is needed."""

from __future__ import annotations

from collections import Counter
from itertools import chain

import pytest

from tests.cases import case
from tests.cluster_run.history import History
from tests.simulation.cluster.cluster import Cluster
from tests.simulation.cluster.coordinator_clients import CoordinatorOperators
from tests.simulation.cluster.host import Host
from tests.simulation.cluster.run import run_until, unforeseen_errors
from tests.simulation.cluster.scenario import Scenario
from tests.simulation.transactions.bugs import BUGS, Bug
from tests.simulation.transactions.clients import Appender
from tests.simulation.transactions.run import draw, run

_SEEDS = 20
_RANGE_SEEDS = 6
_SECONDS = 8
_TRIES = 80
"""A bug must be found within this many seeds."""


def test_transactions_are_whole_or_absent() -> None:
    """`python -m tests.simulation.transactions SEED seconds=8` runs one of them again. Clients get something done, and
    everything goes wrong somewhere: a world in which everything fails, or nothing, would keep every promise."""
    counted: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    for seed in range(_SEEDS):
        case()
        try:
            one = run(seed, seconds=_SECONDS)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        counted += Counter(committed=one.report.committed, aborted=one.report.aborted, processed=one.report.processed)
        faults.update(one.nemesis.struck)
        faults.update(one.operators.done)
    assert min(counted["committed"], counted["aborted"], counted["processed"]) > 30, counted
    assert len(faults) >= 8, faults


def test_ranges_have_all_committed_records() -> None:
    """`python -m tests.simulation.transactions SEED seconds=6 ranges` runs one of them again."""
    counted: Counter[str] = Counter()
    for seed in range(_RANGE_SEEDS):
        case()
        try:
            counted += run(seed, scenario=draw(seed)._replace(ranges=True), seconds=6).ranges.counted
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    assert counted["read"] > 5 * _RANGE_SEEDS, counted


def test_a_seed_does_the_same_again() -> None:
    assert run(3, seconds=4).trace == run(3, seconds=4).trace


def _is_loading(host: Host) -> bool:
    if host.node is None or not host.answers:
        return False
    return any(not context.is_replayed for context in host.node.transactions._contexts.values())


def test_a_broker_that_dies_while_it_loads_a_coordinator_ends_no_run() -> None:
    """Its disk is gone in the middle of the replay: the task group of the coordinators fails with that, and the broker
    logs it with its last words."""
    cluster = Cluster(1, Scenario(nodes=1, replicas=1, min_insync=1, coordinators=True))
    host = cluster.hosts[1]
    with unforeseen_errors(cluster.world):
        operators = CoordinatorOperators(cluster, ())
        assert cluster.world.run(cluster.has_begun, 5)
        operators.is_on = False
        client = Appender(cluster, "w", History())
        run_until(cluster.world, cluster.world.now + 2)
        host.kill()
        host.begin()
        assert cluster.world.run(lambda: _is_loading(host), 5)
        host.kill()
        host.begin()
        assert cluster.world.run(lambda: host.is_up, 5)
    for one in (client, operators):
        one.loop.kill()
    cluster.end()


_BUGS = [pytest.param(bug, id=bug.name, marks=[pytest.mark.everything] if bug.is_slow else []) for bug in BUGS]


@pytest.mark.parametrize("bug", _BUGS)
def test_a_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.plant(monkeypatch)
    for seed in chain((bug.seed,), range(_TRIES)):
        case()
        try:
            run(seed, scenario=bug.scenario, rates=bug.rates, seconds=_SECONDS)
        except AssertionError:
            return
    raise AssertionError(f"{_TRIES} seeds have not found it")
