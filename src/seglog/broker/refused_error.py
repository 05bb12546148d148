"""The error that carries a code, and its message, to one item of an answer."""

from __future__ import annotations

from typing import Any

from seglog.core.error_codes import ErrorCode
from seglog.core.errors import SeglogError

NO_SUCH_PARTITION = "This server does not host this topic-partition."
NO_SUCH_ID = "This server does not host this topic ID."


class RefusedError(SeglogError):
    """One item of a request is refused with a code and, where the API has a place for it, a message."""

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        super().__init__(message or code.name)
        self.code = code
        self.message = message


def failure(error: SeglogError) -> dict[str, Any]:
    """``error_code`` and ``error_message`` of what an item was refused for."""
    if isinstance(error, RefusedError):
        return {"error_code": int(error.code), "error_message": error.message}
    return {"error_code": error.code, "error_message": str(error)}
