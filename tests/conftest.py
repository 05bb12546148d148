"""For all tests: how long random tests run, and how many cases they ran."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import settings

from tests import cases

# The short run takes the same cases every time, so that its verdict is one on the code alone; the long one
# (`make test-long`) looks for new ones. A case's time depends on the machine and is no verdict.
settings.register_profile("short", deadline=None, derandomize=True)
settings.register_profile("long", deadline=None, max_examples=5000)
settings.load_profile("short")


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
