"""A broker for the tests of this room."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from seglog.client.connection import BrokerConnection
from seglog.testing import Broker


@pytest.fixture(scope="session")
def shared() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture(params=[2, 1], ids=["implicit", "explicit"])
def broker(shared: Broker, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    """A new topic ``t`` of two partitions; clients of transaction version 2, and of 1."""
    monkeypatch.setattr(BrokerConnection, "feature", lambda *_: request.param)
    shared.reset()
    shared.create_topic("t", 2)
    yield shared
    shared.faults.assert_all_fired()
    shared.faults.clear()
