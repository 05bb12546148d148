"""The throttle time in a response that is written already (``AbstractResponse.maybeSetThrottleTimeMs``)."""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import Any, Final

from seglog.protocol.message_writer import write_message
from seglog.protocol.messages import as_mapping, read_answer
from seglog.protocol.schema import fields_of, response_class

_NAME: Final = "throttle_time"
_TIME: Final = Struct(">i")


def has_throttle(message: Any) -> bool:
    return any(spec.name == _NAME for spec in fields_of(message))


@lru_cache(maxsize=1024)
def _is_first(key: int, version: int) -> bool | None:
    """Whether the response begins with its throttle time; None if it has none."""
    message = response_class(key, version)
    return fields_of(message)[0].name == _NAME if has_throttle(message) else None


def throttled(key: int, version: int, body: bytes, milliseconds: int) -> bytes:
    """The body of a response with this throttle time; unchanged in versions that have none."""
    is_first = _is_first(key, version)
    if is_first is None:
        return body
    if is_first:
        return _TIME.pack(milliseconds) + body[_TIME.size :]
    message = response_class(key, version)
    return write_message(message, {**as_mapping(read_answer(key, version, body)), _NAME: milliseconds})
