"""The metadata that classic members of type "consumer" send through the coordinator (``ConsumerProtocol``). Pure.

A version (int16) precedes a message of `seglog.records.kafka_schemas.CONSUMER_PROTOCOL`. Later versions are read as the
latest one that is known.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from seglog.core.errors import InvalidRequestError
from seglog.records.kafka_messages import Message, MessageError, parse_schemas, read_message, write_message
from seglog.records.kafka_schemas import CONSUMER_PROTOCOL

_INT16: Final = struct.Struct(">h")
_SUBSCRIPTION: Final = 0
_ASSIGNMENT: Final = 1
_FIRST_VERSION: Final = 0


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
    if len(metadata) < _INT16.size:
        raise InvalidRequestError("the metadata of a consumer has no version")
    (version,) = _INT16.unpack_from(metadata)
    if version < 0:
        raise InvalidRequestError(f"version {version} of the consumer protocol")
    return min(int(version), _message(_SUBSCRIPTION).highest)


def decode_subscription(metadata: bytes) -> Subscription:
    """Raises `InvalidRequestError`."""
    version = version_of(metadata)
    fields = _read(_SUBSCRIPTION, metadata, version)
    topics = frozenset(fields["topics"])
    return Subscription(version, topics, _partitions(fields["ownedPartitions"]), fields["rackId"])


def subscribed_topics(metadata: bytes) -> frozenset[str]:
    """The topics of a subscription alone: all versions begin with the fields of the first. `InvalidRequestError`."""
    return frozenset(_read(_SUBSCRIPTION, metadata, _FIRST_VERSION)["topics"])


def decode_assignment(data: bytes) -> Assignment:
    """Raises `InvalidRequestError`."""
    fields = _read(_ASSIGNMENT, data, version_of(data))
    return Assignment(_partitions(fields["assignedPartitions"]), fields["userData"] or b"")


def encode_assignment(partitions: Mapping[str, frozenset[int]], version: int) -> bytes:
    """
    >>> encode_assignment({"t": frozenset({0})}, 3).hex()
    '0003000000010001740000000100000000ffffffff'
    """
    assigned = [{"topic": topic, "partitions": sorted(numbers)} for topic, numbers in partitions.items()]
    fields = {"assignedPartitions": assigned, "userData": None}
    return _INT16.pack(version) + write_message(_message(_ASSIGNMENT), fields, version)


def _message(number: int) -> Message:
    return parse_schemas(CONSUMER_PROTOCOL)[number]


def _read(number: int, data: bytes, version: int) -> Mapping[str, Any]:
    message = _message(number)
    try:
        return read_message(message, data, version, _INT16.size)
    except MessageError as error:
        raise InvalidRequestError(f"the metadata of a consumer is not a {message.name}: {error}") from error


def _partitions(topics: list[Mapping[str, Any]]) -> dict[str, frozenset[int]]:
    return {topic["topic"]: frozenset(topic["partitions"]) for topic in topics}
