"""The error codes with which a group coordinator answers (``Errors.java``)."""

from __future__ import annotations

from enum import IntEnum

from seglog.core.errors import SeglogError


class Code(IntEnum):
    """Kafka's numbers and names."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    UNKNOWN_TOPIC_OR_PARTITION = 3
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_REQUEST = 42
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    UNSTABLE_OFFSET_COMMIT = 88
    UNKNOWN_TOPIC_ID = 100


class CoordinatorError(SeglogError):
    """A whole request is refused with this code."""

    def __init__(self, code: Code, reason: str) -> None:
        super().__init__(reason)
        self.group_code = code


_OF_APPENDS = {
    3: Code.COORDINATOR_NOT_AVAILABLE,  # UNKNOWN_TOPIC_OR_PARTITION
    19: Code.COORDINATOR_NOT_AVAILABLE,  # NOT_ENOUGH_REPLICAS
    7: Code.COORDINATOR_NOT_AVAILABLE,  # REQUEST_TIMED_OUT
    6: Code.NOT_COORDINATOR,  # NOT_LEADER_OR_FOLLOWER
    56: Code.NOT_COORDINATOR,  # KAFKA_STORAGE_ERROR
}


def code_of_append(error: SeglogError) -> Code:
    """What a client is told when a group's records could not be written (``CoordinatorOperationExceptionHelper``)."""
    return _OF_APPENDS.get(error.code, Code.UNKNOWN_SERVER_ERROR)


_COMMITTED, _NOT_ENOUGH_REPLICAS_AFTER_APPEND = 0, 20


def code_of_outcome(outcome: int) -> Code:
    """What a client is told of what became of its records, by `Partition.outcome`: what is committed stays so, also if
    there are too few replicas in sync by now."""
    if outcome in (_COMMITTED, _NOT_ENOUGH_REPLICAS_AFTER_APPEND):
        return Code.NONE
    return _OF_APPENDS.get(outcome, Code.UNKNOWN_SERVER_ERROR)
