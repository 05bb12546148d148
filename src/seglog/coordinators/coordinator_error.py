"""The error of a request to a coordinator, and its codes for errors of the log."""

from __future__ import annotations

from typing import Final

from seglog.core.error_codes import ErrorCode
from seglog.core.errors import SeglogError


class CoordinatorError(SeglogError):
    """A whole request is refused with this code."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


_OF_APPENDS: Final[dict[int, ErrorCode]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def code_of_append(error: SeglogError) -> ErrorCode:
    """The client's code if a coordinator's records could not be written (``CoordinatorOperationExceptionHelper``)."""
    return _OF_APPENDS.get(error.code, error.code)


def code_of_outcome(outcome: int) -> ErrorCode:
    """The client's code for an outcome of `Replica.outcome`: records that are committed stay so, even with too few
    replicas in sync by now."""
    if outcome in (ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND):
        return ErrorCode.NONE
    return _OF_APPENDS.get(outcome, ErrorCode.UNKNOWN_SERVER_ERROR)
