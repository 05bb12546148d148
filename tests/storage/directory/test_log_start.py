"""A log start offset above the log's end: a lost tail is legal after a power cut, else the checkpoint is damaged."""

from __future__ import annotations

import random

import pytest

from seglog.core.errors import DamagedPartitionError
from seglog.core.types import TopicPartition
from seglog.storage.formats.checkpoints import read_offsets
from seglog.storage.offline.repair import carry_out, plan_repair
from seglog.storage.offline.verify import verify
from tests.kit.crash_fs import Call, CrashFs
from tests.kit.memory_fs import MemoryFs
from tests.storage.directories import DIR, T, flushed_log, open_dir
from tests.storage.disk import fill, prefix, values

CHECKPOINT = f"{DIR}/log-start-offset-checkpoint"
PARTITION = f"{DIR}/t-0"


def closed_with_start(offset: int) -> MemoryFs:
    """A cleanly closed log of offsets 0 to 29 whose checkpoint then says that it starts at ``offset``."""
    fs, opened, _ = flushed_log()
    opened.close()
    fs.write(CHECKPOINT, f"0\n1\nt 0 {offset}\n".encode())
    return fs


def logs_of(fs: MemoryFs) -> dict[str, bytes]:
    return {path.rpartition("/")[2]: data for path, data in fs.files().items() if path.endswith(".log")}


def test_a_flipped_digit_is_refused_and_deletes_nothing() -> None:
    fs = closed_with_start(600)
    before = logs_of(fs)
    for _ in range(3):  # the second start finds no marker of a clean shutdown
        opened = open_dir(fs)
        with pytest.raises(DamagedPartitionError, match=rf"{CHECKPOINT}, line 3: .*starts at offset 600.*ends at 30"):
            opened.log("t")
        with pytest.raises(DamagedPartitionError, match=r"seglog repair .*--log-start checkpoint"):
            opened.log("t")
        opened.close()
        assert logs_of(fs) == before
    assert verify([DIR], fs=fs).findings


@pytest.mark.parametrize("starts", [1, 2])
def test_repair_lets_the_log_start_at_its_first_segment(starts: int) -> None:
    fs = closed_with_start(600)
    for _ in range(starts):
        open_dir(fs).close()
    plan = plan_repair(DIR, fs=fs)
    assert any("not 600, which is above its end 30" in str(step) for step in plan.all_steps)
    carry_out(plan, fs=fs)
    with open_dir(fs) as opened:
        assert values(opened.log("t")) == prefix(30)
    assert not verify([DIR], fs=fs).is_damaged


def test_repair_keeps_the_checkpointed_start_if_it_is_asked_to() -> None:
    fs = closed_with_start(600)
    before = logs_of(fs)
    open_dir(fs).close()
    plan = plan_repair(DIR, fs=fs, keep_log_start=True)
    assert any("offsets 0 to 29 (saved)" in str(step) for step in plan.all_steps)
    (done,) = carry_out(plan, fs=fs)
    assert logs_of(fs) == before
    assert done.backup is not None
    assert {path.rpartition("/")[2] for path in fs.files() if path.startswith(done.backup)} >= before.keys()
    with open_dir(fs) as opened:
        log = opened.log("t")
        assert (log.log_start_offset, log.log_end_offset) == (600, 600)
        fill(log, 2)
        assert values(log) == prefix(602, start=600)
    assert not verify([DIR], fs=fs).is_damaged


def test_a_digit_that_is_set_right_by_hand_is_taken() -> None:
    fs = closed_with_start(600)
    open_dir(fs).close()
    fs.write(CHECKPOINT, b"0\n1\nt 0 6\n")
    with open_dir(fs) as opened:
        assert values(opened.log("t")) == prefix(30, start=6)
    fs.write(CHECKPOINT, b"0\n1\nt 0 600\n")
    with open_dir(fs) as opened:
        assert T in opened.refused


def unflushed_behind_start() -> MemoryFs:
    """Records up to 45 are deleted and the start is durable; of the log only what was flushed, up to 30."""
    fs, opened, log = flushed_log()
    fill(log, 20)
    opened.delete_records("t", 0, 45)
    for seed in range(100):
        left = fs.after_crash(random.Random(seed))
        with open_dir(left) as found:
            if found.reports[T].emptied is not None:
                return fs.after_crash(random.Random(seed))
    raise AssertionError("no power cut takes the tail")


def test_a_lost_tail_saves_the_segments_and_the_log_starts_at_the_checkpoint() -> None:
    fs = unflushed_behind_start()
    before = {path: data for path, data in fs.files().items() if path.endswith(".log")}
    with open_dir(fs) as opened:
        emptied = opened.reports[T].emptied
        assert emptied is not None
        assert "starts at offset 45" in str(emptied)
        log = opened.log("t")
        assert (log.log_start_offset, log.log_end_offset) == (45, 45)
        fill(log, 3)
        assert values(log) == prefix(48, start=45)
    for path, data in before.items():
        saved = fs.read(f"{emptied.saved}/{path.rpartition('/')[2]}")
        assert data.startswith(saved), path  # a torn end may have been cut off before
    assert {path.rpartition("/")[2] for path in before} == {f"{base:020d}.log" for base in emptied.segments}


def test_a_power_cut_while_segments_are_saved_loses_none() -> None:
    disk = unflushed_behind_start()
    flushed = {at: data for at, data in prefix(30).items() if at < 45}
    offsets: list[int] = []

    def crash(call: Call) -> None:
        left = disk.after_crash(random.Random(call.number))
        with open_dir(left) as opened:
            assert not opened.refused
            assert opened.log("t").log_start_offset == 45
        kept = b"".join(data for path, data in left.files().items() if path.endswith(".log"))
        assert all(value in kept for value in flushed.values())
        offsets.append(call.number)

    fs = CrashFs(disk, before_change=crash)
    open_dir(fs).close()
    assert len(offsets) > 20


def test_an_interrupted_truncation_below_the_start_is_no_damage() -> None:
    fs, opened, _ = flushed_log(40)
    opened.delete_records("t", 0, 35)
    disk = CrashFs(fs)
    opened.close()
    opened = open_dir(disk)

    def crash(call: Call) -> None:
        left = fs.after_crash(random.Random(call.number))
        with open_dir(left) as found:
            assert not found.refused, call

    cutting = CrashFs(fs, before_change=crash)
    opened.close()
    opened = open_dir(cutting)
    opened.truncate_to("t", 0, 20)
    assert read_offsets(fs, CHECKPOINT).get(TopicPartition("t", 0), 0) <= 20
    opened.truncate_fully_and_start_at("t", 0, 10)
    fill(opened.log("t"), 3)
    opened.close()
    with open_dir(fs) as again:
        assert values(again.log("t")) == prefix(13, start=10)
