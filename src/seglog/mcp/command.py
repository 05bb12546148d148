"""`seglog mcp`: logs and brokers as tools for agents, over stdin and stdout, until stdin ends."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Final

from seglog.cli.options import with_options
from seglog.cli.output import FINE, fail, warn
from seglog.cli.signals import leave_on_signals
from seglog.console.command import Decoding, Target
from seglog.core.extras import require

_NOTHING: Final = Target()
_AS_BYTES: Final = Decoding()


@with_options
def mcp(target: Target = _NOTHING, decoding: Decoding = _AS_BYTES) -> int:
    """Offer a log directory, a cluster, or both as read-only tools of the Model Context Protocol: lag, explain, topics,
    records and more. A program such as an agent's host starts it and talks to it on stdin and stdout."""
    target.check("mcp")
    decoding.check()
    leave_on_signals()
    require("mcp", "mcp", purpose="seglog mcp")
    from seglog.cli.wire.consume import PrintOptions
    from seglog.mcp.server import serve
    from seglog.mcp.tools import Sources

    sources = Sources(target.open(decoding, command="mcp"), PrintOptions(**decoding._asdict()).typed_options())
    if sys.stdin is None:
        return fail("mcp needs stdin and stdout for its host")
    if sys.stdin.isatty():
        warn("seglog mcp speaks the Model Context Protocol on stdin and stdout: see docs/mcp.md; Ctrl-C ends it")
    try:
        asyncio.run(serve(sources))
    except* BrokenPipeError:  # the host is gone
        pass
    sys.stdout.flush()
    os._exit(FINE)  # at once: no thread has anything to finish, since none writes
