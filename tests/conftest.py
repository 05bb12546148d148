"""For all tests: how long random tests run, how many cases they ran, and the session of Spark."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.nodeid import NodeId
from hypothesis import settings

from tests import cases

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The short run takes the same cases every time, so that its verdict is one on the code alone; the long one
# (`make test-long`) looks for new ones. A case's time depends on the machine and is no verdict.
settings.register_profile("short", deadline=None, derandomize=True)
settings.register_profile("long", deadline=None, max_examples=5000)
settings.load_profile("short")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Append a test's ``xdist_group`` to its id, by which `--dist loadgroup` sends a group to one worker.

    pytest-xdist 3.8 does that by assigning ``_nodeid``, which pytest 9.2 no longer reads: without this hook it ignores
    the groups, and each worker starts its own Spark session.
    """
    if not config.getoption("loadgroup", default=False):
        return
    for item in items:
        for mark in item.iter_markers("xdist_group"):
            if not item.nodeid.endswith(f"@{mark.args[0]}"):
                item._id = NodeId.parse(f"{item.nodeid}@{mark.args[0]}")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One session for all tests of a group: ``spark`` for source and sink, ``spark-jobs`` for jobs, views and pages. It
    is a Connect server too. Its output is in ``spark.log``.

    A session takes seven seconds to start and its first jobs ten more. A third group would cost more than it saves.
    """
    from seglog.spark import get_spark  # other tests need no Spark
    from tests.kit.ports import free_port
    from tests.spark.killed_stream import INTERPRETED, SHORT_LIVED

    directory: Path = tmp_path_factory.mktemp("spark")
    with contextlib.chdir(Path(__file__).parents[1]):  # Python workers import `tests` from where the JVM was started
        session = get_spark(
            "seglog tests",
            master="local[2]",
            config={
                "spark.sql.shuffle.partitions": "1",
                "spark.sql.adaptive.enabled": "false",
                **INTERPRETED,
                "spark.sql.warehouse.dir": str(directory / "warehouse"),
                "spark.driver.extraJavaOptions": f"{SHORT_LIVED} -Dderby.system.home={directory}",
                "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
                "spark.connect.grpc.binding.address": "127.0.0.1",
                "spark.connect.grpc.binding.port": str(free_port()),
            },
            jvm_log=str(directory / "spark.log"),
        )
    yield session
    session.stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Put the number of cases into the test's report."""
    cases.take()
    try:
        return (yield)
    finally:
        if number := cases.take():
            item.user_properties.append((cases.PROPERTY, number))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In CI nothing may be skipped: what is not run there is run nowhere."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("CI") and reporter is not None and reporter.stats.get("skipped"):
        reporter.write_line("tests were skipped, which CI does not allow", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say it: one line for each random test."""
    numbers = {
        report.nodeid: value
        for outcome in ("passed", "failed")
        for report in terminalreporter.stats.get(outcome, [])
        for name, value in report.user_properties
        if name == cases.PROPERTY
    }
    if numbers:
        terminalreporter.section(f"{cases.PROPERTY}: {sum(numbers.values())} in {len(numbers)} tests")
        for node, number in sorted(numbers.items()):
            terminalreporter.write_line(f"{number:>9} {node}")
