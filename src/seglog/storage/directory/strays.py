"""Strays: replicas that the cluster no longer assigns to this broker, set aside and kept.

The partition's directory is renamed to ``<topic>-<number>.<unique>-stray``, as Kafka does; Kafka ignores it too. It is
kept until an operator deletes it, or the cluster deletes the topic. The facts that only the log directory's checkpoints
have are written to ``.seglog/stray`` in it, as JSON, so that the replica can be restored unchanged::

    {"version": 1, "topic": "web", "number": 3, "id": "86Gyw9TlT2CBcYKTpLXG1w", "config": {"retention.ms": "5"},
     "log_start": 17, "high_watermark": 1234, "log_end": 1240, "leader_epoch": 4}
"""

from __future__ import annotations

import json
import os.path
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple
from uuid import UUID

from seglog.core.errors import CorruptCheckpointError
from seglog.core.fs import Fs, write_atomically
from seglog.core.types import TopicPartition, parse_topic_partition
from seglog.storage.formats.checkpoints import decode_id, encode_id, read_partition_metadata
from seglog.storage.formats.paths import OWN_DIRECTORY, capped_name, is_set_aside

STRAY: Final = "-stray"
_FILE: Final = os.path.join(OWN_DIRECTORY, "stray")
_VERSION: Final = 1


class Stray(NamedTuple):
    """A replica when it was set aside; ``high_watermark`` and ``log_start`` are 0 if not known."""

    partition: TopicPartition
    topic_id: UUID | None
    config: Mapping[str, str]
    log_start: int = 0
    high_watermark: int = 0
    log_end: int = 0
    leader_epoch: int = -1


class StrayDirectory(NamedTuple):
    """A stray and the path of its directory."""

    path: str
    stray: Stray

    @property
    def name(self) -> str:
        return os.path.basename(self.path)


def stray_name(partition: TopicPartition, unique: UUID) -> str:
    """
    >>> stray_name(TopicPartition("web", 3), UUID(int=5))
    'web-3.00000000000000000000000000000005-stray'
    """
    return capped_name(partition, unique, STRAY)


def is_stray_name(name: str) -> bool:
    return name.endswith(STRAY) and is_set_aside(name)


def write_stray(fs: Fs, partition_path: str, stray: Stray) -> None:
    """Write the file into the directory of a partition before it is set aside; durable."""
    content = {
        "version": _VERSION,
        "topic": stray.partition.topic,
        "number": stray.partition.partition,
        "id": encode_id(stray.topic_id) if stray.topic_id else None,
        "config": dict(sorted(stray.config.items())),
        "log_start": stray.log_start,
        "high_watermark": stray.high_watermark,
        "log_end": stray.log_end,
        "leader_epoch": stray.leader_epoch,
    }
    own = os.path.join(partition_path, OWN_DIRECTORY)
    if not fs.exists(own):
        fs.mkdir(own)
        fs.fsync_dir(partition_path)
    write_atomically(fs, os.path.join(partition_path, _FILE), json.dumps(content).encode() + b"\n")


def forget_stray(fs: Fs, partition_path: str) -> None:
    """Remove the file: the partition is served again."""
    path = os.path.join(partition_path, _FILE)
    if fs.exists(path):
        fs.unlink(path)


def find_strays(fs: Fs, log_dir: str) -> Iterator[StrayDirectory]:
    """All strays in a log directory, also Kafka's, by name, except those that are removed meanwhile."""
    for name in sorted(filter(is_stray_name, fs.listdir(log_dir))):
        path = os.path.join(log_dir, name)
        try:
            if fs.stat(path).is_dir:
                yield StrayDirectory(path, read_stray(fs, path))
        except FileNotFoundError:
            continue


def read_stray(fs: Fs, path: str) -> Stray:
    """Read the stray at ``path``; if Kafka has set it aside, only its name and topic id are known."""
    try:
        content = json.loads(fs.read(os.path.join(path, _FILE)))
        if content["version"] == _VERSION:
            return Stray(
                TopicPartition(str(content["topic"]), int(content["number"])),
                decode_id(content["id"]) if content["id"] else None,
                {str(key): str(value) for key, value in content["config"].items()},
                int(content["log_start"]),
                int(content["high_watermark"]),
                int(content["log_end"]),
                int(content["leader_epoch"]),
            )
    except FileNotFoundError:
        pass
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass  # an unreadable file: the directory is a stray all the same
    partition = parse_topic_partition(os.path.basename(path).rpartition(".")[0])
    try:
        topic_id = read_partition_metadata(fs, path)
    except CorruptCheckpointError:
        topic_id = None
    return Stray(partition or TopicPartition(os.path.basename(path), 0), topic_id, {})


def size_of(fs: Fs, path: str) -> int:
    """Bytes that all files in a directory occupy, without holes; files that are removed meanwhile count 0."""
    total = 0
    try:
        for name in fs.listdir(path):
            child = os.path.join(path, name)
            found = fs.stat(child)
            total += size_of(fs, child) if found.is_dir else found.used
    except FileNotFoundError:
        return total
    return total
