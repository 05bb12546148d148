"""Directories of several brokers as one set of topics: each partition once, up to its committed offset."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from seglog.core.errors import InvalidConfigError, InvalidLogDirError
from seglog.core.fs import OsFs
from seglog.core.types import TopicPartition
from seglog.sources.directories.planning import DirectoryExtent
from seglog.sources.directories.survey import survey
from seglog.sources.options.read_options import parse_options
from seglog.spark.source import SeglogDataSource
from seglog.storage.formats.watermarks import Watermark, encode_watermarks
from tests.spark.brokers import TOPIC_ID, Brokers
from tests.spark.logs import batches, make_reader
from tests.spark.stream_driver import Checkpoint, Driver, offsets

pytestmark = pytest.mark.filterwarnings("ignore:seglog")
T0 = TopicPartition("t", 0)


def found(brokers: Brokers, **options: str) -> DirectoryExtent:
    given = {"path": brokers.paths, **options}
    (extent,) = survey(OsFs(), parse_options(given)).extents
    return extent


def name(extent: DirectoryExtent) -> str:
    return Path(extent.directory).parent.name


def values(path: str, **options: str) -> list[str]:
    return [
        value.decode()
        for batch in batches(make_reader({"path": path, **options}))
        for value in batch.column("value").to_pylist()
    ]


@pytest.fixture
def diverged(tmp_path: Path) -> Brokers:
    """b1 led epoch 0 and has 10 records alone; b2 leads epoch 1; b3 lags. 25 records are committed."""
    brokers = Brokers(tmp_path)
    brokers.append(1, 20)
    for number in (2, 3):
        brokers.follow(number, 1)
    brokers.commit(18, 1, 2, 3)
    brokers.append(1, 10, b"lost")
    brokers.lead(2, 1)
    brokers.append(2, 8, b"new")
    brokers.follow(3, 2)
    brokers.commit(25, 2)
    brokers.commit(22, 3)
    brokers.append(2, 2, b"newest")
    brokers.close()
    return brokers


NEW = [*(f"v{at}" for at in range(20)), *(f"new{at}" for at in range(20, 25))]


def test_reads_committed_records_without_a_diverged_tail(diverged: Brokers) -> None:
    extent = found(diverged)
    assert (name(extent), extent.until, extent.log_end) == ("b2", 25, 30)
    assert extent.bound == "high watermark (replication-offset-checkpoint)"
    assert [Path(path).parent.name for path in extent.others] == ["b3"]
    for path in (diverged.paths, diverged.glob):
        assert values(path) == NEW
    assert values(diverged.paths, until="highWatermark") == NEW
    newest = values(diverged.paths, until="logEnd")
    assert (newest[:25], newest[25:]) == (NEW, [*(f"new{at}" for at in (25, 26, 27)), "newest28", "newest29"])
    assert values(diverged.paths, replica="1")[20:] == [f"lost{at}" for at in range(20, 30)]


def test_two_replicas_are_enough_and_each_pair_is_read_as_far_as_it_can_vouch(diverged: Brokers) -> None:
    for names, end in (("b1,b2", 25), ("b2,b3", 25), ("b1,b3", 22)):
        path = ",".join(str(diverged.root / one) for one in names.split(","))
        assert values(path) == NEW[:end], names


def test_the_views_have_each_batch_once_too(diverged: Brokers) -> None:
    for view, count in (("batches", 25), ("segments", None)):
        options = {"path": diverged.paths, "view": view}
        source = SeglogDataSource(options)
        reader = source.reader(source.schema())
        files: list[str] = []
        for task in reader.partitions():
            for part in reader.read(task):
                assert isinstance(part, pa.RecordBatch)
                files += part.column("file").to_pylist()
        assert {Path(file).parent.parent.name for file in files} == {"b2"}
        assert count is None or len(files) == count


def test_a_running_brokers_watermarks_count_beside_a_dead_ones_checkpoint(diverged: Brokers) -> None:
    file = diverged.root / "b3" / "seglog.watermarks"
    file.write_bytes(encode_watermarks({T0: Watermark(27, 27)}))
    assert found(diverged).until == 25  # of a dead broker
    held = OsFs().lock(str(file))
    extent = found(diverged)
    assert (name(extent), extent.until, extent.bound) == ("b3", 27, "high watermark (seglog.watermarks)")
    held.release()


def test_the_replica_that_begins_first_is_read(diverged: Brokers) -> None:
    checkpoint = diverged.root / "b2" / "log-start-offset-checkpoint"
    checkpoint.write_text("0\n1\nt 0 12\n")
    (diverged.root / "b3" / "replication-offset-checkpoint").write_text("0\n1\nt 0 28\n")
    extent = found(diverged)
    assert (name(extent), extent.log_start, extent.until) == ("b3", 0, 28)
    assert [Path(path).parent.name for path in extent.others] == ["b2"]


def test_epochs_that_a_power_cut_has_left_beside_an_older_log_vouch_for_nothing(diverged: Brokers) -> None:
    """b1 truncated its own records and synced its epochs; then a power cut restored the old end."""
    path = diverged.root / "b1" / "t-0" / "leader-epoch-checkpoint"
    path.write_text("0\n2\n0 0\n1 20\n")
    (diverged.root / "b1" / ".kafka_cleanshutdown").unlink()
    extent = found(diverged)
    assert (name(extent), extent.until) == ("b2", 25)
    assert [Path(path).parent.name for path in extent.others] == ["b3"]


def test_one_name_and_two_topics_is_an_error_that_names_both(tmp_path: Path) -> None:
    brokers = Brokers(tmp_path, topic_ids=[TOPIC_ID, TOPIC_ID, UUID(int=16)])
    brokers.close()
    with pytest.raises(
        InvalidConfigError,
        match=r"topic 't' has two ids: \S+DxHg in \S+/b1/t-0, \S+AEA in \S+/b3/t-0\..*option replica",
    ):
        found(brokers)
    assert found(brokers, replica="3").until == 0
    (tmp_path / "b3" / "t-0" / "partition.metadata").unlink()
    assert found(brokers).until == 0


def test_a_missing_directory_is_an_error_unless_losses_are_allowed(diverged: Brokers) -> None:
    diverged.take_away(2)
    with pytest.raises(InvalidConfigError, match=r"b2' does not exist"):
        values(diverged.paths)
    with pytest.warns(UserWarning, match=r"b2 is missing; the other directories are read without it"):
        assert values(diverged.paths, failOnDataLoss="false") == NEW[:22]
    diverged.take_away(3)
    # One is left, whose end nobody else has: it is not read because the others are away.
    assert values(diverged.paths, failOnDataLoss="false") == NEW[:18]
    diverged.take_away(1)
    with pytest.raises(InvalidConfigError, match=r"b1' does not exist"):
        values(diverged.paths, failOnDataLoss="false")


def test_a_task_continues_with_another_replica(diverged: Brokers) -> None:
    reader = make_reader({"path": diverged.paths, "columns": "offset,value"})
    (task,) = reader.partitions()
    diverged.take_away(2)
    assert [value.decode() for batch in reader.read(task) for value in batch.column("value").to_pylist()] == NEW
    diverged.take_away(3)
    with pytest.raises(InvalidLogDirError, match=r"b2 on host .* it does not exist"):
        list(reader.read(task))


@pytest.mark.xdist_group("spark")
def test_in_a_session(spark: SparkSession, diverged: Brokers) -> None:
    rows = spark.read.format("seglog").load(diverged.paths).collect()
    assert sorted((row.offset, bytes(row.value).decode()) for row in rows) == list(enumerate(NEW))


def test_a_stream_continues_while_brokers_come_and_go(tmp_path: Path) -> None:
    brokers = Brokers(tmp_path)
    brokers.append(1, 10)
    brokers.follow(2, 1)
    brokers.commit(10, 1, 2)
    brokers.append(1, 5, b"lost")
    brokers.append(3, 4, partition=1)  # which only b3 has
    brokers.log(3, 1).update_high_watermark(4)
    brokers.close()
    checkpoint, given = Checkpoint(), {"path": brokers.paths, "startingOffsets": "earliest"}
    driver = Driver(checkpoint, given)
    driver.drain()
    assert read(checkpoint) == [list(range(10)), list(range(4))]

    brokers.take_away(3)
    assert not driver.trigger()  # nothing new, and nothing lost
    brokers.take_away(1)
    brokers.open(2)
    brokers.lead(2, 1)
    brokers.append(2, 7, b"new")
    brokers.commit(15, 2)
    brokers.close()
    driver.drain()
    assert read(checkpoint) == [list(range(15)), list(range(4))]

    brokers.bring_back(1)  # with what it alone had, and a high watermark of before
    brokers.take_away(2)
    driver = Driver(checkpoint, given)  # which goes on from the checkpoint
    assert not driver.trigger()
    brokers.bring_back(2)
    brokers.bring_back(3)
    brokers.open(3)
    brokers.append(3, 2, partition=1)
    brokers.log(3, 1).update_high_watermark(6)
    brokers.close()
    driver.drain()
    assert read(checkpoint) == [list(range(15)), list(range(6))]


def read(checkpoint: Checkpoint) -> list[list[int]]:
    return [offsets(checkpoint.rows(), partition) for partition in (0, 1)]
