"""A producer's last five batches are recognised also after a start from a snapshot, which keeps one of them."""

from __future__ import annotations

from contextlib import closing
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.core.config import LogConfig
from seglog.core.errors import OutOfOrderSequenceError
from seglog.core.types import MAX_INT32
from seglog.records.record import NewRecord, encode_batch, end_txn_marker
from seglog.storage.log import producer_snapshots
from seglog.storage.log.log import AppendResult, Log
from seglog.storage.log.producer_entry import BATCHES_KEPT
from seglog.storage.log.producers import Origin
from seglog.storage.log.recovery import LogCheckpoint
from tests.cases import case
from tests.kit.memory_fs import MemoryFs
from tests.storage.disk import CLEAN, PATH, load, name, new_disk
from tests.storage.log.appends import with_header
from tests.storage.log.recovering import NOW_MS


class Sent(NamedTuple):
    """A batch that was appended, and where."""

    data: bytes
    first_offset: int


class Sender:
    """A producer that numbers its batches and keeps them."""

    def __init__(self, producer_id: int = 7, sequence: int = 0, *, transactional: bool = False) -> None:
        self.sent: list[Sent] = []
        self.epoch = 0
        self._producer_id = producer_id
        self._sequence = sequence
        self._transactional = transactional

    def next(self, count: int = 1, size: int = 40) -> bytes:
        data = encode_batch(
            [NewRecord(bytes(size), timestamp=NOW_MS)] * count,
            producer_id=self._producer_id,
            producer_epoch=self.epoch,
            base_sequence=self._sequence,
            transactional=self._transactional,
        )
        self._sequence = (self._sequence + count) & MAX_INT32
        return bytes(data)

    def send(self, log: Log, *, times: int = 1, count: int = 1, size: int = 40) -> None:
        for _ in range(times):
            data = self.next(count, size)
            self.sent.append(Sent(data, log.append(data, origin=Origin.CLIENT).first_offset))

    def end_transaction(self, log: Log) -> None:
        log.append(
            end_txn_marker(
                commit=True,
                coordinator_epoch=0,
                producer_id=self._producer_id,
                producer_epoch=self.epoch,
                timestamp=NOW_MS,
            ),
            origin=Origin.COORDINATOR,
        )


def retry(log: Log, sent: Sent) -> AppendResult:
    return log.append(sent.data, origin=Origin.CLIENT)


def is_remembered(log: Log, sent: Sent) -> bool:
    end = log.log_end_offset
    try:
        result = retry(log, sent)
    except OutOfOrderSequenceError:
        return False
    assert (result.duplicate, result.first_offset, log.log_end_offset) == (True, sent.first_offset, end)
    return True


def after_crash(fs: MemoryFs, log: Log) -> Log:
    """Killed, and all was flushed up to the active segment: recovery begins with the snapshot at its base."""
    return load(fs, known=LogCheckpoint(recovery_point=log.active.base_offset)).log


def after_stop(fs: MemoryFs, log: Log) -> Log:
    log.close()
    return load(fs, known=CLEAN).log


AGAIN = {"crash": after_crash, "stop": after_stop}


@pytest.mark.parametrize("how", AGAIN)
@pytest.mark.parametrize("transactional", [False, True])
def test_all_five_are_recognised_after_a_start(how: str, transactional: bool) -> None:
    fs = new_disk()
    log = load(fs).log
    sender = Sender(transactional=transactional)
    sender.send(log, times=7, count=3)
    log.roll()
    log = AGAIN[how](fs, log)
    oldest_known = sender.sent[-BATCHES_KEPT:]
    assert [is_remembered(log, one) for one in oldest_known] == [True] * BATCHES_KEPT
    assert not is_remembered(log, sender.sent[1])  # as without a start
    sender.send(log)
    assert is_remembered(log, sender.sent[-BATCHES_KEPT])


@pytest.mark.parametrize("how", AGAIN)
def test_the_oldest_may_be_retried_first_or_after_new_batches(how: str) -> None:
    fs = new_disk()
    log = load(fs).log
    sender = Sender()
    sender.send(log, times=5)
    log.roll()
    log = AGAIN[how](fs, log)
    sender.send(log, times=2)
    assert is_remembered(log, sender.sent[2])
    assert not is_remembered(log, sender.sent[1])


def test_snapshots_stay_as_kafkas() -> None:
    fs = new_disk()
    log = load(fs).log
    sender = Sender()
    sender.send(log, times=5)
    log.close()
    path = producer_snapshots.snapshot_path(PATH, 5)
    before = fs.read(path)
    log = load(fs, known=CLEAN).log
    assert is_remembered(log, sender.sent[0])
    log.close()
    assert fs.read(path) == before


def test_batches_are_found_across_segments_and_other_producers() -> None:
    fs = new_disk()
    log = load(fs, config=LogConfig(segment_bytes=1000, index_interval_bytes=100)).log
    senders = [Sender(producer_id) for producer_id in range(1, 30)]
    for _ in range(BATCHES_KEPT):
        for sender in senders:
            sender.send(log)
    assert len(log.segments) > BATCHES_KEPT
    log = after_stop(fs, log)
    for sender in senders:
        assert all(is_remembered(log, one) for one in sender.sent)


def test_sequences_that_wrap() -> None:
    fs = new_disk()
    log = load(fs).log
    Sender(8).send(log)  # a log that is not empty accepts any first sequence
    sender = Sender(sequence=MAX_INT32 - 3)
    sender.send(log, times=4, count=2)
    log = after_stop(fs, log)
    assert all(is_remembered(log, one) for one in sender.sent)


def test_markers_between_batches_do_not_count() -> None:
    fs = new_disk()
    log = load(fs).log
    sender = Sender(transactional=True)
    for _ in range(BATCHES_KEPT):
        sender.send(log)
        sender.end_transaction(log)
    log = after_stop(fs, log)
    assert all(is_remembered(log, one) for one in sender.sent)


def test_batches_of_an_earlier_epoch_stay_unknown() -> None:
    fs = new_disk()
    log = load(fs).log
    sender = Sender()
    sender.send(log, times=2)
    sender.epoch, sender._sequence = 1, 0
    sender.send(log, times=2)
    log = after_stop(fs, log)
    assert all(is_remembered(log, one) for one in sender.sent[2:])


def test_a_gap_ahead_needs_no_search() -> None:
    fs = new_disk()
    log = load(fs).log
    sender = Sender()
    sender.send(log, times=3)
    log = after_stop(fs, log)
    sender.next()
    for _ in range(2):
        with pytest.raises(OutOfOrderSequenceError):
            log.append(sender.next(), origin=Origin.CLIENT)
    assert log.producers.abridged == {7}
    assert is_remembered(log, sender.sent[0])
    assert not log.producers.abridged


def test_a_gap_in_the_log_ends_the_search() -> None:
    """Compaction may have removed a batch: those before it are not the ones that precede the others."""
    fs = new_disk()
    log = load(fs).log
    sender = Sender()
    sender.send(log, times=2)
    lost = sender.next()
    for _ in range(2):
        data = sender.next()
        replicated = with_header(data, base_offset=log.log_end_offset)
        sender.sent.append(Sent(data, log.append(replicated, origin=Origin.REPLICATION).first_offset))
    log = after_stop(fs, log)
    assert is_remembered(log, sender.sent[2])
    with pytest.raises(OutOfOrderSequenceError):
        log.append(lost, origin=Origin.CLIENT)
    assert not is_remembered(log, sender.sent[1])


def test_a_truncated_replica_remembers_too() -> None:
    fs = new_disk()
    log = load(fs, hw_follows_end=False).log
    sender = Sender()
    sender.send(log, times=4)
    log.roll()
    sender.send(log, times=3)
    log.truncate_to(4)
    assert all(is_remembered(log, one) for one in sender.sent[:4])


def test_deleted_batches_stay_unknown() -> None:
    fs = new_disk()
    log = load(fs).log
    sender = Sender()
    sender.send(log, times=2)
    log.roll()
    sender.send(log, times=2)
    log.roll()
    log.close()
    for suffix in (".log", ".index", ".timeindex"):
        fs.unlink(name(0, suffix))
    log = load(fs, known=LogCheckpoint(clean=True, recovery_point=4, log_start_offset=2)).log
    assert [is_remembered(log, one) for one in sender.sent] == [False, False, True, True]


def test_damage_before_the_batches_is_no_reason_to_fail_otherwise() -> None:
    fs = new_disk()
    log = load(fs).log
    sender = Sender()
    sender.send(log, times=4)
    log.roll()
    log = after_stop(fs, log)
    data = bytearray(fs.read(name(0, ".log")))
    data[16] = 9  # the magic of the first batch
    with closing(fs.open(name(0, ".log"))) as file:
        file.pwrite(bytes(data), 0)
    assert not is_remembered(log, sender.sent[2])


def test_a_log_that_cannot_be_read_is_searched_again() -> None:
    fs = new_disk()
    log = load(fs).log
    sender = Sender()
    sender.send(log, times=4)
    log = after_stop(fs, log)
    fs.fail_at("pread", 1)
    with pytest.raises(OSError, match="Input/output error"):
        retry(log, sender.sent[1])
    assert is_remembered(log, sender.sent[1])


def test_the_search_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_snapshots, "_LOOKED_AT", 50)
    for others, is_found in ((48, True), (50, False)):
        fs = new_disk()
        log = load(fs).log
        sender, other = Sender(), Sender(8)
        sender.send(log)
        other.send(log, times=others)
        sender.send(log)
        log = after_stop(fs, log)
        assert is_remembered(log, sender.sent[0]) is is_found


class Step(NamedTuple):
    kind: int
    who: int
    size: int


@given(
    st.lists(st.builds(Step, kind=st.integers(0, 12), who=st.integers(0, 2), size=st.integers(1, 3)), max_size=40),
    st.sampled_from([100, 400, 1 << 20]),
)
def test_any_start_remembers_as_if_there_had_been_none(steps: list[Step], interval: int) -> None:
    case()
    fs = new_disk()
    config = LogConfig(segment_bytes=4000, index_interval_bytes=interval)
    log = load(fs, config=config).log
    senders = [Sender(7), Sender(8, transactional=True), Sender(23)]
    for step in steps:
        sender = senders[step.who]
        if step.kind == 0:
            log.close()
            log = load(fs, known=CLEAN, config=config).log
        elif step.kind == 1:
            log = load(fs, known=LogCheckpoint(recovery_point=log.active.base_offset), config=config).log
        elif step.kind == 2:
            log.roll()
        elif step.kind == 3 and sender.sent:
            assert is_remembered(log, sender.sent[max(len(sender.sent) - step.size - 2, 0)])
        else:
            sender.send(log, count=step.size)
    for sender in senders:
        assert all(is_remembered(log, one) for one in reversed(sender.sent[-BATCHES_KEPT:]))
