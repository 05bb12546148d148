"""``seglog.adopt``: what a job is about to become, in one file whose appearance is the commit.

One regular file at the top of the log directory, which Kafka passes over; JSON, written atomically::

    {"version": 1, "crc32c": "1f2e3d4c", "adopt": {"job": "4f0c…", "application": "query:5a…", "number": 17,
      "partitions": [{"topic": "flights", "partition": 0, "base": 1200, "epoch": 0, "items":
        [["flights-0/.seglog/staging/4f0c…/0-0-c0ffee/00000000000000000000.log", "append", 500, 40960]]}]}}

Where files were ingested there are ``"inputs"``, as in the ledger, and the ``"digest"`` of all of them.
An item is file, mode, records, bytes; ``base`` is where the first begins, each next one begins where the last ends.
"""

from __future__ import annotations

import json
import os.path
from collections.abc import Sequence
from enum import Enum
from typing import Any, NamedTuple

from crc32c import crc32c

from seglog.core.errors import CorruptCheckpointError
from seglog.core.fs import Fs, write_atomically
from seglog.core.types import TopicPartition
from seglog.storage.formats.paths import ADOPT_MANIFEST


class InputMark(NamedTuple):
    """``position`` bytes of a file are in a topic; written with the records of the job that read them.

    In the ledger and the manifest a mark is a list of these fields. ``mtime_ms`` is the file's time of change; ``head``
    and ``tail`` are the SHA-256 of up to 64 KiB at its beginning and before ``position``.
    """

    topic: str
    topic_id: str
    path: str
    device: int
    inode: int
    mtime_ms: int
    position: int
    head: str
    tail: str

    @property
    def key(self) -> tuple[str, str]:
        return self.topic, self.path


class Intake(NamedTuple):
    """The input of a job: each file's mark in the ledger before the commit, and after it.

    ``digest`` identifies the whole input: another one under the same application and version is refused.
    """

    marks: tuple[tuple[InputMark | None, InputMark], ...] = ()
    digest: str = ""


def intake_from_json(fields: Sequence[Any]) -> Intake:
    """From JSON, which has lists for tuples."""
    marks, digest = fields
    pairs = [(None if before is None else InputMark(*before), InputMark(*after)) for before, after in marks]
    return Intake(tuple(pairs), digest)


def encode_marks(marks: tuple[InputMark, ...]) -> list[list[object]]:
    return [list(mark) for mark in marks]


def decode_marks(content: object, file: str | None) -> tuple[InputMark, ...]:
    """`CorruptCheckpointError` if a mark cannot be read: without it a file would be read twice."""
    kinds = (str, str, str, int, int, int, int, str, str)
    found = []
    for entry in content if isinstance(content, list) else [None]:
        if not isinstance(entry, list) or [type(one) for one in entry] != list(kinds):
            raise CorruptCheckpointError("'inputs' is not a list of marks", file=file)
        found.append(InputMark(*entry))
    return tuple(found)


_VERSION = 1


class AdoptMode(Enum):
    """How staged batches come into the log."""

    APPEND = "append"
    """Copied to the end of the active segment."""
    SEGMENT = "segment"
    """The file itself becomes a segment."""


class AdoptItem(NamedTuple):
    """A staged log file, relative to the log directory."""

    file: str
    mode: AdoptMode
    records: int
    size: int


class PlacedItem(NamedTuple):
    """An item and its offsets: from ``base`` to ``end`` (exclusive)."""

    item: AdoptItem
    base: int
    end: int


class PartitionPlan(NamedTuple):
    """The changes to one partition: it gets ``items`` from offset ``base`` on, in leader epoch ``epoch``."""

    topic_partition: TopicPartition
    base: int
    epoch: int
    items: tuple[AdoptItem, ...]

    @property
    def end(self) -> int:
        return self.base + sum(item.records for item in self.items)

    def placed(self) -> list[PlacedItem]:
        found, base = [], self.base
        for item in self.items:
            found.append(PlacedItem(item, base, base + item.records))
            base += item.records
        return found


class AdoptManifest(NamedTuple):
    """A job and what it is called in the ledger: ``application`` and ``number``, its version."""

    job: str
    application: str
    number: int
    partitions: tuple[PartitionPlan, ...]
    inputs: tuple[InputMark, ...] = ()
    digest: str = ""


def encode_manifest(manifest: AdoptManifest) -> bytes:
    content: dict[str, object] = {
        "job": manifest.job,
        "application": manifest.application,
        "number": manifest.number,
        "partitions": [
            {
                "topic": plan.topic_partition.topic,
                "partition": plan.topic_partition.partition,
                "base": plan.base,
                "epoch": plan.epoch,
                "items": [[item.file, item.mode.value, item.records, item.size] for item in plan.items],
            }
            for plan in manifest.partitions
        ],
    }
    if manifest.inputs or manifest.digest:
        content |= {"inputs": encode_marks(manifest.inputs), "digest": manifest.digest}
    return seal("adopt", content)


def decode_manifest(data: bytes, file: str | None = None) -> AdoptManifest:
    """`CorruptCheckpointError` names the file and what is wrong."""
    content = unseal("adopt", data, file)
    try:
        return AdoptManifest(
            _text(content["job"]),
            _text(content["application"]),
            _number(content["number"]),
            tuple(_plan(partition) for partition in content["partitions"]),
            decode_marks(content.get("inputs", []), file),
            _text(content.get("digest", "")),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptCheckpointError(f"not a manifest: {error!r}", file=file) from error


def _plan(content: dict[str, object]) -> PartitionPlan:
    items = content["items"]
    if not isinstance(items, list):
        raise TypeError("'items' is not a list")
    return PartitionPlan(
        TopicPartition(_text(content["topic"]), _number(content["partition"])),
        _number(content["base"]),
        _number(content["epoch"]),
        tuple(
            AdoptItem(_text(file), AdoptMode(mode), _number(records), _number(size))
            for file, mode, records, size in items
        ),
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


def _number(value: object) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"{value!r} is not a number from 0 on")
    return value


def read_manifest(fs: Fs, log_dir: str) -> AdoptManifest | None:
    """Of a log directory; None where no job is being adopted."""
    path = os.path.join(log_dir, ADOPT_MANIFEST)
    return decode_manifest(fs.read(path), path) if fs.exists(path) else None


def write_manifest(fs: Fs, log_dir: str, manifest: AdoptManifest) -> None:
    write_atomically(fs, os.path.join(log_dir, ADOPT_MANIFEST), encode_manifest(manifest))


# Files of one JSON object under a checksum: this one and the ledger


def seal(name: str, content: object) -> bytes:
    """``content`` as text under its CRC-32C."""
    body = json.dumps(content, separators=(",", ":"))
    return f'{{"version":{_VERSION},"crc32c":"{crc32c(body.encode()):08x}","{name}":{body}}}\n'.encode()


def unseal(name: str, data: bytes, file: str | None) -> dict[str, Any]:
    """The reverse; a `CorruptCheckpointError` where a bit has changed."""
    head, found, body = data.rstrip(b"\n").partition(b',"%s":' % name.encode())
    body = body[:-1]
    if not found or head != f'{{"version":{_VERSION},"crc32c":"{crc32c(body):08x}"'.encode():
        raise CorruptCheckpointError(f"not {name!r} of version {_VERSION} under a right CRC", file=file)
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpointError(f"not JSON: {error}", file=file) from error
    if not isinstance(content, dict):
        raise CorruptCheckpointError("not an object", file=file)
    return content
