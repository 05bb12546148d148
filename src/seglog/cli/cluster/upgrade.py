"""`seglog cluster upgrade`: the last step of a rolling upgrade, when every broker runs the new release."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from seglog.cli.output import FINE, Out
from seglog.cli.wire import clients as wire
from seglog.cluster.formats import OURS, raise_format
from seglog.cluster.open import open_store
from seglog.core.clock import SystemClock

_SESSION_MS = 10_000


def upgrade(
    store: Annotated[
        str,
        typer.Option(
            "--store", metavar="ADDRESS", help="The metadata store: sqlite:FILE or zookeeper://HOST:PORT/NAME."
        ),
    ],
    to: Annotated[
        int | None,
        typer.Option(
            "--to", metavar="FORMAT", min=1, max=OURS.high, help="The newest one by default.", show_default=False
        ),
    ] = None,
    json: wire.Json = False,
) -> int:
    """Raise the format of a cluster's metadata. Every registered broker must speak it, and it never goes back: a broker
    of an older release cannot join afterwards."""
    wanted = OURS.high if to is None else to
    before = asyncio.run(_raise(store, wanted))
    out = Out()
    if json:
        out.json({"store": store, "before": before, "format": wanted})
    elif before == wanted:
        out.line(f"the metadata have format {wanted} already")
    else:
        out.line(f"the metadata have format {wanted} now, {before} before")
    out.flush()
    return FINE


async def _raise(address: str, wanted: int) -> int:
    store = await open_store(address, clock=SystemClock(), session_timeout_ms=_SESSION_MS, must_exist=True)
    try:
        return await raise_format(store, wanted)
    finally:
        await store.close()
