"""Topic subscriptions by regular expression, which the broker resolves (KIP-848, ``TopicRegexResolver``). Pure.

Kafka takes the syntax of RE2 (through RE2/J): matching takes time linear in the pattern and in the topic's name, so a
client cannot block the broker with a pattern. Python's ``re`` can take exponential time; RE2 itself is used instead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from seglog.coordinators.coordinator_error import CoordinatorError
from seglog.core.error_codes import ErrorCode

if TYPE_CHECKING:
    import re2

MAX_PATTERN_LENGTH: Final = 64 << 10
"""In characters: an alternation of two thousand names of topics. Kafka has no limit but the size of a request."""
_MAX_MEMORY: Final = 2 << 20
"""For one compiled pattern, in bytes. A pattern of `MAX_PATTERN_LENGTH` literal characters needs half of it; a nested
repetition may need more, and is refused."""

_KAFKA_MESSAGES: Final[Mapping[str, str]] = {
    "bad repetition operator": "invalid nested repetition operator",
    "invalid named capture group": "invalid named capture",
    "invalid perl operator": "invalid or unsupported Perl syntax",
    "invalid repetition size": "invalid repeat count",
    "missing )": "missing closing )",
    "missing ]": "missing closing ]",
    "no argument for repetition operator": "missing argument to repetition operator",
    "trailing \\": "trailing backslash at end of expression",
}
"""RE2's message to RE2/J's, where they differ."""


def check_pattern(pattern: str) -> None:
    """Raise `CoordinatorError` with INVALID_REGULAR_EXPRESSION, in Kafka's words, if the pattern cannot be compiled."""
    _compile(pattern)


def resolve_patterns(patterns: Iterable[str], topics: Collection[str]) -> dict[str, frozenset[str]]:
    """Return the topics that each pattern matches as a whole. Internal topics match too, as in Kafka.

    A pattern that cannot be compiled matches nothing: a record of an older release, or of Kafka, may have one.
    """
    return {pattern: _matching(pattern, topics) for pattern in patterns}


def _matching(pattern: str, topics: Collection[str]) -> frozenset[str]:
    try:
        fullmatch = _compile(pattern).fullmatch
    except CoordinatorError:
        return frozenset()
    return frozenset(topic for topic in topics if fullmatch(topic))


@lru_cache(maxsize=32)
def _compile(pattern: str) -> re2._Regexp:
    import re2

    options = re2.Options()
    options.max_mem, options.log_errors, options.never_capture = _MAX_MEMORY, False, True
    if len(pattern) > MAX_PATTERN_LENGTH:
        raise _invalid(pattern[:100] + "…", f"it has more than {MAX_PATTERN_LENGTH} characters")
    try:
        return re2.compile(pattern, options)
    except UnicodeEncodeError:
        raise _invalid(pattern, "invalid UTF-8") from None
    except re2.error as error:
        told = error.args[0]
        message = told.decode(errors="replace") if isinstance(told, bytes) else str(told)
        description = message.partition(": ")[0]
        raise _invalid(pattern, _KAFKA_MESSAGES.get(description, description)) from None


def _invalid(pattern: str, reason: str) -> CoordinatorError:
    message = f"SubscribedTopicRegex `{pattern}` is not a valid regular expression: {reason}."
    return CoordinatorError(ErrorCode.INVALID_REGULAR_EXPRESSION, message)
