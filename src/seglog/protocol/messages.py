"""One view of a request whatever its version, and one way to answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seglog.protocol.apis import APIS
from seglog.protocol.older import from_older, to_older
from seglog.protocol.reading import Message, read_message
from seglog.protocol.schema import request_class, response_class
from seglog.protocol.writing import write_message

__all__ = ["Message", "read_request", "write_response"]


def read_request(key: int, version: int, data: bytes | bytearray | memoryview, position: int = 0) -> Message:
    """The body of a request, from ``position`` to the end of ``data``, in the shape of the newest version.

    Raises `InvalidRequestError`, whatever the bytes are, and nothing else.
    """
    newest = request_class(key, APIS[key].high)
    return from_older(key, version, read_message(request_class(key, version), newest, data, position))


def write_response(key: int, version: int, answer: Mapping[str, Any]) -> bytes:
    """The body of a response; ``answer`` is in the shape of the newest version."""
    return write_message(response_class(key, version), to_older(key, version, answer))
