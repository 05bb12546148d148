"""The configuration of brokers for tests."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

TEST_SETTINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "connections.max.idle.ms": "-1",
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "1",
        "log.segment.delete.delay.ms": "0",
        "offsets.topic.num.partitions": "1",
    }
)
"""Defaults of a broker for tests: it waits for nothing that a test does not need, and no connection ends because the
clock was moved."""
