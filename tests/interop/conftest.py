"""One real Kafka for all tests of a session: a start costs seconds, a topic of one's own costs nothing."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from seglog.spark import get_spark
from tests.broker.broker_thread import RunningNode
from tests.clients import results
from tests.clients.clusters import Cluster
from tests.clients.servers import Server
from tests.interop.connector_world import NODE_PROPERTIES, World, fill
from tests.kafka import KafkaNode, ZkKafkaNode
from tests.kafka.connector import connector_config
from tests.kit.memory import directory_in_memory
from tests.sequences.both import Both

_HERE = Path(__file__).parent
_numbers = itertools.count()
# Nobody starts these again: they need not be missed soon, and a controller that was not running for ten seconds must
# not take their leaders away.
_QUICK_GROUPS = {
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.heartbeat.interval.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "1000",
}
"""In groups of KIP-848 the broker decides when a member is gone: by default after 45 seconds."""
_LASTING = {"broker.session.timeout.ms": "60000"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-clients", action="store_true", help="write docs_site/clients.json from this run")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test below this directory is an interop test, so that none can be forgotten."""
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.interop)
            params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
            if found := results.tried(item.path.stem, params):
                item.user_properties.append(("client", tuple(found)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """In the process that has all reports, also those of pytest-xdist's workers."""
    if terminalreporter.config.getoption("record_clients"):
        failed = {report.nodeid: report for of in ("failed", "error") for report in terminalreporter.getreports(of)}
        passed = [report for report in terminalreporter.getreports("passed") if report.nodeid not in failed]
        results.record(_tried(passed), _tried(failed.values()))


def _tried(reports: Iterable[pytest.TestReport]) -> list[results.Tried]:
    found = [dict(report.user_properties).get("client") for report in reports]
    return [results.Tried(*one) for one in found if isinstance(one, (list, tuple))]


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaNode]:
    """Kafka 4.4.0, running; leave it running and use topics of your own."""
    with lasting(tmp_path_factory.mktemp("kafka")) as node:
        yield node


@contextmanager
def lasting(path: Path, properties: Mapping[str, str] | None = None) -> Iterator[KafkaNode]:
    """Killed at its end: a clean stop would write files for hundreds of logs that no test reads, on a disk that may be
    slow."""
    node = KafkaNode(path, {**_LASTING, **(properties or {})})
    node.start()
    try:
        yield node
    finally:
        node.kill()


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """Our broker for the tests of one file, beside ``kafka``."""
    settings = {
        "auto.create.topics.enable": "false",
        # Tests send records and producers with times in the past: when these go, Kafka and ours need not agree.
        "log.retention.ms": "-1",
        "producer.id.expiration.check.interval.ms": "86400000",
    }
    with RunningNode(tmp_path_factory.mktemp("ours") / "log", settings) as running:
        yield running


@pytest.fixture
def both(kafka: KafkaNode, ours: RunningNode) -> Iterator[Both]:
    """Asks each of the two the same."""
    opened = Both(kafka.bootstrap, ours.bootstrap)
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def old_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZkKafkaNode]:
    """Kafka 2.8.2 with ZooKeeper, running, for message formats 0 and 1."""
    with ZkKafkaNode(tmp_path_factory.mktemp("old-kafka")) as node:
        yield node


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A broker and a Spark session with Spark's own Kafka connector; the tests that use it are one xdist group."""
    directory = tmp_path_factory.mktemp("world")
    with lasting(directory / "kafka", NODE_PROPERTIES) as node:
        spark = get_spark(
            "seglog interop",
            master="local[2]",
            config={"spark.sql.shuffle.partitions": "2", **connector_config()},
            jvm_log=str(directory / "spark.log"),
        )
        if "spark-sql-kafka" not in (spark.conf.get("spark.jars", "") or ""):
            raise RuntimeError("Spark runs without the connector's jars already: run tests/interop by themselves")
        made = World(node, spark)
        fill(made)
        yield made
        spark.stop()
        made.close()


@pytest.fixture
def own_kafka(tmp_path: Path) -> Iterator[KafkaNode]:
    """Kafka 4.4.0 for one test that stops, kills or restarts it."""
    with KafkaNode(tmp_path / "kafka") as node:
        yield node


@pytest.fixture(scope="session", params=["ours", pytest.param("kafka", marks=pytest.mark.everything)])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Our broker, and Kafka's, which says whether what is wanted of ours is right; use topics of your own."""
    with Server(request.param, tmp_path_factory.mktemp("server") / "log", _QUICK_GROUPS) as running:
        yield running


@pytest.fixture(scope="module", params=["ours", pytest.param("kafka", marks=pytest.mark.everything)])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Three brokers of ours, and three of Kafka's."""
    with directory_in_memory() as path, Cluster(request.param, path / "cluster") as running:
        yield running


@pytest.fixture
def topic_name() -> str:
    """A name no other test of the session has."""
    return f"test-{next(_numbers)}"
