"""Brokers as processes in a storm: kill -9, SIGSTOP, controlled shutdowns, cuts and full disks, by a seed, two at
a time now and then; stock clients write, and read by assignment and as a group. Nothing acknowledged is lost, nothing
is there twice with idempotence, reads are monotonic, and in the end all replicas have the same batches and are in
sync.

``python -m tests.cluster_run`` makes such a storm of any length.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

from tests.cases import case
from tests.cluster_run.storm import LEAST_FAULTS, TOPICS, Storm, run

LONG = settings.default is not None and settings.default.max_examples > 1000
HALF_AN_HOUR = 1800.0


def weather(storm: Storm, keep: Path) -> None:
    outcome = run(storm, keep)
    case(outcome.faults)
    assert outcome.wrong == [], f"{storm}, kept in {keep}\n{outcome.describe()}"
    assert outcome.faults >= LEAST_FAULTS
    for report in outcome.reports.values():
        assert report.read >= report.acknowledged > 100
    assert outcome.commits > 5
    assert len(outcome.pauses) == sum(TOPICS.values())


@pytest.mark.timeout(3600 if LONG else 400)
def test_nothing_is_lost_in_a_storm(tmp_path: Path) -> None:
    weather(Storm(seed=7, seconds=HALF_AN_HOUR if LONG else 10, pace=0.1 if LONG else 0.05), tmp_path)


@pytest.mark.interop
@pytest.mark.timeout(400)
def test_nothing_is_lost_in_a_storm_on_zookeeper(tmp_path: Path) -> None:
    weather(Storm(seed=8, seconds=15, servers=1), tmp_path)


@pytest.mark.interop
@pytest.mark.everything
@pytest.mark.timeout(3600)
def test_nothing_is_lost_when_zookeeper_servers_are_killed_too(tmp_path: Path) -> None:
    weather(Storm(seed=9, seconds=HALF_AN_HOUR, brokers=5, servers=3, pace=0.1), tmp_path)
