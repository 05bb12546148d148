"""A group to drive."""

from __future__ import annotations

import pytest

from tests.coordinators.shard_driver import ShardDriver


@pytest.fixture
def driver() -> ShardDriver:
    return ShardDriver()
