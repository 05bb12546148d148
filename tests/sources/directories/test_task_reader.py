"""Tasks whose files change after the query was planned: they return the records that the log had then."""

from __future__ import annotations

import logging
import os
import re
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from struct import pack
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import seglog
from seglog.core.errors import (
    CorruptBatchError,
    CorruptError,
    DataLossError,
    InvalidLogDirError,
    OffsetOutOfRangeError,
)
from seglog.core.fs import File, OsFs
from seglog.records.batch import read_header
from seglog.records.compression import Codec
from seglog.records.record import NewRecord, encode_batch
from seglog.sources.directories.planning import ReadRange
from seglog.sources.directories.task_reader import read_range
from seglog.sources.options.read_options import parse_options
from seglog.storage.compaction.log_cleaner import compact
from seglog.storage.compaction.round import PLAIN
from seglog.storage.formats.checkpoints import MetaProperties, write_meta_properties, write_partition_metadata
from seglog.storage.log.log import Log
from seglog.storage.offline.table_batches import FileRange, iter_table_batches
from tests.cases import case
from tests.spark.logs import make_reader, offsets, write_partition
from tests.storage.log.appends import with_header

BATCH = [NewRecord(b"v" * 50, b"k")] * 4
SCHEMA = pa.schema([("offset", pa.int64())])


def sizes(log: Path) -> list[int]:
    """Where batches start, and the end."""
    data, found = log.read_bytes(), [0]
    while found[-1] < len(data):
        found.append(found[-1] + read_header(data, found[-1]).size)
    return found


def read(task: ReadRange, fs: OsFs | None = None, **options: str) -> list[int]:
    parsed = parse_options({"path": task.directory, **options})
    found = read_range(fs or OsFs(), task, SCHEMA, parsed)
    return [offset for batch in found for offset in batch.column("offset").to_pylist()]


def one_task(path: Path, **options: str) -> ReadRange:
    task: ReadRange
    (task,) = make_reader({"path": str(path), **options}).ranges()
    return task


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """Segments of offsets 0 to 19, 20 to 39 and 40 to 59, in batches of four."""
    for base in (0, 20, 40):
        write_partition(tmp_path / "t-0", [BATCH] * 5, base_offset=base)
    return tmp_path / "t-0"


def segment(partition: Path, base: int) -> Path:
    return partition / f"{base:020d}.log"


def test_a_task_reads_its_offsets_though_segments_grow_and_roll(three: Path) -> None:
    task = one_task(three)
    with segment(three, 40).open("ab") as log:
        log.write(encode_batch(BATCH, base_offset=60))
    write_partition(three, [BATCH], base_offset=64)
    assert read(task) == list(range(60))


def test_compaction_put_segments_together(three: Path) -> None:
    """The first file now also contains the records of the second segment, after its own."""
    tasks = make_reader({"path": str(three), "maxRecordsPerPartition": "7"}).ranges()
    merged = segment(three, 0).read_bytes()[sizes(segment(three, 0))[2] :] + segment(three, 20).read_bytes()
    segment(three, 0).write_bytes(merged)
    segment(three, 20).unlink()
    assert [offset for task in tasks for offset in read(task)] == list(range(8, 60))


def test_a_segment_without_its_last_records_is_a_gap(three: Path) -> None:
    task = one_task(three)
    segment(three, 20).write_bytes(segment(three, 20).read_bytes()[: sizes(segment(three, 20))[3]])
    assert read(task) == [*range(32), *range(40, 60)]


def test_in_the_middle_of_a_swap(three: Path) -> None:
    task = one_task(three)
    for base in (0, 20):
        data = segment(three, base).read_bytes()
        segment(three, base).rename(f"{segment(three, base)}.deleted")
        with (three / f"{0:020d}.log.swap").open("ab") as swap:
            swap.write(data)
    assert read(task) == list(range(60))
    assert offsets(make_reader({"path": str(three)})) == list(range(60))


def test_retention_is_data_loss(three: Path, caplog: pytest.LogCaptureFixture) -> None:
    task = one_task(three)
    segment(three, 0).unlink()
    with pytest.raises(DataLossError, match=r"t-0: offsets 0 to 19 were deleted .*; set option failOn"):
        read(task)
    assert read(task, failOnDataLoss="false") == list(range(20, 60))
    assert "offsets 0 to 19 were deleted before they were read" in caplog.text


def test_a_deleted_topic_is_data_loss(three: Path, caplog: pytest.LogCaptureFixture) -> None:
    task = one_task(three)
    three.rename(three.parent / f"t-0.{'a' * 32}-delete")
    with pytest.raises(DataLossError, match="offsets 0 to 59 were deleted"):
        read(task)
    assert read(task, failOnDataLoss="false") == []
    assert "offsets 0 to 59" in caplog.text


IDS = (UUID(int=7 << 64), UUID(int=8 << 64))


def recreate(partition: Path, count: int, topic_id: UUID | None) -> None:
    """Another topic of the same name, with ``count`` batches of other records."""
    shutil.rmtree(partition)
    write_partition(partition, [[NewRecord(b"w" * 50, b"k")] * 4] * count)
    if topic_id is not None:
        write_partition_metadata(OsFs(), str(partition), topic_id)


@pytest.mark.parametrize("count", [0, 4, 5, 15, 40])
@pytest.mark.parametrize("topic_id", [IDS[1], None])
@pytest.mark.parametrize("mode", ["failFast", "permissive"])
def test_a_topic_that_was_created_again_is_another_topic(
    three: Path, count: int, topic_id: UUID | None, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Shorter, as long, or longer, also while its id is not written yet."""
    write_partition_metadata(OsFs(), str(three), IDS[0])
    for task in (one_task(three), one_task(three, startingOffsets='{"t": {"0": 10}}')):
        assert read(task, mode=mode) == list(range(task.offsets.start, 60))
    recreate(three, count, topic_id)
    start = task.offsets.start
    said = rf"t-0: offsets {start} to 59 were not read: topic t was deleted and created again"
    with pytest.raises(DataLossError, match=said):
        read(task, mode=mode)
    assert read(task, mode=mode, failOnDataLoss="false") == []
    assert re.search(said, caplog.text)


def test_a_topic_without_an_id_is_read_as_before(three: Path) -> None:
    task = one_task(three)
    write_partition_metadata(OsFs(), str(three), IDS[0])
    assert read(task) == list(range(60))
    (three / "partition.metadata").write_text("nonsense")
    assert (one_task(three).topic_id, read(one_task(three))) == (None, list(range(60)))


class OpeningFs(OsFs):
    """Calls ``event`` before the first log is opened, or after."""

    def __init__(self, event: Callable[[], None], *, before: bool) -> None:
        self._event: Callable[[], None] | None = event
        self._is_before = before

    def open(self, path: str, *, create: bool = False, write: bool = True) -> File:
        event, self._event = self._event, None
        if event is not None and self._is_before:
            event()
        file = super().open(path, create=create, write=write)
        if event is not None and not self._is_before:
            event()
        return file


@pytest.mark.parametrize("before", [True, False])
def test_a_topic_that_is_created_again_while_a_file_is_opened(three: Path, before: bool) -> None:
    write_partition_metadata(OsFs(), str(three), IDS[0])
    task = one_task(three)
    with pytest.raises(DataLossError, match="topic t was deleted and created again"):
        read(task, OpeningFs(lambda: recreate(three, 40, IDS[1]), before=before))


@pytest.mark.parametrize("other_id", [IDS[0], None])
def test_a_replica_of_the_planned_topic_replaces_one_of_another(tmp_path: Path, other_id: UUID | None) -> None:
    for broker, topic_id in (("a", IDS[0]), ("b", other_id)):
        write_partition(tmp_path / broker / "t-0", [BATCH] * 15)
        if topic_id is not None:
            write_partition_metadata(OsFs(), str(tmp_path / broker / "t-0"), topic_id)
    task = replace(one_task(tmp_path / "a"), others=(str(tmp_path / "b" / "t-0"),))
    recreate(tmp_path / "a" / "t-0", 40, IDS[1])
    assert read(task) == list(range(60))
    recreate(tmp_path / "b" / "t-0", 40, IDS[1])
    with pytest.raises(DataLossError, match="topic t was deleted and created again"):
        read(task)


@pytest.fixture
def mounted(tmp_path: Path) -> Path:
    """A log directory with an identity, and offsets 0 to 59 of t-0."""
    log_dir = tmp_path / "mount"
    for base in (0, 20, 40):
        write_partition(log_dir / "t-0", [BATCH] * 5, base_offset=base)
    identify(log_dir, 1)
    return log_dir


def identify(log_dir: Path, directory: int) -> None:
    write_meta_properties(OsFs(), str(log_dir), MetaProperties(1, "c", 1, UUID(int=directory)), 0)


def _nothing(log_dir: Path) -> None:
    pass


def _empty(log_dir: Path) -> None:
    log_dir.mkdir()


def _another(log_dir: Path) -> None:
    write_partition(log_dir / "t-0", [BATCH] * 5, base_offset=20)
    identify(log_dir, 2)


@pytest.mark.parametrize("option", [{}, {"failOnDataLoss": "false"}, {"mode": "permissive"}], ids=str)
@pytest.mark.parametrize(
    ("instead", "reason"),
    [
        (_nothing, "it does not exist"),
        (_empty, "it has no meta.properties"),
        (_another, "this host has directory A{21}g, the driver directory A{21}Q"),
    ],
)
def test_a_worker_without_the_mount_is_an_error_and_no_data_loss(
    mounted: Path, instead: Callable[[Path], None], reason: str, option: dict[str, str]
) -> None:
    task = one_task(mounted)
    mounted.rename(mounted.parent / "unmounted")
    instead(mounted)
    with pytest.raises(InvalidLogDirError, match=f"{mounted} on host {socket.gethostname()} is not .*: {reason}"):
        read(task, None, **option)


@pytest.mark.parametrize("instead", [_nothing, _empty])
def test_a_missing_directory_without_identity_is_an_error_too(mounted: Path, instead: Callable[[Path], None]) -> None:
    (mounted / "meta.properties").unlink()
    task = one_task(mounted)
    mounted.rename(mounted.parent / "unmounted")
    instead(mounted)
    with pytest.raises(InvalidLogDirError, match=f"{mounted} on host"):
        read(task, failOnDataLoss="false")


def test_a_topic_deleted_from_a_mounted_directory_is_data_loss(mounted: Path) -> None:
    task = one_task(mounted)
    shutil.rmtree(mounted / "t-0")
    with pytest.raises(DataLossError, match="offsets 0 to 59 were deleted"):
        read(task)
    assert read(task, failOnDataLoss="false") == []


@pytest.mark.filterwarnings("ignore:seglog")
def test_a_worker_reads_the_replica_whose_directory_it_sees(mounted: Path) -> None:
    other = mounted.parent / "other"
    shutil.copytree(mounted, other)
    identify(other, 2)
    for log_dir in (mounted, other):
        (log_dir / "replication-offset-checkpoint").write_text("0\n1\nt 0 60\n")
    task = one_task(Path(f"{mounted},{other}"))
    away = {mounted: mounted.parent / "a", other: mounted.parent / "b"}
    for log_dir, elsewhere in away.items():
        log_dir.rename(elsewhere)
        assert read(task) == list(range(60))
        elsewhere.rename(log_dir)
    shutil.rmtree(mounted / "t-0")
    other.rename(away[other])
    with pytest.raises(InvalidLogDirError, match=f"{other} on host"):
        read(task, failOnDataLoss="false")


@pytest.mark.parametrize("rest", [0, 30], ids=["at a boundary", "inside of a batch"])
def test_truncation_is_data_loss(three: Path, rest: int, caplog: pytest.LogCaptureFixture) -> None:
    task = one_task(three)
    os.truncate(segment(three, 40), sizes(segment(three, 40))[3] + rest)
    with pytest.raises(DataLossError, match="ends with offset 51: offsets 52 to 59 were truncated"):
        read(task)
    assert read(task, failOnDataLoss="false") == list(range(52))
    assert "offsets 52 to 59 were truncated" in caplog.text


def test_all_was_truncated(three: Path) -> None:
    task = one_task(three)
    for base in (20, 40):
        segment(three, base).unlink()
    os.truncate(segment(three, 0), 0)
    with pytest.raises(DataLossError, match="no longer has offsets 0 to 59"):
        read(task)
    assert read(task, failOnDataLoss="false") == []


def indexed(log: Path) -> None:
    """An index entry for each batch of four records but the first."""
    entries = [(4 * at + 3, position) for at, position in enumerate(sizes(log)[:-1]) if at]
    log.with_suffix(".index").write_bytes(b"".join(pack(">ii", *entry) for entry in entries))


@pytest.mark.parametrize("more", [0, 40], ids=["shorter than where it began", "another batch where it began"])
def test_a_task_in_the_middle_of_a_segment_that_was_compacted(tmp_path: Path, more: int) -> None:
    log = write_partition(tmp_path / "t-0", [BATCH] * 15)
    indexed(log)
    write_partition(tmp_path / "t-0", [BATCH] * (1 + more), base_offset=60)
    tasks = make_reader({"path": str(tmp_path), "maxRecordsPerPartition": "16"}).ranges()
    task = next(task for task in tasks if task.offsets.start >= 28)
    assert task.pieces[0].start > 0
    rest = log.read_bytes()[sizes(log)[task.offsets.start // 4] :]
    if more:  # the next segment went into this one
        rest += segment(tmp_path / "t-0", 60).read_bytes()
        segment(tmp_path / "t-0", 60).unlink()
    log.with_suffix(".index").unlink()
    log.write_bytes(rest)
    assert read(task) == list(range(*task.offsets))


def test_a_stretch_of_a_file_that_was_cut_at_a_boundary_does_not_end_in_silence(tmp_path: Path) -> None:
    log = write_partition(tmp_path / "t-0", [BATCH] * 3)
    stretch = FileRange(str(log), 0, log.stat().st_size, is_open=True)
    os.truncate(log, sizes(log)[2])
    with pytest.raises(OffsetOutOfRangeError, match="was cut to"):
        list(iter_table_batches(OsFs(), stretch))


class Disturbed(OsFs):
    """Calls ``act`` when a file is opened for the n-th time."""

    __slots__ = ("_act", "_left")

    def __init__(self, act: Callable[[], None], opens: int) -> None:
        self._act = act
        self._left = opens

    def open(self, path: str, *, create: bool = False, write: bool = True) -> File:
        self._left -= 1
        if self._left == 0:
            self._act()
        return super().open(path, create=create, write=write)


def _compact(log: Log) -> None:
    compact(log, first_dirty=0, map_bytes=100_000, engine=PLAIN)


@settings(max_examples=20)
@given(st.integers(1, 40), st.integers(1, 8), st.sampled_from(["1", "3", "7", "100"]))
def test_compaction_between_any_two_opens(
    tmp_path_factory: pytest.TempPathFactory, keys: int, opens: int, records: str
) -> None:
    """The engine's own cleaner; whatever a task reads has the newest record of every key, and no offset twice."""
    case()
    directory = tmp_path_factory.mktemp("compacted")
    config = {"cleanup.policy": "compact", "internal.segment.bytes": "600", "file.delete.delay.ms": "0"}
    with seglog.open(directory) as logs:
        logs.create_topic("t", config=config)
        log = logs.log("t")
        for number in range(60):
            log.append_records([NewRecord(b"%d" % number, b"%d" % (number % keys))])
        tasks = make_reader({"path": str(directory), "until": "logEnd", "maxRecordsPerPartition": records}).ranges()
        fs = Disturbed(lambda: _compact(log), opens)
        found = [offset for task in tasks for offset in read(task, fs)]
    assert found == sorted(set(found))
    assert set(found) >= {max(range(key, 60, keys)) for key in range(keys)}


def damaged(three: Path, at: int) -> tuple[Path, int, int]:
    """One bit of the batch number ``at`` of the second segment is wrong: file, position, size."""
    log = segment(three, 20)
    position, end = sizes(log)[at : at + 2]
    data = bytearray(log.read_bytes())
    data[position + 70] ^= 1
    log.write_bytes(data)
    return log, position, end - position


def test_damage_fails_with_its_place_or_is_left_out_and_counted(three: Path, caplog: pytest.LogCaptureFixture) -> None:
    log, position, size = damaged(three, 2)
    task = one_task(three)
    with pytest.raises(CorruptBatchError) as error:
        read(task)
    assert (error.value.file, error.value.position, error.value.offset) == (str(log), position, 28)
    assert read(task, mode="permissive") == [*range(28), *range(32, 60)]
    assert f"mode=permissive skipped 1 damaged places of {three}, {size} bytes in all" in caplog.text
    assert f"{log}, position {position}, offset 28: " in caplog.text
    caplog.clear()
    assert read(one_task(three, endingOffsets='{"t": {"0": 28}}')) == list(range(28))


def test_damage_that_hides_where_the_next_batch_is(three: Path) -> None:
    log = segment(three, 20)
    starts = sizes(log)
    data = bytearray(log.read_bytes())
    data[starts[1] + 16] = 77  # the magic
    log.write_bytes(data)
    task = one_task(three)
    with pytest.raises(CorruptBatchError, match="unknown magic 77"):
        read(task)
    assert read(task, mode="permissive") == [*range(24), *range(40, 60)]
    entry = (35 - 20).to_bytes(4, "big") + starts[3].to_bytes(4, "big")
    log.with_suffix(".index").write_bytes(entry)
    assert read(task, mode="permissive") == [*range(24), *range(32, 60)]


def test_damage_at_the_very_end(three: Path) -> None:
    with segment(three, 40).open("ab") as log:
        log.write(b"\xff" * 100)
    with pytest.raises(CorruptBatchError, match="unknown magic -1"):
        one_task(three)
    assert read(one_task(three, mode="permissive"), mode="permissive") == list(range(60))


@given(st.lists(st.integers(0, 14), max_size=4, unique=True), st.sampled_from(list(Codec)), st.booleans())
def test_permissive_leaves_out_the_damaged_batches_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, bad: list[int], codec: Codec, inside: bool
) -> None:
    """Damage that the CRC detects, or wrong records with a right CRC."""
    case()
    directory = tmp_path_factory.mktemp("damaged")
    log = write_partition(directory / "t-0", [BATCH] * 15, codec=codec)
    starts, data = sizes(log), bytearray(log.read_bytes())
    for number in bad:
        start, end = starts[number : number + 2]
        if inside:
            data[start:end] = with_header(data[start:end], records_count=5)  # one more than there are
        else:
            data[end - 1] ^= 0x55
    log.write_bytes(data)
    task = one_task(directory)
    expected = [offset for offset in range(60) if offset // 4 not in bad]
    assert read(task, mode="permissive") == expected
    if bad:
        with pytest.raises(CorruptError):
            read(task)


def test_batches_for_spark_are_small(tmp_path: Path) -> None:
    write_partition(tmp_path / "t-0", [[NewRecord(None)] * 150_000, [NewRecord(b"x" * (3 << 20))] * 7])
    task = one_task(tmp_path, maxRecordsPerPartition="1000000")
    schema = pa.schema([("offset", pa.int64()), ("value", pa.binary())])
    options = parse_options({"path": str(tmp_path)})
    found = list(read_range(OsFs(), task, schema, options))
    assert [offset for batch in found for offset in batch.column("offset").to_pylist()] == list(range(150_007))
    most = options.batch_bytes
    assert all(
        batch.num_rows <= options.batch_rows and (batch.nbytes <= most or batch.num_rows == 1) for batch in found
    )


def test_a_record_of_100_mb(tmp_path: Path) -> None:
    value = os.urandom(1 << 20) * 100
    write_partition(tmp_path / "t-0", [BATCH, [NewRecord(value)], BATCH], codec=Codec.ZSTD)
    schema = pa.schema([("value", pa.binary())])
    found = list(read_range(OsFs(), one_task(tmp_path), schema, parse_options({"path": str(tmp_path)})))
    (large,) = [batch for batch in found if batch.nbytes > len(value)]
    assert sum(batch.num_rows for batch in found) == 9
    assert large.column("value").to_pylist() == [value]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_reads_large_batches_from_the_middle_of_a_segment(tmp_path: Path, codec: Codec) -> None:
    """Sizes around the 64 KiB that are hopped over, the 4 MiB of a chunk and the 8 MiB of a batch for Spark."""
    sizes = [70_000, (4 << 20) - 80, 4 << 20, 5 << 20, 100, (8 << 20) + 1, 50 << 20, 100]
    write_partition(tmp_path / "t-0", [[NewRecord(os.urandom(size))] for size in sizes], codec=codec)
    for start in range(len(sizes)):
        options = {"startingOffsets": f'{{"t": {{"0": {start}}}}}', "maxRecordsPerPartition": "100"}
        task = one_task(tmp_path, **options)
        assert (task.pieces[0].start > 0) == (start > 0)
        assert read(task) == list(range(start, len(sizes)))
    tasks = make_reader({"path": str(tmp_path), "maxBytesPerPartition": "4m"}).ranges()
    assert len(tasks) > 3
    assert [offset for task in tasks for offset in read(task)] == list(range(len(sizes)))


def test_gives_up_on_a_file_that_cannot_be_opened(three: Path) -> None:
    task = one_task(three)
    segment(three, 20).unlink()
    segment(three, 20).symlink_to("nowhere")
    with pytest.raises(OSError, match=r"20\.log"):
        read(task)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.WARNING, "seglog.spark"):
        yield
