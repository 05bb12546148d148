"""Which names topics may have, and what is said of those that they may not (``Topic.validate``)."""

from __future__ import annotations

from seglog.broker.codes import Code, RefusedError
from seglog.core.errors import InvalidTopicError
from seglog.core.types import validate_topic


def check_topic_name(name: str) -> None:
    """`RefusedError` in Kafka's words, if it is not legal."""
    try:
        validate_topic(name)
    except InvalidTopicError as error:
        raise RefusedError(Code.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {_reason(name)}") from error


def _reason(name: str) -> str:
    if not name:
        return "the empty string is not allowed"
    if name in (".", ".."):
        return f"'{name}' is not allowed"
    if len(name) > 249:
        return f"the length of '{name}' is longer than the max allowed length 249"
    return f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
