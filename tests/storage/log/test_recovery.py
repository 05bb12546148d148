"""Loading a partition: Kafka's rules after a crash, and the refusal of damage below what was flushed."""

from __future__ import annotations

import random

import pytest

from seglog.core.errors import DamagedPartitionError
from seglog.records.batch import patch_offset_and_epoch
from seglog.records.record import NewRecord, encode_batch
from seglog.storage.log.recovery import LogCheckpoint
from tests.storage.disk import CLEAN, PATH, SMALL, fill, load, name, new_disk, overwrite, prefix, values
from tests.storage.log.recovering import UNCLEAN, batch_position, filled, indexes


def test_a_new_partition_is_one_empty_segment() -> None:
    fs = new_disk()
    loaded = load(fs, UNCLEAN)
    assert (loaded.log.log_start_offset, loaded.log.log_end_offset) == (0, 0)
    assert not loaded.report.is_eventful
    fill(loaded.log, 5)
    assert values(loaded.log) == prefix(5)


def test_a_clean_start_reads_no_batches_and_changes_nothing() -> None:
    fs, _, _ = filled()
    load(fs, CLEAN._replace(recovery_point=60)).log.close()
    before = fs.files()
    loaded = load(fs, CLEAN._replace(recovery_point=60))
    assert loaded.report.scanned == ()
    assert not loaded.report.is_eventful
    assert loaded.log.recovery_point == 60
    assert values(loaded.log) == prefix(60)
    loaded.log.close()
    assert fs.files() == before


def test_an_unclean_start_checks_from_the_recovery_point_on() -> None:
    fs, bases, _ = filled()
    closed = indexes(fs)
    report = load(fs, LogCheckpoint(recovery_point=bases[2] + 1)).report
    assert report.scanned == tuple(bases[2:])
    assert not report.is_eventful
    fs, bases, _ = filled()
    loaded = load(fs, UNCLEAN)
    assert loaded.report.scanned == tuple(bases)
    assert loaded.log.recovery_point == 0, "only a flush moves it"
    loaded.log.close()
    assert indexes(fs) == closed, "rebuilt indexes are those that were written"


def test_progress_is_told_and_ends_at_all() -> None:
    fs, _, _ = filled()
    size = sum(len(data) for path, data in fs.files().items() if path.endswith(".log"))
    seen: list[tuple[int, int]] = []
    load(fs, UNCLEAN, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (size, size)
    assert seen == sorted(seen)


@pytest.mark.parametrize("lost", [1, 20, 60, 150])
def test_a_torn_tail_is_cut_and_saved(lost: int) -> None:
    fs, bases, _ = filled()
    path = name(bases[-1], ".log")
    data = fs.read(path)
    fs.write(path, data[:-lost])
    loaded = load(fs, LogCheckpoint(recovery_point=bases[-1]))
    cut = loaded.report.cut
    end = loaded.log.log_end_offset
    assert cut is not None
    assert (cut.file, cut.offset, cut.later) == (path, end, ())
    assert cut.position + cut.size == len(data) - lost
    assert values(loaded.log) == prefix(end)
    assert cut.saved is not None
    assert cut.saved.startswith(f"{PATH}/.seglog/cut-")
    saved = fs.read(f"{cut.saved}/{bases[-1]:020d}.log.from-{cut.position}")
    assert fs.read(path) + saved == data[:-lost]
    assert "saved in" in str(cut)
    fill(loaded.log, 3)
    assert values(loaded.log) == prefix(end + 3)


def test_zeros_at_the_end_are_cut_and_not_saved() -> None:
    fs, bases, _ = filled()
    path = name(bases[-1], ".log")
    data = fs.read(path)
    fs.write(path, data + bytes(5_000))
    report = load(fs, LogCheckpoint(recovery_point=60)).report
    assert report.cut is not None
    assert (report.cut.saved, report.cut.offset, report.cut.size) == (None, 60, 5_000)
    assert fs.read(path) == data
    assert not fs.exists(f"{PATH}/.seglog")


def test_everything_behind_a_bad_batch_goes_and_is_saved() -> None:
    fs, bases, _ = filled()
    position = batch_position(fs, bases[1], bases[1] + 2)
    overwrite(fs, name(bases[1], ".log"), position + 70, b"X")
    before = fs.files()
    loaded = load(fs, UNCLEAN)
    cut = loaded.report.cut
    assert cut is not None
    assert (cut.offset, cut.position, cut.later) == (bases[1] + 2, position, tuple(bases[2:]))
    assert "stored CRC" in cut.reason
    assert loaded.log.log_end_offset == bases[1] + 2
    assert values(loaded.log) == prefix(bases[1] + 2)
    for base in bases[2:]:
        assert fs.read(f"{cut.saved}/{base:020d}.log") == before[name(base, ".log")]
        assert not fs.exists(name(base, ".index"))
    assert [path for path in fs.files() if path.endswith(".snapshot")][-1] == name(bases[1] + 2, ".snapshot")


def test_the_newest_cuts_are_kept() -> None:
    fs, bases, _ = filled()
    for _ in range(20):
        overwrite(fs, name(bases[-1], ".log"), len(fs.read(name(bases[-1], ".log"))), b"torn")
        load(fs, LogCheckpoint(recovery_point=60)).log.close()
    assert len(fs.listdir(f"{PATH}/.seglog")) == 16


# Damage


@pytest.mark.parametrize(
    "known",
    [
        LogCheckpoint(recovery_point=60),
        LogCheckpoint(high_watermark=60),
        LogCheckpoint(recovery_point=None),
    ],
)
def test_damage_below_what_was_flushed_refuses_the_partition(known: LogCheckpoint) -> None:
    fs, bases, _ = filled()
    base = bases[-2] if known.recovery_point is None else bases[-1]
    position = batch_position(fs, base, base + 1)
    overwrite(fs, name(base, ".log"), position + 65, b"XYZ")
    logs = {path: data for path, data in fs.files().items() if path.endswith(".log")}
    with pytest.raises(DamagedPartitionError) as caught:
        load(fs, known)
    message = str(caught.value)
    assert f"{name(base, '.log')}, position {position}, offset {base + 1}: stored CRC" in message
    assert f"seglog repair {PATH}" in message
    assert {path: data for path, data in fs.files().items() if path.endswith(".log")} == logs
    with pytest.raises(DamagedPartitionError):
        load(fs, known)


def test_the_same_damage_above_it_is_cut() -> None:
    fs, bases, _ = filled()
    overwrite(fs, name(bases[-1], ".log"), batch_position(fs, bases[-1], bases[-1] + 1) + 65, b"XYZ")
    known = LogCheckpoint(recovery_point=bases[-1] + 1, high_watermark=bases[-1])
    assert load(fs, known).log.log_end_offset == bases[-1] + 1


def test_a_log_that_ends_below_its_recovery_point_is_damaged() -> None:
    fs, bases, known = filled()
    path = name(bases[-1], ".log")
    fs.write(path, fs.read(path)[: batch_position(fs, bases[-1], bases[-1] + 2)])
    for clean in (False, True):
        with pytest.raises(DamagedPartitionError, match=rf"offset {bases[-1] + 2}: the log ends here, below .* 60"):
            load(fs, known._replace(clean=clean))
    assert load(fs, LogCheckpoint(recovery_point=bases[-1] + 2)).log.log_end_offset == bases[-1] + 2


def test_a_lost_last_segment_is_damage_and_so_are_all() -> None:
    fs, bases, known = filled()
    fs.unlink(name(bases[-1], ".log"))
    with pytest.raises(DamagedPartitionError, match="the log ends here"):
        load(fs, known)
    for base in bases[:-1]:
        fs.unlink(name(base, ".log"))
    with pytest.raises(DamagedPartitionError, match="the log ends here"):
        load(fs, known)


def test_a_closed_log_with_bytes_behind_its_last_batch_is_damaged() -> None:
    fs, bases, known = filled()
    path = name(bases[-1], ".log")
    overwrite(fs, path, len(fs.read(path)), b"garbage")
    with pytest.raises(DamagedPartitionError, match="closed cleanly"):
        load(fs, known._replace(clean=True))


def test_damage_among_deleted_records_is_no_matter() -> None:
    fs, bases, _ = filled()
    overwrite(fs, name(bases[-1], ".log"), 70, b"XYZ")
    log = load(fs, LogCheckpoint(recovery_point=60, log_start_offset=60)).log
    assert (log.log_start_offset, log.log_end_offset) == (60, 60)
    fill(log, 2)
    assert values(log) == prefix(62, start=60)


def test_offsets_that_go_back_are_bad() -> None:
    fs, bases, _ = filled()
    batch = encode_batch([NewRecord(b"again")])
    patch_offset_and_epoch(batch, 0, bases[-1], 0)
    path = name(bases[-1], ".log")
    overwrite(fs, path, len(fs.read(path)), bytes(batch))
    report = load(fs, LogCheckpoint(recovery_point=60)).report
    assert report.cut is not None
    assert report.cut.reason == f"offset {bases[-1]} comes after 59"


# Indexes


@pytest.mark.parametrize("kind", [".index", ".timeindex"])
@pytest.mark.parametrize("clean", [True, False])
def test_a_missing_or_impossible_index_is_made_anew(kind: str, clean: bool) -> None:
    fs, bases, known = filled()
    before = fs.files()
    fs.unlink(name(bases[0], kind))
    fs.write(name(bases[1], kind), b"12345")
    fs.write(name(bases[2], kind), b"\x7f" * len(before[name(bases[2], kind)]))
    loaded = load(fs, known._replace(clean=clean))
    assert loaded.report.scanned[:3] == tuple(bases[:3])
    assert set(loaded.report.rebuilt) == set(bases[:3])
    assert "missing" in loaded.report.rebuilt[bases[0]]
    assert loaded.report.is_eventful
    assert values(loaded.log) == prefix(60)
    loaded.log.close()
    assert {path: data for path, data in fs.files().items() if path in before} == before


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("damage", ["", "no entry", "one zero", "zeros", "missing"])
def test_indexes_of_flushed_segments_are_whole_after_a_start_and_a_power_cut(damage: str, seed: int) -> None:
    """The start completes them or makes them anew, and a clean stop flushes only what was not flushed before."""
    fs, bases, known = filled()
    before = fs.files()
    for base in bases[:2]:
        path = name(base, ".timeindex")
        if damage == "no entry":
            fs.write(path, before[path][:-12])
        elif damage == "one zero":
            fs.write(path, before[path] + bytes(12))
        elif damage == "zeros":
            fs.write(path, before[path] + bytes(1_200 - len(before[path])))
        elif damage == "missing":
            fs.unlink(path)
    fs.fsync_dir(PATH)
    log = load(fs, known).log
    log.flush()
    log.close()
    fs.crash(random.Random(seed))
    sealed = [name(base, kind) for base in bases[:-1] for kind in (".index", ".timeindex")]
    assert {path: fs.read(path) for path in sealed} == {path: before[path] for path in sealed}


def test_an_index_without_a_log_goes() -> None:
    fs, _, known = filled()
    for kind in (".index", ".timeindex", ".txnindex"):
        fs.write(name(7_777, kind), b"")
    report = load(fs, known._replace(clean=True)).report
    assert len(report.leftovers.orphans) == 3
    assert not fs.exists(name(7_777, ".index"))


def test_zeros_of_a_preallocated_index_are_no_entries() -> None:
    fs = new_disk()
    log = load(fs).log
    fill(log, 40)
    bases = [segment.base_offset for segment in log.segments]
    log.flush()
    fs.crash(random.Random(3))  # the active segment's indexes were not trimmed
    assert len(fs.read(name(bases[-1], ".timeindex"))) == 1_200
    loaded = load(fs, LogCheckpoint(recovery_point=40))
    assert loaded.log.segments[-1].max_timestamp == 1_039
    assert values(loaded.log) == prefix(40)
    assert len(fs.read(name(bases[-1], ".index"))) == 1_200, "room for more entries"


def test_a_batch_larger_than_a_chunk_is_read_whole() -> None:
    fs = new_disk()
    config = SMALL.with_overrides({"internal.segment.bytes": str(1 << 30), "max.message.bytes": str(1 << 30)})
    log = load(fs, config=config).log
    fill(log, 3, size=3 << 20)
    fill(log, 2, size=100)
    loaded = load(fs, UNCLEAN, config=config)
    assert loaded.log.log_end_offset == 5
    path = name(0, ".log")
    fs.write(path, fs.read(path)[: (3 << 20) * 3 - 50])
    assert load(fs, UNCLEAN, config=config).log.log_end_offset == 2
