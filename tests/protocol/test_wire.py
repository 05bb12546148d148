"""Limits on the size of a request: lengths and counts are checked before they are trusted."""

from __future__ import annotations

import struct

import pytest

from seglog.core.errors import InvalidRequestError
from seglog.protocol.apis import APIS, ApiKey
from seglog.protocol.framing import read_header
from seglog.protocol.message_reader import MAX_ELEMENTS
from seglog.protocol.messages import read_request
from seglog.protocol.produce import read_produce
from seglog.protocol.wire import MAX_TAGS, uvarint


def tags(number: int) -> bytes:
    return uvarint(number) + b"".join(uvarint(100 + tag) + b"\1x" for tag in range(number))


def test_tagged_fields_of_a_header() -> None:
    head = struct.pack(">hhih", ApiKey.METADATA, 12, 7, -1)
    assert read_header(head + tags(MAX_TAGS)).correlation_id == 7
    with pytest.raises(InvalidRequestError, match="tagged fields"):
        read_header(head + tags(MAX_TAGS + 1))


def test_tagged_fields_of_a_body() -> None:
    body = b"\1\0\0"  # no topics, and two switches
    read_request(ApiKey.METADATA, 12, body + tags(MAX_TAGS))
    with pytest.raises(InvalidRequestError, match="tagged fields"):
        read_request(ApiKey.METADATA, 12, body + tags(MAX_TAGS + 1))


def test_elements_of_arrays_and_tagged_fields_together() -> None:
    topics = uvarint(MAX_ELEMENTS // 64) + (bytes(16) + b"\2a" + tags(64)) * (MAX_ELEMENTS // 64 - 1)
    with pytest.raises(InvalidRequestError, match="too many elements in one message"):
        read_request(ApiKey.METADATA, 12, topics + b"\0\0\0")


@pytest.mark.parametrize("version", [3, 9, 13])
def test_partitions_of_a_produce(version: int) -> None:
    partitions = 10_000
    flexible = version >= APIS[ApiKey.PRODUCE].flexible
    one, none = (b"\2", b"\0") if flexible else (struct.pack(">i", 1), b"")
    name = bytes(16) if version == 13 else b"\2a" if flexible else b"\0\1a"
    topic = name + one + struct.pack(">i", 0) + (b"\0" if flexible else struct.pack(">i", -1)) + none + none
    head = (b"\0" if flexible else b"\xff\xff") + struct.pack(">hi", 1, 0)

    def request(number: int) -> memoryview:
        count = uvarint(number + 1) if flexible else struct.pack(">i", number)
        return memoryview(head + count + topic * number + none)

    assert len(read_produce(request(partitions), version).topics) == partitions
    with pytest.raises(InvalidRequestError, match="array of 10001"):
        read_produce(request(partitions + 1), version)
    twice = name + (uvarint(6001) if flexible else struct.pack(">i", 6000))
    twice += (struct.pack(">i", 0) + (b"\0" if flexible else struct.pack(">i", -1)) + none) * 6000 + none
    count = b"\3" if flexible else struct.pack(">i", 2)
    with pytest.raises(InvalidRequestError, match="more than 10000 partitions"):
        read_produce(memoryview(head + count + twice * 2 + none), version)
