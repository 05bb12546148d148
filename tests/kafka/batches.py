"""Kafka 4.4.0's own record classes as functions: read batches of any format, build them. About 1 s of JVM a call."""

from __future__ import annotations

import json
import struct
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.kafka.tools import run_java

__all__ = ["JavaBatch", "JavaRecord", "Rebuild", "read_batches", "rebuild_batches"]

_DEFAULT_LEVEL = -(2**31)


class JavaRecord(NamedTuple):
    """A record as Kafka's classes give it."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    sequence: int


class JavaBatch(NamedTuple):
    """A batch, or a message of magic 0 or 1, deep. ``timestamp_type`` is -1 in magic 0."""

    magic: int
    codec: int
    timestamp_type: int
    max_timestamp: int
    base_offset: int
    last_offset: int
    control: bool
    records: list[JavaRecord]


def read_batches(cases: Sequence[bytes]) -> list[list[JavaBatch] | str]:
    """The batches that Kafka reads from each case, or the error that it throws. CRCs are checked, inner ones too."""
    with tempfile.NamedTemporaryFile(suffix=".cases") as file:
        for case in cases:
            file.write(struct.pack(">i", len(case)) + case)
        file.flush()
        # Not splitlines: header keys may have U+0085 and its like.
        lines = run_java("ReadBatches", [file.name], with_ours=True).removesuffix("\n").split("\n")
    return [_outcome(line) for line in lines]


def _outcome(line: str) -> list[JavaBatch] | str:
    outcome = json.loads(line)
    return str(outcome["error"]) if "error" in outcome else [_batch(batch) for batch in outcome["batches"]]


def _batch(batch: dict[str, Any]) -> JavaBatch:
    return JavaBatch(
        magic=batch["magic"],
        codec=batch["codec"],
        timestamp_type=batch["timestampType"],
        max_timestamp=batch["maxTimestamp"],
        base_offset=batch["baseOffset"],
        last_offset=batch["lastOffset"],
        control=batch["control"],
        records=[_record(*record) for record in batch["records"]],
    )


def _record(
    offset: int,
    timestamp: int,
    key: str | None,
    value: str | None,
    headers: list[tuple[str, str | None]],
    sequence: int,
) -> JavaRecord:
    pairs = tuple((name, _bytes(content)) for name, content in headers)
    return JavaRecord(offset, timestamp, _bytes(key), _bytes(value), pairs, sequence)


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


class Rebuild(NamedTuple):
    """A batch of magic 2 that Kafka shall build again in another way; ``level`` None is the codec's default."""

    batch: bytes
    magic: int = 2
    codec: int = 0
    level: int | None = None
    log_append_time: int | None = None


def rebuild_batches(jobs: Sequence[Rebuild]) -> list[bytes]:
    """The bytes that `MemoryRecordsBuilder` makes: one batch, or in magic 0 and 1 one wrapper or several messages."""
    with tempfile.NamedTemporaryFile(suffix=".jobs") as file, tempfile.NamedTemporaryFile(suffix=".built") as built:
        for batch, magic, codec, level, append_time in jobs:
            options = (magic, codec, _DEFAULT_LEVEL if level is None else level, append_time is not None)
            file.write(struct.pack(">iiii", *options))
            file.write(struct.pack(">qi", -1 if append_time is None else append_time, len(batch)) + batch)
        file.flush()
        run_java("RebuildBatches", [file.name, built.name], with_ours=True)
        return list(_framed(Path(built.name).read_bytes()))


def _framed(data: bytes) -> Iterator[bytes]:
    position = 0
    while position < len(data):
        (size,) = struct.unpack_from(">i", data, position)
        yield data[position + 4 : position + 4 + size]
        position += 4 + size
