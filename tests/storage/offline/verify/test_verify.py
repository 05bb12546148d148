"""Verification: nothing on what Kafka and we write, a finding with its place for each kind of damage, and open logs."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from seglog.core.fs import OsFs
from seglog.core.ground import Ground
from seglog.records.batch import build_batch, read_header
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.log.admit import Origin
from seglog.storage.offline.findings import Severity
from seglog.storage.offline.verify import measure, verify
from tests import golden
from tests.cases import case
from tests.kafka.jars import BEFORE, CURRENT, OLD, KafkaVersion
from tests.kit.manual_clock import ManualClock
from tests.kit.memory_fs import MemoryFs
from tests.storage import programs
from tests.storage.offline.verify.verified import (
    INDEX,
    LOG,
    START_MS,
    TIMES,
    batches,
    damage,
    look,
    make_dir,
)
from tests.storage.programs import Append, Clock, DeleteRecords, Epoch, Retain, Roll, Truncate

# Nothing on sound directories


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("version", [CURRENT, BEFORE, OLD])
def test_kafkas_own_directories_have_no_damage(tmp_path: Path, version: KafkaVersion, fast: bool) -> None:
    directory = golden.log_dir(golden.unpack(tmp_path, version))
    verified = look(directory, fast=fast)
    assert damage(verified) == []
    assert verified.partitions == len(golden.directories(directory.parent))
    logs = sum(log.stat().st_size for log in directory.glob("*/*.log"))
    assert measure([str(directory)]) == logs
    assert verified.bytes == logs + sum(snapshot.stat().st_size for snapshot in directory.rglob("*.checkpoint"))
    if version == CURRENT:
        assert verified.findings == []
    records = sum(len(golden.expected_records(directory.parent, name)) for name in golden.partitions(directory.parent))
    assert verified.records >= records


@pytest.mark.parametrize("version", [CURRENT, BEFORE, OLD])
def test_no_damage_in_any_single_file_of_kafkas(tmp_path: Path, version: KafkaVersion) -> None:
    directory = golden.log_dir(golden.unpack(tmp_path, version))
    files = [path for path in directory.rglob("*") if path.is_file()]
    for path in files:
        assert damage(look(path)) == [], path
    assert len(files) > 50


def test_old_kafkas_ways_are_notes(tmp_path: Path) -> None:
    directory = golden.log_dir(golden.unpack(tmp_path, OLD))
    reasons = {Path(finding.file).relative_to(directory): finding.reason for finding in look(directory).findings}
    assert reasons[Path("v1-rolled-0") / INDEX] == (
        "10 entries stand for appends of several batches, as Kafka up to 3.9 writes them"
    )
    assert reasons[Path("v2-none-0") / TIMES] == (
        "1 entries name a record inside of a batch, as Kafka up to 3.9 writes them"
    )
    strict = look(directory / "v2-none-0", strict=True)
    assert [finding.reason for finding in damage(strict)] == ["the entry is as only Kafka up to 3.9 writes it"]


@pytest.mark.parametrize("seed", range(12))
def test_no_findings_in_directories_that_seglog_wrote(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    clock = ManualClock(START_MS)
    path = str(tmp_path / "logs")

    def reopened() -> LogDir:
        return LogDir.open(path, ground=Ground(fs=OsFs(), clock=clock, rng=random.Random(seed)))

    directory = reopened()
    config = {
        "internal.segment.bytes": rng.choice([14_000, 30_000, 1 << 20]),
        "segment.index.bytes": 1200,
        "index.interval.bytes": rng.choice([0, 200, 4096]),
        "retention.ms": rng.choice([-1, 3_600_000]),
        "message.timestamp.after.max.ms": 2**62,
        "file.delete.delay.ms": 0,
    }
    directory.create_topic("t", 1, config)
    epoch, bases = 0, list[int]()
    for step in programs.program(seed, steps=120, truncations=seed % 3 == 0):
        log = directory.log("t")
        match step:
            case Append(data, is_marker):
                origin = Origin.COORDINATOR if is_marker else Origin.CLIENT
                bases.append(log.append(data, leader_epoch=epoch, origin=origin).first_offset)
            case Epoch(epoch):
                log.assign_epoch(epoch)
            case Clock(now_ms):
                clock.set_wall(now_ms)
            case Roll():
                log.roll()
            case Truncate(back):
                target = max(log.log_start_offset, (bases[-back:] or [0])[0])
                bases = [base for base in bases if base < target]
                directory.truncate_to("t", 0, target)
            case DeleteRecords(share):
                span = log.high_watermark - log.log_start_offset
                log.delete_records(log.log_start_offset + int(span * share))
            case Retain():
                log.delete_old_segments()
        if rng.random() < 0.03:
            directory.flush()
            assert not [f for f in look(tmp_path / "logs").findings if ".deleted" not in f.file], "while it is open"
            directory.close()
            assert not [f for f in look(tmp_path / "logs").findings if ".deleted" not in f.file]
            case()
            directory = reopened()
    directory.close()
    plain, compiled = look(tmp_path / "logs"), look(tmp_path / "logs", fast=True)
    assert plain == compiled
    assert not damage(plain)
    case()


def test_a_directory_in_memory_and_an_empty_one() -> None:
    fs = MemoryFs(clock=ManualClock())
    with LogDir.open("/logs", ground=Ground(fs=fs, clock=ManualClock())) as directory:
        directory.create_topic("t", 2)
    verified = verify(["/logs"], fs=fs)
    assert verified == ([], 2, 2, 0, 0, 0)


# Damage: each kind has its place and reason


def _set(path: Path, position: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[position : position + len(data)] = data
    path.write_bytes(content)


def test_a_wrong_crc_hides_nothing_behind_it(logs: Path) -> None:
    partition = make_dir(logs)
    third, seventh = (batches((partition / LOG).read_bytes())[k] for k in (2, 6))
    for entry in (third, seventh):
        _set(partition / LOG, entry.position + 100, b"\xff\x00\xff")
    found = damage(look(logs))
    assert [(finding.position, finding.offset) for finding in found] == [
        (third.position, third.offset),
        (seventh.position, seventh.offset),
    ]
    assert all(finding.file == str(partition / LOG) for finding in found)
    assert f"the next batch is at position {third.position + third.size}" in found[0].reason


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        (0, struct.pack(">q", 3), "offset 3 comes after"),
        (0, struct.pack(">q", 1 << 20), "comes after 10485"),
        (8, struct.pack(">i", 5), "size 17 is under the smallest possible, 61"),
        (8, struct.pack(">i", 1 << 30), "are left; the next batch is at position"),
        (12, struct.pack(">i", 77), "leader epoch 77 at offset"),
        (16, b"\x07", "unknown magic 7"),
        (16, b"\x01", "the computed"),
        (17, b"\x00\x00\x00\x00", "stored CRC 0 is not the computed"),
    ],
)
def test_header_fields_that_no_crc_covers(logs: Path, field: int, value: bytes, reason: str) -> None:
    partition = make_dir(logs)
    entry = batches((partition / LOG).read_bytes())[5]
    _set(partition / LOG, entry.position + field, value)
    found = [finding for finding in damage(look(logs)) if finding.file == str(partition / LOG)]
    assert len(found) == 1
    assert reason in found[0].reason


def test_a_gap_of_zeros_in_the_middle_and_garbage_between(logs: Path) -> None:
    partition = make_dir(logs)
    data = (partition / LOG).read_bytes()
    entries = batches(data)
    cut = entries[4].position
    (partition / LOG).write_bytes(data[:cut] + bytes(50) + b"garbage" + data[cut:])
    found = [finding for finding in damage(look(logs)) if finding.file == str(partition / LOG)]
    assert [(finding.position, finding.reason) for finding in found] == [
        (cut, f"zeros instead of a batch; the next batch is at position {cut + 57}")
    ]


def test_records_that_contradict_their_batch_under_a_right_crc(logs: Path) -> None:
    partition = make_dir(logs, size=5000)
    data = (partition / LOG).read_bytes()
    first = read_header(data)
    broken = build_batch(first._replace(attributes=0, records_count=first.records_count + 1), data[61 : first.size])
    (partition / LOG).write_bytes(bytes(broken) + data[first.size :])
    found = damage(look(logs))
    assert [finding.file for finding in found] == [str(partition / LOG)]
    assert 0 <= found[0].position < first.size


def test_an_unknown_codec_with_an_index_entry_inside_of_its_batch(logs: Path) -> None:
    partition = make_dir(logs)
    data = (partition / LOG).read_bytes()
    relative, position = struct.unpack_from(">ii", (partition / INDEX).read_bytes(), 8)
    header = read_header(data, position)
    strange = build_batch(header._replace(attributes=6), data[position + 61 : position + header.size])
    _set(partition / LOG, position, bytes(strange))
    _set(partition / INDEX, 8, struct.pack(">i", max(relative - 1, 1)))
    reasons = [finding.reason for finding in damage(look(logs))]
    assert reasons == [finding.reason for finding in damage(look(logs, fast=True))]
    assert "unknown compression codec 6" in reasons


def test_index_entries_are_held_to_the_log(logs: Path) -> None:
    partition = make_dir(logs)
    index = (partition / INDEX).read_bytes()
    relative, position = struct.unpack_from(">ii", index, 16)
    _set(partition / INDEX, 16, struct.pack(">ii", relative + 1, position))
    times = (partition / TIMES).read_bytes()
    timestamp, offset = struct.unpack_from(">qi", times, 24)
    _set(partition / TIMES, 24, struct.pack(">qi", timestamp + 1, offset))
    found = damage(look(logs))
    assert [(Path(finding.file).name, finding.position, finding.offset) for finding in found] == [
        (INDEX, 16, relative + 1),
        (TIMES, 24, offset),
    ]
    assert (
        f"entry 2 says time {timestamp + 1} at offset {offset}; the largest timestamp of its batch is {timestamp}"
        in (found[1].reason)
    )


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        (INDEX, lambda data: data[:-3], "is not a multiple of 8"),
        (INDEX, lambda data: data[:8] + data[:8] + data[16:], "says offset"),
        (INDEX, lambda data: data + bytes(80), "in a log directory that was shut down cleanly"),
        (TIMES, lambda data: data[:-12], "the last time is"),
        (TIMES, lambda data: data + bytes(5), "is not a multiple of 12"),
        ("leader-epoch-checkpoint", lambda data: data[:-1], "the text is not as Kafka writes it"),
        ("leader-epoch-checkpoint", lambda data: b"1" + data[1:], "version 1 is unknown"),
        ("leader-epoch-checkpoint", lambda data: data.replace(b"\n0 0\n", b"\n0 3\n"), "and the log starts at 0"),
        ("partition.metadata", lambda data: data[:-1], "is not an id"),
        ("partition.metadata", lambda data: data[:-22] + b"AAAAAAAAAAAAAAAAAAAAAQ", "elsewhere in the log directory"),
    ],
)
def test_small_files(logs: Path, name: str, change: Callable[[bytes], bytes], reason: str) -> None:
    partition = make_dir(logs)
    before = (partition / name).read_bytes()
    (partition / name).write_bytes(change(before))
    assert (partition / name).read_bytes() != before
    assert any(reason in finding.reason for finding in damage(look(logs))), look(logs).findings


@pytest.mark.parametrize("name", [INDEX, TIMES])
def test_a_missing_index(logs: Path, name: str) -> None:
    partition = make_dir(logs)
    (partition / name).unlink()
    found = damage(look(logs))
    assert [(finding.file, finding.reason) for finding in found] == [(str(partition / name), "the file is missing")]


def test_a_missing_segment_is_a_gap_that_is_noted(logs: Path) -> None:
    partition = make_dir(logs, "rolled")
    second = sorted(partition.glob("*.log"))[1]
    base = int(second.stem)
    for path in partition.glob(f"{second.stem}.*"):
        if path.suffix != ".snapshot":
            path.unlink()
    verified = look(logs)
    notes = [finding for finding in verified.findings if finding.severity is Severity.NOTE]
    assert [finding.offset for finding in notes] == [base]
    assert "never compacted" in notes[0].reason


def test_a_partition_that_has_lost_its_only_log(logs: Path) -> None:
    (make_dir(logs) / LOG).unlink()
    verified = look(logs)
    assert (verified.partitions, verified.segments) == (1, 0)
    assert {Path(finding.file).name for finding in verified.findings} >= {INDEX, TIMES}


def test_snapshots_are_held_to_a_replay(logs: Path) -> None:
    partition = make_dir(logs, "rolled")
    snapshots = sorted(partition.glob("*.snapshot"))
    snapshots[1].write_bytes(snapshots[0].read_bytes())
    snapshots[2].write_bytes(snapshots[2].read_bytes()[:-1])
    found = damage(look(logs))
    assert {Path(finding.file) for finding in found} == {snapshots[1], snapshots[2]}
    assert any(", in the log " in finding.reason for finding in found)
    assert any("stored CRC" in finding.reason for finding in found)


def test_abort_indexes_are_held_to_a_replay(logs: Path) -> None:
    partition = make_dir(logs, "transactions")
    (path,) = partition.glob("*.txnindex")
    data = path.read_bytes()
    path.write_bytes(data[34:])
    assert ["which is missing here" in finding.reason for finding in damage(look(logs))] == [True]
    path.write_bytes(data[:10] + struct.pack(">q", struct.unpack_from(">q", data, 10)[0] + 1) + data[18:])
    assert ["in the log it begins at" in finding.reason for finding in damage(look(logs))] == [True]
    path.unlink()
    assert len(damage(look(logs))) == len(data) // 34


def test_a_log_that_is_shorter_than_all_else_says(logs: Path) -> None:
    partition = make_dir(logs)
    data = (partition / LOG).read_bytes()
    last = batches(data)[-1]
    (partition / LOG).write_bytes(data[: last.position])
    reasons = " ".join(finding.reason for finding in damage(look(logs)))
    assert f"the log ends at offset {last.offset}, and was flushed up to" in reasons
    assert ".snapshot lies behind it" in reasons


def test_checkpoints_of_the_directory(logs: Path) -> None:
    make_dir(logs)
    (logs / "recovery-point-offset-checkpoint").write_bytes(b"0\n1\nt 0 99999\n")
    assert any("was flushed up to 99999" in finding.reason for finding in damage(look(logs)))
    (logs / "recovery-point-offset-checkpoint").write_bytes(b"0\n2\nt 0 1\n")
    assert any("2 entries are announced, 1 are there" in finding.reason for finding in damage(look(logs)))
    (logs / "meta.properties").write_bytes(b"version=7\n")
    assert any(finding.file == str(logs / "meta.properties") for finding in damage(look(logs)))
    (logs / "lost+found").mkdir()
    assert any("Kafka does not start while it exists" in finding.reason for finding in damage(look(logs)))
