"""Loading a partition: producers, epochs, start and end, leftovers of compaction, offsets that do not fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from seglog.core.errors import CorruptCheckpointError, InvalidLogDirError
from seglog.core.fs import OsFs
from seglog.records.batch import LOG_OVERHEAD, patch_offset_and_epoch, read_header
from seglog.records.record import NewRecord, encode_batch, end_txn_marker
from seglog.storage.log.log import Log
from seglog.storage.log.producers import Origin
from seglog.storage.log.recovery import LogCheckpoint
from tests.kit.memory_fs import MemoryFs
from tests.storage.disk import CLEAN, PATH, fill, load, name, new_disk, prefix, values
from tests.storage.log.recovering import NOW_MS, UNCLEAN, filled

# Producers and epochs


def transactions(log: Log) -> None:
    """Producer 1 commits, 2 aborts, 3 stays open; over several segments, in epochs 0 and 4."""
    for at in range(24):
        for producer in (1, 2, 3):
            sequence = at
            data = encode_batch(
                [NewRecord(b"x" * 50, timestamp=NOW_MS + at)],
                producer_id=producer,
                producer_epoch=0,
                base_sequence=sequence,
                transactional=True,
            )
            log.append(data, leader_epoch=0 if at < 12 else 4, origin=Origin.CLIENT)
        for producer, commit in ((1, True), (2, False)):
            if at % 6 == 5:
                marker = end_txn_marker(
                    commit=commit, coordinator_epoch=1, producer_id=producer, producer_epoch=0, timestamp=NOW_MS
                )
                log.append(marker, leader_epoch=0 if at < 12 else 4, origin=Origin.COORDINATOR)


@pytest.mark.parametrize("known", [UNCLEAN, LogCheckpoint(recovery_point=30), LogCheckpoint(recovery_point=80)])
def test_producers_epochs_and_aborts_come_back_from_the_log(known: LogCheckpoint) -> None:
    fs = new_disk()
    log = load(fs).log
    transactions(log)
    log.close()
    expected = fs.files()
    epochs = log.epochs.entries
    removed = 0
    for path in expected:
        if path.endswith((".snapshot", ".txnindex")) and int(path[-29:-9].strip("/.t") or 0) >= (
            known.recovery_point or 0
        ):
            fs.unlink(path)
            removed += 1
    if known.recovery_point == 0:
        fs.unlink(f"{PATH}/leader-epoch-checkpoint")
    loaded = load(fs, known).log
    assert removed
    assert loaded.epochs.entries == epochs
    assert loaded.last_stable_offset == log.last_stable_offset < loaded.log_end_offset
    assert loaded.producers.entries.keys() == {1, 2, 3}
    assert [segment.txn_index.entries for segment in loaded.segments] == [
        segment.txn_index.entries for segment in log.segments
    ]
    loaded.close()
    ours = fs.files()
    assert {path: data for path, data in ours.items() if path in expected} == {
        path: data for path, data in expected.items() if path in ours
    }


def test_an_unreadable_snapshot_is_made_anew_and_reported() -> None:
    fs = new_disk()
    log = load(fs).log
    transactions(log)
    log.close()
    end = log.log_end_offset
    good = fs.read(name(end, ".snapshot"))
    fs.write(name(end, ".snapshot"), good[:-1] + b"\xff")
    loaded = load(fs, CLEAN)
    assert len(loaded.report.unreadable) == 1
    assert name(end, ".snapshot") in loaded.report.unreadable[0]
    assert fs.read(name(end, ".snapshot")) == good


def test_a_closed_log_without_any_snapshot_had_no_producers() -> None:
    fs, _, known = filled()
    for path in fs.files():
        if path.endswith(".snapshot"):
            fs.unlink(path)
    loaded = load(fs, known._replace(clean=True))
    assert loaded.log.producers.entries == {}
    assert fs.exists(name(60, ".snapshot"))


def test_stray_snapshots_go_and_that_of_the_end_stays() -> None:
    fs, bases, known = filled()
    snapshot = fs.read(name(60, ".snapshot"))
    for stray in (3, bases[1] + 1, 58):
        fs.write(name(stray, ".snapshot"), snapshot)
    load(fs, known._replace(clean=True))
    left = sorted(int(path[-29:-9]) for path in fs.files() if path.endswith(".snapshot"))
    assert left == [*bases[1:], 60]


def test_epochs_are_trimmed_to_the_log() -> None:
    fs, bases, _ = filled()
    fs.write(f"{PATH}/leader-epoch-checkpoint", b"0\n4\n0 0\n1 10\n5 59\n7 60\n")
    log = load(fs, LogCheckpoint(clean=True, recovery_point=60, log_start_offset=bases[1])).log
    assert [tuple(entry) for entry in log.epochs.entries] == [(1, bases[1]), (5, 59)]
    assert fs.read(f"{PATH}/leader-epoch-checkpoint") == f"0\n2\n1 {bases[1]}\n5 59\n".encode()


def test_garbage_in_the_leader_epochs_is_named() -> None:
    fs, _, known = filled()
    fs.write(f"{PATH}/leader-epoch-checkpoint", b"0\n1\nwhat is this\n")
    with pytest.raises(CorruptCheckpointError, match=f"{PATH}/leader-epoch-checkpoint.*line 3"):
        load(fs, known)


# Start and end


def test_a_log_that_ends_before_its_start_begins_anew_there() -> None:
    fs, _, _ = filled()
    log = load(fs, LogCheckpoint(recovery_point=50, log_start_offset=75)).log
    assert (log.log_start_offset, log.log_end_offset, log.recovery_point) == (75, 75, 50)
    logs = [path for path in fs.files() if path.endswith(".log")]
    assert [path for path in logs if "/.seglog/" not in path] == [name(75, ".log")]
    fill(log, 2)
    assert values(log) == prefix(77, start=75)


def test_the_start_is_that_of_the_checkpoint_or_of_the_first_segment() -> None:
    fs, bases, known = filled()
    for kind in (".log", ".index", ".timeindex"):
        fs.unlink(name(0, kind))
    log = load(fs, known).log
    assert log.log_start_offset == bases[1]
    log.close()
    assert load(fs, known._replace(log_start_offset=bases[2] + 1)).log.log_start_offset == bases[2] + 1


def test_the_high_watermark_is_kept_within_the_log() -> None:
    fs, _, _ = filled()
    log = load(fs, LogCheckpoint(recovery_point=0, high_watermark=30), hw_follows_end=False).log
    assert (log.high_watermark, log.log_end_offset) == (30, 60)


# Leftovers


def test_deleted_cleaned_and_unfinished_files_go() -> None:
    fs, bases, known = filled()
    for kind in (".log.deleted", ".index.deleted", ".snapshot.deleted", ".log.cleaned", ".index.cleaned"):
        fs.write(name(bases[1], kind), b"whatever")
    fs.write(name(60, ".snapshot.tmp"), b"")
    fs.write(f"{PATH}/leader-epoch-checkpoint.tmp", b"")
    fs.write(f"{PATH}/somebody.log", b"not ours")
    fs.write(f"{PATH}/00000000000000000000-0000000000.checkpoint.deleted", b"not ours")
    loaded = load(fs, known._replace(clean=True))
    assert len(loaded.report.leftovers.removed) == 7
    kept = [path for path in fs.files() if "somebody" in path or "checkpoint.deleted" in path]
    assert len(kept) == 2
    assert values(loaded.log) == prefix(60)


def test_a_finished_swap_takes_its_place() -> None:
    fs, bases, known = filled()
    for kind in (".log", ".index", ".timeindex"):
        merged = fs.read(name(bases[0], kind)) + (fs.read(name(bases[1], kind)) if kind == ".log" else b"")
        fs.write(name(bases[0], kind + ".swap"), merged)
    fs.unlink(name(bases[0], ".log"))  # as far as the replacement had come
    loaded = load(fs, known._replace(clean=True))
    assert len(loaded.report.leftovers.swapped) == 3
    assert [segment.base_offset for segment in loaded.log.segments] == [bases[0], *bases[2:]]
    assert values(loaded.log) == prefix(60)


def test_a_swap_beside_a_cleaned_file_was_not_finished() -> None:
    fs, bases, known = filled()
    before = values(load(fs, known).log)
    fs.write(name(bases[1], ".log.cleaned"), b"")
    fs.write(name(bases[2], ".log.swap"), fs.read(name(bases[2], ".log"))[:200])
    loaded = load(fs, known._replace(clean=True))
    assert loaded.report.leftovers.swapped == ()
    assert values(loaded.log) == before


def test_symbolic_links_are_refused(tmp_path: Path) -> None:
    path = f"{tmp_path}/t-0"
    fs = OsFs()
    fs.mkdir(path)
    loaded = load(fs, path=path)
    loaded.log.close()
    Path(path, "00000000000000000009.log").symlink_to(tmp_path)
    with pytest.raises(InvalidLogDirError, match="symbolic link"):
        load(fs, path=path)


# Offsets that do not fit


def overflowing() -> MemoryFs:
    """A segment as Kafka before 1.1 could write it: three ranges of offsets further apart than an index can say."""
    fs = new_disk()
    log = load(fs).log
    fill(log, 6)
    log.close()
    data = bytearray(fs.read(name(0, ".log")))
    position = 0
    for at in range(6):
        header = read_header(data, position)
        patch_offset_and_epoch(data, position, at + (at // 2) * 2**31, 0)
        position += header.length + LOG_OVERHEAD
    fs.write(name(0, ".log"), bytes(data))
    fs.unlink(name(6, ".snapshot"))
    return fs


def test_an_overflowed_segment_is_split() -> None:
    fs = overflowing()
    data = fs.read(name(0, ".log"))
    loaded = load(fs, UNCLEAN)
    bases = [segment.base_offset for segment in loaded.log.segments]
    assert loaded.report.split == (0,)
    assert bases == [0, 2 + 2**31, 4 + 2**32]
    assert b"".join(fs.read(name(base, ".log")) for base in bases) == data
    assert loaded.log.log_end_offset == 6 + 2**32
    loaded.log.close()
    assert load(fs, CLEAN).report.split == ()
