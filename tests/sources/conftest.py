from __future__ import annotations

from collections.abc import Iterator

import pytest

from seglog.client.kept_connections import close_all
from tests.storage.conftest import partition

__all__ = ["connections", "partition"]


@pytest.fixture(autouse=True, scope="module")
def connections() -> Iterator[None]:
    """Closed in the end: a worker of Spark's keeps them for its next task."""
    yield
    close_all()
