"""Transactions of stock clients while brokers are killed, hang, stop and are cut off: at the end each is whole or
absent, with the offsets that it commits, and read_committed consumers have seen no part of an aborted one.

A run with a real Kafka calibrates the checker: it must find no anomaly there either. Kafka hangs and is not killed:
docs/replication.md shows the anomalies after kills.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.broker.python_clients import NewTopic
from tests.cases import case
from tests.clients.servers import Kind, Server
from tests.cluster_run.nemesis import Nemesis
from tests.cluster_run.storm import LEAST_FAULTS, SESSION_SECONDS, STORM_SETTINGS
from tests.cluster_run.transaction_checks import TransactionReport, check_transactions
from tests.cluster_run.transaction_clients import GROUP, TOPICS, TransactionWorkload
from tests.kit.cluster import SeglogCluster
from tests.kit.network import Loopback, Namespaces
from tests.kit.topics import create_topics

TWENTY_MINUTES = 1200.0
TEN_SECONDS = 10.0
_ROUNDS = 3
_PAUSE_SECONDS = 5.0
"""Longer than clients wait for an answer."""
_TIMEOUTS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000"}
_SETTINGS = {**STORM_SETTINGS, **_TIMEOUTS}


def storm(
    bootstrap: str,
    replicas: int,
    faults: Callable[[TransactionWorkload], None],
    keep: Path,
    *,
    pace: float = 0.01,
) -> TransactionReport:
    """``faults`` happen while clients work. ``keep`` gets the report, and the history if it has anomalies."""
    create_topics(bootstrap, *(NewTopic(name, count, replicas) for name, count in TOPICS.items()))
    with TransactionWorkload(bootstrap, 7, pace=pace) as load:
        load.wait_for_more()
        faults(load)
        load.wait_for_more()
        positions = load.finish()
    report = check_transactions(load.history, {GROUP: positions})
    (keep / "report").write_text("\n".join([report.describe(), *(f"hanging: {one}" for one in load.hanging), ""]))
    if load.wrong or report.report.anomalies:
        load.history.write(keep / "history")
    assert load.wrong == []
    assert load.hanging == []
    assert report.report.anomalies == [], report.describe()
    assert report.committed > 20, report.describe()
    assert report.processed > 5, report.describe()
    return report


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(TEN_SECONDS, id="short"),
        pytest.param(TWENTY_MINUTES, id="long", marks=pytest.mark.everything),
    ],
)
def test_transactions_are_whole_or_absent_after_a_storm(seconds: float, memory: Path, tmp_path: Path) -> None:
    links = Namespaces(3) if Namespaces.can_be_made() else None
    with SeglogCluster(memory, settings=_SETTINGS, network=links or Loopback()) as cluster:
        nemesis = Nemesis(cluster, Random(5), SESSION_SECONDS, links=links)

        def faults(_: TransactionWorkload) -> None:
            case(nemesis.run(seconds, LEAST_FAULTS))
            cluster.wait_healthy()

        storm(cluster.bootstrap, 3, faults, tmp_path, pace=0.2 if seconds > TEN_SECONDS else 0.01)


@pytest.mark.everything
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["ours", pytest.param("kafka", marks=pytest.mark.interop)])
def test_transactions_are_whole_or_absent_at_a_broker_that_is_killed_or_hangs(
    kind: Kind, memory: Path, tmp_path: Path
) -> None:
    with Server(kind, memory, _TIMEOUTS) as server:

        def faults(load: TransactionWorkload) -> None:
            for _ in range(_ROUNDS):
                if kind == "ours":
                    server.kill()
                    server.start()
                    load.wait_for_more(20)
                server.pause()
                time.sleep(_PAUSE_SECONDS)  # how long the process hangs
                server.resume()
                load.wait_for_more(20)
                case()

        storm(server.bootstrap, 1, faults, tmp_path)
