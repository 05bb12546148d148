"""One round of compaction as a Spark job: `seglog.storage.compaction.parts` with Spark's shuffle in between.

::

    stretch ──map──► (bucket, where its rows are)  ──shuffle──► bucket ──reduce──► (group, offsets that stay)
                                                   ──shuffle──► group ──rewrite──► ``.cleaned`` files

Rows, 24 bytes for each key, are in files in staging, in blocks sorted by bucket. Spark shuffles only the positions of
each bucket's parts: rows do not pass through the JVM, and a bucket can read the dirty ones first without holding the
others. Effects of transactions go to bucket 0, which folds them for each group. The shuffle is that of RDDs of Python
objects, because ``mapInArrow`` needs pandas.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from seglog.core.fs import OsFs
from seglog.records.intrinsics import I64
from seglog.records.offset_kernels import U64
from seglog.spark.jobs.compact_staging import StagedGroup
from seglog.spark.runtime.processes import freeze_imports
from seglog.storage.compaction.parts import (
    LastOffsets,
    OpenTransactions,
    SourceStretch,
    Survivors,
    TransactionEffects,
    as_rows,
    clean_part,
    fold,
    map_keys,
)
from seglog.storage.compaction.round import Round, SourceSegment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Keyed = tuple[int, tuple[int, int, Any]]
"""Bucket; kind, number of the stretch, `_Slice` or `TransactionEffects`."""
Judged = tuple[int, tuple[int, Any]]
"""Group; kind, offsets as bytes, `OpenTransactions`, or numbers."""

_EFFECTS, _DIRTY, _CLEAN = range(3)
_OFFSETS, _OPEN, _ENTRIES = range(3)
_OFFSET: Final = np.dtype("<u4")


class _Slice(NamedTuple):
    """Rows in a file; ``start`` and ``size`` in bytes."""

    path: str
    start: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPlan:
    """The plan for the workers. ``groups`` come from `group_sources`, ``key`` from `new_hash_key`."""

    round: Round
    stretches: tuple[SourceStretch, ...]
    groups: tuple[tuple[SourceSegment, ...], ...]
    key: bytes
    buckets: int
    staging: str

    @property
    def tasks(self) -> int:
        """The number of Spark tasks in all stages."""
        return len(self.stretches) + self.buckets + len(self.groups)


def run(spark: SparkSession, plan: CompactionPlan) -> list[StagedGroup]:
    """Write every group of the round, and return them in the log's order. Changes nothing outside of staging."""
    numbers = range(len(plan.stretches))
    written: list[StagedGroup] = (
        spark.sparkContext.parallelize(numbers, len(numbers))
        .flatMap(_mapper(plan))
        .partitionBy(plan.buckets, _itself)
        .mapPartitions(_reducer(plan))
        .partitionBy(len(plan.groups), _itself)
        .mapPartitions(_rewriter(plan))
        .collect()
    )
    return sorted(written, key=lambda one: one.group.bases)


def _itself(number: int) -> int:
    return number


def _mapper(plan: CompactionPlan) -> Callable[[int], Iterator[Keyed]]:
    def work(at: int) -> Iterator[Keyed]:
        freeze_imports()
        fs = OsFs()
        path = os.path.join(plan.staging, f"rows-{at}-{uuid.uuid4().hex}")  # not shared with another attempt
        found: list[Keyed] = []
        with closing(fs.open(path, create=True)) as file:
            size = 0
            for item in map_keys(fs, plan.round, plan.stretches[at], plan.key):
                if isinstance(item, TransactionEffects):
                    found.append((0, (_EFFECTS, at, item)))
                    continue
                kind = _DIRTY if item.is_dirty else _CLEAN
                for bucket, rows in _by_bucket(item.rows, plan.buckets):
                    data = np.ascontiguousarray(rows).data.cast("B")
                    file.pwrite(data, size)
                    found.append((bucket, (kind, at, _Slice(path, size, len(data)))))
                    size += len(data)
        yield from found  # only now that the file is closed: another machine will read it

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


def _reducer(plan: CompactionPlan) -> Callable[[Iterable[Keyed]], Iterator[Judged]]:
    bases = np.array([group[0].base_offset for group in plan.groups], np.int64)

    def work(keyed: Iterable[Keyed]) -> Iterator[Judged]:
        offsets = LastOffsets()
        effects: dict[int, TransactionEffects] = {}
        slices: dict[int, list[_Slice]] = {_DIRTY: [], _CLEAN: []}
        for _, (kind, at, item) in keyed:
            if kind == _EFFECTS:
                effects[at] = item
            else:
                slices[kind].append(item)
        for rows in _read(slices[_DIRTY]):
            offsets.put(rows)
        yield from _judged(offsets.last(), bases)
        for rows in _read(slices[_CLEAN]):
            yield from _judged(offsets.stay(rows), bases)
        yield 0, (_ENTRIES, (len(offsets), *_mapped(effects.values())))
        if effects:
            yield from _open(plan, effects)

    return work


def _read(slices: list[_Slice]) -> Iterator[U64]:
    """The rows of ``slices``; opens each file once."""
    fs = OsFs()
    for path, of_file in groupby(sorted(slices), key=lambda one: one.path):
        with closing(fs.open(path, write=False)) as file:
            for one in of_file:
                yield as_rows(file.pread(one.size, one.start))


def _judged(offsets: I64, bases: I64) -> Iterator[Judged]:
    """The ``offsets`` of each group that has some."""
    offsets.sort()
    bounds = np.append(np.searchsorted(offsets, bases), len(offsets))
    for group in np.flatnonzero(np.diff(bounds)).tolist():
        relative = (offsets[bounds[group] : bounds[group + 1]] - bases[group]).astype(_OFFSET)
        yield group, (_OFFSETS, relative.tobytes())


def _mapped(effects: Iterable[TransactionEffects]) -> tuple[int, int]:
    messages = size = 0
    for one in effects:
        messages += one.messages
        size += one.bytes
    return messages, size


def _open(plan: CompactionPlan, effects: dict[int, TransactionEffects]) -> Iterator[Judged]:
    """The open transactions at the start of each group. Every group gets this message, so every group is written."""
    done = 0
    before = OpenTransactions()
    for number, group in enumerate(plan.groups):
        coming = [TransactionEffects(dict.fromkeys(before.committed, True), dict.fromkeys(before.seen, True), 0, 0)]
        while done < len(plan.stretches) and plan.stretches[done].source.base_offset < group[0].base_offset:
            coming.append(effects[done])
            done += 1
        before = fold(coming)
        yield number, (_OPEN, before)


# Rewrite


def _rewriter(plan: CompactionPlan) -> Callable[[Iterable[Judged]], Iterator[StagedGroup]]:
    def work(judged: Iterable[Judged]) -> Iterator[StagedGroup]:
        stays: Survivors | None = None
        before = OpenTransactions()
        mapped = [0, 0, 0]
        number = -1
        for group, (kind, data) in judged:
            if stays is None:
                number = group
                stays = _none_stay(plan, number)
            if group != number:
                raise AssertionError(f"groups {number} and {group} came to one worker")
            if kind == _OFFSETS:
                stays.add(data)
            elif kind == _OPEN:
                before = data
            else:
                mapped = [one + more for one, more in zip(mapped, data, strict=True)]
        if stays is not None:
            directory = _new_directory(plan.staging, number)
            cleaned = clean_part(OsFs(), plan.round, plan.groups[number], stays, before, directory)
            yield StagedGroup(cleaned, directory, *mapped)

    return work


def _none_stay(plan: CompactionPlan, number: int) -> Survivors:
    group = plan.groups[number]
    return Survivors(group[0].base_offset, group[-1].next_base_offset, plan.round.first_uncleanable - 1)


def _new_directory(staging: str, number: int) -> str:
    """A directory for this attempt only: an earlier attempt that Spark gave up may still be writing."""
    directory = os.path.join(staging, f"{number}-{uuid.uuid4().hex}")
    OsFs().mkdir(directory)
    return directory
