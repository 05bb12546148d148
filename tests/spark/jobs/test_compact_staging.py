"""A power cut at every change of the disk that a job's driver makes: each group of segments is the old or the new."""

from __future__ import annotations

import random
from collections.abc import Generator
from functools import partial

import pytest

from seglog.core.fs import Fs
from seglog.spark.jobs.compact_staging import StagedGroup, staged_round
from seglog.storage.compaction import round as rounds
from seglog.storage.compaction.log_cleaner import carry_out, plan
from seglog.storage.compaction.round import COMPILED, CleanedGroup, OffsetMapStats
from seglog.storage.formats.paths import parse_file_name
from tests.cases import is_long
from tests.kit.crash_fs import CrashFs
from tests.kit.memory_fs import MemoryFs
from tests.storage.compaction.compacted import batches, facts, values
from tests.storage.compaction.parted import clean_in_parts
from tests.storage.compaction.test_crash import ROOMY, Round, written
from tests.storage.disk import PATH, load


class _JobsRound(Round):
    """The same as after a crash of the engine's round, except for staging, which logs ignore."""

    def check(self, left: MemoryFs) -> None:
        own = f"{PATH}/.seglog"
        if left.exists(own):
            _remove(left, own)
        super().check(left)


def _remove(fs: MemoryFs, path: str) -> None:
    for name in fs.listdir(path):
        child = f"{path}/{name}"
        if fs.stat(child).is_dir:
            _remove(fs, child)
        else:
            fs.unlink(child)
    fs.rmdir(path)


def _work(fs: Fs, round_: rounds.Round, staging: str) -> list[StagedGroup]:
    """Each group in a separate directory, as Spark's workers leave it."""
    together = f"{staging}/together"
    fs.mkdir(together)
    written = []
    for group in list(clean_in_parts(fs, round_, together, random.Random(1), buckets=2, most=10)):
        directory = f"{staging}/{group.bases[0]}"
        fs.mkdir(directory)
        for name in fs.listdir(together):
            file = parse_file_name(name)
            if file is not None and file.base_offset == group.bases[0]:
                fs.rename(f"{together}/{name}", f"{directory}/{name}")
        written.append(StagedGroup(group, directory))
    return written


def _begun(events: Generator[OffsetMapStats | CleanedGroup], _stop: object) -> Generator[OffsetMapStats | CleanedGroup]:
    return events


@pytest.mark.parametrize("seed", range(40 if is_long() else 1))
def test_each_group_is_the_old_one_or_the_new_one(seed: int) -> None:
    """Two rounds: in the second one tombstones and markers go, and a segment may come out empty."""
    fs, log = written(seed, 50)
    for _ in range(2):
        expected = _JobsRound(fs, log)
        crashing = CrashFs(fs, before_change=expected.crash)
        log = load(crashing, expected.known, config=ROOMY).log
        planned = plan(log, first_dirty=0, first_uncleanable=log.active.base_offset, map_bytes=1 << 20, engine=COMPILED)

        events = staged_round(log, planned.round, partial(_work, crashing, planned.round))
        before = crashing.changes
        carry_out(log, planned, partial(_begun, events))
        assert crashing.changes - before > 10 * len(expected.groups)
        assert [group.of(batches(log)) for group in expected.groups] == [group.new for group in expected.groups]
        assert values(facts(log)) == expected.values
        log.flush()
