"""Both event loops: `seglog serve` has the one, tests have the other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from tests.net.serving import Run


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:

    def do(act: Callable[[], Awaitable[None]]) -> None:
        async def awaited() -> None:
            await act()

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(awaited())

    return do
