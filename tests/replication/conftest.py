"""What tests of fetchers share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from seglog.replication.fetcher import FetcherConfig
from tests.replication.leading import QUICK, Both, replicating


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., None]:
    def do(act: Callable[[Both], Awaitable[None]], config: FetcherConfig = QUICK) -> None:
        async def within() -> None:
            async with replicating(tmp_path, config) as both:
                await act(both)

        asyncio.run(within())

    return do
