"""Each test runs at each place; `--record-ecosystem` writes what was counted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ecosystem import results
from tests.ecosystem.places import PLACES, Place, PlaceName

_HERE = Path(__file__).parent
_IN_INTEROP = {
    "test_streams_counts_every_word[three-exactly_once_v2]",
    "test_flink_copies_a_topic[one-exactly_once]",
    "test_copier_copies_every_record[one-kafkajs]",
}
"""The most telling ones; all others take an hour."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-ecosystem", action="store_true", help="write results into docs_site/ecosystem.json")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.interop)
            if item.name not in _IN_INTEROP:
                item.add_marker(pytest.mark.everything)


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    name: PlaceName = request.param
    with Place(name, tmp_path_factory.mktemp(name)) as started:
        yield started


@pytest.fixture
def report(request: pytest.FixtureRequest, place: Place) -> Iterator[results.Report]:
    told = results.Report(place.name)
    yield told
    if told.result is not None:
        request.node.user_properties.append(("product", tuple(told.result)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """In the process that has all reports, also those of pytest-xdist's workers."""
    if terminalreporter.config.getoption("record_ecosystem"):
        failed = {report.nodeid for of in ("failed", "error") for report in terminalreporter.getreports(of)}
        results.record(
            result._replace(counted=None) if report.nodeid in failed else result
            for report in terminalreporter.getreports("")
            for name, value in report.user_properties
            if name == "product" and report.when == "teardown"
            for result in [results.ProductResult(*value)]
        )
