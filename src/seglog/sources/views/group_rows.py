"""Decodes the records of ``__consumer_offsets`` into rows, with the schemas of `seglog dump --offsets-decoder`."""

from __future__ import annotations

from typing import Any, Final

from seglog.records.coordinator_records import GROUPS, UnknownVersionError
from seglog.records.kafka_messages import MessageError
from seglog.records.message_json import json_text, to_json

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
        message, fields = GROUPS.read_key(key)
        row |= {"type": message.name.removesuffix("Key"), "group": fields.get("group", fields.get("groupId"))}
        if message.id in _OFFSET_COMMITS:
            row |= {"topic": fields["topic"], "partition": fields["partition"]}
        if value is not None:
            row |= _value(message.id, value)
    except UnknownVersionError as error:
        row |= {"type": None, "metadata": f"cannot be read: unknown version {error.version} of {error.message.name}"}
    except MessageError as error:
        row |= {"type": None, "metadata": f"cannot be read: {error}"}
    return row


def _value(type_: int, data: bytes) -> dict[str, Any]:
    message, version, fields = GROUPS.read_value(type_, data)
    if type_ not in _OFFSET_COMMITS:
        return {"json": json_text(to_json(message, fields, version))}
    return {
        "offset": fields["offset"],
        "leaderEpoch": fields["leaderEpoch"] if type_ == 1 and version >= _WITH_EPOCHS else None,
        "metadata": fields["metadata"],
        "commitTimestamp": fields["commitTimestamp"],
        "expireTimestamp": fields["expireTimestamp"] if type_ == 1 and version == _EXPIRING else None,
    }
