"""Damaged batches come back from a replica, byte for byte: directories of real Kafkas, damaged at random."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import pytest

from seglog.core.errors import InvalidLogDirError
from seglog.storage.offline.repair import carry_out, plan_repair
from seglog.storage.offline.verify import verify
from tests import golden
from tests.cases import case, is_long
from tests.cli.run import Run, run_here
from tests.kafka.jars import CURRENT, OLD, KafkaVersion
from tests.storage.offline.written_segments import numbered, write_segment


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    return run_here(capfdbinary)


def _logs(partition: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in partition.glob("*.log")}


def _batches(data: bytes) -> list[tuple[int, int]]:
    """Where each batch begins and ends."""
    found, position = [], 0
    while position < len(data):
        size = int.from_bytes(data[position + 8 : position + 12]) + 12
        found.append((position, position + size))
        position += size
    return found


def _damage(random: Random, path: Path) -> bool:
    """Change the records of some batches, but not of the last one; False if there is only one."""
    data = bytearray(path.read_bytes())
    batches = _batches(bytes(data))[:-1]
    if not batches:
        return False
    for start, end in random.sample(batches, min(len(batches), random.randrange(1, 4))):
        kind = random.randrange(3)
        at = random.randrange(start + 21, end)
        if kind == 0:
            data[at] ^= 1 << random.randrange(8)
        elif kind == 1:
            data[at:end] = bytes(end - at)
        else:
            data[start:end] = random.randbytes(end - start)
    path.write_bytes(data)
    return True


@pytest.mark.parametrize("version", [CURRENT, OLD])
def test_damage_of_any_batch_between_others_is_restored(tmp_path: Path, version: KafkaVersion) -> None:
    replica = golden.log_dir(golden.unpack(tmp_path / "replica", version))
    random = Random(version)
    for name in golden.partitions(golden.unpack(tmp_path / "names", version)):
        for _ in range(20 if is_long() else 1):
            partition = tmp_path / "log" / name
            shutil.rmtree(tmp_path / "log", ignore_errors=True)
            shutil.copytree(replica / name, partition)
            damaged = [path for path in sorted(partition.glob("*.log")) if _damage(random, path)]
            if not damaged:
                continue
            case()
            plan = plan_repair(str(partition), replica=str(replica))
            assert plan.all_refusals == [], name
            carry_out(plan)
            assert _logs(partition) == _logs(replica / name), name
            assert not verify([str(partition)]).is_damaged


def _two(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Two replicas, of which the first is damaged in the middle of its first segment; and that file."""
    ours, theirs = tmp_path / "a" / "web-0", tmp_path / "b" / "web-0"
    for replica in (ours, theirs):
        write_segment(replica, 0, numbered(0, 12))
        write_segment(replica, 12, numbered(12, 12))
    path = next(ours.glob("*0000.log"))
    data = bytearray(path.read_bytes())
    _, end = _batches(bytes(data))[1]
    data[end - 1] ^= 1
    path.write_bytes(data)
    return ours, theirs, path


def test_the_command_shows_its_plan_and_names_the_replica(tmp_path: Path, run: Run) -> None:
    ours, theirs, path = _two(tmp_path)
    damaged = path.read_bytes()
    assert "refused: " in run("repair", ours, "--dry-run").text
    planned = run("repair", ours, "--from", theirs, "--dry-run")
    assert planned.code == 1
    assert "set the bytes of offsets 3 to 5 at position " in planned.text
    assert f": as in {theirs / path.name} (stored CRC" in planned.text
    assert path.read_bytes() == damaged
    done = run("repair", tmp_path / "a", "--from", tmp_path / "b", "--yes")
    assert done.code == 0, done.text
    assert _logs(ours) == _logs(theirs)
    missing = run("repair", ours, "--from", tmp_path / "none", "--dry-run")
    assert (missing.code, missing.err) == (2, f"seglog: --from {tmp_path / 'none'}: not a directory\n")


def test_nothing_is_taken_from_a_replica_that_differs(tmp_path: Path) -> None:
    ours, theirs, path = _two(tmp_path)
    other = theirs / path.name
    whole = other.read_bytes()
    start, end = _batches(whole)[1]
    other.write_bytes(whole[: end - 1] + bytes([whole[end - 1] ^ 2]) + whole[end:])  # damaged at the same place
    assert plan_repair(str(ours), replica=str(theirs)).all_refusals
    other.write_bytes(whole[:start] + whole[end:])  # compacted in another way
    assert plan_repair(str(ours), replica=str(theirs)).all_refusals
    shutil.rmtree(theirs)
    assert plan_repair(str(ours), replica=str(tmp_path / "b")).all_refusals


def test_a_batch_of_another_leader_epoch_is_not_taken(tmp_path: Path) -> None:
    ours, theirs, _ = _two(tmp_path)
    (ours / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    for log in theirs.glob("*.log"):
        data = bytearray(log.read_bytes())
        for start, _ in _batches(bytes(data)):
            data[start + 12 : start + 16] = (7).to_bytes(4)
        log.write_bytes(data)
    assert plan_repair(str(ours), replica=str(theirs)).all_refusals


def test_another_topic_or_the_partition_itself_is_refused(tmp_path: Path) -> None:
    ours, theirs, _ = _two(tmp_path)
    (ours / "partition.metadata").write_text("version: 0\ntopic_id: 86Gyw9TlT2CBcYKTpLXG1w")
    (theirs / "partition.metadata").write_text("version: 0\ntopic_id: 86Gyw9TlT2CBcYKTpLXG1A")
    with pytest.raises(InvalidLogDirError, match="it is no replica of it"):
        plan_repair(str(ours), replica=str(theirs))
    with pytest.raises(InvalidLogDirError, match="is the partition that is repaired"):
        plan_repair(str(ours), replica=str(ours))
