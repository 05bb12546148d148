"""Segments of a partition, written as Kafka writes them, and the offsets that a scan finds."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from seglog.records.batch import read_header
from seglog.records.record import NewRecord, encode_batch
from seglog.sources.scan import scan
from seglog.storage.formats.paths import segment_paths


def write_segment(partition: Path, base_offset: int, batches: Sequence[bytes | bytearray]) -> Path:
    """A segment with an index entry for each batch but the first, as Kafka would with ``index.interval.bytes`` 0."""
    partition.mkdir(parents=True, exist_ok=True)
    paths = segment_paths(str(partition), base_offset)
    index, times, position, newest = bytearray(), bytearray(), 0, -1
    for batch in batches:
        header = read_header(batch)
        if position:
            index += struct.pack(">ii", header.last_offset - base_offset, position)
        if header.max_timestamp > newest:
            newest = header.max_timestamp
            times += struct.pack(">qi", newest, header.last_offset - base_offset)
        position += header.size
    Path(paths.log).write_bytes(b"".join(batches))
    Path(paths.offset_index).write_bytes(index)
    Path(paths.timeindex).write_bytes(times)
    return Path(paths.log)


def numbered(start: int, count: int, per_batch: int = 3) -> list[bytearray]:
    """Batches at ``start`` and on; a record's value is its offset, its timestamp 1000 times that."""
    return [
        encode_batch(
            [NewRecord(b"%d" % at, timestamp=1000 * at) for at in range(first, min(first + per_batch, start + count))],
            base_offset=first,
        )
        for first in range(start, start + count, per_batch)
    ]


def offsets(*arguments: Any, **options: Any) -> list[int]:
    found: list[int] = scan(*arguments, columns=("offset",), **options).read_all().column("offset").to_pylist()
    return found
