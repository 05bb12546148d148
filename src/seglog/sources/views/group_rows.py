"""Decodes the records of ``__consumer_offsets`` into rows, with the schemas of `seglog dump --offsets-decoder`."""

from __future__ import annotations

from typing import Any, Final

from seglog.records import kafka_schemas as schemas
from seglog.records.kafka_messages import (
    Message,
    MessageError,
    MessageReader,
    json_text,
    parse_schemas,
    read_message,
    to_json,
)

_OFFSET_COMMITS: Final = (0, 1)
_WITH_EPOCHS: Final = 3
_EXPIRING: Final = 1
"""Versions of ``OffsetCommitValue``: the first with a leader epoch, and the only one with a time of expiry."""


def describe(key: bytes | None, value: bytes | None) -> dict[str, Any]:
    """The columns that come from a record's key and value."""
    row: dict[str, Any] = {"isDeleted": value is None}
    if key is None:
        return {**row, "metadata": "a record of this topic must have a key"}
    try:
        reader = MessageReader(key)
        type_ = reader.integer("int16")
        message = _message(schemas.GROUP_KEYS, type_)
        fields = read_message(message, reader, 0)
        row |= {"type": message.name.removesuffix("Key"), "group": fields.get("group", fields.get("groupId"))}
        if type_ in _OFFSET_COMMITS:
            row |= {"topic": fields["topic"], "partition": fields["partition"]}
        if value is not None:
            row |= _value(type_, MessageReader(value))
    except MessageError as error:
        row |= {"type": None, "metadata": f"cannot be read: {error}"}
    return row


def _value(type_: int, reader: MessageReader) -> dict[str, Any]:
    message = _message(schemas.GROUP_VALUES, type_)
    version = reader.integer("int16")
    if not 0 <= version <= message.highest:
        raise MessageError(f"unknown version {version} of {message.name}")
    fields = read_message(message, reader, version)
    if type_ not in _OFFSET_COMMITS:
        return {"json": json_text(to_json(message, fields, version))}
    return {
        "offset": fields["offset"],
        "leaderEpoch": fields["leaderEpoch"] if type_ == 1 and version >= _WITH_EPOCHS else None,
        "metadata": fields["metadata"],
        "commitTimestamp": fields["commitTimestamp"],
        "expireTimestamp": fields["expireTimestamp"] if type_ == 1 and version == _EXPIRING else None,
    }


def _message(table: str, type_: int) -> Message:
    message = parse_schemas(table).get(type_)
    if message is None:
        raise MessageError(f"unknown type {type_}")
    return message
