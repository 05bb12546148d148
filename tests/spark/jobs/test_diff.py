"""`seglog.spark.jobs.diff` against the engine's comparison of the same directories: in pieces the same as whole."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import seglog
from seglog.core.fs import OsFs
from seglog.records.record import NewRecord
from seglog.spark.jobs import diff as job
from seglog.storage.offline.compare import REPLICAS, RangeKind
from seglog.storage.offline.compare_directories import compare_directories
from tests.cli.run import Run
from tests.spark.brokers import Brokers

pytestmark = pytest.mark.xdist_group("spark-jobs")

SMALL = {"internal.segment.bytes": 4000, "index.interval.bytes": 200}


def fill(path: Path, seed: int, *, harm: bool) -> None:
    """Two partitions of a few segments each; with ``harm`` some records are others, and some batches are larger."""
    rng, harms = random.Random(seed), random.Random(seed + 1)
    with seglog.open(path) as directory:
        directory.create_topic("t", partitions=2, config=SMALL)
        for number in range(2):
            log = directory.log("t", number)
            for _ in range(100):
                records = [NewRecord(rng.randbytes(20), b"k", 1) for _ in range(rng.randrange(1, 4))]
                if harm and harms.random() < 0.05:
                    records[0] = records[0]._replace(value=b"other")
                codec = "gzip" if harm and harms.random() < 0.1 else "none"
                log.append_records(records, codec=codec)


def test_finds_the_same_differences_as_the_engine(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, right = tmp_path / "left", tmp_path / "right"
    fill(left, 7, harm=False)
    fill(right, 7, harm=True)
    with seglog.open(right) as directory:
        directory.create_topic("u")
        directory.log("u").append_records([NewRecord(b"v")])
    monkeypatch.setattr(job, "STRETCH", 1000)
    expected = compare_directories(str(left), str(right))
    planned, size = job.plan(str(left), str(right))
    told: list[int] = []
    found = job.diff(spark, planned, rules=REPLICAS, progress=told.append)
    assert found == expected
    assert [len(pair.cuts(OsFs(), 1000)) > 5 for pair in planned] == [True, True, False]
    assert {one.kind for one in found[0].findings} == {RangeKind.SAME, RangeKind.LAYOUT, RangeKind.DIFFERS}
    assert sum(told) == size
    rows = job.differences_frame(spark, found).collect()
    assert [(row.partition, row.first, row.fields) for row in rows if row.topic == "t"] == [
        (one.pair.partition.partition, each.first, list(each.fields))
        for one in expected[:2]
        for each in one.differences
    ]
    assert [(row.missingIn, row.end) for row in rows if row.topic == "u"] == [("left", 1)]


def test_the_command(run: Run, tmp_path: Path) -> None:
    brokers = Brokers(tmp_path)
    brokers.append(1, 20)
    for number in (2, 3):
        brokers.follow(number, 1)
    brokers.append(1, 4, b"lost")
    brokers.lead(2, 1)
    brokers.append(2, 5, b"new")
    brokers.commit(20, 1, 2, 3)
    brokers.close()
    b1, b2, b3 = (tmp_path / f"b{number}" for number in (1, 2, 3))
    same = run("spark", "diff", b1, b3)
    assert (same.code, same.lines) == (
        0,
        [
            "partition  from  to  records  first",
            "t-0           0  20       20         same",
            "1 partition: none different",
        ],
    )
    ended = run("spark", "diff", b1, b3, "--until", "logEnd")
    assert (ended.code, ended.lines[2:]) == (
        1,
        [
            "t-0: offsets 20 to 23: 4 records missing in the right log, which ends earlier",
            "1 partition: 1 different",
        ],
    )
    out = tmp_path / "out"
    other = run("spark", "diff", b1 / "t-0", b2 / "t-0", "--until", "logEnd", "--json", "--output", out)
    (document,) = other.objects
    assert (other.code, document["same"]) == (1, False)
    (partition,) = document["partitions"]
    assert (partition["firstDifference"], partition["from"], partition["to"]) == (20, 0, 25)
    assert partition["differences"] == [
        {"kind": "differs", "first": 20, "end": 24, "records": 4, "fields": ["value", "epoch"]},
        {"kind": "missing", "first": 24, "end": 25, "records": 1, "missingIn": "left", "place": "end"},
    ]
    assert pq.read_table(str(out)).num_rows == 2
    segment = b3 / "t-0" / f"{0:020d}.log"
    data = segment.read_bytes()
    segment.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    damaged = run("spark", "diff", b1, b3, "--json", "--output", tmp_path / "damage")
    (damage,) = damaged.objects[0]["partitions"][0]["differences"]
    assert (damaged.code, damage["kind"], damage["damagedIn"]) == (1, "damaged", "right")
    assert damage["reason"].startswith(f"{segment}, position ")
    (row,) = pq.read_table(str(tmp_path / "damage")).to_pylist()
    assert (row["missingIn"], row["damagedIn"], row["reason"]) == (None, "right", damage["reason"])
    shutil.rmtree(b3 / "t-0")
    gone = run("spark", "diff", b1, b3, "--ignore-epochs", "--limit", "0")
    assert (gone.code, gone.lines[-1]) == (1, "1 partition: 1 different")
    for arguments, reason in (
        ((b1, tmp_path / "none"), "No such file or directory"),
        ((b1, b2, "--topic", "nix"), "has a topic 'nix'"),
        ((b1, b2, "--until", "noon"), "--until must be highWatermark or logEnd, not noon"),
        ((b1, b2 / "t-0"), "one is a partition's directory and the other a log directory"),
    ):
        wrong = run("spark", "diff", *arguments)
        assert (wrong.code, wrong.text) == (2, "")
        assert reason in wrong.err
