"""A broker shared by the tests of a module, and a separate one for a test that stops it or breaks something."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.broker.broker_thread import RunningNode, Wire
from tests.broker.group_client import GroupClient

_numbers = itertools.count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """Running; leave it so, and use topics of your own."""
    with RunningNode(tmp_path_factory.mktemp("broker") / "log") as running:
        yield running


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., RunningNode]]:
    """Starts brokers, one directory for each name; they are stopped at the test's end."""
    with ExitStack() as stack:

        def begin(settings: Mapping[str, str] | None = None, name: str = "log") -> RunningNode:
            return stack.enter_context(RunningNode(tmp_path / name, settings))

        yield begin


@pytest.fixture
def wire(broker: RunningNode) -> Iterator[Wire]:
    with Wire(broker.bootstrap) as connection:
        yield connection


@pytest.fixture
def topic_name() -> str:
    return f"topic-{next(_numbers)}"


@pytest.fixture
def group(topic_name: str) -> str:
    """A name that no other test has."""
    return f"group-{topic_name}"


@pytest.fixture
def topic(wire: Wire, topic_name: str) -> str:
    """Of two partitions."""
    return wire.create_topic(topic_name, 2)


@pytest.fixture
def asker(wire: Wire, group: str, topic: str) -> GroupClient:
    return GroupClient(wire, group, topic)
