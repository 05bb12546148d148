"""The basic types: bytes, slices of files, topics and partitions."""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Final, NamedTuple, Protocol

from seglog.core.errors import InvalidTopicError

Buffer = bytes | bytearray | memoryview
"""Bytes that are only read."""

NO_TIMESTAMP: Final = -1
NO_OFFSET: Final = -1
NO_EPOCH: Final = -1
NO_PRODUCER_ID: Final = -1
NO_SEQUENCE: Final = -1
MAX_INT32: Final = 2**31 - 1
MAX_INT64: Final = 2**63 - 1

_LEGAL_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_PARTITION = re.compile(r"0|[1-9][0-9]{0,9}")


class TimestampType(IntEnum):
    """The meaning of a record's timestamp; the numbers are those of Kafka's consumers (-1, 0, 1)."""

    NONE = -1
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class Slice(Protocol):
    """A part of a file that is read when it is sent."""

    @property
    def size(self) -> int: ...
    def read_part(self, start: int, size: int) -> bytes:
        """``size`` bytes from ``start`` on; fewer if the file was truncated."""


class TopicPartition(NamedTuple):
    """A partition of a topic. Its text is the name of its directory: ``topic-partition``."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class ProducerIdAndEpoch(NamedTuple):
    """An idempotent or transactional producer, as its batches name it."""

    producer_id: int
    epoch: int


def validate_topic(name: str) -> str:
    """Return ``name`` if it is legal for a topic (``Topic.java``), else raise `InvalidTopicError`.

    >>> validate_topic("web.logs-2013_a")
    'web.logs-2013_a'
    """
    if name in (".", "..") or not _LEGAL_TOPIC.fullmatch(name):
        raise InvalidTopicError(
            f"topic name {name!r} is not legal: 1 to 249 of the characters a-z A-Z 0-9 . _ - and neither '.' nor '..'"
        )
    return name


def parse_topic_partition(directory: str) -> TopicPartition | None:
    """The partition of a directory's name, or None (``LocalLog.parseTopicPartitionName``).

    >>> parse_topic_partition("web-logs-12")
    TopicPartition(topic='web-logs', partition=12)
    >>> parse_topic_partition("web-logs") is None
    True
    """
    topic, dash, number = directory.rpartition("-")
    if not dash or not _PARTITION.fullmatch(number) or not _LEGAL_TOPIC.fullmatch(topic) or topic in (".", ".."):
        return None
    partition = int(number)
    return TopicPartition(topic, partition) if partition <= MAX_INT32 else None
