"""The types that all handlers share: the request's context, the answer, and the error of one item."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from seglog.core.error_codes import ErrorCode
from seglog.core.errors import SeglogError
from seglog.protocol.messages import Message


class RequestContext(NamedTuple):
    """Who sent a request, and how. Authorization and quotas will need no more than this."""

    key: int
    version: int
    client_id: str
    client_host: str
    listener: str


Answer = Mapping[str, Any]
"""A response in the shape of its newest version."""
ApiHandler = Callable[[Message, RequestContext], Answer | Awaitable[Answer]]


NO_SUCH_PARTITION = "This server does not host this topic-partition."
NO_SUCH_ID = "This server does not host this topic ID."


class ApiError(SeglogError):
    """Refuses one item of a request with a code and, if the API has a field for it, a message."""

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        super().__init__(message or code.name)
        self.code = code
        self.message = message


def failure(error: SeglogError) -> dict[str, Any]:
    """``error_code`` and ``error_message`` of an item that ``error`` refused."""
    if isinstance(error, ApiError):
        return {"error_code": int(error.code), "error_message": error.message}
    return {"error_code": error.code, "error_message": str(error)}
