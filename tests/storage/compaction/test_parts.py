"""A round of compaction in parts writes the files that the engine writes, whatever the log and however it is cut."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from seglog.storage.compaction.cleaner import clean
from seglog.storage.compaction.log_cleaner import cleanable, compact, plan
from seglog.storage.compaction.round import COMPILED, PLAIN, CleanedGroup, OffsetMapStats, Round
from tests.cases import case
from tests.kit.manual_clock import ManualClock
from tests.kit.memory_fs import MemoryFs
from tests.storage.compaction.compacted import LARGE, START_MS, Writer, append_large, config
from tests.storage.compaction.parted import clean_in_parts
from tests.storage.disk import PATH, load, new_disk

_STAGED = PATH + "/.seglog"


def _cleaned(fs: MemoryFs, directory: str) -> dict[str, bytes]:
    """Taken away."""
    found = {}
    for name in fs.listdir(directory):
        if name.endswith(".cleaned"):
            found[name] = fs.read(f"{directory}/{name}")
            fs.unlink(f"{directory}/{name}")
    return found


def _both(fs: MemoryFs, round_: Round, seed: int, *, buckets: int, most: int) -> list[list[CleanedGroup]]:
    """Of the engine and of the parts, held together."""
    mapped, *whole = clean(round_, fs, ManualClock())
    assert isinstance(mapped, OffsetMapStats)
    assert mapped.end_offset == round_.first_uncleanable
    files = _cleaned(fs, PATH)
    if not fs.exists(_STAGED):
        fs.mkdir(_STAGED)
    parts = list(clean_in_parts(fs, round_, _STAGED, random.Random(seed), buckets=buckets, most=most))
    assert parts == whole
    assert _cleaned(fs, _STAGED) == files
    return [parts]


@settings(max_examples=80)
@given(
    seed=st.integers(0, 2**32),
    steps=st.integers(1, 60),
    rounds=st.integers(0, 2),
    legacy=st.booleans(),
    dirty=st.floats(0, 1),
    buckets=st.integers(1, 3),
    most=st.sampled_from([1, 3, 1000]),
)
def test_parts_write_what_the_engine_writes(
    seed: int, steps: int, rounds: int, legacy: bool, dirty: float, buckets: int, most: int
) -> None:
    case()
    fs = new_disk()
    clock = ManualClock(START_MS)
    log = load(fs, config=config(cleanup_policy="delete", retention_ms=-1), clock=clock).log  # compacted: no keyless
    writer = Writer(log, random.Random(seed), keyless=True)
    for _ in range(rounds):
        writer.write(steps, legacy=legacy)
        log.roll()
        compact(log, first_dirty=0, engine=PLAIN)
        clock.advance(6_000)
    writer.write(steps, legacy=legacy)
    writer.end_all()
    log.roll()
    part = cleanable(log, int(dirty * log.log_end_offset))
    planned = plan(
        log,
        first_dirty=part.first_dirty,
        first_uncleanable=part.first_uncleanable,
        map_bytes=1 << 20,
        engine=COMPILED,
    )
    if part.first_uncleanable > part.first_dirty:
        _both(fs, planned.round, seed, buckets=buckets, most=most)


def test_parts_of_large_batches() -> None:
    """Batches larger than a block of keys, compressed ones that come to many, keys that are in several stretches."""
    rng = random.Random(5)
    fs = new_disk()
    log = load(fs, config=config(**LARGE)).log
    append_large(log, rng, 30_000, lambda _: rng.choice([0, 3]))
    for first_dirty in (0, log.segments[1].base_offset, log.segments[1].base_offset + 100):
        planned = plan(
            log, first_dirty=first_dirty, first_uncleanable=log.active.base_offset, map_bytes=4 << 20, engine=COMPILED
        )
        for most in (500, 1 << 19):
            _both(fs, planned.round, 1, buckets=2, most=most)
