"""Replicas are compared below the high watermark, and damage comes back from the replica that does not have it."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from seglog.core.errors import LogDirInUseError
from seglog.core.fs import File, Fs, OsFs
from seglog.core.types import TopicPartition
from seglog.records.batch import patch_offset_and_epoch, read_header
from seglog.records.record import NewRecord, encode_batch
from seglog.storage.formats.checkpoints import write_offsets
from seglog.storage.formats.paths import CLEANER_OFFSETS
from seglog.storage.offline.findings import Severity
from seglog.storage.offline.fsck import replica_reads
from seglog.storage.offline.fsck.check import (
    Difference,
    FsckReport,
    Place,
    PlaceCall,
    PlaceRunner,
    PlannedRepair,
    RepairStoppedError,
    carry_out_repairs,
    check,
    plan_repairs,
    run_here,
)
from seglog.storage.offline.fsck.replica_reads import read_replica
from seglog.storage.offline.repair import plan_repair
from tests import golden
from tests.cases import case, is_long
from tests.kafka.jars import CURRENT
from tests.kit.crash_fs import CrashFs, SimulatedCrash
from tests.kit.manual_clock import ManualClock
from tests.kit.memory_fs import MemoryFs
from tests.storage.offline.verify.verified import KINDS, batches, flip, make_dir
from tests.storage.offline.written_segments import numbered, write_segment

Edit = Callable[[random.Random, bytes], bytes]


def _places(*paths: Path) -> list[Place]:
    return [Place(str(path)) for path in paths]


def _run_on(fs: Fs) -> PlaceRunner:
    def run(calls: Sequence[PlaceCall]) -> list[Any]:
        return [call.function(fs, *call.arguments) for call in calls]

    return run


def _copies(path: Path, kind: str, count: int, *, size: int = 50_000) -> list[Path]:
    first = path / "1"
    make_dir(first, kind, size=size)
    others = [path / str(number) for number in range(2, count + 1)]
    for other in others:
        shutil.copytree(first, other)
    return [first, *others]


def _logs(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.glob("*/*.log")}


def _mend(places: Sequence[Place], run: PlaceRunner = run_here) -> FsckReport:
    planned = plan_repairs(check(places, run, workers=1), run)
    assert [reason for one in planned for reason in one.plan.all_refusals] == []
    carry_out_repairs(planned, run)
    return check(places, run, workers=1)


def _flip_a_record(rng: random.Random, data: bytes) -> bytes:
    entry = rng.choice(batches(data))
    return flip(data, rng.randrange(entry.position + 21, entry.position + entry.size), rng.randrange(8))


def _garble_a_batch(rng: random.Random, data: bytes) -> bytes:
    entry = rng.choice(batches(data))
    return data[: entry.position] + rng.randbytes(entry.size) + data[entry.position + entry.size :]


def _zero_a_page(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + bytes(len(data[at : at + 512])) + data[at + 512 :]


def _change_a_size(rng: random.Random, data: bytes) -> bytes:
    return flip(data, rng.choice(batches(data)).position + 8 + rng.randrange(4), rng.randrange(8))


def _cut_in_a_batch(rng: random.Random, data: bytes) -> bytes:
    return data[: -rng.randrange(1, batches(data)[-1].size)]


def _cut_batches(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.choice(batches(data)[1:]).position] if len(batches(data)) > 1 else data[:-1]


EDITS: tuple[Edit, ...] = (
    _flip_a_record,
    _garble_a_batch,
    _zero_a_page,
    _change_a_size,
    _cut_in_a_batch,
    _cut_batches,
)


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("kind", KINDS)
def test_damage_comes_back_from_the_replica_that_has_the_batches(tmp_path: Path, kind: str, edit: Edit) -> None:
    rng = random.Random(f"{kind}{edit.__name__}")
    replicas = _copies(tmp_path, kind, 3)
    whole = _logs(replicas[0])
    for _ in range(10 if is_long() else 1):
        names = sorted(whole)
        rng.shuffle(names)
        for replica, name in zip(replicas, names, strict=False):  # each at another place
            (replica / name).write_bytes(edit(rng, whole[name]))
        report = check(_places(*replicas), workers=1)
        assert report.is_damaged
        after = _mend(_places(*replicas))
        assert not after.is_damaged
        for replica in replicas:
            assert _logs(replica) == whole
        case()


def test_directories_of_kafka_have_no_differences_and_get_their_batches_back(tmp_path: Path) -> None:
    first = golden.log_dir(golden.unpack(tmp_path / "1", CURRENT))
    second = golden.log_dir(golden.unpack(tmp_path / "2", CURRENT))
    whole = _logs(first)
    report = check(_places(first, second), workers=1)
    assert not report.is_damaged
    assert len([one for one in report.partitions if one.compared is not None]) > 10
    rng = random.Random(6)
    damaged = [name for name, data in whole.items() if len(batches(data)) > 2][:4]
    for name in damaged:
        (first / name).write_bytes(_flip_a_record(rng, whole[name]))
    assert not _mend(_places(first, second)).is_damaged
    assert _logs(first) == whole


def test_what_no_replica_has_is_refused_and_stays(tmp_path: Path) -> None:
    first, second = _copies(tmp_path, "plain", 2)
    name, data = next(iter(_logs(first).items()))
    at = batches(data)[1].position + 80
    for replica in (first, second):
        (replica / name).write_bytes(flip(data, at, 1))
    planned = plan_repairs(check(_places(first, second), workers=1))
    assert len([reason for one in planned for reason in one.plan.all_refusals]) == 2
    assert carry_out_repairs(planned) == []
    assert _logs(second)[name] == flip(data, at, 1)


# Sound replicas that differ


def _sound(path: Path, made: Sequence[bytes | bytearray], epochs: str = "0\n1\n0 0\n") -> Path:
    write_segment(path / "web-0", 0, made)
    (path / "web-0" / "leader-epoch-checkpoint").write_text(epochs)
    end = read_header(made[-1]).next_offset
    write_offsets(OsFs(), str(path / "replication-offset-checkpoint"), {TopicPartition("web", 0): end})
    return path


def _of_epoch(epoch: int, made: Sequence[bytes | bytearray]) -> list[bytearray]:
    changed = [bytearray(one) for one in made]
    for one in changed:
        patch_offset_and_epoch(one, 0, read_header(one).base_offset, epoch)
    return changed


def _differences(*paths: Path) -> list[Difference]:
    (checked,) = check(_places(*paths), workers=1).partitions
    return list(checked.differences)


def _other(made: Sequence[bytearray], at: int, value: bytes = b"other", **changes: Any) -> list[bytearray]:
    header = read_header(made[at])
    records = [NewRecord(value, timestamp=1000 * (header.base_offset + one)) for one in range(header.records_count)]
    other = encode_batch(records, base_offset=header.base_offset, leader_epoch=header.leader_epoch, **changes)
    return [*made[:at], other, *made[at + 1 :]]


def test_the_majority_is_right_if_crcs_and_epochs_are(tmp_path: Path) -> None:
    made = _of_epoch(0, numbered(0, 30))
    first, second, third = (tmp_path / name for name in "abc")
    _sound(first, _other(made, 4))
    _sound(second, made)
    _sound(third, made)
    (found,) = _differences(first, second, third)
    assert (found.first, found.end, found.severity) == (12, 15, Severity.DAMAGE)
    assert found.right == (str(second / "web-0"), str(third / "web-0"))
    assert found.why == "2 of 3 replicas have the same"
    (found,) = _differences(first, second)
    assert found.right == ()
    assert "the files do not tell" in str(found)


def test_the_leader_epoch_decides_first(tmp_path: Path) -> None:
    made = _of_epoch(0, numbered(0, 30))
    wrong = [*made[:4], *_of_epoch(7, made[4:5]), *made[5:]]
    paths = [_sound(tmp_path / name, batches) for name, batches in (("a", wrong), ("b", made), ("c", wrong))]
    differing = [one for one in _differences(*paths) if one.severity is Severity.DAMAGE]
    assert {one.right for one in differing} == {(str(paths[1] / "web-0"),)}
    assert {one.why for one in differing} == {"leader epoch 0"}


def test_records_that_a_replica_lacks_are_a_difference_and_a_later_start_is_none(tmp_path: Path) -> None:
    made = _of_epoch(0, numbered(0, 30))
    first, second = _sound(tmp_path / "a", made), _sound(tmp_path / "b", [*made[:3], *made[4:]])
    (found,) = _differences(first, second)
    assert str(found) == (
        f"offsets 9 to 11: 3 records missing in {second / 'web-0'}; right is {first / 'web-0'} "
        "(a sound batch of the right leader epoch)"
    )
    shutil.rmtree(second)
    _sound(second, made)
    write_segment(second / "web-0", 15, made[5:])
    for path in (second / "web-0").glob(f"{0:020d}.*"):
        path.unlink()
    assert _differences(first, second) == []


def test_differences_far_apart_are_not_one(tmp_path: Path) -> None:
    made = _of_epoch(0, numbered(0, 300))
    first, second = _sound(tmp_path / "a", made), _sound(tmp_path / "b", [*made[:3], *made[4:60], *made[61:]])
    assert [(one.first, one.end) for one in _differences(first, second)] == [(9, 12), (180, 183)]
    third = _sound(tmp_path / "c", _same_size(made, 5))
    fourth = _sound(tmp_path / "d", _same_size(_same_size(made, 70), 71))
    found = _differences(third, fourth, first)
    assert {(one.first, one.end, one.right) for one in found} == {
        (15, 18, (str(fourth / "web-0"), str(first / "web-0"))),
        (210, 216, (str(third / "web-0"), str(first / "web-0"))),
    }


def test_each_leader_epoch_is_judged_alone(tmp_path: Path) -> None:
    made = numbered(0, 60)
    led = [*_of_epoch(0, made[:6]), *_of_epoch(2, made[6:])]
    wrong = [*led[:5], *_of_epoch(2, made[5:6]), *_of_epoch(0, made[6:7]), *led[7:]]
    checkpoint = "0\n2\n0 0\n2 18\n"
    first, second = _sound(tmp_path / "a", led, checkpoint), _sound(tmp_path / "b", wrong, checkpoint)
    found = [(one.first, one.end, one.why) for one in _differences(first, second)]
    assert found == [(15, 18, "leader epoch 0"), (18, 21, "leader epoch 2")]


def test_compacted_replicas_may_lack_records_with_a_key(tmp_path: Path) -> None:
    records = [[NewRecord(b"v%d" % at, b"k%d" % (at % 3), 1000 * at)] for at in range(20)]
    made = [encode_batch(each, base_offset=at, leader_epoch=0) for at, each in enumerate(records)]
    first, second = _sound(tmp_path / "a", made), _sound(tmp_path / "b", [*made[:1], *made[9:]])
    assert len(_differences(first, second)) == 1
    write_offsets(OsFs(), str(second / CLEANER_OFFSETS), {TopicPartition("web", 0): 15})
    assert _differences(first, second) == []
    shutil.rmtree(second)
    _sound(second, [*made[:1], *_other(made, 9)[9:]])
    write_offsets(OsFs(), str(second / CLEANER_OFFSETS), {TopicPartition("web", 0): 15})
    (found,) = _differences(first, second)
    assert (found.first, found.end) == (9, 10)


def test_compacted_replicas_may_lack_records_without_a_key(tmp_path: Path) -> None:
    """The cleaner removes those that were there before the topic was compacted (``Cleaner.shouldRetainRecord``)."""
    records = [[NewRecord(b"v", None if at < 5 else b"k%d" % (at % 3), 1000 * at)] for at in range(20)]
    made = [encode_batch(each, base_offset=at, leader_epoch=0) for at, each in enumerate(records)]
    first, second = _sound(tmp_path / "a", made), _sound(tmp_path / "b", made[5:])
    write_offsets(OsFs(), str(second / CLEANER_OFFSETS), {TopicPartition("web", 0): 15})
    assert _differences(first, second) == []


def _then(act: Callable[[], object]) -> PlaceRunner:
    """Runs calls, and does something after the first ones, which read the replicas."""
    acts = [act]

    def run(calls: Sequence[PlaceCall]) -> list[Any]:
        made = run_here(calls)
        while acts:
            acts.pop()()
        return made

    return run


def test_ids_that_differ_for_a_moment_are_none(tmp_path: Path) -> None:
    made = _of_epoch(0, numbered(0, 30))
    texts = [f"version: 0\ntopic_id: {topic_id}" for topic_id in ("86Gyw9TlT2CBcYKTpLXG1w", "86Gyw9TlT2CBcYKTpLXG1A")]
    for name, text in zip("ab", texts, strict=True):
        _sound(tmp_path / name, made)
        (tmp_path / name / "web-0" / "partition.metadata").write_text(text)
    places = _places(tmp_path / "a", tmp_path / "b")
    metadata = tmp_path / "b" / "web-0" / "partition.metadata"
    (checked,) = check(places, _then(lambda: metadata.write_text(texts[0])), workers=1).partitions
    assert (checked.compared, checked.differences) == ((0, 30), [])
    metadata.write_text(texts[1])
    (checked,) = check(places, _then(lambda: shutil.rmtree(metadata.parent)), workers=1).partitions
    assert (checked.compared, checked.differences) == (None, [])


def test_a_difference_that_cannot_be_seen_again_is_none(tmp_path: Path) -> None:
    made = _of_epoch(0, numbered(0, 30))
    first, second = _sound(tmp_path / "a", made), _sound(tmp_path / "b", [*made[:3], *made[4:]])
    reads = 0

    def run(calls: Sequence[PlaceCall]) -> list[Any]:
        nonlocal reads
        if calls[0].function is read_replica:
            shutil.rmtree(second)
        reads += calls[0].function is read_replica
        return run_here(calls)

    (checked,) = check(_places(first, second), run, workers=1).partitions
    assert (reads, checked.differences) == (1, [])


def test_records_of_a_former_leader_are_a_note(tmp_path: Path) -> None:
    made = numbered(0, 30)
    shared = _of_epoch(0, made[:6])
    led = _sound(tmp_path / "a", [*shared, *_of_epoch(2, made[6:])], "0\n2\n0 0\n2 18\n")
    former = _sound(tmp_path / "b", [*shared, *_of_epoch(1, _other(made, 7)[6:])], "0\n2\n0 0\n1 18\n")
    report = check(_places(led, former), workers=1)
    assert not report.is_damaged
    (found,) = report.partitions[0].differences
    assert (found.first, found.end, found.severity) == (18, 30, Severity.NOTE)
    assert f"{former / 'web-0'} has records of a former leader" in str(found)


def test_topics_of_one_name_are_not_compared(tmp_path: Path) -> None:
    made = _of_epoch(0, numbered(0, 30))
    for name, topic_id in (("a", "86Gyw9TlT2CBcYKTpLXG1w"), ("b", "86Gyw9TlT2CBcYKTpLXG1A")):
        _sound(tmp_path / name, made)
        (tmp_path / name / "web-0" / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}")
    (found,) = _differences(tmp_path / "a", tmp_path / "b")
    assert str(found) == "two topics share this name but have different ids; not compared"


# Damaged files beside the logs


_DAMAGED = (
    "replication-offset-checkpoint",
    "log-start-offset-checkpoint",
    "recovery-point-offset-checkpoint",
    "cleaner-offset-checkpoint",
    "seglog.topics",
    "web-0/partition.metadata",
    "web-0/leader-epoch-checkpoint",
)
_NO_DAMAGE = (".kafka_cleanshutdown", "meta.properties", "seglog.watermarks", "web-0/seglog.manifest")
"""`verify` reports no damage of these."""


@pytest.mark.parametrize("name", [*_DAMAGED, *_NO_DAMAGE])
def test_a_small_file_of_garbage_does_not_end_the_check(tmp_path: Path, name: str) -> None:
    made = _of_epoch(0, numbered(0, 30))
    first = _sound(tmp_path / "a", made)
    shutil.copytree(first, tmp_path / "b")
    (first / name).write_bytes(b"garbage\xff\n")
    for since_manifest in (False, True):
        report = check(_places(first, tmp_path / "b"), since_manifest=since_manifest, workers=1)
        assert [one for each in report.partitions for one in each.differences] == []
    assert report.is_damaged == (name in _DAMAGED)
    assert [bool(one.plan.all_steps or one.plan.all_refusals) for one in plan_repairs(report)] == [True] * (
        name in _DAMAGED
    )


def test_a_damaged_high_watermark_claims_no_offset(tmp_path: Path) -> None:
    """Records that it does not prove to be committed are no difference."""
    made = _of_epoch(0, numbered(0, 30))
    first, second = _sound(tmp_path / "a", made), _sound(tmp_path / "b", _other(made, 9))
    assert len(_differences(first, second)) == 1
    (first / "replication-offset-checkpoint").write_text("garbage")
    assert _differences(first, second) == []


# Replicas that disagree about a damaged batch


def _hit(directory: Path, made: Sequence[bytes | bytearray], at: int, where: int = 64) -> bytes:
    """Flip a bit in batch ``at``; return the whole log as it is then."""
    log = directory / "web-0" / f"{0:020d}.log"
    log.write_bytes(flip(log.read_bytes(), sum(map(len, made[:at])) + where, 0))
    return log.read_bytes()


def _same_size(made: Sequence[bytearray], at: int, epoch: int = 0) -> list[bytearray]:
    """Another batch of the same size there, sound too."""
    header = read_header(made[at])
    records = [
        NewRecord(b"0" * len(b"%d" % offset), timestamp=1000 * offset)
        for offset in range(header.base_offset, header.next_offset)
    ]
    other = encode_batch(records, base_offset=header.base_offset, leader_epoch=epoch)
    assert len(other) == len(made[at])
    return [*made[:at], other, *made[at + 1 :]]


def _planned(*paths: Path) -> list[PlannedRepair]:
    return plan_repairs(check(_places(*paths), workers=1))


@pytest.mark.parametrize("order", ["abc", "acb"])
def test_of_donors_that_disagree_the_one_that_continues_the_header_restores(tmp_path: Path, order: str) -> None:
    made = _of_epoch(0, numbered(0, 300))
    first = _sound(tmp_path / "a", made)
    whole = (first / "web-0" / f"{0:020d}.log").read_bytes()
    _hit(first, made, 5)
    _sound(tmp_path / "b", _same_size(made, 5))
    _sound(tmp_path / "c", made)
    carry_out_repairs(_planned(*(tmp_path / name for name in order)))
    assert (first / "web-0" / f"{0:020d}.log").read_bytes() == whole


def test_donors_that_disagree_restore_nothing_if_no_header_tells(tmp_path: Path) -> None:
    made = _of_epoch(0, numbered(0, 300))
    first = _sound(tmp_path / "a", made)
    damaged = _hit(first, made, 5, where=18)  # the stored CRC
    others = [_sound(tmp_path / "b", _same_size(made, 5)), _sound(tmp_path / "c", made)]
    (planned,) = _planned(first, *others)
    (reason,) = planned.plan.all_refusals
    names = [str(one / "web-0" / f"{0:020d}.log") for one in others]
    assert f"{names[0]} and {names[1]} have different batches there, each of them sound" in reason
    assert carry_out_repairs([planned]) == []
    assert (first / "web-0" / f"{0:020d}.log").read_bytes() == damaged


@pytest.mark.parametrize("where", [8, 20, 64])
def test_damage_beside_the_wanted_batches_of_a_donor_does_not_matter(tmp_path: Path, where: int) -> None:
    made = _of_epoch(0, numbered(0, 300))
    first, second = _sound(tmp_path / "a", made), _sound(tmp_path / "b", made)
    whole = (first / "web-0" / f"{0:020d}.log").read_bytes()
    _hit(first, made, 5)
    _hit(second, made, 6, where)
    assert not _mend(_places(first, second)).is_damaged
    assert (second / "web-0" / f"{0:020d}.log").read_bytes() == whole


def test_others_are_compared_where_the_first_replica_is_damaged(tmp_path: Path) -> None:
    made = _of_epoch(0, numbered(0, 300))
    first = _sound(tmp_path / "a", made)
    _hit(first, made, 5)
    second, third = _sound(tmp_path / "b", _same_size(made, 5)), _sound(tmp_path / "c", made)
    (found,) = _differences(first, second, third)
    assert (found.first, found.end, found.severity) == (15, 18, Severity.DAMAGE)
    assert set(found.replicas) == {str(second / "web-0"), str(third / "web-0")}


@pytest.mark.parametrize("cut", [False, True])
def test_a_longer_stretch_than_fsck_sends_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, cut: bool
) -> None:
    monkeypatch.setattr(replica_reads, "MOST_BYTES", 200)
    first, second = _copies(tmp_path, "plain", 2)
    ((name, data),) = _logs(first).items()
    start, end = batches(data)[2].position, batches(data)[12].position
    damaged = data[:start] if cut else data[:start] + bytes(end - start) + data[end:]
    (first / name).write_bytes(damaged)
    (planned,) = _planned(first, second)
    (reason, *_) = planned.plan.all_refusals
    assert "fsck restores 200 bytes in a row at the most: use repair --from with a replica" in reason
    assert carry_out_repairs([planned]) == []
    assert (first / name).read_bytes() == damaged
    plan = plan_repair(str(first / "t-0"), replica=str(second))
    assert plan.all_refusals == []


# The repairs of several directories


def _two_damaged(path: Path) -> tuple[Path, Path, dict[str, bytes]]:
    first, second = _copies(path, "plain", 2)
    ((name, data),) = whole = list(_logs(first).items())
    for replica, at in ((first, 1), (second, 3)):
        (replica / name).write_bytes(flip(data, batches(data)[at].position + 80, 0))
    return first, second, dict(whole)


def test_no_directory_is_repaired_if_one_of_them_is_in_use(tmp_path: Path) -> None:
    first, second, whole = _two_damaged(tmp_path)
    planned = _planned(first, second)
    damaged = _logs(first)
    lock = OsFs().lock(str(second / ".lock"))
    with pytest.raises(LogDirInUseError):
        carry_out_repairs(planned)
    lock.release()
    assert _logs(first) == damaged
    assert len(carry_out_repairs(planned)) == 2
    assert _logs(first) == _logs(second) == whole


def test_only_the_plan_that_was_shown_is_carried_out(tmp_path: Path) -> None:
    first, second, whole = _two_damaged(tmp_path)
    planned = _planned(first, second)
    (name,) = whole
    changed = flip((second / name).read_bytes(), batches(whole[name])[5].position + 80, 0)
    (second / name).write_bytes(changed)
    with pytest.raises(RepairStoppedError) as raised:
        carry_out_repairs(planned)
    assert f"{second / 't-0'} has changed since its repair was planned" in str(raised.value)
    (backup,) = (first / "t-0" / ".seglog").glob("backup-*")
    assert f"repaired before that: {first / 't-0'} (the originals are in {backup})" in str(raised.value)
    assert (_logs(first), _logs(second)) == (whole, {name: changed})


def test_two_partitions_of_one_directory_are_repaired(tmp_path: Path) -> None:
    made = _of_epoch(0, numbered(0, 30))
    first = _sound(tmp_path / "a", made)
    shutil.copytree(first / "web-0", first / "web-1")
    write_offsets(
        OsFs(), str(first / "replication-offset-checkpoint"), {TopicPartition("web", at): 30 for at in range(2)}
    )
    shutil.copytree(first, tmp_path / "b")
    whole = _logs(first)
    for name, data in whole.items():
        (first / name).write_bytes(flip(data, batches(data)[-1].position + 64, 0))
    assert not _mend(_places(first, tmp_path / "b")).is_damaged
    assert _logs(first) == whole


# Without a checkpoint of leader epochs


@pytest.mark.parametrize(("at", "where"), [(7, 64), (6, 64), (6, 18), (19, 18), (19, 64)])
@pytest.mark.parametrize("checkpoint", [None, "garbage"])
def test_a_batch_of_a_former_leader_is_never_restored(
    tmp_path: Path, at: int, where: int, checkpoint: str | None
) -> None:
    """Batch 6 is the first of the later epoch, batch 19 the last of the log."""
    made = numbered(0, 60)
    shared = _of_epoch(0, made[:6])
    led = [*shared, *_of_epoch(2, made[6:])]
    other = _same_size(_same_size(_same_size(_of_epoch(1, made), 6, 1), 7, 1), 19, 1)
    first = _sound(tmp_path / "a", led, "0\n2\n0 0\n2 18\n")
    former = _sound(tmp_path / "b", [*shared, *other[6:]], "0\n2\n0 0\n1 18\n")
    whole = (first / "web-0" / f"{0:020d}.log").read_bytes()
    damaged = _hit(first, led, at, where)
    epochs = first / "web-0" / "leader-epoch-checkpoint"
    epochs.unlink() if checkpoint is None else epochs.write_text(checkpoint)
    carry_out_repairs(_planned(first, former))
    assert (first / "web-0" / f"{0:020d}.log").read_bytes() == damaged
    right = _sound(tmp_path / "c", led, "0\n2\n0 0\n2 18\n")
    carry_out_repairs(_planned(first, right))
    after = (first / "web-0" / f"{0:020d}.log").read_bytes()
    assert after == (damaged if (at, where) == (19, 18) else whole)


# Incremental


class _CountingFs(OsFs):
    """Counts the bytes that are read from each log."""

    def __init__(self) -> None:
        self.bytes: dict[str, int] = {}

    def open(self, path: str, *, create: bool = False, write: bool = True) -> File:
        opened = super().open(path, create=create, write=write)
        pread = opened.pread

        def counted(length: int, position: int) -> bytes:
            data = pread(length, position)
            self.bytes[path] = self.bytes.get(path, 0) + len(data)
            return data

        return _Counted(opened, counted)


class _Counted:
    def __init__(self, file: File, pread: Callable[[int, int], bytes]) -> None:
        self._file = file
        self.pread = pread

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def test_with_a_manifest_only_the_rest_is_read(tmp_path: Path) -> None:
    replicas = _copies(tmp_path, "rolled", 2)
    fs = _CountingFs()
    assert not check(_places(*replicas), _run_on(fs), since_manifest=True, workers=1).is_damaged
    read, active = fs.bytes, max(name for name in _logs(replicas[0]))
    sizes = {str(replica / name): len(data) for replica in replicas for name, data in _logs(replica).items()}
    for path, size in sizes.items():
        if not path.endswith(active):
            assert read.get(path, 0) < size, path
    whole = _CountingFs()
    check(_places(*replicas), _run_on(whole), workers=1)
    assert sum(read.values()) * 2 < sum(whole.bytes.values())


def test_manifests_of_other_segments_are_compared_by_batches(tmp_path: Path) -> None:
    first, second = _copies(tmp_path, "rolled", 2)
    (second / "t-0" / "seglog.manifest").unlink()
    assert not any(one.differences for one in check(_places(first, second), since_manifest=True, workers=1).partitions)


def test_damage_that_the_comparison_meets_is_reported_with_a_manifest(tmp_path: Path) -> None:
    first, second = _copies(tmp_path, "rolled", 2)
    (second / "t-0" / "seglog.manifest").unlink()
    name, data = next(iter(sorted(_logs(first).items())))
    entry = batches(data)[1]
    (first / name).write_bytes(flip(data, entry.position + 18, 0))  # the stored CRC
    report = check(_places(first, second), since_manifest=True, workers=1)
    (found,) = report.partitions[0].differences
    assert (found.first, found.severity) == (entry.offset, Severity.DAMAGE)
    assert f"{first / 't-0'} has a damaged batch; right is {second / 't-0'} (to repair it" in str(found)


# Crashes


def _in_memory(replicas: Sequence[Path]) -> MemoryFs:
    fs = MemoryFs(clock=ManualClock())
    for number, replica in enumerate(replicas):
        fs.mkdir(f"/{number}")
        for path in sorted(replica.rglob("*")):
            target = f"/{number}/{path.relative_to(replica)}"
            if path.is_dir():
                fs.mkdir(target)
            else:
                fs.write(target, path.read_bytes())
        for directory in ("/", f"/{number}", f"/{number}/t-0"):
            fs.fsync_dir(directory)
    return fs


@pytest.mark.parametrize("power_cut", [False, True])
def test_a_crash_at_every_change_of_a_repair(tmp_path: Path, power_cut: bool) -> None:
    """The power fails at every odd call, the process dies at every even one; in `make test-long` both at each."""
    replicas = _copies(tmp_path, "rolled", 2, size=20_000)
    whole = _logs(replicas[0])
    assert len(whole) > 1
    rng = random.Random(9)
    for edit, name in zip((_flip_a_record, _cut_batches), (min(whole), max(whole)), strict=True):
        (replicas[0] / name).write_bytes(edit(rng, whole[name]))
    places = [Place("/0"), Place("/1")]
    counted = CrashFs(_in_memory(replicas))
    assert not _mend(places, _run_on(counted)).is_damaged
    for number in range(1 if power_cut or is_long() else 2, counted.changes + 1, 1 if is_long() else 2):
        fs = _in_memory(replicas)
        with pytest.raises(SimulatedCrash):
            _mend(places, _run_on(CrashFs(fs, crash_at=number)))
        if power_cut:
            fs.crash(random.Random(number))
        assert not _mend(places, _run_on(fs)).is_damaged, counted.trace[number - 1]
        assert {name: fs.read(f"/0/{name}") for name in whole} == whole
        case()
