"""Which clients CI runs: the most telling ones of each scenario. `make interop-all` runs them all, with Kafka too."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from tests.clients.versions import CLIENTS

NEW_AND_OLD = ("confluent", "kafka-python-1.4", "aiokafka", "java-3.9.1")
"""Each library once, with an old one among them."""


def names(*telling: str, of: Iterable[str] = CLIENTS) -> list[Any]:
    """All names, as values of a parameter; those that are not ``telling`` have the mark ``everything``."""
    assert set(telling) <= set(of)
    return [pytest.param(name, marks=() if name in telling else pytest.mark.everything) for name in of]
