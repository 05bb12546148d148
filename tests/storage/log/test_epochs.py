"""Leader epochs against a dumb model, a list that says of every offset which epoch wrote it; and the file's text."""

from __future__ import annotations

import random
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.core.errors import CorruptCheckpointError
from seglog.core.ground import Ground
from seglog.records.record import NewRecord
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.formats.checkpoints import (
    EpochEntry,
    decode_epochs,
    encode_epochs,
    read_leader_epochs,
    write_leader_epochs,
)
from seglog.storage.log.dir_health import DirHealth
from seglog.storage.log.epochs import EpochEnd, LeaderEpochs
from seglog.storage.log.recovery import LogCheckpoint, load_log
from tests.cases import case
from tests.kit.manual_clock import ManualClock
from tests.kit.memory_fs import MemoryFs
from tests.storage.disk import CLEAN, PARTITION, PATH, SMALL, load, new_disk


def test_a_new_leader_begins_where_the_log_ends() -> None:
    epochs = LeaderEpochs()
    assert (epochs.latest, len(epochs), epochs.entries) == (-1, 0, [])
    assert epochs.assign(2, 0)
    assert epochs.assign(5, 10)
    assert not epochs.assign(5, 10)
    assert not epochs.assign(5, 12)  # the epoch has begun already
    assert epochs.entries == [EpochEntry(2, 0), EpochEntry(5, 10)]
    assert epochs.latest == 5


def test_an_assignment_removes_what_contradicts_it() -> None:
    epochs = LeaderEpochs([(1, 0), (2, 10), (3, 20)])
    assert epochs.assign(4, 20)  # nobody wrote in epoch 3
    assert epochs.entries == [(1, 0), (2, 10), (4, 20)]
    assert epochs.assign(5, 5)
    assert epochs.entries == [(1, 0), (5, 5)]
    assert epochs.assign(0, 7)
    assert epochs.entries == [(0, 7)]
    assert epochs.assign(0, 3)
    assert epochs.entries == [(0, 3)]


@pytest.mark.parametrize(("epoch", "start"), [(-1, 0), (0, -1)])
def test_invalid_epoch_or_start_offset_is_refused(epoch: int, start: int) -> None:
    with pytest.raises(ValueError, match="no leader epoch"):
        LeaderEpochs().assign(epoch, start)


def test_end_offsets_by_kip_279() -> None:
    epochs = LeaderEpochs([(2, 5), (4, 10), (7, 20)])
    asked = {epoch: epochs.end_offset_for(epoch, 30) for epoch in range(-1, 9)}
    assert asked == {
        -1: EpochEnd(-1, -1),
        0: EpochEnd(0, 5),
        1: EpochEnd(1, 5),
        2: EpochEnd(2, 10),
        3: EpochEnd(2, 10),
        4: EpochEnd(4, 20),
        5: EpochEnd(4, 20),
        6: EpochEnd(4, 20),
        7: EpochEnd(7, 30),
        8: EpochEnd(-1, -1),
    }
    assert LeaderEpochs().end_offset_for(3, 30) == EpochEnd(-1, -1)


def test_truncation_from_both_ends() -> None:
    epochs = LeaderEpochs([(2, 5), (4, 10), (7, 20)])
    copy = epochs.copy()
    assert not epochs.truncate_from_end(21)
    assert epochs.truncate_from_end(20)
    assert epochs.entries == [(2, 5), (4, 10)]
    assert not epochs.truncate_from_start(4)
    assert not epochs.truncate_from_start(5)
    assert epochs.truncate_from_start(7)
    assert epochs.entries == [(2, 7), (4, 10)]
    assert epochs.truncate_from_start(10)
    assert epochs.entries == [(4, 10)]
    assert epochs.truncate_from_start(99)  # the log is empty, its epoch begins with the next record
    assert epochs.entries == [(4, 99)]
    assert epochs.truncate_from_end(0)
    assert not epochs.clear()
    assert not epochs.truncate_from_end(-1)
    assert copy.entries == [(2, 5), (4, 10), (7, 20)]
    assert copy.clear()
    assert (copy.entries, copy.latest) == ([], -1)


def test_batches_are_right_where_epochs_contradict_them() -> None:
    epochs = LeaderEpochs([(0, 0), (1, 17), (2, 41), (5, 60)])
    assert not epochs.agree(0, 16)
    assert not epochs.agree(1, 17)
    assert not epochs.agree(1, 40)
    assert not epochs.agree(-1, 50)  # of an old format
    assert epochs.copy().agree(2, 40)  # it began earlier than was known
    assert epochs.agree(0, 17)  # the old end of the log is back
    assert epochs.entries == [(0, 0), (2, 41), (5, 60)]
    assert epochs.agree(0, 41)
    assert epochs.entries == [(0, 0), (5, 60)]
    assert epochs.agree(3, 50)  # one that was not known
    assert epochs.entries == [(0, 0), (3, 50), (5, 60)]
    assert epochs.agree(6, 55)
    assert epochs.entries == [(0, 0), (3, 50), (6, 55)]
    assert [epochs.next_start(offset) for offset in (0, 49, 50, 55)] == [50, 50, 55, 2**63 - 1]


class Offsets:
    """The dumb model: the epoch of each offset from ``start`` on."""

    def __init__(self) -> None:
        self.start = 0
        self.epochs: list[int] = []

    @property
    def end(self) -> int:
        return self.start + len(self.epochs)

    def append(self, epoch: int, count: int) -> None:
        self.epochs += [epoch] * count

    def truncate_to(self, offset: int) -> None:
        del self.epochs[max(offset - self.start, 0) :]

    def delete_before(self, offset: int) -> None:
        del self.epochs[: offset - self.start]
        self.start = offset

    def epoch_at(self, offset: int) -> int:
        return self.epochs[offset - self.start]

    def end_of(self, epoch: int) -> int:
        """End of the part whose epochs are at most this."""
        return self.start + sum(one <= epoch for one in self.epochs)


STEPS = st.lists(
    st.tuples(st.sampled_from(["append", "lead", "truncate", "delete"]), st.integers(0, 100), st.integers(0, 4)),
    max_size=30,
)


@given(STEPS)
def test_epochs_are_those_of_the_offsets(steps: list[tuple[str, int, int]]) -> None:
    """Leaders of rising epochs write, replicas truncate, retention deletes: the entries say what the list says."""
    case()
    model, epochs, leader = Offsets(), LeaderEpochs(), 0
    for step, percent, count in steps:
        offset = model.start + (model.end - model.start) * percent // 100
        if step == "append":
            model.append(leader, count)
            if count:
                epochs.assign(leader, model.end - count)
        elif step == "lead":
            leader += count
            epochs.assign(leader, model.end)
        elif step == "truncate":
            model.truncate_to(offset)
            epochs.truncate_from_end(offset)
        else:
            model.delete_before(offset)
            epochs.truncate_from_start(offset)
        starts = [entry.start_offset for entry in epochs.entries]
        assert starts == sorted(set(starts))
        assert [entry.epoch for entry in epochs.entries] == sorted({entry.epoch for entry in epochs.entries})
        for at in range(model.start, model.end):
            assert epochs.epoch_for_offset(at) == model.epoch_at(at)
        first = epochs.entries[0].epoch if len(epochs) else None
        for asked in range(leader + 2):
            found = epochs.end_offset_for(asked, model.end)
            if first is None or asked > epochs.latest:
                assert found == (-1, -1)
            elif asked >= first:
                assert found.end_offset == model.end_of(asked)
                assert found.epoch <= asked
            else:
                assert found == (asked, epochs.entries[0].start_offset)
        assert decode_epochs(encode_epochs(epochs.entries)) == epochs.entries


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"1\n0\n", "line 1: version 1 is unknown, 0 is expected"),
        (b"x\n0\n", "line 1: 'x' is not a number from 0 to 2147483647"),
        (b"0\n-1\n", "line 2: '-1' is not a number from 0 to 2147483647"),
        (b"0\n2\n0 0\n", "line 2: 2 entries are announced, 1 are there"),
        (b"0\n1\n0 0\n1 1\n", "line 2: 1 entries are announced, 2 are there"),
        (b"0\n1\n0 0 0\n", "line 3: '0 0 0' is not an epoch and an offset"),
        (b"0\n2\n0 0\n\n", "line 4: '' is not an epoch and an offset"),
        (b"0\n1\n0 x\n", "line 3: 'x' is not a number from 0 to 9223372036854775807"),
        (b"0\n1\n2147483648 0\n", "line 3: '2147483648' is not a number from 0 to 2147483647"),
        (b"0\n1\n0 9223372036854775808\n", "line 3: '9223372036854775808' is not a number"),
        (b"0\n1\n0 " + b"9" * 5000, "line 3: '99999"),
        (b"0\n1\n0 \xff\n", "not UTF-8"),
    ],
)
def test_a_malformed_file_names_itself_and_the_line(text: bytes, reason: str) -> None:
    with pytest.raises(CorruptCheckpointError) as caught:
        decode_epochs(text, "t-0/leader-epoch-checkpoint")
    assert caught.value.file == "t-0/leader-epoch-checkpoint"
    assert caught.value.reason.startswith(reason)


@pytest.mark.parametrize("text", [b"", b"0\n", b"0", b"0\n0", b"0\n0\n"])
def test_a_file_without_entries(text: bytes) -> None:
    assert decode_epochs(text) == []


def test_line_ends_of_other_systems_and_more_spaces_are_read() -> None:
    assert decode_epochs(b"0\r\n2\r\n0  0\r1\t5") == [(0, 0), (1, 5)]


@given(st.binary(max_size=40) | st.text("0123456789 \n-", max_size=20).map(str.encode))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    case()
    try:
        epochs = LeaderEpochs(decode_epochs(data, "f"))
    except CorruptCheckpointError:
        return
    assert decode_epochs(encode_epochs(epochs.entries)) == epochs.entries


def test_recovery_forgets_epochs_that_the_batches_do_not_know() -> None:
    """A power cut brought back the end of a log that was truncated at 3 and rewritten; the file of epochs was
    fsynced."""
    fs = MemoryFs()
    directory = LogDir.open("/log", ground=Ground(fs=fs))
    directory.create_topic("t")
    log = directory.log("t")
    for value in range(6):
        log.append_records([NewRecord(b"%d" % value)], leader_epoch=0)
    write_leader_epochs(fs, log.path, [(0, 0), (1, 3), (2, 7)])
    directory.flush()
    fs.fsync_dir(log.path)
    fs.crash(Random(0))
    with LogDir.open("/log", ground=Ground(fs=fs)) as again:
        assert again.log("t").epochs.entries == [(0, 0)]
        assert read_leader_epochs(fs, log.path) == [(0, 0)]


def test_an_epoch_without_records_gives_way_to_one_with_records_at_its_start() -> None:
    epochs = LeaderEpochs([(2, 0), (7, 120), (9, 150)])
    assert epochs.agree(8, 120)
    assert epochs.entries == [(2, 0), (8, 120), (9, 150)]
    assert not epochs.agree(8, 130)


class Held:
    """`Background`: a thread that does not get a turn."""

    def submit(self, task: object) -> None:
        pass

    def schedule(self, delay_ms: int, task: object) -> None:
        pass


@pytest.mark.parametrize("is_flushed", [False, True])
def test_epochs_of_batches_are_on_the_disk_before_the_recovery_point_passes_them(*, is_flushed: bool) -> None:
    """The thread that writes the file may be late: what it has not written, recovery finds in the batches."""
    fs = new_disk()
    log = load_log(
        ground=Ground(fs=fs, clock=ManualClock()),
        path=PATH,
        topic_partition=PARTITION,
        config=SMALL,
        health=DirHealth(PATH),
        known=CLEAN,
        background=Held(),
    ).log
    for epoch in (1, 1, 4, 6):
        log.append_records([NewRecord(b"v", timestamp=1)], leader_epoch=epoch)
    assert log.epochs.entries == [(1, 0), (4, 2), (6, 3)]
    assert not log.epoch_file.is_current
    if is_flushed:
        log.flush()
        assert log.epoch_file.is_current
    for seed in range(20):
        case()
        survivor = fs.after_crash(random.Random(seed))
        known = LogCheckpoint(clean=False, recovery_point=log.recovery_point)
        again = load(survivor, known).log
        end = again.log_end_offset
        assert end == 4 or not is_flushed
        assert again.epochs.entries == [entry for entry in log.epochs.entries if entry.start_offset < end]


def test_where_a_follower_cuts() -> None:
    epochs = LeaderEpochs([(0, 0), (2, 20), (5, 50)])
    assert epochs.truncation_point(EpochEnd(5, 55), 60) == 55
    assert epochs.truncation_point(EpochEnd(5, 70), 60) == 60
    assert epochs.truncation_point(EpochEnd(3, 40), 60) == 50  # ours up to there, and asked again about epoch 2
    assert epochs.truncation_point(EpochEnd(2, 30), 60) == 30
    assert epochs.truncation_point(EpochEnd(7, 40), 60) == 40
