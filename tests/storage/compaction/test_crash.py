"""A power cut at every change of the disk that compaction makes: each group of segments is the old or the new one."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest

from seglog.storage.compaction.log_cleaner import compact, plan
from seglog.storage.compaction.round import PLAIN, group_sources
from seglog.storage.formats.paths import MANIFEST, WITNESS
from seglog.storage.log.log import Log
from seglog.storage.log.recovery import LogCheckpoint
from tests.cases import case, is_long
from tests.kit.crash_fs import Call, CrashFs
from tests.kit.memory_fs import MemoryFs
from tests.storage.compaction.compacted import Batch, Writer, batches, config, facts, values
from tests.storage.disk import PATH, load, new_disk

OUTCOMES = 3 if is_long() else 1
"""How many outcomes are tried at each crash point; in each, the disk forgets other unflushed writes."""
ROOMY = config(delete_retention_ms=0, internal_segment_bytes=4_600, segment_index_bytes=1_200)
"""Three segments fit into one; what is marked to go in one round goes in the next."""
_KINDS = (".log", ".index", ".timeindex", ".txnindex", ".snapshot", "leader-epoch-checkpoint")


def written(seed: int, steps: int = 70) -> tuple[MemoryFs, Log]:
    """A log with everything flushed, of small segments."""
    fs = new_disk()
    log = load(fs, config=config(delete_retention_ms=0)).log
    writer = Writer(log, random.Random(seed))
    writer.write(steps)
    writer.end_all()
    log.reconfigure(ROOMY)
    log.roll()
    writer.write(3)
    log.flush()
    return fs, log


class Group(NamedTuple):
    """Segments that are put into one, from offset ``start`` to ``end``; what is in them before and after."""

    start: int
    end: int
    old: list[Batch]
    new: list[Batch]

    def of(self, found: list[Batch]) -> list[Batch]:
        return [batch for batch in found if self.start <= batch.header.base_offset < self.end]

    def states(self, bases: list[int]) -> list[list[Batch]]:
        """The batches that a crash may leave. ``bases`` are the base offsets of the old segments.

        Old ones at the group's end, of which nothing stays, go one by one: as if they were groups of their own.
        """
        end = self.new[-1].header.next_offset if self.new else self.start + 1
        outliving = [base for base in bases if end <= base < self.end]
        left = [[batch for batch in self.old if batch.header.base_offset >= base] for base in outliving]
        return [self.old, self.new, *(self.new + rest for rest in left)]


class Round:
    """The expected result of a round, computed on a copy of the disk, and a check of the log that a crash left."""

    def __init__(self, fs: MemoryFs, log: Log) -> None:
        self.fs = fs
        self.known = LogCheckpoint(recovery_point=log.recovery_point, high_watermark=log.recovery_point)
        self.values = values(facts(log))
        copy = load(fs.after_crash(random.Random(0)), self.known, config=ROOMY).log
        self.bases = [segment.base_offset for segment in copy.segments]
        planned = plan(copy, first_dirty=0, first_uncleanable=copy.active.base_offset, map_bytes=1 << 20).round
        grouped = group_sources(
            planned.sources,
            segment_bytes=planned.segment_bytes,
            index_bytes=planned.index_bytes,
            first_uncleanable=planned.first_uncleanable,
        )
        before = batches(copy)
        compact(copy, first_dirty=0, engine=PLAIN)
        after = batches(copy)
        self.groups = [
            Group(start, end, Group(start, end, [], []).of(before), Group(start, end, [], []).of(after))
            for start, end in ((group[0].base_offset, group[-1].next_base_offset) for group in grouped)
        ]
        assert before != after

    def crash(self, call: Call) -> None:
        for outcome in range(OUTCOMES):
            case()
            self.check(self.fs.after_crash(random.Random(call.number * OUTCOMES + outcome)))

    def check(self, left: MemoryFs) -> None:
        """Groups up to some place are new, those behind it are old, and every reader finds the same values."""
        log = load(left, self.known, config=ROOMY).log
        found = batches(log)
        here = [group.of(found) for group in self.groups]
        assert all(one in group.states(self.bases) for one, group in zip(here, self.groups, strict=True))
        turn = max((at for at, one in enumerate(here) if one != self.groups[at].old), default=0)
        assert here[:turn] == [group.new for group in self.groups[:turn]]
        assert values(facts(log)) == self.values
        assert all(name.endswith(_KINDS) or name in (MANIFEST, WITNESS) for name in left.listdir(PATH))


@pytest.mark.parametrize("seed", range(3))
def test_each_group_is_the_old_one_or_the_new_one(seed: int) -> None:
    """Two rounds: in the second one tombstones and markers go, and a segment may come out empty."""
    fs, log = written(seed)
    for _ in range(2):
        expected = Round(fs, log)
        crashing = CrashFs(fs, before_change=expected.crash)
        log = load(crashing, expected.known, config=ROOMY).log
        before = crashing.changes
        compact(log, first_dirty=0, engine=PLAIN)
        assert crashing.changes - before > 10 * len(expected.groups)
        assert [group.of(batches(log)) for group in expected.groups] == [group.new for group in expected.groups]
        log.flush()
