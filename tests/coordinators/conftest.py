"""A group to drive."""

from __future__ import annotations

import pytest

from tests.coordinators.driver import Driver


@pytest.fixture
def driver() -> Driver:
    return Driver()
