"""A schema registry for the tests of this room."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from seglog.testing import Broker


@pytest.fixture(scope="session")
def running() -> Iterator[Broker]:
    with Broker(registry=True) as broker:
        yield broker


@pytest.fixture
def url(running: Broker) -> str:
    """An empty registry."""
    running.reset()
    return running.registry_url
