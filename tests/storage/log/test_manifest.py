"""`seglog.manifest`: a sealed segment that is missing, emptied, shortened or exchanged is damage to every reader."""

from __future__ import annotations

import random

import pytest

from seglog.core.errors import CorruptCheckpointError, DamagedPartitionError
from seglog.core.fs import Fs
from seglog.core.ground import Ground
from seglog.records.record import NewRecord
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.formats.paths import MANIFEST, WITNESS
from seglog.storage.log.log import Log
from seglog.storage.log.manifest import Manifest, SealedSegment, decode_manifest, encode_manifest, read_manifest
from seglog.storage.offline.repair import carry_out, plan_repair
from seglog.storage.offline.verify import verify
from seglog.storage.offline.verify.manifests import chain_of
from tests.kit.crash_fs import Call, CrashFs
from tests.kit.manual_clock import ManualClock
from tests.kit.memory_fs import MemoryFs
from tests.storage.directories import DIR, TINY, T, flushed_log, open_dir
from tests.storage.disk import fill, name, prefix, values

PARTITION = f"{DIR}/t-0"
ENTRIES = [SealedSegment(0, 11, 1870, 1, None), SealedSegment(11, 22, 1871, 2, 7), SealedSegment(22, 30, 1872, 3, 9)]


def closed(records: int = 60) -> tuple[MemoryFs, list[int]]:
    """A log of several segments, closed cleanly, and its base offsets."""
    fs, opened, log = flushed_log(records)
    bases = [segment.base_offset for segment in log.segments]
    opened.close()
    return fs, bases


def agrees(fs: Fs, log: Log) -> None:
    """The manifest knows all flushed segments but the active one, as they are."""
    entries = log.manifest.entries
    assert read_manifest(fs, log.path) == entries
    sealed = {segment.base_offset: segment for segment in log.segments[:-1]}
    assert entries.keys() == sealed.keys()
    for base, entry in entries.items():
        assert entry._replace(chain=None) == sealed[base].sealed()._replace(chain=None)
        if entry.chain is not None:
            file = fs.open(sealed[base].paths.log, write=False)
            assert entry.chain == chain_of(file)
            file.close()


def refuse(fs: Fs, match: str) -> None:
    for _ in range(2):
        with open_dir(fs) as opened, pytest.raises(DamagedPartitionError, match=match):
            opened.log("t")


# The file


def test_a_torn_append_is_passed_over_and_a_flipped_entry_is_not() -> None:
    data = encode_manifest(ENTRIES)
    decoded = decode_manifest(data)
    assert list(decoded.entries.values()) == ENTRIES
    for size in range(88, 128):
        assert list(decode_manifest(data[:size]).entries.values()) == ENTRIES[:2]
        assert decode_manifest(data[:size]).size == 88
    assert list(decode_manifest(data[:88] + bytes(80)).entries.values()) == ENTRIES[:2]
    for position in range(88):
        flipped = bytearray(data)
        flipped[position] ^= 1
        with pytest.raises(CorruptCheckpointError):
            decode_manifest(bytes(flipped))


def test_an_append_behind_a_torn_one_takes_its_place() -> None:
    fs, _ = closed()
    file = f"{PARTITION}/{MANIFEST}"
    whole = fs.read(file)
    fs.write(file, whole[:-50])
    manifest = Manifest.open(fs, PARTITION)
    manifest.add([SealedSegment(55, 60, 850, 5, None)])
    assert list(read_manifest(fs, PARTITION)) == [0, 11, 22, 33, 55]


# What it notices


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("how", ["deleted", "emptied", "shortened", "extended"])
def test_a_flushed_hole_is_damage(how: str, clean: bool) -> None:
    fs, bases = closed()
    path = name(bases[2], ".log")
    data = fs.read(path)
    if not clean:
        fs.unlink(f"{DIR}/.kafka_cleanshutdown")
    if how == "deleted":
        fs.unlink(path)
    else:
        fs.write(path, {"emptied": b"", "shortened": data[:1700], "extended": data + data[:170]}[how])
    files = set(fs.files())
    refuse(fs, rf"{path}.*by {MANIFEST} it holds offsets 22 to 32 in 1870 bytes")
    assert files - set(fs.files()) <= {f"{DIR}/.kafka_cleanshutdown"}, "the evidence stays"
    verified = verify([DIR], fs=fs)
    assert verified.is_damaged
    assert any(finding.file == path for finding in verified.findings)
    assert verify([DIR], fs=fs, since_manifest=True).is_damaged


def test_a_segment_of_another_partition_is_noticed() -> None:
    fs, opened, log = flushed_log(60)
    opened.create_topic("other", 1, TINY)
    other = opened.log("other")
    for at in range(60):
        other.append_records([NewRecord(f"{at}!".encode().ljust(100, b"."), timestamp=1_000 + at)])
    assert [one.base_offset for one in other.segments] == [one.base_offset for one in log.segments]
    opened.close()
    fs.write(name(22, ".log"), fs.read(name(22, ".log").replace("t-0", "other-0")))
    refuse(fs, "it is another file: its last batch ends before offset 33")
    assert verify([DIR], fs=fs).is_damaged
    assert verify([DIR], fs=fs, since_manifest=True).is_damaged


def test_a_bit_that_no_crc_covers_is_in_the_chain() -> None:
    fs, bases = closed()
    path = name(bases[1], ".log")
    data = bytearray(fs.read(path))
    data[170 * 3 + 15] ^= 1  # the leader epoch of a batch in the middle
    fs.write(path, data)
    assert any("headers of its batches" in finding.reason for finding in verify([DIR], fs=fs).findings)


def test_damage_in_the_manifest_is_found_and_repaired_and_refuses_nothing() -> None:
    fs, _ = closed()
    file = f"{PARTITION}/{MANIFEST}"
    whole = fs.read(file)
    for position in (0, 20, len(whole) - 1):
        fs.write(file, whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        assert [finding.file for finding in verify([DIR], fs=fs).findings] == [file]
        carry_out(plan_repair(DIR, fs=fs), fs=fs, clock=ManualClock())
        assert fs.read(file) == whole
        assert not verify([DIR], fs=fs).findings
    fs.write(file, b"what is this")
    with open_dir(fs) as opened:
        assert values(opened.log("t")) == prefix(60)
        fill(opened.log("t"), 20)
        agrees(fs, opened.log("t"))


def test_repair_goes_on_without_a_segment_only_when_it_is_asked_to() -> None:
    fs, bases = closed()
    fs.unlink(name(bases[2], ".log"))
    (reason,) = plan_repair(DIR, fs=fs).all_refusals
    assert "--salvage" in reason
    plan = plan_repair(DIR, fs=fs, salvage=True)
    assert any("the missing part of offsets 22 to 32" in str(step) for step in plan.all_steps)
    carry_out(plan, fs=fs, clock=ManualClock())
    with open_dir(fs) as opened:
        assert values(opened.log("t")) == {at: data for at, data in prefix(60).items() if not 22 <= at < 33}
    assert not verify([DIR], fs=fs).is_damaged


def test_since_manifest_reads_what_is_not_in_it() -> None:
    fs, bases = closed()
    everything = verify([DIR], fs=fs)
    some = verify([DIR], fs=fs, since_manifest=True)
    assert (some.findings, some.segments) == ([], everything.segments)
    assert 0 < some.batches < everything.batches
    path = name(bases[-1], ".log")
    data = bytearray(fs.read(path))
    data[100] ^= 1
    fs.write(path, data)
    assert verify([DIR], fs=fs, since_manifest=True).is_damaged


# How it is kept


def test_the_chain_goes_on_after_a_clean_start() -> None:
    fs, bases = closed()
    with open_dir(fs) as opened:
        log = opened.log("t")
        fill(log, 40)
        agrees(fs, log)
        assert log.manifest.entries[bases[-1]].chain is not None


def test_a_partition_of_one_segment_has_no_manifest() -> None:
    fs, _ = closed(5)
    assert not any(MANIFEST in path or WITNESS in path for path in fs.files())


def test_manifest_stays_correct_through_random_changes() -> None:
    fs, opened, log = flushed_log(120)
    rng = random.Random(1)
    for _ in range(25):
        fill(log, rng.randrange(20))
        choice = rng.randrange(5)
        if choice == 0:
            opened.truncate_to("t", 0, rng.randrange(log.log_start_offset, log.log_end_offset + 1))
        elif choice == 1:
            opened.delete_records("t", 0, rng.randrange(log.log_start_offset, log.high_watermark + 1))
            opened.run_retention()
        elif choice == 2:
            opened.truncate_fully_and_start_at("t", 0, log.log_end_offset + rng.randrange(3))
            fill(log, 60)
        elif choice == 3:
            opened.close()
            opened = open_dir(fs)
            log = opened.log("t")
        else:
            opened.alter_config("t", {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01})
            for at in range(40):
                log.append_records([NewRecord(b"x" * 80, key=b"%d" % (at % 3), timestamp=5_000 + at)])
            assert opened.run_compaction()
            log.roll()
            opened.alter_config("t", {"cleanup.policy": None})
        log.flush()
        log.roll()
        agrees(fs, log)
    opened.close()
    assert not verify([DIR], fs=fs).is_damaged


def test_a_power_cut_between_seal_and_manifest_is_no_damage() -> None:
    disk = MemoryFs(clock=ManualClock())
    seen = set()

    def crash(call: Call) -> None:
        for outcome in range(2):
            left = disk.after_crash(random.Random(call.number * 2 + outcome))
            with LogDir.open(DIR, ground=Ground(fs=left, clock=ManualClock())) as found:
                assert not found.refused, (call, found.refused)
                if T in found.partitions():
                    log = found.log("t")
                    seen.add((len(log.segments), len(log.manifest.entries)))

    fs = CrashFs(disk, before_change=crash)
    with open_dir(fs) as opened:
        opened.create_topic("t", 1, TINY)
        fill(opened.log("t"), 40)
        opened.truncate_to("t", 0, 15)
        fill(opened.log("t"), 20)
        opened.delete_records("t", 0, 24)
        opened.run_retention()
        opened.truncate_fully_and_start_at("t", 0, 100)
        fill(opened.log("t"), 15)
    assert any(entries == segments - 1 > 1 for segments, entries in seen)
    assert any(0 < entries < segments - 1 for segments, entries in seen)


def test_a_sealed_segment_that_is_written_again_after_a_power_cut_is_not_sealed() -> None:
    """The power cut took the segment behind it, whose name was not on the disk yet."""
    fs, _, log = flushed_log(60)
    lost, last = log.segments[-1].base_offset, log.segments[-2].base_offset
    assert last in log.manifest.entries
    fs.kill()
    for path in [f"{PARTITION}/{one}" for one in fs.listdir(PARTITION) if one.startswith(f"{lost:020d}.")]:
        fs.unlink(path)
    opened = open_dir(fs)
    log = opened.log("t")
    assert log.active.base_offset == last
    assert last not in read_manifest(fs, PARTITION)
    fill(log, 3)
    fs.kill()
    with open_dir(fs) as opened:
        assert opened.log("t").log_end_offset == lost + 3


# Another writer


def test_without_its_witness_it_is_not_believed_and_made_anew() -> None:
    fs, bases = closed()
    fs.unlink(f"{PARTITION}/{WITNESS}")  # as a Kafka does that loads the partition
    for kind in (".log", ".index", ".timeindex"):
        fs.unlink(name(bases[2], kind))
    assert not verify([DIR], fs=fs).is_damaged
    with open_dir(fs) as opened:
        log = opened.log("t")
        assert log.manifest.entries == {}
        fill(log, 20)
        agrees(fs, log)
    fs.unlink(name(bases[1], ".log"))
    refuse(fs, "the file is missing")


def test_segments_of_another_writer_are_taken_up_at_close() -> None:
    fs, bases = closed()
    for own in (WITNESS, MANIFEST):
        fs.unlink(f"{PARTITION}/{own}")
    open_dir(fs).close()
    assert list(read_manifest(fs, PARTITION)) == bases[:-1]
    assert not verify([DIR], fs=fs).findings
