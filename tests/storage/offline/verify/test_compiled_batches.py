"""Compiled loops, stretches and processes against the plain path in one go: the same findings, the same summaries."""

from __future__ import annotations

import random
from pathlib import Path
from typing import NamedTuple

import pytest

from seglog.records.batch import entries, patch_offset_and_epoch, read_header
from seglog.records.record import NewRecord
from seglog.storage.offline.repair.derived_files import build_indexes
from seglog.storage.offline.verify import partition_files as verify_partition
from seglog.storage.offline.verify import stretch_walk as verify_walk
from seglog.storage.offline.verify import verifier, verify
from seglog.storage.offline.verify.compiled_batches import walk_compiled
from seglog.storage.offline.verify.index_entries import read_index_entries
from seglog.storage.offline.verify.stretch_walk import CompiledWalk, StretchWalk
from seglog.storage.offline.verify.summary import Facts, Summary, combine_all
from tests.cases import case
from tests.kit.manual_clock import ManualClock
from tests.kit.memory_fs import MemoryFs
from tests.storage.legacy_sets import encode_set
from tests.storage.offline.verify.verified import bytes_of, flip, look, make_dir
from tests.storage.programs import Append, program

PATH = "/d/00000000000000001000.log"


class Segment(NamedTuple):
    """A log and its indexes, all as bytes, sound or not."""

    log: bytes
    offsets: bytes
    timeindex: bytes


def sound_segment(seed: int) -> Segment:
    """Batches of every kind: codecs, producers, transactions, gaps, epochs, and now and then an old message set."""
    rng = random.Random(seed)
    log = bytearray()
    offset, epoch = 1000, 0
    for step in program(seed, steps=40):
        if not isinstance(step, Append):
            continue
        epoch += rng.random() < 0.1
        offset += rng.randrange(5) if rng.random() < 0.1 else 0
        batch = bytearray(step.data)
        patch_offset_and_epoch(batch, 0, offset, epoch)
        log += batch
        offset = read_header(batch).next_offset
        if rng.random() < 0.1:
            records = [NewRecord(b"old", timestamp=1_790_000_000_000 + at) for at in range(3)]
            log += encode_set(records, offset=offset, magic=rng.randrange(2), codec=rng.randrange(4))
            offset += 3
    fs = MemoryFs(clock=ManualClock())
    fs.mkdir("/d")
    fs.write(PATH, log)
    return Segment(bytes(log), *build_indexes(fs.open(PATH), 1000, rng.choice([0, 200])))


def damage_segment(segment: Segment, rng: random.Random) -> Segment:
    log, index, times = (bytearray(part) for part in segment)
    for _ in range(rng.choice([0, 1, 1, 2, 5])):
        place = rng.randrange(len(log) + 1)
        match rng.randrange(7):
            case 0:
                log[rng.randrange(len(log))] ^= 1 << rng.randrange(8)
            case 1:
                header = rng.choice(list(entries(segment.log))).position + rng.randrange(21)
                log[min(header, len(log) - 1)] ^= 1 << rng.randrange(8)
            case 2:
                log = log[: max(place, 100)]
            case 3:
                log[place:place] = bytes(rng.randrange(200))
            case 4:
                del log[max(place, 100) : max(place, 100) + rng.randrange(300)]
            case 5 if index:
                index[rng.randrange(len(index))] ^= 1 << rng.randrange(8)
            case _ if times:
                times[rng.randrange(len(times))] ^= 1 << rng.randrange(8)
    return Segment(bytes(log), bytes(index), bytes(times))


def summary_of(segment: Segment, compiled: CompiledWalk | None) -> Summary:
    fs = MemoryFs(clock=ManualClock())
    fs.mkdir("/d")
    fs.write(PATH, segment.log)
    probes, _ = read_index_entries(segment.offsets, segment.timeindex, 1000, ("index", "timeindex"))
    facts = Facts(PATH, probes, epoch_starts=(1020, 1031), cuts=(1015, 1040), base_offset=1000, limit_offset=1 << 40)
    summary = StretchWalk(fs.open(PATH), facts, compiled=compiled).run(0, len(segment.log))
    return summary._replace(findings=tuple(sorted(set(summary.findings))))


@pytest.mark.parametrize("seed", range(20))
def test_the_loops_find_what_plain_python_finds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = sound_segment(seed)
    rng = random.Random(seed)
    assert not [one for one in summary_of(sound, walk_compiled).findings if one.file == PATH and "goes" in one.reason]
    for _ in range(15):
        segment = damage_segment(sound, rng)
        monkeypatch.setattr(verify_walk, "CHUNK", rng.choice([500, 3000, 4 << 20]))
        assert summary_of(segment, walk_compiled) == summary_of(segment, None)
        case()


@pytest.mark.parametrize("walk", [None, walk_compiled])
@pytest.mark.parametrize("seed", range(8))
def test_the_size_of_chunks_does_not_matter(
    seed: int, walk: CompiledWalk | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = sound_segment(seed)
    whole = summary_of(segment, walk)
    for chunk in (100, 1000, 7000):
        monkeypatch.setattr(verify_walk, "CHUNK", chunk)
        assert summary_of(segment, walk) == whole
        case()


@pytest.mark.parametrize("seed", range(8))
def test_combining_is_associative(seed: int) -> None:
    rng = random.Random(seed)
    segment = damage_segment(sound_segment(seed), rng)
    fs = MemoryFs(clock=ManualClock())
    fs.mkdir("/d")
    fs.write(PATH, segment.log)
    probes, _ = read_index_entries(segment.offsets, segment.timeindex, 1000, ("index", "timeindex"))
    facts = Facts(PATH, probes, base_offset=1000, limit_offset=1 << 40)
    parts: list[Summary] = []
    while (end := parts[-1].end if parts else 0) < len(segment.log):
        parts.append(StretchWalk(fs.open(PATH), facts).run(end, end + rng.randrange(1, 4000)))
    for _ in range(20):
        grouped = list(parts)
        while len(grouped) > 1:
            at = rng.randrange(len(grouped) - 1)
            grouped[at : at + 2] = [combine_all(facts, grouped[at : at + 2])]
        assert _sorted(grouped[0]) == _sorted(combine_all(facts, parts))
        case()


def _sorted(summary: Summary) -> Summary:
    return summary._replace(findings=tuple(sorted(summary.findings)))


@pytest.mark.parametrize("fast", [False, True])
def test_stretches_that_begin_where_no_batch_does(tmp_path: Path, fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log is split by its index; where an entry is wrong the walk continues from the true end and reports the
    entry."""
    partition = make_dir(tmp_path / "logs")
    whole = look(tmp_path / "logs", fast=fast)
    monkeypatch.setattr(verify_partition, "STRETCH", 8000)
    assert verify([str(tmp_path / "logs")], fast=fast, workers=2) == whole
    name = f"{0:020d}.index"
    data = bytes_of(partition)[name]
    for slot in range(len(data) // 8):
        (partition / name).write_bytes(flip(data, slot * 8 + 6, 3))
        found = verify([str(tmp_path / "logs")], fast=fast, workers=2)
        assert [finding.position for finding in found.findings] == [slot * 8]
        assert found[1:] == whole[1:]
        case()


def test_processes_where_there_are_no_loops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = make_dir(tmp_path / "logs", "rolled")
    log = sorted(partition.glob("*.log"))[1]
    log.write_bytes(flip(log.read_bytes(), 5000, 3))
    expected = look(tmp_path / "logs")
    monkeypatch.setattr(verifier, "_WORTH_LOADING", 1)
    done: list[int] = []
    found = verify([str(tmp_path / "logs")], fast=False, workers=2, progress=done.append)
    assert found == expected
    assert found.is_damaged
    assert sum(done) == found.bytes
