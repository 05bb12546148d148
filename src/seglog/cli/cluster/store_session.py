"""The metadata store of a command: its option, and a connection for the time of one action."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Final, TypeVar

import typer

from seglog.cluster.store import MetadataStore
from seglog.cluster.store_address import open_store
from seglog.core.clock import SystemClock

T = TypeVar("T")
_SESSION_MS: Final = 10_000

Store = Annotated[
    str,
    typer.Option(
        "--store",
        metavar="ADDRESS",
        help="The metadata store: sqlite:FILE or zookeeper://HOST:PORT/NAME.",
        show_default=False,
    ),
]


async def with_store(address: str, act: Callable[[MetadataStore], Awaitable[T]], *, must_exist: bool = True) -> T:
    """Open the store, run ``act`` and close the store. Raises `StoreError` or `InvalidConfigError`."""
    store = await open_store(address, clock=SystemClock(), session_timeout_ms=_SESSION_MS, must_exist=must_exist)
    try:
        return await act(store)
    finally:
        await store.close()
