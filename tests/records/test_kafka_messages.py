"""Records of internal topics by their schemas."""

from __future__ import annotations

import struct
from contextlib import nullcontext
from random import Random

import pytest

from seglog.core.errors import InvalidRequestError
from seglog.records import kafka_schemas
from seglog.records.kafka_messages import Message, MessageError, parse_schemas, read_message, write_message
from tests.cli.made_messages import Writer


def _tables() -> list[str]:
    return [text for name, text in vars(kafka_schemas).items() if name.isupper()]


def test_reads_every_schema_to_its_end() -> None:
    messages = [message for table in _tables() for message in parse_schemas(table).values()]
    assert len(messages) == 22 * 2 + 2 * 1 + 2 * 2 + 26 + 2 + 5
    for message in messages:
        for version in range(message.highest + 1):
            with pytest.raises(MessageError) if _needs_bytes(message, version) else nullcontext():
                read_message(message, b"", version)


def _needs_bytes(message: Message, version: int) -> bool:
    return version >= message.flexible or any(field.tag is None and field.is_in(version) for field in message.fields)


def test_refuses_a_huge_array_before_allocating_it() -> None:
    message = parse_schemas(kafka_schemas.TRANSACTION_VALUES)[0]
    data = struct.pack(">qhib", 1, 1, 1, 1) + struct.pack(">i", 2**31 - 1)
    with pytest.raises(
        MessageError, match="Tried to allocate a collection of size 2147483647, but there are only 0 bytes"
    ):
        read_message(message, data, 0)


MESSAGES = [message for table in _tables() for message in parse_schemas(table).values()]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.name)
def test_writes_again_what_it_reads(message: Message) -> None:
    """Messages of every version by another writer, which also writes tagged fields that have their default, and ones
    that Kafka does not know. Without these the bytes are the same."""
    random = Random(message.name)
    for version in range(message.highest + 1):
        for _ in range(20):
            data = Writer(random).message(message, version)
            values = read_message(message, data + b"more", version)
            written = write_message(message, values, version)
            assert read_message(message, written, version) == values
            assert len(written) <= len(data)
            if len(written) == len(data):
                assert written == data


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.name)
def test_truncated_messages_are_refused(message: Message) -> None:
    random = Random(message.name)
    for version in range(message.highest + 1):
        data = write_message(message, read_message(message, Writer(random).message(message, version), version), version)
        for end in range(len(data)):
            with pytest.raises(MessageError):
                read_message(message, data[:end], version)


def test_a_tagged_field_that_has_its_default_is_not_written() -> None:
    message = parse_schemas(kafka_schemas.GROUP_VALUES)[3]
    assert write_message(message, {"epoch": 5}, 0) == write_message(message, {"epoch": 5, "metadataHash": 0}, 0)
    assert write_message(message, {"epoch": 5, "metadataHash": -1}, 0)[4:] == b"\x01\x00\x08" + b"\xff" * 8


def test_unpaired_surrogates_are_written_as_java_does() -> None:
    message = parse_schemas(kafka_schemas.GROUP_KEYS)[2]
    assert write_message(message, {"group": "a\ud800"}, 0) == b"\x00\x02a?"


@pytest.mark.parametrize("table", ["GROUP_KEYS", "METADATA_RECORDS"])
def test_a_string_that_is_too_long_is_refused(table: str) -> None:
    message = parse_schemas(getattr(kafka_schemas, table))[2]
    values = {field.name: "x" * 32768 if field.type == "string" else bytes(16) for field in message.fields}
    with pytest.raises(InvalidRequestError, match="32768 bytes"):
        write_message(message, values, 0)
