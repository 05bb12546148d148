"""The types that all handlers share: the request's context, the answer, and the error of one item."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from seglog.core.error_codes import ErrorCode
from seglog.core.errors import SeglogError
from seglog.net.connection import ANONYMOUS
from seglog.protocol.messages import Message

_log: Final = logging.getLogger("seglog.broker")


class Charge(Protocol):
    """The part of its client's quotas that one request uses up (`seglog.broker.quotas`)."""

    def exempt(self) -> None:
        """The request is another broker's."""

    @property
    def largest_fetch(self) -> int:
        """The most bytes of records that the client may get at once."""

    def fetched(self, size: int) -> bool:
        """Count a Fetch response. True if the client must get an empty one instead."""

    def mutated(self, partitions: int, *, strict: bool) -> None:
        """Count partitions that are created or deleted. ``strict``: `ApiError` if the client has used up its quota."""


class RequestContext(NamedTuple):
    """Who sent a request, and how. ``proof`` is what a broker sends (`seglog.protocol.framing.PROOF_TAG`), not yet
    compared with anything. ``principal`` is the client as it authenticated, as ``User:alice``. There is no ``charge``
    if the cluster has no quotas."""

    key: int
    version: int
    client_id: str
    client_host: str
    listener: str
    proof: str = ""
    principal: str = ANONYMOUS
    charge: Charge | None = None


Answer = Mapping[str, Any]
"""A response in the shape of its newest version."""
ApiHandler = Callable[[Message, RequestContext], Answer | Awaitable[Answer]]


Sees = Callable[[RequestContext], Callable[[str], bool]]
"""Which topics the sender of a request may know of."""


def sees_all(_: RequestContext) -> Callable[[str], bool]:
    """Without an authorizer."""
    return lambda _: True


NO_SUCH_PARTITION = "This server does not host this topic-partition."
NO_SUCH_ID = "This server does not host this topic ID."


class ApiError(SeglogError):
    """Refuses one item of a request with a code and, if the API has a field for it, a message."""

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        super().__init__(message or code.name)
        self.code = code
        self.message = message


FAILURES: Final = (SeglogError, OSError)
"""The errors that one item of a request gets, while the others are answered."""


def code_of(error: SeglogError | OSError) -> ErrorCode:
    """The code of an item that ``error`` refused. The only files that handlers read and write are those of logs, so an
    OSError is a storage error, as an IOException is in Kafka."""
    if isinstance(error, SeglogError):
        return error.code
    _log.error("a request failed on a file: %s", error)
    return ErrorCode.KAFKA_STORAGE_ERROR


def failure(error: SeglogError | OSError) -> dict[str, Any]:
    """``error_code`` and ``error_message`` of an item that ``error`` refused."""
    message = error.message if isinstance(error, ApiError) else str(error)
    return {"error_code": int(code_of(error)), "error_message": message}
