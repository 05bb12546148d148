from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.core.errors import CorruptBatchError, InvalidConfigError
from seglog.core.fs import OsFs
from seglog.core.types import TopicPartition
from seglog.records.batch import BatchHeader, build_batch
from seglog.sources.directories.partition_files import read_extent
from seglog.sources.directories.partitions import expand, find_partitions
from seglog.sources.directories.planning import SegmentExtent
from seglog.storage.offline.batch_boundaries import IndexBoundaries, find_end
from tests import golden
from tests.cases import case
from tests.kafka.jars import KafkaVersion

FS = OsFs()
BASE = 1000


def batch(base_offset: int, count: int, size: int) -> bytes:
    header = BatchHeader(base_offset, 0, 0, 2, 0, 0, count - 1, 0, 0, -1, -1, -1, count)
    return bytes(build_batch(header, bytes(size - 61)))


def write_segment(
    directory: Path, batches: Sequence[tuple[int, int]], *, every: int, grouped: bool = False
) -> tuple[SegmentExtent, list[int], list[int]]:
    """A segment of batches of (count, size), an index entry for each ``every``-th; positions and first offsets of all.

    ``grouped``: entries as Kafka before 4.x writes them for appends of ``every`` batches.
    """
    positions = [0, *accumulate(size for _, size in batches)]
    offsets = [BASE, *accumulate((count for count, _ in batches), initial=BASE)][1:]
    data = b"".join(batch(offset, *each) for offset, each in zip(offsets, batches, strict=False))
    entries = b""
    for number in range(every, len(batches), every):
        last = min(number + every, len(batches)) if grouped else number + 1
        entries += pack(">ii", offsets[last] - 1 - BASE, positions[number])
    directory.mkdir(exist_ok=True)
    log = directory / f"{BASE:020d}.log"
    log.write_bytes(data)
    log.with_suffix(".index").write_bytes(entries)
    return SegmentExtent(BASE, str(log), len(data)), positions, offsets


BATCHES = st.lists(st.tuples(st.integers(1, 9), st.integers(61, 400)), min_size=1, max_size=60)


@given(BATCHES, st.integers(1, 7), st.booleans(), st.sampled_from(["index", "zeros", "none", "garbage"]), st.data())
def test_boundaries_are_boundaries(
    tmp_path_factory: pytest.TempPathFactory,
    batches: list[tuple[int, int]],
    every: int,
    grouped: bool,
    index: str,
    data: st.DataObject,
) -> None:
    case()
    directory = tmp_path_factory.getbasetemp() / "boundaries-0"
    segment, positions, offsets = write_segment(directory, batches, every=every, grouped=grouped)
    path = Path(segment.log).with_suffix(".index")
    if index == "zeros":
        path.write_bytes(path.read_bytes() + bytes(800))
    elif index == "none":
        path.unlink()
    elif index == "garbage":
        size = len(path.read_bytes())
        path.write_bytes(data.draw(st.binary(min_size=size, max_size=size)))
    boundaries = IndexBoundaries(FS, segment)
    offset = data.draw(st.integers(BASE, offsets[-1]))
    start = boundaries.start_of(offset)
    assert start in positions
    assert offsets[positions.index(start)] <= offset
    end = boundaries.end_of(offset)
    assert end in positions
    assert end == positions[-1] or offsets[positions.index(end)] >= offset
    low = data.draw(st.sampled_from([-1, *positions[:-1]]))
    high = data.draw(st.sampled_from([position for position in positions if position > max(low, 0)]))
    wanted = data.draw(st.integers(max(low, 0), high - 1))
    cut = boundaries.cut(low, wanted, high)
    assert cut in positions
    assert low < cut <= high
    assert boundaries.last() in positions
    assert find_end(FS, segment) == (positions[-1], offsets[-1])


@pytest.mark.parametrize("rest", [b"", bytes(8000)])
def test_with_an_index_the_boundaries_are_near(tmp_path: Path, rest: bytes) -> None:
    segment, positions, offsets = write_segment(tmp_path / "t-0", [(10, 100)] * 50, every=1)
    with Path(segment.log).with_suffix(".index").open("ab") as index:
        index.write(rest)
    boundaries = IndexBoundaries(FS, segment)
    assert boundaries.start_of(offsets[20]) == positions[19]  # the entry's offset is the last of its batch
    assert boundaries.end_of(offsets[20]) in (positions[20], positions[21])
    assert boundaries.cut(0, 2050, 5000) == 2000
    assert boundaries.cut(2000, 2050, 5000) == 2100
    assert boundaries.cut(-1, 50, 5000) == 0
    assert boundaries.cut(4900, 4950, 5000) == 5000
    assert boundaries.last() == 4900


def test_an_index_that_does_not_fit_is_not_believed(tmp_path: Path) -> None:
    segment, positions, _ = write_segment(tmp_path / "t-0", [(10, 1000)] * 200, every=1)
    path = Path(segment.log).with_suffix(".index")
    path.write_bytes(b"".join(pack(">ii", slot * 10, slot * 777) for slot in range(1, 190)))
    boundaries = IndexBoundaries(FS, segment)
    assert boundaries.cut(-1, 100_000, 200_000) in positions
    assert boundaries.last() in positions


@pytest.mark.parametrize("tail", [b"", bytes(5), bytes(1000), batch(1500, 3, 200)[:-1], batch(1500, 3, 200)[:20]])
def test_the_end_is_behind_the_last_whole_batch(tmp_path: Path, tail: bytes) -> None:
    segment, positions, offsets = write_segment(tmp_path / "t-0", [(10, 100)] * 50, every=3)
    Path(segment.log).write_bytes(Path(segment.log).read_bytes() + tail)
    extent = read_extent(FS, str(tmp_path / "t-0"), TopicPartition("t", 0), log_start=1003)
    assert (extent.log_start, extent.log_end) == (1003, offsets[-1])
    assert extent.segments == (segment,)
    assert segment.size == positions[-1]


def test_damage_at_the_end_is_named(tmp_path: Path) -> None:
    segment, positions, _ = write_segment(tmp_path / "t-0", [(10, 100)] * 50, every=3)
    Path(segment.log).write_bytes(Path(segment.log).read_bytes() + b"\xff" * 100)
    with pytest.raises(CorruptBatchError) as damage:
        read_extent(FS, str(tmp_path / "t-0"), TopicPartition("t", 0), 0)
    assert str(damage.value).startswith(f"{segment.log}, position {positions[-1]}, offset -1: unknown magic -1")


@pytest.mark.parametrize("version", ["4.4.0", "2.8.2"])
def test_finds_the_ends_of_kafkas_logs(tmp_path: Path, version: KafkaVersion) -> None:
    root = golden.unpack(tmp_path, version)
    found = find_partitions(FS, [str(golden.log_dir(root))])
    assert sorted(str(partition.topic_partition) for partition in found) == golden.directories(root)
    for partition in found:
        extent = read_extent(FS, partition.path, partition.topic_partition, 0)
        if str(partition.topic_partition) in golden.partitions(root):
            records = golden.expected_records(root, str(partition.topic_partition))
            assert all(extent.log_start <= record.offset < extent.log_end for record in records)


def test_paths(tmp_path: Path) -> None:
    (tmp_path / "data-1").mkdir()
    for number in range(2):
        write_segment(tmp_path / "data-1" / f"web-{number}", [(1, 61)], every=1)
    (tmp_path / "data-1" / ("web-7." + "a" * 32 + "-delete")).mkdir()
    (tmp_path / "data-1" / "web-10").mkdir()
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "meta.properties").touch()

    def names(*paths: str) -> list[str]:
        return [os.path.relpath(found.path, tmp_path) for found in find_partitions(FS, paths)]

    # A log directory may be named like a partition: what lies in it tells them apart.
    assert names(f"{tmp_path}/data-1") == ["data-1/web-0", "data-1/web-1", "data-1/web-10"]
    assert names(f"file://{tmp_path}/data-1/web-1") == ["data-1/web-1"]
    assert names(f"{tmp_path}/data-1/web-0", f"{tmp_path}/data-1/web-0/") == ["data-1/web-0"]
    assert names(f"{tmp_path}/d*") == ["data-1/web-0", "data-1/web-1", "data-1/web-10"]
    assert names(f"{tmp_path}/*/web-[0-9]") == ["data-1/web-0", "data-1/web-1"]
    assert names(f"{tmp_path}/empty") == []


def test_paths_that_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "file").touch()
    for path, message in [
        (f"{tmp_path}/b", "does not exist"),
        (f"{tmp_path}/file", "is a file"),
        (f"{tmp_path}/a", "is neither a log directory"),
        (f"{tmp_path}/x*", "no directory matches"),
        ("s3://bucket/log", "local files"),
    ]:
        with pytest.raises(InvalidConfigError, match=message):
            find_partitions(FS, [path])


def test_a_name_with_a_wild_card_in_it_is_itself(tmp_path: Path) -> None:
    (tmp_path / "[a]").mkdir()
    assert expand(FS, f"{tmp_path}/[a]") == [f"{tmp_path}/[a]"]
