"""Jobs into directories that the brokers of a cluster have open, several leaders, and leaders that are killed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from seglog.client.kept_connections import close_all
from seglog.core.errors import SeglogError
from seglog.core.types import TopicPartition
from seglog.storage.offline.compare_directories import compare_directories
from tests.cases import case, is_long
from tests.client.produce.written import numbers
from tests.kit.cluster import SeglogCluster
from tests.kit.waiting import wait_until
from tests.spark.write.brokers.sink_runs import Steps, steps, threads_as_processes
from tests.spark.write.directories.broker_runs import DirectoryRun, counted_exchanges

_KILLS: Final = range(0, 60, 2) if is_long() else (11, 13, 15)
"""The request of a commit at which a leader is killed: around those that take segments over."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeglogCluster]:
    with SeglogCluster(tmp_path_factory.mktemp("cluster")) as running, threads_as_processes(), counted_exchanges():
        yield running
    close_all()


def run_of(cluster: SeglogCluster, query: str, *nodes: int) -> DirectoryRun:
    first, *more = (cluster[node].path for node in nodes)
    return DirectoryRun(first, query, *more, topic=query)


def written(cluster: SeglogCluster, topic: str) -> list[int]:
    return sorted(value for number in range(2) for value in numbers(cluster.bootstrap, TopicPartition(topic, number)))


def leader_of(run: DirectoryRun) -> int:
    return run.leader(0)


class KillAt(Steps):
    """Kills a leader before one of the requests, and lets the driver continue."""

    def __init__(self, cluster: SeglogCluster, run: DirectoryRun, at: int) -> None:
        super().__init__()
        self._cluster = cluster
        self._run = run
        self._at = at
        self.killed: int | None = None

    def before_send(self) -> None:
        if self.count == self._at:
            self.count += 1  # the look-up of the leader sends requests, too
            self.killed = leader_of(self._run)
            self._cluster[self.killed].kill()
        super().before_send()


def test_each_leader_takes_over_its_segments_and_replicas_have_them(cluster: SeglogCluster) -> None:
    run = run_of(cluster, "all", 1, 2, 3)
    run.begin()
    leaders = {run.leader(0), run.leader(1)}
    run.batch(0, [range(20), range(20, 40)])
    run.batch(1, [[40, 41]])
    assert written(cluster, "all") == [*range(42)]
    if len(leaders) == 2:
        assert all(run.segments(number) > 1 for number in range(2))
    cluster.wait_healthy()
    wait_until(
        lambda: all(
            one.is_fine
            for node in (2, 3)
            for one in compare_directories(str(cluster[1].path), str(cluster[node].path), topics=["all"])
        ),
        "replicas to be the same",
    )


def test_a_leader_without_a_directory_here_gets_the_records(cluster: SeglogCluster) -> None:
    """Only one broker's directory is given: partitions that another one leads are staged there and sent."""
    run = run_of(cluster, "one", 2)
    run.batch(0, [range(20), range(20, 40)])
    assert written(cluster, "one") == [*range(40)]


def test_a_leader_is_killed_in_a_commit(cluster: SeglogCluster) -> None:
    """The commit continues with another leader, or fails and is repeated; the batch is written once."""
    for number in _KILLS:
        case()
        run = run_of(cluster, f"kill{number}", 1, 2, 3)
        run.batch(0, [range(10)])
        killing = KillAt(cluster, run, number)
        with steps(killing):
            outcome = _once(run, 1, range(10, 30))
        cluster.heal()
        cluster.wait_healthy()
        if not outcome:
            run.batch(1, [[*range(29, 9, -1)]])
        run.batch(2, [range(30, 40)])
        assert written(cluster, run.query) == [*range(40)], f"killed {killing.killed} at request {number}"


def _once(run: DirectoryRun, batch: int, values: range) -> bool:
    try:
        run.batch(batch, [values])
    except SeglogError:
        return False
    return True
