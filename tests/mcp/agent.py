"""An agent: `seglog mcp` as a process, and the official SDK's own client that speaks to it."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, NamedTuple

from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp_types import CallToolResult, InitializeResult, TextContent, Tool

COMMAND: Final = (sys.executable, "-m", "seglog", "mcp")


class Agent(NamedTuple):
    """Calls tools, one after the other."""

    portal: BlockingPortal
    session: ClientSession

    @property
    def started(self) -> InitializeResult:
        found = self.session.initialize_result
        assert found is not None
        return found

    def tools(self) -> dict[str, Tool]:
        return {one.name: one for one in self.portal.call(self.session.list_tools).tools}

    def text(self, name: str, /, **values: object) -> str:
        found = self._call(name, values)
        assert not found.is_error, found.content
        return _text(found)

    def ask(self, name: str, /, **values: object) -> Any:
        """The document of an answer."""
        return json.loads(self.text(name, **values))

    def refused(self, name: str, /, **values: object) -> str:
        """The sentence of an error."""
        found = self._call(name, values)
        assert found.is_error, found.content
        return _text(found)

    def _call(self, name: str, values: dict[str, object]) -> CallToolResult:
        given = {key.rstrip("_"): one for key, one in values.items()}
        found = self.portal.call(self.session.call_tool, name, given)
        assert isinstance(found, CallToolResult)
        return found


def _text(found: CallToolResult) -> str:
    (only,) = found.content
    assert isinstance(only, TextContent)
    return only.text


@contextmanager
def start(*arguments: str) -> Iterator[Agent]:
    """The server with these arguments, until the end of the context."""

    @asynccontextmanager
    async def open_session() -> AsyncIterator[ClientSession]:
        command, *more = COMMAND
        where = StdioServerParameters(command=command, args=[*more, *arguments])
        async with stdio_client(where) as streams, ClientSession(*streams) as session:
            await session.initialize()
            yield session

    with start_blocking_portal() as portal:
        opened = portal.wrap_async_context_manager(open_session())
        session = opened.__enter__()
        try:
            yield Agent(portal, session)
        finally:
            opened.__exit__(None, None, None)  # a failed assertion is not the session's
