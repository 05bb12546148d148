"""`Log.records`: everything from here to there, checked, in order, by a loop that ends or waits."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime
from typing import Any

import pytest

import seglog
from seglog.core.errors import (
    CorruptBatchError,
    InvalidReadError,
    InvalidRecordError,
    LogClosedError,
    OffsetOutOfRangeError,
)
from seglog.records.record import NewRecord, encode_batch, end_txn_marker
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.log.admit import Origin
from seglog.storage.log.log import Log
from seglog.storage.log.reader import RecordReader
from tests.kit.manual_clock import ManualClock
from tests.kit.memory_fs import MemoryFs
from tests.storage.directories import TINY, flushed_log
from tests.storage.disk import fill, name, overwrite, prefix


def read(reader: RecordReader) -> dict[int, bytes]:
    return {record.offset: record.value or b"" for record in reader}


def transaction(log: Log, producer_id: int, sequence: int, values: list[bytes], *, commit: bool | None) -> None:
    batch = encode_batch(
        [NewRecord(value, timestamp=5_000) for value in values],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        transactional=True,
    )
    log.append(batch)
    if commit is not None:
        marker = end_txn_marker(
            commit=commit, coordinator_epoch=1, producer_id=producer_id, producer_epoch=0, timestamp=5_000
        )
        log.append(bytes(marker), origin=Origin.COORDINATOR)


@pytest.fixture
def opened() -> LogDir:
    _, opened, _ = flushed_log(100)
    return opened


def test_all_segments_come_by_default(opened: LogDir) -> None:
    log = opened.log("t")
    assert len(log.segments) > 5
    reader = log.records()
    assert read(reader) == prefix(100)
    assert reader.next_offset == 100
    assert "next offset 100" in repr(reader)
    fill(log, 5)
    assert read(reader) == {}, "it ends where the log ended when it was made"
    assert read(log.records(reader.next_offset)) == prefix(105, start=100)


def test_from_offset_to_offset_and_from_time_to_time(opened: LogDir) -> None:
    log = opened.log("t")
    assert read(log.records(17, 58)) == prefix(58, start=17)
    assert read(log.records(100)) == read(log.records(5, 5)) == {}

    def at(ms: int) -> datetime:
        return datetime.fromtimestamp(ms / 1000, UTC)

    assert read(log.records(at(1_017), at(1_058))) == prefix(58, start=17)
    assert read(log.records(at(0), at(9_999))) == prefix(100)
    assert read(log.records(at(9_999))) == {}


def test_a_transactions_marker_does_not_stop_it() -> None:
    _, opened, log = flushed_log(5)
    transaction(log, 7, 0, [b"kept"], commit=True)
    transaction(log, 8, 0, [b"gone"], commit=False)
    transaction(log, 9, 0, [b"open"], commit=None)
    fill(log, 2)
    committed = log.records(isolation="read_committed")
    assert list(read(committed).values())[5:] == [b"kept"]
    assert committed.next_offset == log.last_stable_offset == 9
    uncommitted = log.records()
    assert list(read(uncommitted).values())[5:8] == [b"kept", b"gone", b"open"]
    assert uncommitted.next_offset == log.log_end_offset
    log.append(
        bytes(end_txn_marker(commit=True, coordinator_epoch=1, producer_id=9, producer_epoch=0, timestamp=5_000)),
        origin=Origin.COORDINATOR,
    )
    last = log.records(committed.next_offset, isolation=seglog.Isolation.READ_COMMITTED)
    assert next(iter(read(last).values())) == b"open"
    assert last.next_offset == log.log_end_offset, "behind the marker"
    opened.close()


def test_holes_of_compaction_are_passed_over() -> None:
    _, opened, _ = flushed_log(1)
    opened.create_topic("c", 1, {**TINY, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01})
    log = opened.log("c")
    for at in range(60):
        log.append_records([NewRecord(b"%d" % at * 40, key=b"%d" % (at % 2), timestamp=1_000 + at)])
    log.roll()
    log.append_records([NewRecord(b"last", key=b"z")])
    assert opened.run_compaction()
    reader = log.records()
    assert list(read(reader)) == [58, 59, 60]
    assert reader.next_offset == 61


@pytest.mark.parametrize("check", [True, False])
def test_flipped_bytes_are_an_error_unless_crcs_are_not_checked(check: bool) -> None:
    fs, _, log = flushed_log(20)
    assert isinstance(fs, MemoryFs)
    data = fs.read(name(11, ".log"))
    overwrite(fs, name(11, ".log"), data.index(b"13:.") + 10, b"!")
    if not check:
        assert b"!" in read(log.records(check_crcs=False))[13]
        assert any(b"!" in (record.value or b"") for record in log.read(11).records(check_crcs=False))
        found = log.offset_for_timestamp(1_013, check_crcs=False)
        assert found is not None
        assert found.offset == 13
        return
    match = rf"{name(11, '.log')}.*position 340.*offset 13"
    reader = log.records()
    with pytest.raises(CorruptBatchError, match=match):
        read(reader)
    assert reader.next_offset == 13
    with pytest.raises(CorruptBatchError, match=match):
        list(log.read(11).records())
    with pytest.raises(CorruptBatchError, match=match):
        log.offset_for_timestamp(1_013)


# Following


def test_follow_waits_for_an_append_and_ends_with_the_log(opened: LogDir) -> None:
    log = opened.log("t")
    reader = log.records(98, follow=True)
    assert [next(reader).offset, next(reader).offset] == [98, 99]
    waiting, found = threading.Event(), list[int]()

    def follow() -> None:
        waiting.set()
        found.extend(record.offset for record in reader)

    thread = threading.Thread(target=follow)
    thread.start()
    assert waiting.wait(60)
    fill(log, 3)
    fill(log, 1)
    opened.close()
    thread.join(60)
    assert not thread.is_alive()
    assert found == list(range(100, 100 + len(found)))


def test_follow_gives_all_that_is_appended_up_to_its_end(opened: LogDir) -> None:
    log = opened.log("t")
    found = list[int]()
    thread = threading.Thread(target=lambda: found.extend(one.offset for one in log.records(90, 300, follow=True)))
    thread.start()
    for _ in range(250):
        fill(log, 1)
    thread.join(60)
    assert found == list(range(90, 300))
    assert log._watchers == ()


def test_async_for(opened: LogDir) -> None:
    log = opened.log("t")

    async def run() -> list[int]:
        assert [one.offset async for one in log.records(97)] == [97, 98, 99]
        found = []
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:

            async def append() -> None:
                for _ in range(5):
                    await asyncio.to_thread(fill, log, 1)

            group.create_task(append())
            async for record in log.records(99, follow=True):
                found.append(record.offset)
                if record.offset == 104:
                    break
        return found

    assert asyncio.run(run()) == list(range(99, 105))


def test_a_closed_log_ends_an_async_reader(opened: LogDir) -> None:
    log = opened.log("t")

    async def run() -> int:
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            task = group.create_task(count())
            while not log._watchers:
                await asyncio.sleep(0)
            opened.close()
            return await task

    async def count() -> int:
        return len([record async for record in log.records(follow=True)])

    assert asyncio.run(run()) == 100


# Wrong arguments, and what is said


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"start": -1}, OffsetOutOfRangeError, "start -1 is negative"),
        ({"start": 101}, OffsetOutOfRangeError, "start 101 is outside of t-0, which has offsets 0 to 100"),
        ({"end": 101}, OffsetOutOfRangeError, "end 101 is after the end of t-0, 100; follow=True waits"),
        ({"start": "0"}, InvalidReadError, "start '0' is neither an offset"),
        ({"end": 1.5}, InvalidReadError, r"end 1\.5 is neither an offset"),
        ({"start": datetime.fromisoformat("2020-01-01")}, InvalidReadError, "has no time zone"),
        ({"isolation": "committed"}, InvalidReadError, "isolation 'committed' is neither"),
    ],
)
def test_wrong_arguments(opened: LogDir, arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        opened.log("t").records(**arguments)


def test_wrong_arguments_of_other_methods(opened: LogDir) -> None:
    log: Any = opened.log("t")
    with pytest.raises(InvalidReadError, match="offset '0'"):
        log.read("0")
    with pytest.raises(InvalidReadError, match="up_to 'log_end' is none of"):
        log.read(0, up_to="log_end")
    with pytest.raises(InvalidReadError, match="max_bytes None"):
        log.read(0, None)
    with pytest.raises(OffsetOutOfRangeError, match="-5"):
        log.read(-5)
    with pytest.raises(InvalidReadError, match="timestamp 'now'"):
        log.offset_for_timestamp("now")
    with pytest.raises(InvalidRecordError, match="b'x' is not a NewRecord"):
        log.append_records([b"x"])
    opened.close()
    with pytest.raises(LogClosedError):
        log.records()


def test_a_record_without_a_time_gets_it(opened: LogDir) -> None:
    log = opened.log("t")
    log.append_records([NewRecord(b"now"), NewRecord(b"then", timestamp=1_000)])
    now, then = log.records(100)
    assert (now.timestamp, then.timestamp) == (ManualClock().now_ms(), 1_000)


def test_repr_says_what_it_is(opened: LogDir) -> None:
    log = opened.log("t")
    assert repr(log) == f"<Log t-0: offsets 0 to 100, {len(log.segments)} segments, {log.size} bytes, open, /logs/t-0>"
    assert repr(opened) == "<LogDir /logs: 1 topics, 1 partitions, open>"
    opened.close()
    assert "closed" in repr(log)
    assert "closed" in repr(opened)
