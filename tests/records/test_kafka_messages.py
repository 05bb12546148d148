"""Records of internal topics: their schemas, and JSON and floats as Java prints them."""

from __future__ import annotations

import struct
from contextlib import nullcontext

import pytest

from seglog.records import kafka_schemas
from seglog.records.kafka_messages import Message, MessageError, MessageReader, json_text, parse_schemas, read_message


def test_writes_json_as_jackson_does() -> None:
    value = {"a": ['"\\\n\x1f/é', None, True, 1.0, 2**40], "b": {}}
    assert json_text(value) == '{"a":["\\"\\\\\\n\\u001F/é",null,true,1.0,1099511627776],"b":{}}'


@pytest.mark.parametrize(
    ("value", "text"),
    [(1e-3, "0.001"), (9.99e-4, "9.99E-4"), (9999999.0, "9999999.0"), (-1.25e10, "-1.25E10"), (0.0, "0.0")],
)
def test_prints_floats_as_java_does(value: float, text: str) -> None:
    assert json_text(value) == text


def _tables() -> list[str]:
    return [text for name, text in vars(kafka_schemas).items() if name.isupper()]


def test_reads_every_schema_to_its_end() -> None:
    messages = [message for table in _tables() for message in parse_schemas(table).values()]
    assert len(messages) == 22 * 2 + 2 * 1 + 2 * 2 + 26 + 2 + 5
    for message in messages:
        for version in range(message.highest + 1):
            with pytest.raises(MessageError) if _needs_bytes(message, version) else nullcontext():
                read_message(message, MessageReader(b""), version)


def _needs_bytes(message: Message, version: int) -> bool:
    return version >= message.flexible or any(field.tag is None and field.is_in(version) for field in message.fields)


def test_refuses_a_huge_array_before_allocating_it() -> None:
    message = parse_schemas(kafka_schemas.TRANSACTION_VALUES)[0]
    data = struct.pack(">qhib", 1, 1, 1, 1) + struct.pack(">i", 2**31 - 1)
    with pytest.raises(
        MessageError, match="Tried to allocate a collection of size 2147483647, but there are only 0 bytes"
    ):
        read_message(message, MessageReader(data), 0)
