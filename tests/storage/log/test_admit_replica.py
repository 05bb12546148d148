"""Batches that a follower accepts from its leader. Bytes from any origin are planned, or refused with our error."""

from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from seglog.core.config import LogConfig
from seglog.core.errors import (
    CorruptBatchError,
    InvalidRecordError,
    SeglogError,
    UnexpectedAppendOffsetError,
    UnknownLeaderEpochError,
)
from seglog.core.types import TimestampType
from seglog.records.batch import BATCH_OVERHEAD, check_crc, read_header
from seglog.records.compression import Codec
from seglog.records.record import end_txn_marker
from seglog.storage.log.admit import Duplicate, Origin
from tests.cases import case
from tests.records.made import batch_of
from tests.storage.log.appends import NOW_MS, PlannedLog, Traffic, made, planned, with_header

HOUR = 3_600_000
ALL_CODECS = tuple(Codec)


def follower(*batches: bytes, epoch: int = 5) -> PlannedLog:
    log = PlannedLog(leader_epoch=epoch)
    for data in batches:
        planned(log, data, Origin.REPLICATION)
    return log


def test_a_replica_takes_offsets_and_epochs_as_they_are() -> None:
    data = made(2, base_offset=10, leader_epoch=1) + made(1, base_offset=20, leader_epoch=1)
    data += made(1, base_offset=21, leader_epoch=3)
    log = follower(data)
    plan = log.plans[0]
    assert plan.data == data
    assert (plan.first_offset, plan.last_offset, len(plan.batches)) == (10, 21, 3)
    assert plan.epoch_starts == ((1, 10), (3, 21))
    assert log.epochs.entries == [(1, 10), (3, 21)]
    (again,) = follower(made(1, base_offset=21, leader_epoch=-1)).plans
    assert again.epoch_starts == ()


@pytest.mark.parametrize("offset", [0, 10, 11])
def test_a_replica_continues_its_log(offset: int) -> None:
    log = follower(made(2, base_offset=10, leader_epoch=1))
    with pytest.raises(UnexpectedAppendOffsetError, match=f"batch at offset {offset}, but the log continues at 12"):
        log.plan(made(5, base_offset=offset, leader_epoch=1), Origin.REPLICATION)
    with pytest.raises(UnexpectedAppendOffsetError):
        log.plan(made(1, base_offset=15) + made(1, base_offset=offset), Origin.REPLICATION)


def test_a_replica_leaves_torn_batches_and_those_of_later_epochs_out() -> None:
    first = made(2, leader_epoch=1)
    assert planned(follower(), first + made()[:-1], Origin.REPLICATION).data == first
    assert planned(follower(), memoryview(first + made()[:20]), Origin.REPLICATION).data == first
    assert planned(follower(), first + made(1, base_offset=2, leader_epoch=6), Origin.REPLICATION).data == first
    with pytest.raises(UnknownLeaderEpochError, match="a batch of leader epoch 6 in an append of epoch 5"):
        follower().plan(made(1, leader_epoch=6), Origin.REPLICATION)
    for nothing in (b"", first[:-1]):
        with pytest.raises(InvalidRecordError, match="no whole batch"):
            follower().plan(nothing, Origin.REPLICATION)


def test_a_replica_checks_every_batch() -> None:
    good = made(2, leader_epoch=1)
    bad = bytearray(made(1, base_offset=2, leader_epoch=1))
    bad[-1] ^= 1
    with pytest.raises(CorruptBatchError) as caught:
        follower().plan(good + bad, Origin.REPLICATION)
    assert (caught.value.position, caught.value.offset) == (len(good), 2)
    with pytest.raises(CorruptBatchError, match="last offset delta -1 is negative"):
        follower().plan(with_header(good, last_offset_delta=-1), Origin.REPLICATION)


def test_a_replica_takes_what_compaction_left() -> None:
    empty = bytes(batch_of(b"", last_offset_delta=4, records_count=0, producer_id=7, producer_epoch=0, base_sequence=3))
    gap = with_header(made(2), last_offset_delta=9, base_offset=8)
    log = follower(empty + gap)
    assert (log.end_offset, len(log.plans[0].batches)) == (18, 2)
    assert log.producers.entries[7].last_sequence == 7


def test_a_replica_follows_transactions() -> None:
    leader = PlannedLog(leader_epoch=1)
    data = made(2, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    planned(leader, data)
    marker = end_txn_marker(commit=False, coordinator_epoch=3, producer_id=7, producer_epoch=0, timestamp=NOW_MS)
    planned(leader, bytes(marker), Origin.COORDINATOR)
    log = follower(bytes(leader.data))
    assert log.producers.entries == leader.producers.entries
    assert log.plans[0].updates is not None
    assert [txn.is_aborted for txn in log.plans[0].updates.completed] == [True]
    assert log.last_stable_offset == leader.last_stable_offset == 3


# Anything


@given(st.integers(0, 10**6), st.sampled_from(list(Origin)), st.data())
def test_any_bytes_are_planned_or_refused_with_our_error(seed: int, origin: Origin, data: st.DataObject) -> None:
    """Random traffic, damaged at random, with the CRC mended or not: no other error, and a plan that can be read."""
    case()
    config = data.draw(
        st.sampled_from(
            [
                LogConfig(),
                LogConfig(seglog_validate_records=True),
                LogConfig(cleanup_policy=frozenset({"compact"})),
                LogConfig(compression_type="lz4", message_timestamp_type=TimestampType.LOG_APPEND_TIME),
                LogConfig(message_timestamp_before_max_ms=HOUR),
            ]
        )
    )
    log = PlannedLog(config, leader_epoch=0)
    traffic = Traffic(seed, codecs=ALL_CODECS, hostile_headers=True)
    for _ in range(4):
        sent = bytearray(traffic.next()[0])
        for _ in range(data.draw(st.integers(0, 2))):
            at = data.draw(st.integers(0, len(sent) - 1))
            sent[at] = data.draw(st.integers(0, 255))
        if data.draw(st.booleans()) and len(sent) > BATCH_OVERHEAD:
            sent[17:21] = crc32c(bytes(sent[21:])).to_bytes(4, "big")
        if data.draw(st.booleans()):
            sent = sent[data.draw(st.integers(0, 20)) :]
        before = log.end_offset
        try:
            plan = log.append(bytes(sent), origin)
        except SeglogError:
            continue
        if isinstance(plan, Duplicate):
            continue
        assert before <= plan.first_offset <= plan.last_offset == log.end_offset - 1
        position = 0
        for header in plan.batches:
            if header.magic == 2:
                assert read_header(plan.data, position) == header
                check_crc(plan.data, header, position)
            position += header.size
        assert position == len(plan.data)
        assert plan.batches[-1].last_offset == plan.last_offset
