"""Which partitions there are, which replica of them is read, and up to where: held to Kafka's own consumer."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

import seglog
from seglog.core.errors import CorruptBatchError, InvalidConfigError, InvalidLogDirError
from seglog.core.fs import File, OsFs, is_locked
from seglog.core.types import TopicPartition
from seglog.records.record import NewRecord, encode_batch, end_txn_marker
from seglog.sources.directories.survey import survey
from seglog.sources.options.read_options import parse_options
from seglog.spark.source import SeglogDataSource
from seglog.storage.formats.watermarks import Watermark, encode_watermarks
from seglog.storage.log.transaction_index import AbortedTxn, encode_aborted
from tests import golden
from tests.kafka.jars import KafkaVersion
from tests.spark.logs import as_row, make_reader, offsets, write_partition

RECORD = [NewRecord(b"v")]


def meta(log_dir: Path, broker: int) -> None:
    log_dir.mkdir(parents=True, exist_ok=True)
    (log_dir / "meta.properties").write_text(f"version=1\ncluster.id=c\nnode.id={broker}\n")


@pytest.fixture
def replicas(tmp_path: Path) -> str:
    """Three brokers; of t-0 the second one's log is the longest, t-1 has the first one only."""
    for broker, count in ((1, 2), (2, 5), (3, 3)):
        meta(tmp_path / f"b{broker}", broker)
        write_partition(tmp_path / f"b{broker}" / "t-0", [RECORD] * count)
    write_partition(tmp_path / "b1" / "t-1", [RECORD])
    return f"{tmp_path}/b*"


def ends(path: str, **options: str) -> list[tuple[int, int, str]]:
    found = survey(OsFs(), parse_options({"path": path, **options})).extents
    return [(each.topic_partition.partition, each.until, Path(each.directory).parent.name) for each in found]


def test_reads_the_longest_replica_or_the_chosen_one(replicas: str) -> None:
    assert ends(replicas) == [(0, 5, "b2"), (1, 1, "b1")]
    assert ends(replicas, replica="3") == [(0, 3, "b3")]
    assert ends(replicas, replica="1") == [(0, 2, "b1"), (1, 1, "b1")]
    assert ends(replicas, replica=replicas.replace("b*", "b1/../b3")) == [(0, 3, "b3")]
    with pytest.raises(InvalidConfigError, match=r"option replica is '7': .*b1 \(broker 1\), .*b2 \(broker 2\)"):
        ends(replicas, replica="7")


def test_skips_a_damaged_replica(replicas: str) -> None:
    with Path(replicas.replace("b*", "b2/t-0"), f"{0:020d}.log").open("ab") as log:
        log.write(b"\xff" * 90)
    found = survey(OsFs(), parse_options({"path": replicas}))
    assert [(each.until, Path(each.directory).parent.name) for each in found.extents] == [(3, "b3"), (1, "b1")]
    assert "skipped a damaged replica" in found.notes[0]
    with pytest.raises(CorruptBatchError):
        survey(OsFs(), parse_options({"path": replicas, "replica": "2"}))


def test_several_paths_are_one_set_of_topics(tmp_path: Path) -> None:
    for name in ("a/t-0", "b/u-0", "b/t-1"):
        write_partition(tmp_path / name, [RECORD])
    paths = f'["{tmp_path}/a", "{tmp_path}/b/u-0", "{tmp_path}/b"]'
    (tmp_path / "link").symlink_to(tmp_path / "a")
    for given in (paths, paths.replace("/a", "/link").replace("]", f', "{tmp_path}/a"]')):
        source = SeglogDataSource({"paths": given})
        tasks = source.reader(source.schema()).partitions()
        assert [str(one.topic_partition) for task in tasks for one in task.value] == ["t-0", "t-1", "u-0"]


@pytest.fixture
def in_use(tmp_path: Path) -> Path:
    """A log directory of ten records of t-0 and four of u-0; no file says where high watermarks are."""
    write_partition(tmp_path / "t-0", [RECORD] * 10)
    write_partition(tmp_path / "u-0", [RECORD] * 4)
    (tmp_path / ".lock").touch()
    return tmp_path


def until(path: Path, **options: str) -> dict[str, tuple[int, str]]:
    found = survey(OsFs(), parse_options({"path": str(path), **options}))
    assert len(found.notes) <= 1
    ends = {each.topic_partition.topic: (each.until, each.bound) for each in found.extents}
    return {**ends, "note": (0, found.notes[0])} if found.notes else ends


def test_reads_a_directory_that_is_not_in_use_to_its_end(in_use: Path) -> None:
    (in_use / "replication-offset-checkpoint").write_text("0\n1\nt 0 7\n")
    end = "log end offset"
    assert until(in_use) == until(in_use, until="logEnd") == {"t": (10, end), "u": (4, end)}
    checkpoint = "high watermark (replication-offset-checkpoint)"
    assert until(in_use, until="highWatermark") == {"t": (7, checkpoint), "u": (0, checkpoint)}


def test_reads_a_directory_in_use_to_the_high_watermark_with_a_note(in_use: Path) -> None:
    lock = OsFs().lock(str(in_use / ".lock"))
    end = "log end offset"
    found = until(in_use)
    assert found["t"] == (10, end)
    assert "is in use, and no file has its high watermarks" in found["note"][1]
    (in_use / "replication-offset-checkpoint").write_text("0\n2\nt 0 7\nu 0 99\n")
    found = until(in_use)
    assert (found["t"], found["u"]) == ((7, "high watermark (replication-offset-checkpoint)"), (4, end))
    assert "up to the high watermarks in replication-offset-checkpoint (option until=logEnd" in found["note"][1]
    marks = {TopicPartition("t", 0): Watermark(9, 8), TopicPartition("u", 0): Watermark(3, 3)}
    (in_use / "seglog.watermarks").write_bytes(encode_watermarks(marks))
    assert until(in_use)["t"] == found["t"]  # the file of a broker that is dead
    held = OsFs().lock(str(in_use / "seglog.watermarks"))
    found = until(in_use)
    assert (found["t"], found["u"]) == (
        (9, "high watermark (seglog.watermarks)"),
        (3, "high watermark (seglog.watermarks)"),
    )
    assert "seglog.watermarks" in found["note"][1]
    assert until(in_use, isolationLevel="read_committed")["t"] == (8, "last stable offset")
    assert until(in_use, until="logEnd") == {"t": (10, end), "u": (4, end)}
    with pytest.warns(UserWarning, match=r"in use: seglog reads up to the high watermarks in seglog\.watermarks"):
        assert offsets(make_reader({"path": str(in_use), "subscribe": "t"})) == list(range(9))
    held.release()
    lock.release()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert offsets(make_reader({"path": str(in_use), "subscribe": "t"})) == list(range(10))


def test_the_engine_has_its_directory_locked(tmp_path: Path) -> None:
    lock = str(tmp_path / ".lock")
    assert not is_locked(lock)
    with seglog.open(tmp_path):
        assert is_locked(lock)
    assert not is_locked(lock)


def test_until_high_watermark_needs_a_file_that_has_it(in_use: Path) -> None:
    with pytest.raises(InvalidConfigError, match=r"has neither seglog\.watermarks nor replication-offset-checkpoint"):
        until(in_use, until="highWatermark")


@pytest.mark.parametrize("version", ["4.4.0", "2.8.2"])
def test_read_committed_is_what_kafkas_consumer_read(tmp_path: Path, version: KafkaVersion) -> None:
    root = golden.unpack(tmp_path, version)
    found = sorted(path.parent.name for path in (root / "expected").glob("*/read_committed.jsonl"))
    assert found
    for name in (partition.removesuffix("-0") for partition in found):
        records = golden.expected_records(root, f"{name}-0", isolation="read_committed")
        expected = [as_row(record)[2] for record in records]
        options = {"path": str(golden.log_dir(root)), "subscribe": name, "isolationLevel": "read_committed"}
        assert offsets(make_reader(options)) == expected
        connectors = {"path": options["path"], "subscribe": name, "kafka.isolation.level": "read_committed"}
        assert offsets(make_reader(connectors)) == expected
        assert offsets(make_reader({**options, "minPartitions": "7"})) == expected


def test_a_transaction_whose_marker_is_behind_the_high_watermark_is_open(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    write_partition(directory, [RECORD] * 2)
    parts = [
        encode_batch(RECORD * 2, base_offset=2, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    ]
    parts += [encode_batch(RECORD, base_offset=4)]
    marker = bytearray(end_txn_marker(commit=False, coordinator_epoch=0, producer_id=7, producer_epoch=0, timestamp=1))
    marker[:8] = (5).to_bytes(8, "big")
    parts += [marker, encode_batch(RECORD, base_offset=6)]
    with (directory / f"{0:020d}.log").open("ab") as log:
        log.write(b"".join(parts))
    (directory / f"{0:020d}.txnindex").write_bytes(encode_aborted(AbortedTxn(7, 2, 5, 6)))
    (tmp_path / "replication-offset-checkpoint").write_text("0\n1\nt 0 5\n")
    options = {"path": str(tmp_path), "isolationLevel": "read_committed"}
    assert offsets(make_reader(options)) == [0, 1, 4, 6]
    assert offsets(make_reader({**options, "includeControl": "true"})) == [0, 1, 4, 5, 6]
    assert offsets(make_reader({**options, "until": "highWatermark"})) == [0, 1]
    assert offsets(make_reader({"path": str(tmp_path)})) == [0, 1, 2, 3, 4, 6]


def test_reports_missing_permissions(tmp_path: Path) -> None:
    write_partition(tmp_path / "t-0", [RECORD])

    class Closed(OsFs):
        """As for a user who is not root."""

        __slots__ = ()

        def open(self, path: str, *, create: bool = False, write: bool = True) -> File:
            file = super().open(path, create=create, write=write)
            file.close()
            raise PermissionError(13, "Permission denied", path)

    with pytest.raises(InvalidLogDirError, match=r"0\.log: permission denied"):
        survey(Closed(), parse_options({"path": str(tmp_path)}))


def test_ten_thousand_partitions_are_planned_in_seconds(tmp_path: Path) -> None:
    """1.1 s alone on one core; the limit of the suite is far above for a busy machine."""
    data = encode_batch(RECORD)
    for number in range(10_000):
        directory = tmp_path / f"t{number % 100}-{number // 100}"
        directory.mkdir()
        (directory / f"{0:020d}.log").write_bytes(data)
    tasks = make_reader({"path": str(tmp_path)}).partitions()
    assert sum(len(task.value) for task in tasks) == 10_000
