"""Repair: derived data is restored byte for byte, losses are reported, and a crash during repair spoils nothing."""

from __future__ import annotations

import random
import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from seglog.core.errors import InvalidLogDirError, LogDirInUseError
from seglog.core.fs import Fs
from seglog.core.ground import Ground
from seglog.core.types import TopicPartition
from seglog.records.record import NewRecord, encode_batch
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.formats.paths import OWN_DIRECTORY
from seglog.storage.offline.repair import carry_out, lock_directory, plan_repair
from seglog.storage.offline.repair.file_replacement import BACKUP
from seglog.storage.offline.verify import verify
from tests.cases import case, is_long
from tests.kit.crash_fs import CrashFs, SimulatedCrash
from tests.kit.manual_clock import ManualClock
from tests.kit.memory_fs import MemoryFs
from tests.storage.offline.verify.verified import (
    KINDS,
    LOG,
    TIMES,
    batches,
    bits_under_no_crc,
    bytes_of,
    damage,
    flip,
    look,
    make_dir,
    open_dir,
)


def mend(logs: Path, *, salvage: bool = False) -> list[str]:
    """Repair a log directory; returns the steps."""
    with lock_directory(str(logs)):
        plan = plan_repair(str(logs), salvage=salvage)
        assert plan.all_refusals == []
        carry_out(plan, clock=ManualClock())
    return [str(step) for step in plan.all_steps]


def opens(logs: Path) -> list[int]:
    """The offsets that a consumer of topic t gets, once the directory is opened; it is closed again."""
    with open_dir(logs) as directory:
        assert directory.refused == {}
        log = directory.log("t")
        offset, found = log.log_start_offset, list[int]()
        while offset < log.high_watermark:
            fetched = log.read(offset)
            records = [record.offset for record in fetched.records()]
            found += records
            offset = max([fetched.next_offset, *(header.next_offset for header, _ in fetched.batches())])
        return found


# As it was


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_that_no_crc_covers_is_set_back(logs: Path, kind: str) -> None:
    partition = make_dir(logs, kind, size=24_000)
    sound = bytes_of(partition)
    places = [(name, *place) for name, data in sound.items() for place in bits_under_no_crc(name, data)]
    rng = random.Random(kind)
    for name, position, bit in rng.sample(places, 120 if is_long() else 40):
        if name.endswith(".log") and any(17 <= position - entry.position < 21 for entry in batches(sound[name])):
            continue  # of the CRC itself: it cannot be told from one in the records
        (partition / name).write_bytes(flip(sound[name], position, bit))
        steps = mend(logs)
        assert steps, (name, position, bit)
        assert bytes_of(partition) == sound, (name, position, bit, steps)
        assert look(logs).findings == []
        shutil.rmtree(partition / OWN_DIRECTORY)
        case()


def test_indexes_that_are_missing_cut_or_garbage(logs: Path) -> None:
    partition = make_dir(logs, "rolled")
    sound = bytes_of(partition)
    rng = random.Random(0)
    names = [name for name in sound if name.endswith(("index", ".snapshot", "checkpoint"))]
    for name in names:
        for garbage in (None, b"", sound[name][:-1], rng.randbytes(100)):
            (partition / name).unlink()
            if garbage is not None:
                (partition / name).write_bytes(garbage)
            if look(logs).is_damaged:
                mend(logs)
                assert bytes_of(partition) == sound, name
                case()
            (partition / name).write_bytes(sound[name])


def test_nothing_to_do(logs: Path) -> None:
    make_dir(logs)
    before = {path: path.read_bytes() for path in logs.rglob("*") if path.is_file()}
    plan = plan_repair(str(logs))
    assert (plan.all_steps, plan.all_refusals) == ([], [])
    with lock_directory(str(logs)):
        assert carry_out(plan) == []
    assert {path: path.read_bytes() for path in logs.rglob("*") if path.is_file()} == before


# Lost


def test_bad_batches_are_given_up_only_when_asked(logs: Path) -> None:
    partition = make_dir(logs)
    offsets = opens(logs)
    data = (partition / LOG).read_bytes()
    entries = batches(data)
    bad = [entries[2], entries[7], entries[-1]]
    broken = bytearray(data)
    for entry in bad:
        broken[entry.position + entry.size - 1] ^= 1
    (partition / LOG).write_bytes(broken)
    plan = plan_repair(str(logs))
    assert plan.all_steps == []
    assert len(plan.all_refusals) == 3
    assert all("--salvage" in reason for reason in plan.all_refusals)
    assert (partition / LOG).read_bytes() == broken
    ends = {entry.offset: following.offset for entry, following in pairwise(entries)}
    ends[entries[-1].offset] = offsets[-1] + 1
    gone = [set(range(entry.offset, ends[entry.offset])) for entry in bad]
    steps = mend(logs, salvage=True)
    for entry, lost in zip(bad, gone, strict=True):
        first, last = min(lost), max(lost)
        said = f"lost: offset {first}" if first == last else f"lost: offsets {first} to {last}"
        assert any(said in step for step in steps), (entry, steps)
    assert not look(logs).is_damaged
    assert opens(logs) == [offset for offset in offsets if not any(offset in lost for lost in gone)]
    (backup,) = (partition / OWN_DIRECTORY).iterdir()
    assert backup.name.startswith(BACKUP)
    assert (backup / LOG).read_bytes() == broken
    assert not look(logs).is_damaged


def test_partition_whose_directory_is_gone_is_not_nothing_to_repair(logs: Path) -> None:
    partition = make_dir(logs)
    shutil.rmtree(partition)
    plan = plan_repair(str(logs))
    assert plan.all_steps == []
    (refusal,) = plan.all_refusals
    assert refusal.startswith(f"{partition} is missing, and its log had records")


def test_log_without_segments_is_given_up_only_when_asked(logs: Path) -> None:
    partition = make_dir(logs)
    for path in partition.glob("*.log"):
        path.unlink()
    assert any(f"{partition}: the log ends at offset 0" in one for one in plan_repair(str(logs)).all_refusals)
    mend(logs, salvage=True)
    assert opens(logs) == []


def test_a_log_that_lost_its_end_in_a_closed_directory(logs: Path) -> None:
    partition = make_dir(logs)
    data = (partition / LOG).read_bytes()
    cut = batches(data)[-3]
    (partition / LOG).write_bytes(data[: cut.position + 100])
    assert any("--salvage" in reason for reason in plan_repair(str(logs)).all_refusals)
    mend(logs, salvage=True)
    assert not look(logs).is_damaged
    assert max(opens(logs)) == cut.offset - 1
    (backup,) = (partition / OWN_DIRECTORY).iterdir()
    assert (backup / f"{LOG}.from-{cut.position}").read_bytes() == data[cut.position : cut.position + 100]


def test_and_one_that_ends_between_batches(logs: Path) -> None:
    partition = make_dir(logs)
    data = (partition / LOG).read_bytes()
    cut = batches(data)[-2]
    (partition / LOG).write_bytes(data[: cut.position])
    assert any(f"the log ends at offset {cut.offset}" in reason for reason in plan_repair(str(logs)).all_refusals)
    mend(logs, salvage=True)
    assert not look(logs).is_damaged
    assert max(opens(logs)) == cut.offset - 1


def test_a_torn_tail_needs_no_asking(logs: Path, tmp_path: Path) -> None:
    directory = open_dir(logs)
    directory.create_topic("t")
    log = directory.log("t")
    for at in range(5):
        log.append(encode_batch([NewRecord(b"x" * 1000, timestamp=at)] * 3))
    shutil.copytree(logs, tmp_path / "crashed")
    directory.close()
    path = tmp_path / "crashed" / "t-0" / LOG
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    steps = mend(tmp_path / "crashed")
    assert any("cut off" in step and "lost: the records from offset 12 on" in step for step in steps)
    assert look(tmp_path / "crashed").findings == []
    assert opens(tmp_path / "crashed") == list(range(12))


def test_what_no_repair_knows(logs: Path) -> None:
    partition = make_dir(logs)
    (logs / "meta.properties").write_bytes(b"version=7\n")
    assert plan_repair(str(logs)).all_refusals == [
        f"{logs / 'meta.properties'}: line 1: '7' is not 0 or 1; repair does not decide this"
    ]
    with pytest.raises(InvalidLogDirError, match="is repaired as a whole"):
        plan_repair(str(partition / LOG))
    with pytest.raises(InvalidLogDirError, match="neither a log directory nor a partition's"):
        plan_repair(str(logs.parent))


@pytest.mark.parametrize("size", [0, 20, 42])
def test_a_topic_id_that_is_cut_off_is_written_again_or_forgotten(logs: Path, size: int) -> None:
    partition = make_dir(logs)
    metadata = partition / "partition.metadata"
    whole = metadata.read_bytes()
    metadata.write_bytes(whole[:size])
    assert any("write the topic's id" in step for step in mend(logs))
    assert metadata.read_bytes() == whole
    alone = logs.parent / "alone" / "t-0"
    shutil.copytree(partition, alone)
    shutil.rmtree(alone / OWN_DIRECTORY)
    (alone / "partition.metadata").write_bytes(whole[:size])
    assert look(alone).is_damaged
    assert any("no other file has the topic's id" in step for step in mend(alone))
    assert not (alone / "partition.metadata").exists()
    assert not look(alone).is_damaged
    (saved,) = alone.glob(".seglog/backup-*/partition.metadata")
    assert saved.read_bytes() == whole[:size]


def test_one_bad_partition_does_not_keep_the_others(logs: Path) -> None:
    partition = make_dir(logs)
    with open_dir(logs) as directory:
        directory.create_topic("u")
        directory.log("u").append_records([NewRecord(b"x" * 5000)] * 10)
    data = (partition / LOG).read_bytes()
    (partition / LOG).write_bytes(flip(data, 3000, 1))
    (logs / "u-0" / TIMES).write_bytes(bytes(12))
    with lock_directory(str(logs)):
        plan = plan_repair(str(logs))
        assert len(plan.all_refusals) == 1
        assert {Path(step.file).parent.name for step in plan.all_steps} == {"u-0"}
        carry_out(plan)
    assert {Path(finding.file).parent.name for finding in damage(look(logs))} == {"t-0"}


# Checkpoints, epochs, the lock


def test_checkpoints_that_cannot_be_read(logs: Path) -> None:
    make_dir(logs)
    end = max(opens(logs)) + 1
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint", "log-start-offset-checkpoint"):
        (logs / name).write_bytes(b"0\n3\nt 0 \xff\nt 0 99999999\nx y\n")
        mend(logs)
        assert look(logs).findings == []
    assert (logs / "recovery-point-offset-checkpoint").read_bytes() == f"0\n1\nt 0 {end}\n".encode()
    assert len(list(logs.glob("*.backup-*"))) == 3
    assert len(opens(logs)) == end


def test_epochs_from_the_batches(logs: Path) -> None:
    partition = make_dir(logs)
    sound = (partition / "leader-epoch-checkpoint").read_bytes()
    version, count, *lines = sound.decode().split("\n")
    epoch, start = lines[-2].split(" ")
    lines[-2] = f"{int(epoch) + 1} {start}"
    (partition / "leader-epoch-checkpoint").write_bytes("\n".join((version, count, *lines)).encode())
    assert look(logs).is_damaged
    mend(logs)
    assert (partition / "leader-epoch-checkpoint").read_bytes() == sound


def test_a_directory_in_use_is_left_alone(logs: Path) -> None:
    make_dir(logs)
    with open_dir(logs), pytest.raises(LogDirInUseError), lock_directory(str(logs / "t-0")):
        raise AssertionError("the lock was given")
    with lock_directory(str(logs)), pytest.raises(LogDirInUseError):
        open_dir(logs)


# Crashes


def _copy_into(fs: MemoryFs, source: Path) -> None:
    fs.mkdir("/logs")
    for path in sorted(source.rglob("*")):
        target = f"/logs/{path.relative_to(source)}"
        if path.is_dir():
            fs.mkdir(target)
        else:
            fs.write(target, path.read_bytes())
    for directory in ("/", "/logs", "/logs/t-0"):
        fs.fsync_dir(directory)


def _damaged_copy(logs: Path) -> Path:
    """Damage of many kinds: batches to be taken out, to be cut off, to be set right, and most derived files."""
    partition = make_dir(logs, "rolled", size=30_000, batches_of=(1, 2))
    first, second, *_, last = sorted(partition.glob("*.log"))
    data = first.read_bytes()
    first.write_bytes(flip(data, batches(data)[1].position + 90, 0))
    data = second.read_bytes()
    second.write_bytes(flip(data, batches(data)[1].position + 6, 1))
    data = last.read_bytes()
    last.write_bytes(data[:-5])
    for path in (next(partition.glob("*.txnindex")), sorted(partition.glob("*.snapshot"))[1]):
        path.write_bytes(flip(path.read_bytes(), 20, 0))
    (partition / "leader-epoch-checkpoint").write_bytes(b"0\n1\n")
    return logs


@pytest.mark.parametrize("power_cut", [False, True])
def test_a_crash_at_every_call(logs: Path, power_cut: bool) -> None:
    """The power fails at every odd call, the process dies at every even one; in `make test-long` both at each."""
    source = _damaged_copy(logs)

    def work(fs: Fs) -> None:
        carry_out(plan_repair("/logs", fs=fs, salvage=True), fs=fs, clock=ManualClock())

    fs = MemoryFs(clock=ManualClock())
    _copy_into(fs, source)
    whole = CrashFs(fs)
    work(whole)
    expected = _offsets(fs)
    assert not verify(["/logs"], fs=fs, fast=False).is_damaged
    for number in range(1 if power_cut or is_long() else 2, whole.changes + 1, 1 if is_long() else 2):
        fs = MemoryFs(clock=ManualClock())
        _copy_into(fs, source)
        with pytest.raises(SimulatedCrash):
            work(CrashFs(fs, crash_at=number))
        if power_cut:
            fs.crash(random.Random(number))
        work(fs)
        assert not verify(["/logs"], fs=fs, fast=False).is_damaged, whole.trace[number - 1]
        assert _offsets(fs) == expected
        case()


def _offsets(fs: Fs) -> list[int]:
    with LogDir.open("/logs", ground=Ground(fs=fs, clock=ManualClock(), rng=random.Random(1))) as directory:
        log = directory.logs[TopicPartition("t", 0)]
        return [header.base_offset for segment in log.segments for header, _, _ in segment.headers()]
