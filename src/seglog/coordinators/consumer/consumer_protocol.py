"""The metadata that classic members of type "consumer" send through the coordinator (``ConsumerProtocol``). Pure.

============ ==========================================================================================================
subscription version int16, topics [string], userData bytes?, from version 1 on ownedPartitions [topic string,
             partitions [int32]], from 2 on generation int32, from 3 on rack string?
assignment   version int16, partitions [topic string, partitions [int32]], userData bytes?
============ ==========================================================================================================

Lengths are int16 for strings and int32 for others. Later versions are read as the latest one that is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import Final, NamedTuple

from seglog.core.errors import InvalidRequestError
from seglog.protocol.wire import WireReader, put_count, put_text

_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")
_HIGHEST: Final = 3
_NO_DATA: Final = _INT32.pack(-1)


class Subscription(NamedTuple):
    version: int
    topics: frozenset[str]
    owned: Mapping[str, frozenset[int]]
    rack: str | None


class Assignment(NamedTuple):
    partitions: Mapping[str, frozenset[int]]
    user_data: bytes


def version_of(metadata: bytes) -> int:
    """The version of a subscription or assignment, at most the highest known. Raises `InvalidRequestError`."""
    return _version(WireReader(metadata))


def decode_subscription(metadata: bytes) -> Subscription:
    """Raises `InvalidRequestError`."""
    reader = WireReader(metadata)
    version = _version(reader)
    topics = frozenset([_text(reader) for _ in range(_count(reader))])
    _data(reader)
    owned = _partitions(reader) if version >= 1 else {}
    if version >= 2:
        reader.integer("int32")
    rack = reader.text(flexible=False) if version >= _HIGHEST else None
    return Subscription(version, topics, owned, rack)


def decode_assignment(data: bytes) -> Assignment:
    """Raises `InvalidRequestError`."""
    reader = WireReader(data)
    _version(reader)
    return Assignment(_partitions(reader), _data(reader))


def encode_assignment(partitions: Mapping[str, frozenset[int]], version: int) -> bytes:
    """
    >>> encode_assignment({"t": frozenset({0})}, 3).hex()
    '0003000000010001740000000100000000ffffffff'
    """
    out = bytearray(_INT16.pack(version))
    put_count(out, len(partitions), flexible=False)
    for topic, numbers in partitions.items():
        put_text(out, topic, flexible=False)
        put_count(out, len(numbers), flexible=False)
        out += b"".join(map(_INT32.pack, sorted(numbers)))
    return bytes(out + _NO_DATA)


def _version(reader: WireReader) -> int:
    version = reader.integer("int16")
    if version < 0:
        raise InvalidRequestError(f"version {version} of the consumer protocol")
    return min(version, _HIGHEST)


def _count(reader: WireReader) -> int:
    count = reader.integer("int32")
    if not 0 <= count <= reader.left:
        raise InvalidRequestError(f"{count} elements in {reader.left} bytes")
    return count


def _text(reader: WireReader) -> str:
    text = reader.text(flexible=False)
    if text is None:
        raise InvalidRequestError("a text must not be null")
    return text


def _data(reader: WireReader) -> bytes:
    return reader.take(max(reader.integer("int32"), 0))


def _partitions(reader: WireReader) -> dict[str, frozenset[int]]:
    return {
        _text(reader): frozenset([reader.integer("int32") for _ in range(_count(reader))])
        for _ in range(_count(reader))
    }
