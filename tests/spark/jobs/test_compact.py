"""Compaction on Spark leaves the files that the engine's compaction leaves."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from seglog.cli.main import main
from seglog.core.config import LogDirConfig
from seglog.core.errors import InvalidConfigError, LogDirInUseError, UnknownTopicError
from seglog.core.ground import Ground
from seglog.core.types import MAX_INT64, TopicPartition
from seglog.records.record import NewRecord
from seglog.spark.jobs.compact import CompactionResult, buckets, compact, stretches
from seglog.storage.compaction import log_cleaner
from seglog.storage.compaction.round import COMPILED
from seglog.storage.directory.log_dir import LogDir
from tests.cases import is_long
from tests.kit.manual_clock import ManualClock
from tests.storage.compaction.compacted import START_MS, Writer, batches, facts, values

pytestmark = pytest.mark.xdist_group("spark-jobs")

T0 = TopicPartition("t", 0)
TOPIC: Mapping[str, object] = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": 1500,
    "segment.index.bytes": 600,
    "index.interval.bytes": 300,
    "delete.retention.ms": 10_000,
    "message.timestamp.after.max.ms": MAX_INT64,
}


def _write(path: Path, seed: int, ground: Ground, *, steps: int = 80, **topic: object) -> None:
    """Append transactions, tombstones, all codecs and old formats."""
    with LogDir.open(path, ground=ground) as directory:
        if "t" not in directory.topics():
            directory.create_topic("t", 1, {**TOPIC, **{key.replace("_", "."): value for key, value in topic.items()}})
        writer = Writer(directory.log("t"), random.Random(seed))
        writer.sync()
        writer.write(steps, legacy=True)
        writer.end_all()
        directory.log("t").roll()


def _by_the_engine(path: Path, ground: Ground) -> None:
    with LogDir.open(path, ground=ground) as directory:
        log = directory.log("t")
        part = log_cleaner.cleanable(log, directory.checkpoints.cleaner_offsets.get(T0))
        stats = log_cleaner.compact(log, first_dirty=part.first_dirty, engine=COMPILED, in_child=False)
        directory.checkpoints.note_cleaned(log, stats.end_offset)


def _files(path: Path) -> dict[str, bytes]:
    """The files of a directory, without deleted ones."""
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file() and not file.name.endswith(".deleted")
    }


_on_spark = partial(compact, spark_from=0)


def test_leaves_the_same_files_as_the_engine(spark: SparkSession, tmp_path: Path) -> None:
    """Two rounds: over everything, and over later records, where tombstones and markers of the first one go."""
    clock = ManualClock(START_MS)
    ground = Ground(clock=clock)
    here, there = tmp_path / "here", tmp_path / "there"
    _write(here, 1, ground)
    for turn in range(3 if is_long() else 2):
        shutil.copytree(here, there)
        _by_the_engine(there, ground)
        (done,) = _on_spark(spark, here, ground=ground).partitions
        assert _files(here) == _files(there)
        assert not (here / "t-0" / ".seglog").exists()
        assert (done.by, done.records_read > done.records_written > 0) == ("spark", True)
        assert done.segments_after <= done.segments_before - min(turn, 1)
        shutil.rmtree(there)
        clock.advance(20_000)
        with LogDir.open(here, ground=ground) as directory:  # several segments fit into one from now on
            directory.alter_config("t", {"internal.segment.bytes": 4_600, "segment.index.bytes": 1_200})
        _write(here, 10 + turn, ground, steps=30)


def test_a_dry_run_changes_nothing_and_a_second_job_has_nothing_to_do(spark: SparkSession, tmp_path: Path) -> None:
    ground = Ground(clock=ManualClock(START_MS))
    _write(tmp_path, 3, ground)
    left = tmp_path / "t-0" / ".seglog" / "staging"  # by a job that died, beside what is not a compaction's
    (left / "compact-1" / "0-a").mkdir(parents=True)
    (left / "compact-1" / "0-a" / "00000000000000000000.log.cleaned").write_bytes(b"half")
    (left / "other").mkdir()
    held = _files(tmp_path / "t-0")
    planned = _on_spark(spark, tmp_path, ground=ground, dry_run=True)
    assert _files(tmp_path / "t-0") == held
    first = _on_spark(spark, tmp_path, ground=ground)
    (before,), (after,) = planned.partitions, first.partitions
    assert planned.dry_run
    assert (before.end_offset, before.segments_before, before.total_bytes, before.by) == (
        after.end_offset,
        after.segments_before,
        after.total_bytes,
        after.by,
    )
    assert [one.name for one in left.iterdir()] == ["other"]
    (left / "other").rmdir()
    held = _files(tmp_path)
    second = _on_spark(spark, tmp_path, ground=ground)
    assert (len(first.partitions), first.clean, first.bytes_saved > 0) == (1, 0, True)
    assert (second.partitions, second.clean, second.failed) == ((), 1, {})
    assert _files(tmp_path) == held
    assert not list((tmp_path / "t-0").glob("*.log.deleted"))


def test_small_partitions_are_cleaned_by_the_engine(spark: SparkSession, tmp_path: Path) -> None:
    ground = Ground(clock=ManualClock(START_MS))
    _write(tmp_path, 5, ground)
    (done,) = compact(spark, tmp_path, ground=ground).partitions
    assert (done.by, done.records_read > done.records_written) == ("engine", True)
    assert compact(spark, tmp_path, ground=ground).clean == 1


def test_young_records_and_the_active_segment_are_left(spark: SparkSession, tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    ground = Ground(clock=clock)
    _write(tmp_path, 6, ground, min_compaction_lag_ms=3_600_000)
    assert _on_spark(spark, tmp_path, ground=ground).clean == 1
    clock.advance(100_000_000)
    with LogDir.open(tmp_path, ground=ground) as directory:
        for at in range(3):
            directory.log("t").append_records([NewRecord(b"%d" % at, b"young", clock.now_ms())])
        end = directory.log("t").active.base_offset
    (done,) = _on_spark(spark, tmp_path, ground=ground).partitions
    assert done.end_offset == end
    assert _on_spark(spark, tmp_path, ground=ground, roll=True).clean == 1  # rolled, but too young
    clock.advance(100_000_000)
    (done,) = _on_spark(spark, tmp_path, ground=ground).partitions
    assert done.end_offset == end + 3


def test_cleans_only_above_the_dirty_ratio(spark: SparkSession, tmp_path: Path) -> None:
    ground = Ground(clock=ManualClock(START_MS))
    _write(tmp_path, 7, ground)
    _on_spark(spark, tmp_path, ground=ground)
    _write(tmp_path, 8, ground, steps=2)
    assert _on_spark(spark, tmp_path, ground=ground, min_dirty_ratio=0.9).clean == 1
    assert _on_spark(spark, tmp_path, ground=ground, min_dirty_ratio=0.01).clean == 0


def test_topics_that_are_not_compacted_have_to_be_forced(spark: SparkSession, tmp_path: Path) -> None:
    ground = Ground(clock=ManualClock(START_MS))
    _write(tmp_path, 9, ground, cleanup_policy="delete", retention_ms=-1)
    assert _on_spark(spark, tmp_path, ground=ground) == CompactionResult(
        partitions=(), failed={}, clean=0, dry_run=False
    )
    with pytest.raises(InvalidConfigError, match="topic t is not compacted"):
        _on_spark(spark, tmp_path, ground=ground, topics=["t"])
    with pytest.raises(InvalidConfigError, match="force needs the names"):
        _on_spark(spark, tmp_path, ground=ground, force=True)
    with pytest.raises(UnknownTopicError, match="'u'"):
        _on_spark(spark, tmp_path, ground=ground, topics=["u"], force=True)
    (done,) = _on_spark(spark, tmp_path, ground=ground, topics=["t"], force=True).partitions
    assert done.records_written < done.records_read


def test_a_forced_topic_with_records_without_a_key_is_left_as_it_is(spark: SparkSession, tmp_path: Path) -> None:
    with LogDir.open(tmp_path) as directory:
        directory.create_topic("t", 1)
        for key in (b"k", None, b"k", None):
            directory.log("t").append_records([NewRecord(b"v", key)])
        directory.log("t").roll()
    held = _files(tmp_path / "t-0")
    done = compact(spark, tmp_path, topics=["t"], force=True)
    assert "2 records have no key, and compaction would drop them" in done.failed[T0]
    assert _files(tmp_path / "t-0") == held


def test_a_damaged_partition_is_left_as_it_is_and_the_others_are_done(spark: SparkSession, tmp_path: Path) -> None:
    ground = Ground(clock=ManualClock(START_MS))
    _write(tmp_path, 11, ground)
    with LogDir.open(tmp_path, ground=ground) as directory:
        directory.create_topic("u", 1, TOPIC)
        for at in range(40):
            directory.log("u").append_records([NewRecord(b"%d" % at * 50, b"key", START_MS)])
    path = sorted((tmp_path / "t-0").glob("*.log"))[1]
    data = bytearray(path.read_bytes())
    data[80] ^= 1
    path.write_bytes(data)
    held = _files(tmp_path / "t-0")
    done = _on_spark(spark, tmp_path, ground=ground)
    assert [one.topic for one in done.partitions] == ["u"]
    assert str(path) in done.failed[T0]
    # In staging another worker of the job that failed may still be writing: it goes with the next job.
    left = {name: data for name, data in _files(tmp_path / "t-0").items() if not name.startswith(".seglog/staging/")}
    assert left == held


def test_a_directory_in_use_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    _write(tmp_path, 12, Ground(clock=ManualClock(START_MS)))
    with LogDir.open(tmp_path), pytest.raises(LogDirInUseError):
        compact(spark, tmp_path)


def test_one_large_segment_keeps_several_tasks_busy(spark: SparkSession, tmp_path: Path) -> None:
    rng = random.Random(0)
    sizes = {**TOPIC, "internal.segment.bytes": 14 << 20, "segment.index.bytes": 1 << 20, "index.interval.bytes": 4096}
    with LogDir.open(tmp_path) as directory:
        directory.create_topic("t", 1, sizes)
        log = directory.log("t")
        for _ in range(1_200):
            log.append_records([NewRecord(rng.randbytes(1_000), b"%d" % rng.randrange(6_000)) for _ in range(15)])
        log.roll()
        expected, end = values(facts(log)), log.log_end_offset
        round_ = log_cleaner.plan(log, first_dirty=0, first_uncleanable=end, map_bytes=1 << 20).round
        cut = list(stretches(log.fs, round_, cores=2))
        assert [(one.source, one.start) for one in cut[:2]] == [(cut[0].source, 0), (cut[0].source, cut[0].end)]
        assert sum(one.end - one.start for one in cut) == sum(source.size for source in round_.sources)
        assert len(cut) >= 4
        assert buckets(round_, cores=2) == 2
    told: list[int] = []
    (done,) = compact(spark, tmp_path, spark_from=0, progress=told.append, config=LogDirConfig()).partitions
    assert (done.records_read, done.records_written, done.keys) == (18_000, len(expected), len(expected))
    assert sum(told) == done.total_bytes
    with LogDir.open(tmp_path) as directory:
        assert values(facts(directory.log("t"))) == expected
        assert {batch.header.last_offset for batch in batches(directory.log("t"))} >= {end - 1}


def test_the_command_says_what_it_did(
    spark: SparkSession, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    del spark  # the command takes the session that is there
    ground = Ground(clock=ManualClock(START_MS))
    _write(tmp_path, 14, ground)
    assert main(["spark", "compact", str(tmp_path), "--dry-run"]) == 0
    assert main(["spark", "compact", str(tmp_path), "--topic", "t", "--force", "--json"]) == 0
    assert main(["spark", "compact", str(tmp_path)]) == 0
    lines = capsysbinary.readouterr().out.decode().splitlines()
    assert lines[0].split() == ["partition", "by", "from", "to", "segments", "size", "dirty"]
    assert lines[2].endswith("nothing was changed")
    document = json.loads(lines[3])
    assert [(one["topic"], one["by"]) for one in document["partitions"]] == [("t", "spark")]
    assert document["partitions"][0]["end_offset"] == int(lines[1].split()[3])
    assert lines[4:] == ["0 compacted, 0 B -> 0 B, 1 had nothing to clean"]
    assert main(["spark", "compact", str(tmp_path / "none")]) == 2
