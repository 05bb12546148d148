"""``seglog.topics``: what a log directory knows of its topics beyond their files.

One regular file, which Kafka passes over; JSON, written atomically::

    {"version": 1, "topics": {"flights": {"id": "86Gyw9TlT2CBcYKTpLXG1w", "partitions": 4,
                                          "config": {"retention.ms": "-1"}, "deleted": false}}}

It is the point at which a creation or deletion counts: a topic that is in it gets the partitions that it lacks, and one
that is marked deleted loses those that it has, when the directory is opened after a crash in between. Of a topic with 0
partitions, which others have too, those are kept that are there.
"""

from __future__ import annotations

import json
import os.path
from collections.abc import Mapping
from typing import Final, NamedTuple
from uuid import UUID

from seglog.core.config import LogConfig
from seglog.core.errors import CorruptCheckpointError, SeglogError
from seglog.core.fs import Fs, write_atomically
from seglog.core.types import validate_topic
from seglog.storage.formats.checkpoints import decode_id, encode_id
from seglog.storage.formats.paths import TOPICS

_VERSION: Final = 1
MAX_PARTITIONS: Final = 100_000
"""Of one topic: a limit against a slip of the hand; each is a directory with three open files or more."""


class TopicInfo(NamedTuple):
    """A topic; ``config`` is its own configuration as Kafka's texts, without the directory's defaults.

    ``topic_id`` is None for a topic of a Kafka before 2.8.
    """

    name: str
    topic_id: UUID | None
    partitions: int
    config: Mapping[str, str]


class TopicEntry(NamedTuple):
    """A topic: its id, how many partitions it was created with, and its own configuration as Kafka's texts.

    ``partitions`` is 0 for a topic of a cluster: it has here those that are there, and none is made for it.
    """

    topic_id: UUID | None
    partitions: int
    config: Mapping[str, str]
    deleted: bool = False


def encode_topics(topics: Mapping[str, TopicEntry]) -> bytes:
    return _join({name: encode_entry(name, entry) for name, entry in topics.items()})


def encode_entry(name: str, entry: TopicEntry) -> str:
    """The lines of one topic."""
    content = {
        "id": encode_id(entry.topic_id) if entry.topic_id else None,
        "partitions": entry.partitions,
        "config": dict(sorted(entry.config.items())),
        "deleted": entry.deleted,
    }
    return f"  {json.dumps(name)}: " + json.dumps(content, indent=1).replace("\n", "\n  ")


def _join(entries: Mapping[str, str]) -> bytes:
    """The file of these entries, each encoded."""
    if not entries:
        return b'{\n "version": %d,\n "topics": {}\n}\n' % _VERSION
    lines = ",\n".join([entries[name] for name in sorted(entries)])
    return f'{{\n "version": {_VERSION},\n "topics": {{\n{lines}\n }}\n}}\n'.encode()


class TopicsFile:
    """The file of an open log directory. A change encodes the topics that it changes, and no others."""

    def __init__(self, fs: Fs, log_dir: str, topics: Mapping[str, TopicEntry]) -> None:
        self._fs = fs
        self._path = os.path.join(log_dir, TOPICS)
        self._encoded = {name: encode_entry(name, entry) for name, entry in topics.items()}

    def change(self, changes: Mapping[str, TopicEntry | None]) -> None:
        """Write the file with these entries instead of the former ones, None for one that goes; durable."""
        encoded = dict(self._encoded)
        for name, entry in changes.items():
            if entry is None:
                encoded.pop(name, None)
            else:
                encoded[name] = encode_entry(name, entry)
        write_atomically(self._fs, self._path, _join(encoded))
        self._encoded = encoded


def decode_topics(data: bytes, file: str | None = None) -> dict[str, TopicEntry]:
    """`CorruptCheckpointError` names the topic that is wrong: defaults in its place might delete its records."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpointError(f"not JSON: {error}", file=file) from error
    if not isinstance(content, dict) or content.get("version") != _VERSION:
        raise CorruptCheckpointError(f"not an object of version {_VERSION}", file=file)
    topics = content.get("topics")
    if not isinstance(topics, dict):
        raise CorruptCheckpointError("'topics' is not an object", file=file)
    return {name: _decode_entry(name, value, file) for name, value in topics.items()}


def _decode_entry(name: str, value: object, file: str | None) -> TopicEntry:
    try:
        validate_topic(name)
        if not isinstance(value, dict):
            raise TypeError("not an object")
        topic_id, partitions, config = value["id"], value["partitions"], value["config"]
        if topic_id is not None and not isinstance(topic_id, str):
            raise TypeError("'id' is not a text")
        if isinstance(partitions, bool) or not isinstance(partitions, int) or not 0 <= partitions <= MAX_PARTITIONS:
            raise ValueError(f"'partitions' is not a number from 0 to {MAX_PARTITIONS}")
        if not isinstance(config, dict) or not all(isinstance(text, str) for text in config.values()):
            raise TypeError("'config' is not an object of texts")
        LogConfig.from_mapping(config)
        deleted = value["deleted"]
        if not isinstance(deleted, bool):
            raise TypeError("'deleted' is neither true nor false")
        return TopicEntry(decode_id(topic_id) if topic_id else None, partitions, config, deleted)
    except (KeyError, TypeError, ValueError, SeglogError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise CorruptCheckpointError(f"topic {name[:80]!r}: {reason}", file=file) from error


def read_topics(fs: Fs, log_dir: str) -> dict[str, TopicEntry]:
    """The topics of a log directory; empty if it has no such file."""
    path = os.path.join(log_dir, TOPICS)
    return decode_topics(fs.read(path), path) if fs.exists(path) else {}
