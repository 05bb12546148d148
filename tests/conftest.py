"""For all tests: how long random tests run, and how many cases they ran."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import pytest
from _pytest.nodeid import NodeId
from hypothesis import settings

from tests import cases

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
