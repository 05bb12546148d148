"""Directories of two of our brokers and of a real Kafka, and a server that reads them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import golden
from tests.console import scene
from tests.kafka.jars import CURRENT
from tests.mcp.agent import Agent, start


@pytest.fixture(scope="package")
def directories(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The brokers' of the console's scene, and Kafka's."""
    path = tmp_path_factory.mktemp("mcp-scene")
    scene.make(path)
    kafka = golden.log_dir(golden.unpack(tmp_path_factory.mktemp("mcp-golden"), CURRENT))
    return [path / "broker-1", path / "broker-2", kafka]


@pytest.fixture(scope="package")
def agent(directories: list[Path]) -> Iterator[Agent]:
    with start(*map(str, directories)) as running:
        yield running
