"""Compaction in plain Python and in compiled loops: the same files, whatever the log."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seglog.records.offset_kernels import hash_key
from seglog.storage.compaction.cleaner import clean
from seglog.storage.compaction.log_cleaner import cleanable, plan
from seglog.storage.compaction.round import COMPILED, PLAIN, CleanedGroup, OffsetMapStats, Round
from tests.cases import case
from tests.kit.manual_clock import ManualClock
from tests.kit.memory_fs import MemoryFs
from tests.storage.compaction.compacted import LARGE, Writer, append_large, config
from tests.storage.disk import load, new_disk


def _carry_out(round_: Round, fs: MemoryFs) -> tuple[list[OffsetMapStats | CleanedGroup], dict[str, bytes]]:
    events = [
        event._replace(seconds=0.0) if isinstance(event, OffsetMapStats) else event
        for event in clean(round_, fs, ManualClock())
    ]
    cleaned = {path: data for path, data in fs.files().items() if path.endswith(".cleaned")}
    for path in cleaned:
        fs.unlink(path)
    return events, cleaned


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32),
    steps=st.integers(1, 60),
    map_keys=st.sampled_from([2, 5, 9, 1000]),
    legacy=st.booleans(),
    dirty=st.floats(0, 1),
)
def test_both_engines_write_the_same_files(seed: int, steps: int, map_keys: int, legacy: bool, dirty: float) -> None:
    case()
    fs = new_disk()
    log = load(fs, config=config(cleanup_policy="delete", retention_ms=-1)).log  # a compacted one wants keys
    writer = Writer(log, random.Random(seed), keyless=True)
    writer.write(steps, legacy=legacy)
    writer.end_all()
    log.roll()
    part = cleanable(log, int(dirty * log.log_end_offset))
    results = []
    for engine in (PLAIN, COMPILED):
        planned = plan(
            log,
            first_dirty=part.first_dirty,
            first_uncleanable=part.first_uncleanable,
            map_bytes=map_keys * 24,
            engine=engine,
        )
        round_ = Round.from_json(planned.round.to_json())
        assert round_ == planned.round
        results.append(_carry_out(round_, fs))
    assert results[0] == results[1]


@pytest.mark.parametrize(("codec", "map_keys"), [(0, 100_000), (3, 3_000)])
def test_both_engines_write_the_same_files_of_large_batches(codec: int, map_keys: int) -> None:
    """Batches around the number of keys that are asked for together, larger than all buffers, and a map that grows."""
    rng = random.Random(codec + map_keys)
    fs = new_disk()
    log = load(fs, config=config(**LARGE)).log
    append_large(log, rng, 6_000, lambda count: codec if count != 100 else 0)
    results = []
    for engine in (PLAIN, COMPILED):
        bound = log.active.base_offset
        planned = plan(log, first_dirty=0, first_uncleanable=bound, map_bytes=map_keys * 24, engine=engine)
        results.append(_carry_out(planned.round, fs))
    assert results[0] == results[1]
    assert len(results[0][0]) > 1


# The first vectors of the reference implementation (`vectors_sip128`), for keys of the bytes 0, 1, 2, …
_VECTORS = (
    "a3817f04ba25a8e66df67214c7550293",
    "da87c1d86b99af44347659119b22fc45",
    "8177228da4a45dc7fca38bdef60affe4",
    "9c70b60c5267a94e5f33b6b02985ed51",
)


@pytest.mark.parametrize("length", range(len(_VECTORS)))
def test_keys_are_hashed_with_siphash_of_128_bits(length: int) -> None:
    import numpy as np

    keys = np.frombuffer(bytes(range(16)), np.int64)
    data = np.frombuffer(bytes(range(length)) or b"\0", np.uint8)[:length]
    low, high = hash_key(data, int(keys[0]), int(keys[1]))
    halves = ((int(half) % 2**64).to_bytes(8, "little") for half in (low, high))
    assert b"".join(halves).hex() == _VECTORS[length]
