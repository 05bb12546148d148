"""`seglog cluster upgrade`: the last step of a rolling upgrade, when every broker runs the new release."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from seglog.cli.cluster.store_session import Store, with_store
from seglog.cli.options import JsonLines
from seglog.cli.output import FINE, Out
from seglog.cluster.formats import OURS, raise_format


def upgrade(
    store: Store,
    to: Annotated[
        int | None,
        typer.Option("--to", metavar="FORMAT", min=1, max=OURS.high, help="By default the newest.", show_default=False),
    ] = None,
    json: JsonLines = False,
) -> int:
    """Raise the format of a cluster's metadata, for good. Every registered broker must support the new format; brokers
    of an older release cannot join afterwards."""
    wanted = OURS.high if to is None else to
    before = asyncio.run(with_store(store, lambda opened: raise_format(opened, wanted)))
    with Out() as out:
        if json:
            out.json({"store": store, "before": before, "format": wanted})
        elif before == wanted:
            out.line(f"the metadata have format {wanted} already")
        else:
            out.line(f"raised the format of the metadata from {before} to {wanted}")
    return FINE
