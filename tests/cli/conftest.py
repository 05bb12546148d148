"""`run` runs a command in this process, which saves the start of an interpreter; `wire` runs it against a broker."""

from __future__ import annotations

import io
import itertools
import sys
from collections.abc import Iterator

import pytest

from tests.broker.broker_thread import RunningNode
from tests.cli.run import Ran, Run, run_here

_numbers = itertools.count()


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    return run_here(capfdbinary)


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """A broker that all tests of the package share: use your own topics and groups.

    Retention is off: 30 s after the start it would delete the records of 1970 that tests read. Consumer groups change
    within a short heartbeat.
    """
    heartbeat = {"group.consumer.min.heartbeat.interval.ms": "200", "group.consumer.heartbeat.interval.ms": "200"}
    settings = {"log.initial.task.delay.ms": str(24 * 3600 * 1000), **heartbeat}
    with RunningNode(tmp_path_factory.mktemp("broker") / "log", settings) as running:
        yield running


@pytest.fixture
def wire(run: Run, broker: RunningNode, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command against that broker, with ``stdin`` as its standard input."""

    def act(*arguments: str, stdin: bytes = b"") -> Ran:
        with monkeypatch.context() as patch:
            patch.setenv("SEGLOG_BOOTSTRAP", broker.bootstrap)
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
            return run(*arguments)

    return act


@pytest.fixture
def topic_name() -> str:
    """A topic name that no other test uses."""
    return f"topic-{next(_numbers)}"
