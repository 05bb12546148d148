"""What a handler is given beside the request, and what it gives back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from seglog.protocol.messages import Message


class Context(NamedTuple):
    """Who asks: later decisions on security and quotas need no more than this."""

    key: int
    version: int
    client_id: str
    client_host: str
    listener: str
    principal: str = "User:ANONYMOUS"


Answer = Mapping[str, Any]
"""A response in the shape of its newest version."""
Handler = Callable[[Message, Context], Answer | Awaitable[Answer]]
