"""The server of the official SDK over stdin and stdout: tools are listed and called, each call in a thread."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import anyio
import anyio.to_thread
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    ToolAnnotations,
)
from mcp_types import Tool as ToolListing

import seglog
from seglog.cli.output import describe_os_error
from seglog.core.errors import SeglogError
from seglog.mcp.answers import visible
from seglog.mcp.tools import INSTRUCTIONS, Sources, Work, call, tools_of

_CALLS: Final = 4
"""At once. A call that was cancelled no longer counts; its thread ends when it notices, or by its time-outs."""


_MOST_SENTENCE: Final = 2000


async def serve(sources: Sources) -> None:
    """Until stdin ends."""
    async with stdio_server() as (received, sent):
        server = _server(sources)
        await server.run(received, sent, server.create_initialization_options())


def _server(sources: Sources) -> Server[Any]:
    offered = tools_of(sources)
    limiter = anyio.CapacityLimiter(_CALLS)

    async def list_tools(_: object, __: PaginatedRequestParams | None) -> ListToolsResult:
        hints = ToolAnnotations(
            read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
        )
        return ListToolsResult(
            tools=[
                ToolListing(
                    name=name,
                    title=tool.title,
                    description=tool.description,
                    input_schema=tool.schema(),
                    annotations=hints,
                )
                for name, tool in offered.items()
            ]
        )

    async def call_tool(_: object, params: CallToolRequestParams) -> CallToolResult:
        if params.name not in offered:
            raise MCPError(INVALID_PARAMS, f"there is no tool {params.name[:40]!r}; there are {', '.join(offered)}")
        work = Work(sources.console.clock)
        run = partial(_text, sources, params.name, params.arguments or {}, work)
        try:
            text, is_error = await anyio.to_thread.run_sync(run, abandon_on_cancel=True, limiter=limiter)
        finally:
            work.stop()
        return CallToolResult(content=[TextContent(text=text)], is_error=is_error)

    console = sources.console
    where = [f"the log directories {', '.join(console.disk.roots)}"] if console.has_disk else []
    where += [f"the brokers at {console.bootstrap}"] if console.has_brokers else []
    return Server(
        "seglog",
        version=seglog.__version__,
        title="seglog: Kafka's logs and brokers",
        instructions=INSTRUCTIONS.format(where=" and ".join(where)),
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def _text(sources: Sources, name: str, given: dict[str, Any], work: Work) -> tuple[str, bool]:
    """In a thread. The answer, or the sentence that says why there is none."""
    try:
        work.begin()
        return call(sources, name, given, work), False
    except OSError as error:
        return _sentence(describe_os_error(error)), True
    except (SeglogError, ValueError) as error:
        return _sentence(str(error)), True


def _sentence(text: str) -> str:
    """On one line, also if a name in it has other characters."""
    return visible(text[:_MOST_SENTENCE])
