"""What these tests share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from seglog.replication.fetcher import FetcherConfig
from tests.kit.memory import directory_in_memory
from tests.replication.leading import QUICK, Both, replicating


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Requests wait for some milliseconds, in the same loop in which directories are made."""
    with directory_in_memory() as path:
        yield path


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., None]:
    def do(act: Callable[[Both], Awaitable[None]], config: FetcherConfig = QUICK) -> None:
        async def within() -> None:
            async with replicating(tmp_path, config) as both:
                await act(both)

        asyncio.run(within())

    return do
