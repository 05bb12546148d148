"""A scene on the disk, made once, and consoles in this process that tests ask over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker.broker_thread import RunningNode
from tests.console import scene
from tests.console.asking import Asked, Started, start


@pytest.fixture(scope="session")
def directories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scene's directory, which nobody changes."""
    path = tmp_path_factory.mktemp("console-scene")
    scene.make(path)
    return path


@pytest.fixture(scope="session")
def started(directories: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """A console of the scene in a process of its own."""
    with start(tmp_path_factory.mktemp("console"), str(directories)) as running:
        yield running


@pytest.fixture
def asked(started: Started) -> Asked:
    return started.asked


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """A broker that keeps records of any time."""
    settings = {"log.initial.task.delay.ms": str(24 * 3600 * 1000)}
    with RunningNode(tmp_path_factory.mktemp("broker") / "log", settings) as running:
        yield running
