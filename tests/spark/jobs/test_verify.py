"""`seglog.spark.jobs.verify` against the engine's verification of the same directory: the same, word for word."""

from __future__ import annotations

import random
import shutil
from errno import EIO
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from seglog.core.errors import InvalidLogDirError
from seglog.spark.jobs import verify as job
from seglog.spark.jobs.driver import JobFailedError, plain_errors
from seglog.storage.offline.verify import partition_files as verify_partition
from seglog.storage.offline.verify import verify
from tests import golden
from tests.cases import case
from tests.cli.run import Run
from tests.kafka.jars import CURRENT, OLD, KafkaVersion
from tests.storage.offline.verify.verified import KINDS, flip, make_dir

pytestmark = pytest.mark.xdist_group("spark-jobs")


def harm(rng: random.Random, root: Path) -> str:
    """Damage one file of a log directory, and describe the damage."""
    path = rng.choice(sorted(file for file in root.rglob("*") if file.is_file()))
    data = path.read_bytes()
    match rng.choice(("flip", "flip", "flip", "cut", "drop", "fill", "remove", "append", "swap")):
        case "flip" if data:
            path.write_bytes(flip(data, rng.randrange(len(data)), rng.randrange(8)))
        case "cut":
            path.write_bytes(data[: rng.randrange(len(data) + 1)])
        case "drop":
            at, size = rng.randrange(len(data) + 1), rng.randrange(1, 5000)
            path.write_bytes(data[:at] + data[at + size :])
        case "fill":
            at, size = rng.randrange(len(data) + 1), rng.randrange(1, 9000)
            path.write_bytes(data[:at] + bytes(len(data[at : at + size])) + data[at + size :])
        case "remove":
            path.unlink()
        case "append":
            path.write_bytes(data + rng.randbytes(rng.randrange(1, 200)))
        case what:
            half = len(data) // 2
            path.write_bytes(data[half:] + data[:half])
            return f"{what} {path.name}"
    return path.name


@pytest.mark.parametrize("version", [CURRENT, OLD])
@pytest.mark.parametrize("strict", [False, True])
def test_directories_of_kafkas(spark: SparkSession, tmp_path: Path, version: KafkaVersion, strict: bool) -> None:
    path = str(golden.log_dir(golden.unpack(tmp_path, version)))
    found = job.verify(spark, [path], strict=strict)
    assert found == verify([path], strict=strict)
    assert found.partitions > 10


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_directories(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Cut into stretches of 6 KB, which are many tasks, against the engine in one piece and by the plain path."""
    make_dir(tmp_path / "sound", kind)
    rng = random.Random(kind)
    damaged = 0
    for number in range(12):
        root = tmp_path / f"{kind}{number}"
        shutil.copytree(tmp_path / "sound", root)
        harms = [harm(rng, root) for _ in range(rng.choice((1, 1, 2, 4)))]
        expected = verify([str(root)], fast=False, workers=1)
        with monkeypatch.context() as patch:
            patch.setattr(verify_partition, "STRETCH", 6000)
            patch.setattr(job, "_SMALLEST_TASK", 9000)
            assert job.verify(spark, [str(root)]) == expected, harms
        damaged += expected.is_damaged
        case()
    assert damaged > 6


def test_jobs_of_few_bytes_and_more_than_one_at_a_time(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many Spark jobs, and indexes of little more than one segment in memory."""
    make_dir(tmp_path / "logs", "rolled")
    log = next(iter(sorted((tmp_path / "logs" / "t-0").glob("*.log"))))
    log.write_bytes(flip(log.read_bytes(), 5000, 1))
    monkeypatch.setattr(job, "_WAVE_BYTES", 8000)
    told: list[int] = []
    found = job.verify(spark, [str(tmp_path / "logs")], progress=told.append)
    assert found == verify([str(tmp_path / "logs")])
    assert len(told) > 1
    assert sum(told) == job.measure([str(tmp_path / "logs")])


def test_verifies_files_and_partitions_and_refuses_others(spark: SparkSession, tmp_path: Path) -> None:
    partition = make_dir(tmp_path / "logs", size=9000)
    for path in (partition, partition / f"{0:020d}.log", partition / f"{0:020d}.timeindex"):
        assert job.verify(spark, [str(path)]) == verify([str(path)])
    (tmp_path / "other").mkdir()
    with pytest.raises(InvalidLogDirError, match="neither a log directory nor a partition's"):
        job.verify(spark, [str(tmp_path / "other")])


def test_a_link_in_place_of_a_file_is_a_finding(spark: SparkSession, tmp_path: Path) -> None:
    log = make_dir(tmp_path / "logs", size=9000) / f"{0:020d}.log"
    log.unlink()
    log.symlink_to(log.name)
    found = job.verify(spark, [str(tmp_path / "logs")])
    assert found == verify([str(tmp_path / "logs")])
    assert (str(log), "not a regular file") in [(one.file, one.reason) for one in found.findings]


def test_an_error_in_a_worker_is_one_line(spark: SparkSession) -> None:
    def fail(_: int) -> None:
        raise OSError(EIO, "Input/output error", "0.log")

    with pytest.raises(JobFailedError, match=r"^OSError: \[Errno 5\] Input/output error: '0.log'$"), plain_errors():
        spark.sparkContext.parallelize([1], 1).map(fail).collect()


def test_findings_as_a_table(spark: SparkSession, tmp_path: Path) -> None:
    root = golden.log_dir(golden.unpack(tmp_path, "2.8.2"))
    found = job.verify(spark, [str(root)])
    rows = job.findings_frame(spark, found).collect()
    assert [(row.severity, row.file, row.position, row.offset, row.reason) for row in rows] == [
        (one.severity.value, one.file, None if one.position < 0 else one.position, one.offset, one.reason)
        for one in found.findings
    ]
    assert rows
    nothing = found._replace(findings=[])
    assert job.findings_frame(spark, nothing).collect() == []


def test_the_command_prints_the_same_as_the_engines(run: Run, tmp_path: Path) -> None:
    partition = make_dir(tmp_path / "logs", size=20_000)
    log = partition / f"{0:020d}.log"
    log.write_bytes(flip(log.read_bytes(), 5000, 1))
    for options in ([], ["--json"], ["--strict"]):
        ours, engines = run("spark", "verify", *options, tmp_path / "logs"), run("verify", *options, tmp_path / "logs")
        assert (ours.code, ours.text, ours.err) == (1, engines.text, "")
        assert engines.code == 1
    written = run("spark", "verify", tmp_path / "logs", "--output", tmp_path / "findings")
    assert written.code == 1
    assert list((tmp_path / "findings").glob("*.parquet"))
