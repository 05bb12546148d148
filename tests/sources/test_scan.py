"""`scan` against what Kafka's consumer read from the same files, and against the plain path."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import seglog
from seglog.core.errors import (
    CorruptBatchError,
    UnknownTopicError,
)
from seglog.core.fs import OsFs
from seglog.records.batch import entries, read_header
from seglog.records.column_decoding import Selection
from seglog.records.record import NewRecord, encode_batch, end_txn_marker
from seglog.sources.directories.scan_start import offset_at_time, start_position
from seglog.sources.scan import scan
from seglog.storage.formats.paths import segment_paths
from seglog.storage.log.transaction_index import AbortedTxn, encode_aborted
from seglog.storage.offline import table_batches
from seglog.storage.offline.table_batches import FileRange, iter_table_batches
from tests import golden
from tests.cases import case
from tests.kafka.jars import KafkaVersion
from tests.storage.offline.written_segments import numbered, offsets, write_segment

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ISOLATION_LEVELS: tuple[Literal["read_uncommitted", "read_committed"], ...] = ("read_uncommitted", "read_committed")
KINDS = {"NoTimestampType": -1, "CreateTime": 0, "LogAppendTime": 1}


# What Kafka read


@pytest.mark.parametrize("version", ["4.4.0", "4.3.0", "2.8.2"])
def test_rows_are_what_kafkas_consumer_read(tmp_path: Path, version: KafkaVersion) -> None:
    root = golden.unpack(tmp_path, version)
    seen = 0
    for name in golden.partitions(root):
        for isolation in ISOLATION_LEVELS:
            if not (root / "expected" / name / f"{isolation}.jsonl").exists():
                continue
            expected = golden.expected_records(root, name, isolation=isolation)
            rows = scan(golden.log_dir(root) / name, isolation_level=isolation).read_all().to_pylist()
            assert rows == [
                {
                    "key": record.key,
                    "value": record.value,
                    "topic": record.topic,
                    "partition": record.partition,
                    "offset": record.offset,
                    "timestamp": EPOCH + timedelta(milliseconds=record.timestamp),
                    "timestampType": KINDS[record.timestamp_type],
                    "headers": [{"key": key, "value": value} for key, value in record.headers] or None,
                }
                for record in expected
            ], (name, isolation)
            seen += len(rows)
    assert seen > 100


def test_a_whole_log_directory_without_internal_topics(tmp_path: Path) -> None:
    root = golden.unpack(tmp_path, "4.4.0")
    table = scan(golden.log_dir(root), columns=("topic", "partition", "offset")).read_all()
    expected = [
        (record.topic, record.partition, record.offset)
        for name in golden.partitions(root)
        if not name.startswith("__")
        for record in golden.expected_records(root, name)
    ]
    assert sorted(tuple(row.values()) for row in table.to_pylist()) == sorted(expected)
    internal = scan(golden.log_dir(root), columns=("topic",), topics="__consumer_offsets").read_all()
    assert set(internal.column("topic").to_pylist()) == {"__consumer_offsets"}


# Bounds


@pytest.mark.parametrize("start", [-4, 0, 1, 3, 11, 12, 13, 23, 24, 29, 30, 99])
@pytest.mark.parametrize("end", [None, 0, 5, 12, 25, 30, 99])
def test_offsets_bound_what_is_read(partition: Path, start: int, end: int | None) -> None:
    assert offsets(partition, start=start, end=end) == list(range(max(start, 0), min(30, 30 if end is None else end)))


@pytest.mark.parametrize("step", [-1, 0, 999, 1000, 1001, 11_000, 12_500, 29_000])
def test_times_are_bounds_too(partition: Path, step: int) -> None:
    at = EPOCH + timedelta(milliseconds=step)
    first = -(-step // 1000)
    assert offsets(partition, start=at) == list(range(max(first, 0), 30))
    assert offsets(partition, end=at) == list(range(max(first, 0)))


def test_a_time_after_all_records_is_the_end(partition: Path) -> None:
    later = EPOCH + timedelta(days=1)
    assert offsets(partition, start=later) == []
    assert offsets(partition, end=later) == list(range(30))


def test_a_time_between_milliseconds_counts_up(partition: Path) -> None:
    assert offsets(partition, start=EPOCH + timedelta(seconds=5, microseconds=1)) == list(range(6, 30))


def test_each_partition_may_have_its_own_bound(partition: Path) -> None:
    write_segment(partition.parent / "web-1", 0, numbered(0, 4))
    rows = scan(partition.parent, start={"web": {1: 2}}, end={"web": {0: EPOCH + timedelta(seconds=2)}}).read_all()
    assert [(row["partition"], row["offset"]) for row in rows.to_pylist()] == [(0, 0), (0, 1), (1, 2), (1, 3)]
    with pytest.raises(UnknownTopicError, match="no partition 7 of topic 'web'"):
        scan(partition.parent, start={"web": {7: 0}})


@given(st.lists(st.integers(0, 40), min_size=1, max_size=25), st.integers(-1, 42), st.integers(1, 5), st.data())
def test_look_up_by_time_is_that_of_a_plain_search(
    tmp_path_factory: pytest.TempPathFactory, times: list[int], wanted: int, per_batch: int, data: st.DataObject
) -> None:
    """Times in any order, segments cut anywhere, with and without indexes."""
    case()
    directory = tmp_path_factory.mktemp("log") / "web-0"
    batches = [
        encode_batch([NewRecord(None, timestamp=t) for t in times[at : at + per_batch]], base_offset=at)
        for at in range(0, len(times), per_batch)
    ]
    cuts = sorted(set(data.draw(st.lists(st.integers(1, len(batches)), max_size=3))) | {0} - {len(batches)})
    bounds = [cut for cut in cuts if cut < len(batches)]
    for first, last in zip(bounds, [*bounds[1:], len(batches)], strict=True):
        write_segment(directory, first * per_batch, batches[first:last])
    for path in directory.iterdir():
        if path.suffix != ".log" and data.draw(st.booleans()):
            path.unlink()
    low = data.draw(st.integers(0, len(times)))
    segments = [segment_paths(str(directory), cut * per_batch) for cut in bounds]
    expected = next((at for at, time in enumerate(times) if time >= wanted and at >= low), None)
    assert offset_at_time(OsFs(), segments, wanted, low) == expected
    shutil.rmtree(directory)


def test_the_index_is_used_and_not_believed_blindly(partition: Path) -> None:
    paths = segment_paths(str(partition), 12)
    near = start_position(OsFs(), paths, 20)
    assert [entry.offset for entry in entries(Path(paths.log).read_bytes()[near:])] == [18, 21]
    index = Path(paths.offset_index)
    index.write_bytes(struct.pack(">ii", 3, 17))
    assert start_position(OsFs(), paths, 20) == 0
    index.write_bytes(bytes(1 << 20))
    assert start_position(OsFs(), paths, 20) == 0
    assert offsets(partition, start=20) == list(range(20, 30))


def test_records_that_a_client_deleted_are_not_read(partition: Path) -> None:
    (partition.parent / "log-start-offset-checkpoint").write_text("0\n1\nweb 0 14\n")
    assert offsets(partition) == list(range(14, 30))
    assert offsets(partition, start=EPOCH) == list(range(14, 30))
    assert offsets(partition, start=3, end=15) == [14]


# Transactions


def transaction(base_offset: int, count: int, producer: int) -> bytearray:
    records = [NewRecord(b"%d" % (base_offset + n), timestamp=0) for n in range(count)]
    return encode_batch(
        records,
        base_offset=base_offset,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )


def marker(base_offset: int, producer: int, *, commit: bool) -> bytearray:
    return end_txn_marker(
        commit=commit,
        coordinator_epoch=0,
        producer_id=producer,
        producer_epoch=0,
        timestamp=0,
        base_offset=base_offset,
    )


def test_read_committed_leaves_out_what_was_aborted_or_is_open(tmp_path: Path) -> None:
    directory = tmp_path / "web-0"
    first = [transaction(0, 2, 7), transaction(2, 1, 8), *numbered(3, 1), marker(4, 7, commit=False)]
    second = [transaction(5, 1, 7), marker(6, 8, commit=True), marker(7, 7, commit=True), *numbered(8, 1)]
    third = [transaction(9, 1, 8), *numbered(10, 2)]
    write_segment(directory, 0, first)
    write_segment(directory, 5, [*second, *third])
    Path(segment_paths(str(directory), 0).txnindex).write_bytes(encode_aborted(AbortedTxn(7, 0, 4, 2)))
    assert offsets(directory) == [0, 1, 2, 3, 5, 8, 9, 10, 11]
    assert offsets(directory, isolation_level="read_committed") == [2, 3, 5, 8]
    assert offsets(directory, isolation_level="read_committed", include_control=True) == [2, 3, 4, 5, 6, 7, 8]
    rows = scan(directory, columns=("offset", "isControl", "isTransactional", "producerId"), include_control=True)
    assert [tuple(row.values()) for row in rows.read_all().to_pylist()][4:6] == [
        (4, True, True, 7),
        (5, False, True, 7),
    ]


# Ends and damage


def test_a_torn_last_batch_is_the_end(partition: Path) -> None:
    last = partition / "00000000000000000024.log"
    whole = last.read_bytes()
    for size in (*range(len(whole) - 20, len(whole)), len(whole) - 70):
        last.write_bytes(whole[:size])
        assert offsets(partition)[-1] == 26
        assert offsets(last)[-1] == 26
    last.write_bytes(whole + bytes(5000))
    assert offsets(partition) == list(range(30))


def test_damage_is_named_by_file_position_and_offset(partition: Path) -> None:
    path = partition / "00000000000000000012.log"
    whole = path.read_bytes()
    size = read_header(whole).size
    for damaged, position, offset, reason in (
        (whole[:-1], 3 * size, 21, f"the batch claims {size} bytes, but only {size - 1} are left"),
        (whole[: size + 9], size, None, "9 bytes are left"),
        (whole[: size + 16] + b"\x09" + whole[size + 17 :], size, 15, "unknown magic 9"),
        (whole[: size + 70] + b"\xff" + whole[size + 71 :], size, 15, "CRC"),
        (whole[:size] + whole, size, 12, "offset 12 after 14"),
        (whole[:size] + b"\x80" + whole[size + 1 :], size, 15 - 2**63, "base offset -9223372036854775793 is negative"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(CorruptBatchError, match=reason) as caught:
            scan(partition).read_all()
        assert (caught.value.file, caught.value.position, caught.value.offset) == (str(path), position, offset)


def test_damage_outside_of_the_offsets_asked_for_is_not_met(partition: Path) -> None:
    path = partition / "00000000000000000012.log"
    whole = bytearray(path.read_bytes())
    whole[read_header(whole).size + 8] ^= 1
    path.write_bytes(whole)
    assert offsets(partition, end=12) == list(range(12))
    assert offsets(partition, start=21) == list(range(21, 30))
    assert offsets(partition, end=15) == list(range(15))
    for options in ({"end": 16}, {"start": 17}):
        with pytest.raises(CorruptBatchError):
            offsets(partition, **options)


def test_a_batch_larger_than_a_chunk_is_read_whole(tmp_path: Path) -> None:
    size = table_batches.CHUNK_BYTES + 12345
    big = encode_batch([NewRecord(os.urandom(size))], base_offset=1)
    write_segment(tmp_path / "web-0", 0, [*numbered(0, 1), big, *numbered(2, 1)])
    rows = scan(tmp_path / "web-0", columns=("value",)).read_all().column("value").to_pylist()
    assert [len(value) for value in rows] == [1, size, 1]


def test_a_size_that_the_file_does_not_hold_is_not_read(tmp_path: Path) -> None:
    batch = numbered(0, 1)[0]
    huge = bytes(8) + (2**31 - 20).to_bytes(4, "big") + bytes(batch[12:])
    path = write_segment(tmp_path / "web-0", 0, [batch])
    path.write_bytes(bytes(batch) + huge + bytes(3 * table_batches.CHUNK_BYTES))
    assert offsets(path) == [0]


@given(st.integers(1, 60), st.integers(1, 8), st.integers(17, 2000))
def test_chunks_may_end_anywhere(tmp_path_factory: pytest.TempPathFactory, count: int, per: int, chunk: int) -> None:
    case()
    path = write_segment(tmp_path_factory.mktemp("log") / "web-0", 0, numbered(0, count, per))
    found = iter_table_batches(OsFs(), FileRange(str(path)), Selection(("offset",)), chunk_bytes=chunk)
    assert pa.Table.from_batches(found).column("offset").to_pylist() == list(range(count))


def test_a_small_scan_imports_no_pandas(tmp_path: Path) -> None:
    """pyarrow imports it for a scalar, which took most of the time that a scan of one record needs."""
    with seglog.open(tmp_path) as directory:
        directory.create_topic("t", 1)
    program = (
        "import sys, seglog; from seglog.records.columns import constant; import pyarrow as pa; "
        "arrays = [constant(value, kind, 3) for value, kind in "
        "((7, pa.int32()), (-1, pa.int64()), ('tö', pa.string()), ('', pa.string()), (None, pa.string()))]; "
        f"[array.validate(full=True) for array in arrays]; seglog.scan({str(tmp_path)!r}).read_all(); "
        "assert 'pandas' not in sys.modules; print([array.to_pylist() for array in arrays])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == f"{[[value] * 3 for value in (7, -1, 'tö', '', None)]}\n"
