"""Decoders of keys and values for `seglog dump`: text, numbers, or the messages of Kafka's internal topics as JSON.

As in Kafka 4.4 (``DumpLogSegments.java``, ``CoordinatorRecordSerde.java``, ``AbstractApiMessageSerde.java``) a message
replaces a record that cannot be decoded, and the dump goes on.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Mapping
from typing import Final

from seglog.cli.dump.lax_records import Decoder
from seglog.coordinators.transactions.transaction import TransactionState
from seglog.core.errors import CorruptRecordError
from seglog.core.types import Buffer
from seglog.core.utf8 import decode_utf8
from seglog.records import kafka_schemas as schemas
from seglog.records.coordinator_records import GROUPS, SHARES, TRANSACTIONS, RecordTable, UnknownTypeError
from seglog.records.kafka_messages import MessageError, MessageReader, Value, parse_schemas, read_message
from seglog.records.message_json import json_text, to_json

_NUMBER_BYTES: Final[Mapping[str, int]] = {"Integer": 4, "Long": 8}
_CONTROL_NAMES: Final = {
    2: "LeaderChange:",
    3: "SnapshotHeader",
    4: "SnapshotFooter",
    5: "KRaftVersion",
    6: "KRaftVoters",
}
_SUBSCRIPTION: Final = 0
_ASSIGNMENT: Final = 1


def decode_offsets(key: Buffer | None, value: Buffer | None, offset: int) -> tuple[str | None, str | None]:
    """A record of ``__consumer_offsets``."""
    return _coordinator(GROUPS, key, value, offset)


def decode_transactions(key: Buffer | None, value: Buffer | None, offset: int) -> tuple[str | None, str | None]:
    """A record of ``__transaction_state``."""
    return _coordinator(TRANSACTIONS, key, value, offset)


def decode_share_state(key: Buffer | None, value: Buffer | None, offset: int) -> tuple[str | None, str | None]:
    """A record of ``__share_group_state``."""
    return _coordinator(SHARES, key, value, offset)


def decode_cluster_metadata(_key: Buffer | None, value: Buffer | None, offset: int) -> tuple[str | None, str | None]:
    """A record of ``__cluster_metadata``: a frame version, a type and a version as varints, then the message."""
    try:
        return None, _metadata_text(MessageReader(bytes(value or b"")))
    except MessageError as error:
        return None, f"Error at {offset}, skipping. {error}"


def plain_decoder(key_class: str | None, value_class: str | None) -> Decoder:
    """Classes of ``org.apache.kafka.tools.api``, with or without the package. Raises ValueError for others."""
    decode_key, decode_value = _class_decoder(key_class), _class_decoder(value_class)

    def decode(key: Buffer | None, value: Buffer | None, _offset: int) -> tuple[str | None, str | None]:
        return (
            None if key is None else decode_key(key),
            None if value is None else decode_value(value),
        )

    return decode


def control_text(kind: int, value: Buffer | None, offset: int) -> str:
    """A control record of KRaft. Kafka reads every version as 0 and prints it as the version that it names."""
    message = parse_schemas(schemas.CONTROL_RECORDS)[kind]
    try:
        values = read_message(message, value or b"", 0)
    except MessageError as error:
        raise CorruptRecordError(f"a control record is not a valid {message.name}: {error}", offset=offset) from error
    version = values["version"]
    assert isinstance(version, int)
    return f" {_CONTROL_NAMES[kind]} {json_text(to_json(message, values, version))}"


def _coordinator(
    table: RecordTable, key: Buffer | None, value: Buffer | None, offset: int
) -> tuple[str | None, str | None]:
    if key is None:
        raise CorruptRecordError("a record of such a topic must have a key", offset=offset)
    try:
        key_message, key_fields = table.read_key(key)
        type_ = key_message.id
        key_text = json_text({"type": str(type_), "data": to_json(key_message, key_fields, 0)})
        if value is None:
            return key_text, "<DELETE>"
        message, version, fields = table.read_value(type_, value)
        data = to_json(message, fields, version)
        if message.name == "GroupMetadataValue" and data.get("protocolType") == "consumer":
            _decode_members(data["members"])
        if message.name == "TransactionLogValue":
            data["transactionStatus"] = _state_name(data["transactionStatus"])
        return key_text, json_text({"version": str(version), "data": data})
    except UnknownTypeError as error:
        return f"Unknown record type {error.type} at offset {offset}, skipping.", None
    except MessageError as error:
        return f"Error at offset {offset}, skipping. {error}", None


def _decode_members(members: Value) -> None:
    """Replace the bytes of consumers' subscriptions and assignments by their fields, where they can be read."""
    assert isinstance(members, list)
    protocol = parse_schemas(schemas.CONSUMER_PROTOCOL)
    for member in members:
        for field, message in (("subscription", protocol[_SUBSCRIPTION]), ("assignment", protocol[_ASSIGNMENT])):
            reader = MessageReader(b64decode(member[field]))
            try:
                version = reader.integer("int16")
                member[field] = to_json(message, reader.message(message, version), version)
            except MessageError:
                continue


def _state_name(state: Value) -> str:
    return next((one.label for one in TransactionState if one == state), str(state))


def _metadata_text(reader: MessageReader) -> str:
    frame = _unsigned_short(reader, "frame version")
    if frame == 0:
        raise MessageError(
            "Could not deserialize metadata record with frame version 0. Note that upgrades from the preview release "
            "of KRaft in 2.8 to newer versions are not supported."
        )
    if frame != 1:
        raise MessageError(
            f"Could not deserialize metadata record due to unknown frame version {frame}"
            "(only frame version 1 is supported)"
        )
    type_, version = _unsigned_short(reader, "type"), _unsigned_short(reader, "version")
    message = parse_schemas(schemas.METADATA_RECORDS).get(type_)
    if message is None:
        raise MessageError(f"org.apache.kafka.common.errors.UnsupportedVersionException: Unknown metadata id {type_}")
    try:
        values = reader.message(message, version)
    except MessageError as error:
        raise MessageError(f"Failed to deserialize record with type {type_}") from error
    if reader.remaining:
        raise MessageError(f"Found {reader.remaining} byte(s) of garbage after {type_}")
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", message.name).upper()
    return json_text({"type": name, "version": version, "data": to_json(message, values, version)})


def _unsigned_short(reader: MessageReader, name: str) -> int:
    try:
        value = reader.unsigned_varint()
    except MessageError:
        raise MessageError(f"Error while reading {name}") from None
    if value > 0x7FFF:
        raise MessageError(f"Value for {name} was too large.")
    return value


def _text(data: Buffer) -> str:
    return decode_utf8(data)


def _class_decoder(name: str | None) -> Callable[[Buffer], str]:
    short = "String" if name is None else name.removeprefix("org.apache.kafka.tools.api.").removesuffix("Decoder")
    if short == "String":
        return _text
    if short not in _NUMBER_BYTES:
        raise ValueError(f"decoder class {name} is Java code; String, Integer and Long decoders are built in")
    size = _NUMBER_BYTES[short]

    def decode(data: Buffer) -> str:
        if len(data) < size:
            raise CorruptRecordError(f"{len(data)} bytes are not {'an' if size == 4 else 'a'} {short}: it has {size}")
        return str(int.from_bytes(data[:size], signed=True))  # like Kafka's, it ignores the bytes after them

    return decode
