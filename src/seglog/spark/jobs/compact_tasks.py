"""One round of compaction as a Spark job: `seglog.storage.compaction.parts` with Spark's shuffle in between.

::

    stretch ──map──► (bucket, (kind, stretch, rows))  ──shuffle──► bucket ──reduce──► (group, (kind, offsets that stay))
                                                      ──shuffle──► group ──rewrite──► ``.cleaned`` files

What is shuffled are blobs of 24 bytes a key and of 4 bytes an offset, some hundred thousand at a time: neither Spark
nor Python handles single records. Effects on transactions go to bucket 0, which folds them for each group. It is the
shuffle of Python's own objects (RDDs), since ``mapInArrow`` wants pandas.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from seglog.core.fs import File, OsFs
from seglog.records.machine import I64
from seglog.records.offset_kernels import U64
from seglog.records.survivor_kernels import ROW_WORDS
from seglog.spark.jobs.compact import Written
from seglog.spark.workers import freeze_imports
from seglog.storage.compaction.parts import (
    Effects,
    LastOffsets,
    Open,
    Rows,
    Stretch,
    Survivors,
    as_rows,
    clean_part,
    fold,
    map_keys,
)
from seglog.storage.compaction.rounds import Round, Source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Keyed = tuple[int, tuple[int, int, Any]]
"""Bucket; kind, number of the stretch, rows as bytes or `Effects`."""
Judged = tuple[int, tuple[int, Any]]
"""Group; kind, offsets as bytes, `Open`, or numbers."""

_EFFECTS, _DIRTY, _CLEAN = range(3)
_OFFSETS, _OPEN, _ENTRIES = range(3)
_OFFSET: Final = np.dtype("<u4")
_ROW: Final = 8 * ROW_WORDS
_SPOOLED: Final = _ROW << 17
"""Bytes of rows that are read back at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """All that the workers need to know. ``groups`` are those of `group_sources`, ``key`` is `new_hash_key`'s."""

    round: Round
    stretches: tuple[Stretch, ...]
    groups: tuple[tuple[Source, ...], ...]
    key: bytes
    buckets: int
    staging: str

    @property
    def tasks(self) -> int:
        """Of Spark's, in all."""
        return len(self.stretches) + self.buckets + len(self.groups)


def run(spark: SparkSession, task: Task) -> list[Written]:
    """Every group of the round, in the log's order. Nothing but the staging directory has changed then."""
    numbers = range(len(task.stretches))
    written: list[Written] = (
        spark.sparkContext.parallelize(numbers, len(numbers))
        .flatMap(_mapper(task))
        .partitionBy(task.buckets, _itself)
        .mapPartitions(_reducer(task))
        .partitionBy(len(task.groups), _itself)
        .mapPartitions(_rewriter(task))
        .collect()
    )
    return sorted(written, key=lambda one: one.group.bases)


def _itself(number: int) -> int:
    return number


def _mapper(task: Task) -> Callable[[int], Iterator[Keyed]]:
    def work(at: int) -> Iterator[Keyed]:
        freeze_imports()
        for item in map_keys(OsFs(), task.round, task.stretches[at], task.key):
            if isinstance(item, Rows):
                kind = _DIRTY if item.is_dirty else _CLEAN
                for bucket, rows in _by_bucket(item.rows, task.buckets):
                    yield bucket, (kind, at, rows.tobytes())
            else:
                yield 0, (_EFFECTS, at, item)

    return work


def _by_bucket(rows: U64, buckets: int) -> Iterator[tuple[int, U64]]:
    if buckets == 1:
        yield 0, rows
        return
    bucket = (rows[:, 1] % np.uint64(buckets)).astype(np.uint16 if buckets <= 1 << 16 else np.uint32)
    order = np.argsort(bucket, kind="stable")
    bounds = np.searchsorted(bucket[order], np.arange(buckets + 1))
    for number in np.flatnonzero(np.diff(bounds)).tolist():
        yield number, rows[order[bounds[number] : bounds[number + 1]]]


# Reduce


def _reducer(task: Task) -> Callable[[Iterable[Keyed]], Iterator[Judged]]:
    bases = np.array([group[0].base_offset for group in task.groups], np.int64)

    def work(keyed: Iterable[Keyed]) -> Iterator[Judged]:
        offsets = LastOffsets()
        effects: dict[int, Effects] = {}
        clean = _Spool(task.staging)
        try:
            for _, (kind, at, data) in keyed:
                if kind == _EFFECTS:
                    effects[at] = data
                elif kind == _DIRTY:
                    offsets.put(as_rows(data))
                else:
                    clean.add(data)
            yield from _judged(offsets.last(), bases)
            for rows in clean.read():
                yield from _judged(offsets.stay(rows), bases)
        finally:
            clean.remove()
        yield 0, (_ENTRIES, (len(offsets), *_mapped(effects.values())))
        if effects:
            yield from _open(task, effects)

    return work


class _Spool:
    """Rows that can be judged only when all that are dirty have come, on the disk until then."""

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, f"rows-{uuid.uuid4().hex}")
        self._file: File | None = None
        self._size = 0

    def add(self, rows: bytes) -> None:
        if self._file is None:
            self._file = OsFs().open(self._path, create=True)
        self._file.pwrite(rows, self._size)
        self._size += len(rows)

    def read(self) -> Iterator[U64]:
        for start in range(0, self._size if self._file else 0, _SPOOLED):
            assert self._file is not None
            yield as_rows(self._file.pread(min(_SPOOLED, self._size - start), start))

    def remove(self) -> None:
        if self._file is not None:
            self._file.close()
            with suppress(FileNotFoundError):  # with all of the staging directory, by a job that has been given up
                OsFs().unlink(self._path)


def _judged(offsets: I64, bases: I64) -> Iterator[Judged]:
    """For each group that has some of ``offsets``."""
    offsets.sort()
    bounds = np.append(np.searchsorted(offsets, bases), len(offsets))
    for group in np.flatnonzero(np.diff(bounds)).tolist():
        relative = (offsets[bounds[group] : bounds[group + 1]] - bases[group]).astype(_OFFSET)
        yield group, (_OFFSETS, relative.tobytes())


def _mapped(effects: Iterable[Effects]) -> tuple[int, int]:
    messages = size = 0
    for one in effects:
        messages += one.messages
        size += one.bytes
    return messages, size


def _open(task: Task, effects: dict[int, Effects]) -> Iterator[Judged]:
    """What is open where each group begins, which is also how each group gets to hear that it is to be written."""
    done = 0
    before = Open()
    for number, group in enumerate(task.groups):
        coming = [Effects(dict.fromkeys(before.committed, True), dict.fromkeys(before.seen, True), 0, 0)]
        while done < len(task.stretches) and task.stretches[done].source.base_offset < group[0].base_offset:
            coming.append(effects[done])
            done += 1
        before = fold(coming)
        yield number, (_OPEN, before)


# Rewrite


def _rewriter(task: Task) -> Callable[[Iterable[Judged]], Iterator[Written]]:
    def work(judged: Iterable[Judged]) -> Iterator[Written]:
        stays: Survivors | None = None
        before = Open()
        mapped = [0, 0, 0]
        number = -1
        for group, (kind, data) in judged:
            if stays is None:
                number = group
                stays = _none_stay(task, number)
            if group != number:
                raise AssertionError(f"groups {number} and {group} came to one worker")
            if kind == _OFFSETS:
                stays.add(data)
            elif kind == _OPEN:
                before = data
            else:
                mapped = [one + more for one, more in zip(mapped, data, strict=True)]
        if stays is not None:
            directory = _new_directory(task.staging, number)
            cleaned = clean_part(OsFs(), task.round, task.groups[number], stays, before, directory)
            yield Written(cleaned, directory, *mapped)

    return work


def _none_stay(task: Task, number: int) -> Survivors:
    group = task.groups[number]
    return Survivors(group[0].base_offset, group[-1].next_base_offset, task.round.first_uncleanable - 1)


def _new_directory(staging: str, number: int) -> str:
    """For this attempt: another one of the same task, that is thought dead, may still be writing."""
    directory = os.path.join(staging, f"{number}-{uuid.uuid4().hex}")
    OsFs().mkdir(directory)
    return directory
