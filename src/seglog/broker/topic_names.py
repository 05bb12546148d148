"""Which names topics may have, and what is said of those that they may not (``Topic.validate``)."""

from __future__ import annotations

from collections.abc import Iterable

from seglog.broker.refused_error import RefusedError
from seglog.broker.topics import Topic
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import InvalidTopicError
from seglog.core.types import validate_topic


def check_topic_name(name: str) -> None:
    """`RefusedError` in Kafka's words, if it is not legal."""
    try:
        validate_topic(name)
    except InvalidTopicError as error:
        raise RefusedError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {_reason(name)}") from error


def check_collisions(name: str, topics: Iterable[Topic]) -> None:
    """`RefusedError` if it differs from the name of another topic in nothing but ``.`` and ``_``."""
    flat = name.replace(".", "_")
    if "_" in flat:
        for other in topics:
            if other.name != name and other.name.replace(".", "_") == flat:
                message = f"Topic '{name}' collides with existing topic: {other.name}"
                raise RefusedError(ErrorCode.INVALID_TOPIC_EXCEPTION, message)


def _reason(name: str) -> str:
    if not name:
        return "the empty string is not allowed"
    if name in (".", ".."):
        return f"'{name}' is not allowed"
    if len(name) > 249:
        return f"the length of '{name}' is longer than the max allowed length 249"
    return f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
