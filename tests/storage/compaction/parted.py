"""A round of compaction in parts, one after the other in this process: what Spark's workers do with each other."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np

from seglog.core.fs import Fs
from seglog.records.batch import entries
from seglog.records.offset_kernels import U64
from seglog.storage.compaction.parts import (
    KeyRows,
    LastOffsets,
    SourceStretch,
    Survivors,
    TransactionEffects,
    as_rows,
    clean_part,
    fold,
    map_keys,
    new_hash_key,
)
from seglog.storage.compaction.round import CleanedGroup, Round, group_sources
from seglog.storage.formats.paths import segment_paths


def cut(fs: Fs, round_: Round, rng: random.Random) -> list[SourceStretch]:
    """The sources in pieces at batch boundaries."""
    found = []
    for source in round_.sources:
        data = fs.read(segment_paths(round_.directory, source.base_offset).log)[: source.size]
        cuts = [entry.position for entry in entries(data) if entry.position and rng.random() < 0.2]
        found += [
            SourceStretch(source, start, end)
            for start, end in zip([0, *cuts], [*cuts, source.size], strict=True)
            if end
        ]
    return found


def clean_in_parts(
    fs: Fs, round_: Round, directory: str, rng: random.Random, *, buckets: int, most: int
) -> Iterator[CleanedGroup]:
    """Clean in stretches and buckets, in random order, with the files in ``directory``. Yields what `clean` yields."""
    key = new_hash_key()
    effects: list[tuple[SourceStretch, TransactionEffects]] = []
    rows: list[KeyRows] = []
    for stretch in cut(fs, round_, rng):
        *blocks, last = map_keys(fs, round_, stretch, key, most=most)
        assert isinstance(last, TransactionEffects)
        effects.append((stretch, last))
        rows += [block for block in blocks if isinstance(block, KeyRows)]
    rng.shuffle(rows)
    stay: list[int] = []
    for bucket in range(buckets):
        offsets = LastOffsets()
        for is_dirty, block in rows:
            if is_dirty:
                offsets.put(_of(block, bucket, buckets))
        stay += offsets.last().tolist()
        for is_dirty, block in rows:
            if not is_dirty:
                stay += offsets.stay(_of(block, bucket, buckets)).tolist()
    groups = group_sources(
        round_.sources,
        segment_bytes=round_.segment_bytes,
        index_bytes=round_.index_bytes,
        first_uncleanable=round_.first_uncleanable,
    )
    cleaned = []
    for at in rng.sample(range(len(groups)), len(groups)):
        group = groups[at]
        first, end = group[0].base_offset, group[-1].next_base_offset
        stays = Survivors(first, end, round_.first_uncleanable - 1)
        stays.add(np.array([offset - first for offset in stay if first <= offset < end], np.uint32).tobytes())
        before = fold(one for stretch, one in effects if stretch.source.base_offset < first)
        cleaned.append((at, clean_part(fs, round_, group, stays, before, directory)))
    yield from (group for _, group in sorted(cleaned))


def _of(rows: U64, bucket: int, buckets: int) -> U64:
    return as_rows(rows[rows[:, 1] % np.uint64(buckets) == bucket].tobytes())
