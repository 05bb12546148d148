"""Space by partition, codec, producer and age, from batch headers alone."""

from __future__ import annotations

import os.path
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from random import Random
from typing import Final, NamedTuple

from seglog.core.errors import CorruptBatchError, CorruptError
from seglog.core.fs import Fs
from seglog.core.types import TopicPartition
from seglog.records.batch import BATCH_OVERHEAD, CODEC_MASK, MAGIC_POSITION, MIN_ENTRY, read_header
from seglog.storage.formats.batch_walk import HEADERS, walk
from seglog.storage.formats.paths import LOG, OWN_DIRECTORY, is_set_aside, list_segments, parse_file_name, partition_at

_HOUR: Final = 3_600_000
AGES: Final = (
    ("future", 0),
    ("under 1 h", _HOUR),
    ("1 h to 1 d", 24 * _HOUR),
    ("1 d to 7 d", 7 * 24 * _HOUR),
    ("7 d to 30 d", 30 * 24 * _HOUR),
    ("30 d to 1 y", 365 * 24 * _HOUR),
)
"""Names of ages, and the age at which each ends."""
OLDER: Final = "over 1 y"
NO_TIME: Final = "no timestamp"
SAMPLED: Final = 64
"""Batches that are kept for a sample."""


class SampledBatch(NamedTuple):
    """Where a batch lies."""

    file: str
    position: int
    size: int
    offset: int


@dataclass(slots=True)
class Usage:
    """Bytes of ``.log`` files, by several views of them; each sums up to ``bytes``, but for ``trailing``.

    ``overhead`` are headers of batches and messages, ``control`` whole control batches, ``trailing`` bytes after the
    last batch, which preallocation and torn writes leave. ``records`` is None if compressed messages of format 0 or 1
    hide their number. ``other`` has indexes, snapshots, files .deleted and saved bytes, by kind: what they take on the
    disk.
    """

    path: str
    topic_partition: TopicPartition | None = None
    segments: int = 0
    bytes: int = 0
    batches: int = 0
    records: int | None = 0
    overhead: int = 0
    control: int = 0
    trailing: int = 0
    oldest: int = -1
    newest: int = -1
    codecs: Counter[int] = field(default_factory=Counter)
    producers: Counter[int] = field(default_factory=Counter)
    ages: Counter[str] = field(default_factory=Counter)
    other: Counter[str] = field(default_factory=Counter)
    damage: CorruptError | None = None

    @property
    def name(self) -> str:
        return str(self.topic_partition or os.path.basename(self.path))

    @property
    def total(self) -> int:
        return self.bytes + self.trailing + sum(self.other.values())

    def add(self, other: Usage) -> None:
        """Take in another partition's."""
        self.segments += other.segments
        self.bytes += other.bytes
        self.batches += other.batches
        self.records = None if None in (self.records, other.records) else (self.records or 0) + (other.records or 0)
        self.overhead += other.overhead
        self.control += other.control
        self.trailing += other.trailing
        known = [one for one in (self.oldest, other.oldest) if one >= 0]
        self.oldest = min(known, default=-1)
        self.newest = max(self.newest, other.newest)
        for mine, theirs in (
            (self.codecs, other.codecs),
            (self.producers, other.producers),
        ):
            mine.update(theirs)
        self.ages.update(other.ages)
        self.other.update(other.other)
        self.damage = self.damage or other.damage


class Reservoir:
    """A uniform sample of batches, whatever their number (Vitter's algorithm R)."""

    def __init__(self, size: int, seed: int = 1) -> None:
        self.seen = 0
        self.batches: list[SampledBatch] = []
        self._size = size
        self._random = Random(seed)

    def offer(self, batch: SampledBatch) -> None:
        self.seen += 1
        if len(self.batches) < self._size:
            self.batches.append(batch)
        elif (at := self._random.randrange(self.seen)) < self._size:
            self.batches[at] = batch


def measure_partition(
    fs: Fs, path: str, now_ms: int, reservoir: Reservoir | None = None, advance: Callable[[int], None] | None = None
) -> Usage:
    """Read the headers of all batches. Damage ends a segment's reading and is noted; its rest is ``trailing``."""
    parsed = partition_at(path)
    usage = Usage(path, parsed.topic_partition if parsed else None)
    for segment in list_segments(fs, path):
        size = fs.stat(segment.log).size
        usage.segments += 1
        before = usage.bytes
        try:
            _measure_segment(fs, segment.log, size, now_ms, usage, reservoir)
        except CorruptBatchError as error:
            usage.damage = usage.damage or error
        usage.trailing += _allocated_tail(fs, segment.log, size, usage.bytes - before)
        if advance is not None:
            advance(size)
    _measure_others(fs, path, usage)
    return usage


def _allocated_tail(fs: Fs, path: str, size: int, whole: int) -> int:
    """The bytes after the last batch that take room; the end of a sparse file takes none."""
    return min(size - whole, max(fs.stat(path).used - whole, 0))


def _measure_segment(fs: Fs, path: str, size: int, now_ms: int, usage: Usage, reservoir: Reservoir | None) -> None:
    with closing(fs.open(path, write=False)) as file:
        for entry, position, data in walk(file, 0, size, window=HEADERS, whole=False):
            at = entry.position
            if entry.magic == 2:
                header = read_header(data, at)
                codec, timestamp, producer = header.codec, header.max_timestamp, header.producer_id
                records: int | None = header.records_count
                usage.overhead += BATCH_OVERHEAD
                if header.is_control:
                    usage.control += entry.size
                elif reservoir is not None and header.records_count:
                    reservoir.offer(SampledBatch(path, position, entry.size, header.base_offset))
            else:
                codec, producer = data[at + MAGIC_POSITION + 1] & CODEC_MASK, -1
                timestamp = int.from_bytes(data[at + 18 : at + 26], signed=True) if entry.magic else -1
                records = None if codec else 1
                usage.overhead += MIN_ENTRY + 8 * entry.magic
            usage.bytes += entry.size
            usage.batches += 1
            usage.records = None if records is None or usage.records is None else usage.records + records
            usage.codecs[codec] += entry.size
            usage.producers[producer] += entry.size
            usage.ages[age_of(timestamp, now_ms)] += entry.size
            if timestamp >= 0:
                usage.oldest = timestamp if usage.oldest < 0 else min(usage.oldest, timestamp)
                usage.newest = max(usage.newest, timestamp)


def age_of(timestamp: int, now_ms: int) -> str:
    """The name of an age.

    >>> [age_of(at, 10 * 86_400_000) for at in (-1, 11 * 86_400_000, 10 * 86_400_000, 0)]
    ['no timestamp', 'future', 'under 1 h', '7 d to 30 d']
    """
    if timestamp < 0:
        return NO_TIME
    age = now_ms - timestamp
    return next((name for name, end in AGES if age < end), OLDER)


def _measure_others(fs: Fs, path: str, usage: Usage) -> None:
    for name in fs.listdir(path):
        child = os.path.join(path, name)
        try:
            stat = fs.stat(child)
        except FileNotFoundError:
            continue
        if stat.is_dir:
            usage.other["saved by seglog" if name == OWN_DIRECTORY else "directories"] += measure_tree(fs, child)
            continue
        file = parse_file_name(name)
        if file is not None and file.state:
            usage.other[f"files {file.state}"] += stat.used
        elif file is not None and file.kind == LOG:
            continue
        else:
            usage.other["indexes and snapshots" if file is not None else "other files"] += stat.used


def measure_tree(fs: Fs, path: str) -> int:
    """The bytes that a directory takes on the disk, with everything in it."""
    total = 0
    for name in fs.listdir(path):
        child = os.path.join(path, name)
        try:
            stat = fs.stat(child)
            total += measure_tree(fs, child) if stat.is_dir else stat.used
        except FileNotFoundError:
            continue
    return total


def measure_set_aside(fs: Fs, log_dir: str) -> dict[str, int]:
    """The ``-delete``, ``-future`` and ``-stray`` directories of a log directory, and their bytes."""
    return {name: measure_tree(fs, os.path.join(log_dir, name)) for name in fs.listdir(log_dir) if is_set_aside(name)}


def total_of(usages: Sequence[Usage], path: str) -> Usage:
    found = Usage(path)
    for one in usages:
        found.add(one)
    return found
