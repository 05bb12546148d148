"""Up to where readers of a directory in use may go: what a broker says of each partition while it runs.

``seglog.watermarks`` lies at the top of a log directory, a regular file that Kafka ignores. Version 0 is text, as
Kafka's checkpoints are, one line a partition::

    0                                  version
    2                                  number of lines behind this one
    flights 0 1200 1180                topic, partition, high watermark, last stable offset
    flights 1 900 900

Whoever writes it replaces it atomically. A reader takes it for what it was at some moment: both offsets only rise.
"""

from __future__ import annotations

import os.path
from collections.abc import Mapping
from typing import Final, NamedTuple

from seglog.core.errors import CorruptCheckpointError
from seglog.core.fs import Fs
from seglog.core.types import MAX_INT32, MAX_INT64, TopicPartition
from seglog.storage.lines import decode_lines, encode_lines, number

WATERMARKS: Final = "seglog.watermarks"


class Watermark(NamedTuple):
    """Offsets below ``high`` are on all replicas in sync; below ``stable`` no transaction is open either."""

    high: int
    stable: int


def encode_watermarks(marks: Mapping[TopicPartition, Watermark]) -> bytes:
    return encode_lines(
        [f"{topic} {partition} {high} {stable}" for (topic, partition), (high, stable) in marks.items()]
    )


def decode_watermarks(data: bytes, file: str | None = None) -> dict[TopicPartition, Watermark]:
    """`CorruptCheckpointError` names file and line."""
    marks = {}
    for at, line in decode_lines(data, file):
        fields = line.split()
        if len(fields) != 4:
            raise CorruptCheckpointError(
                f"line {at}: {line[:80]!r} is not a topic, a partition, a high watermark and a last stable offset",
                file=file,
            )
        partition = number(fields[1], at, file, MAX_INT32)
        high, stable = (number(field, at, file, MAX_INT64) for field in fields[2:])
        marks[TopicPartition(fields[0], partition)] = Watermark(high, stable)
    return marks


def read_watermarks(fs: Fs, log_dir: str) -> dict[TopicPartition, Watermark] | None:
    """Of a log directory; None where there is no such file."""
    path = os.path.join(log_dir, WATERMARKS)
    try:
        data = fs.read(path)
    except FileNotFoundError:
        return None
    return decode_watermarks(data, path)
