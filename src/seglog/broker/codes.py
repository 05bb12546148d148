"""Kafka's error codes that the broker answers with (``Errors.java``), and the error that carries one to an answer."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from seglog.core.errors import SeglogError


class Code(IntEnum):
    NONE = 0
    UNKNOWN_SERVER_ERROR = -1
    OFFSET_OUT_OF_RANGE = 1
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    COORDINATOR_LOAD_IN_PROGRESS = 14
    INVALID_TOPIC_EXCEPTION = 17
    CLUSTER_AUTHORIZATION_FAILED = 31
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    INVALID_REQUEST = 42
    POLICY_VIOLATION = 44
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    KAFKA_STORAGE_ERROR = 56
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    OFFSET_NOT_AVAILABLE = 78
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    RESOURCE_NOT_FOUND = 91
    INVALID_UPDATE_VERSION = 95
    UNKNOWN_TOPIC_ID = 100
    TRANSACTIONAL_ID_NOT_FOUND = 105
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115


NO_SUCH_PARTITION = "This server does not host this topic-partition."
NO_SUCH_ID = "This server does not host this topic ID."


class RefusedError(SeglogError):
    """One item of a request is refused with a code and, where the API has a place for it, a message."""

    def __init__(self, code: Code, message: str | None = None) -> None:
        super().__init__(message or code.name)
        self.answer_code = code
        self.message = message


def failure(error: SeglogError) -> dict[str, Any]:
    """``error_code`` and ``error_message`` of what an item was refused for."""
    if isinstance(error, RefusedError):
        return {"error_code": int(error.answer_code), "error_message": error.message}
    return {"error_code": error.code, "error_message": str(error)}
