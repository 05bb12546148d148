"""The response to CreateTopics. It describes the whole configuration of each topic. Topics that are created together
mostly share one, so a configuration that several results share is encoded once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from seglog.protocol.apis import ApiKey
from seglog.protocol.message_writer import write_message
from seglog.protocol.schema import fields_of, response_class
from seglog.protocol.wire import uvarint

_CONFIGS_SINCE: Final = 5
"""The first version with configurations; its arrays are compact."""
_NONE_AT_END: Final = b"\x01\x00"
"""An array without elements at the end of a structure, and no tagged fields after it."""


def write_created_topics(version: int, answer: Mapping[str, Any]) -> bytes:
    """The same bytes as `write_message`."""
    message = response_class(ApiKey.CREATE_TOPICS, version)
    if version < _CONFIGS_SINCE:
        return write_message(message, answer)
    result = _nested(message, "topics")
    config = _nested(result, "configs")
    topics: Sequence[Mapping[str, Any]] = answer.get("topics", ())
    encoded: dict[int, bytes] = {}
    out = [_without_array(write_message(message, {**answer, "topics": ()})), uvarint(len(topics) + 1)]
    for topic in topics:
        configs: Sequence[Mapping[str, Any]] | None = topic.get("configs")
        if not configs or topic.get("topic_config_error_code"):
            out.append(write_message(result, topic))
            continue
        array = encoded.get(id(configs))
        if array is None:
            array = uvarint(len(configs) + 1) + b"".join([write_message(config, one) for one in configs])
            encoded[id(configs)] = array
        out += (_without_array(write_message(result, {**topic, "configs": ()})), array, b"\x00")
    out.append(b"\x00")
    return b"".join(out)


def _nested(message: Any, field: str) -> Any:
    return next(spec.nested for spec in fields_of(message) if spec.name == field)


def _without_array(data: bytes) -> bytes:
    assert data.endswith(_NONE_AT_END)
    return data.removesuffix(_NONE_AT_END)
