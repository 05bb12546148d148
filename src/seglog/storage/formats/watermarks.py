"""The offsets up to which readers of a directory in use may read, as its broker publishes them.

``seglog.watermarks`` lies at the top of a log directory, a regular file that Kafka ignores. A broker has it mapped, and
stores both offsets of a partition whenever they change, without a system call or a wait. Numbers are in the machine's
own byte order; entries begin at multiples of 8::

    0   int64   MAGIC
    8   int64   end of the entries, in bytes; the rest of the file is room for more
    16  entries, each of them:
        0   int64   high watermark, -1 of a partition that is gone
        8   int64   last stable offset
        16  int32   partition
        20  uint16  length of the topic's name in bytes
        22  the name, and zeros up to the next multiple of 8

An entry is written before ``end`` is moved past it, and never moves: a reader sees all of it or nothing. A larger
file replaces one that is full. Both offsets only rise, so each that a reader sees was right at some moment.

Whoever writes the file holds a lock on it (`Fs.lock`), and a file without one says nothing: its broker is dead, and
another one may have the directory now, also a Kafka, which knows nothing of this file.
"""

from __future__ import annotations

import os.path
import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

from seglog.core.errors import CorruptCheckpointError
from seglog.core.fs import Fs, is_locked
from seglog.core.types import TopicPartition

WATERMARKS: Final = "seglog.watermarks"
GONE: Final = -1
"""The high watermark of a partition that was deleted."""

_MAGIC: Final = int.from_bytes(b"seglogwm", "little")
_HEAD: Final = struct.Struct("=qq")
_ENTRY: Final = struct.Struct("=qqiH")
HEAD_SIZE: Final = _HEAD.size
END_AT: Final = 1
"""Where ``end`` is, counted in int64."""


class Watermark(NamedTuple):
    """Offsets below ``high`` are on all replicas in sync; below ``stable`` no transaction is open either."""

    high: int
    stable: int


def encode_head(end: int) -> bytes:
    return _HEAD.pack(_MAGIC, end)


def encode_entry(partition: TopicPartition, mark: Watermark) -> bytes:
    name = partition.topic.encode()
    entry = _ENTRY.pack(mark.high, mark.stable, partition.partition, len(name)) + name
    return entry.ljust(-(-len(entry) // 8) * 8, b"\0")


def encode_watermarks(marks: Mapping[TopicPartition, Watermark]) -> bytes:
    """The whole file, without room for more."""
    entries = b"".join(encode_entry(partition, mark) for partition, mark in marks.items())
    return encode_head(HEAD_SIZE + len(entries)) + entries


def decode_watermarks(data: bytes, file: str | None = None) -> dict[TopicPartition, Watermark]:
    """Of all partitions but those that are gone. `CorruptCheckpointError` names file and position."""
    magic, end = _HEAD.unpack_from(data) if len(data) >= HEAD_SIZE else (0, 0)
    if magic != _MAGIC:
        raise CorruptCheckpointError("not a watermark file of this version and byte order", position=0, file=file)
    if not HEAD_SIZE <= end <= len(data):
        raise CorruptCheckpointError(f"entries up to {end} in a file of {len(data)} bytes", position=8, file=file)
    marks = {}
    at = HEAD_SIZE
    while at < end:
        high, stable, number, length = _ENTRY.unpack_from(data, at) if at + _ENTRY.size <= end else (0, 0, -1, 0)
        behind = at + -(-(_ENTRY.size + length) // 8) * 8
        if number < 0 or not length or behind > end or high < GONE:
            raise CorruptCheckpointError("not the entry of a partition", position=at, file=file)
        if high != GONE:
            name = data[at + _ENTRY.size : at + _ENTRY.size + length]
            try:
                marks[TopicPartition(name.decode(), number)] = Watermark(high, stable)
            except UnicodeDecodeError as error:
                raise CorruptCheckpointError("a topic's name is not UTF-8", position=at, file=file) from error
        at = behind
    return marks


def read_watermarks(fs: Fs, log_dir: str) -> dict[TopicPartition, Watermark] | None:
    """Of a log directory; None where no broker of ours is running on it."""
    path = os.path.join(log_dir, WATERMARKS)
    if not is_locked(path):
        return None
    try:
        data = fs.read(path)
    except FileNotFoundError:
        return None
    return decode_watermarks(data, path)
