"""`seglog perf`: the numbers of records and bytes; not the speed."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest

from seglog.cli.perf.meter import TOPIC
from tests.cli.run import Run

FEW = ("--records", "1000", "--record-size", "100", "--batch-size", "4096")


def measured(run: Run, *arguments: str | Path) -> dict[str, Any]:
    ran = run("perf", *arguments, "--json")
    assert (ran.code, ran.err) == (0, "")
    document: dict[str, Any] = json.loads(ran.text)
    assert document["bytes"] / document["seconds"] / 1e6 == pytest.approx(document["mbPerSecond"], rel=0.1, abs=0.01)
    return document


def partition_of(run: Run, directory: Path) -> dict[str, Any]:
    [partition] = json.loads(run("ls", "--json", directory).text)["partitions"]
    assert partition["topic"] == TOPIC
    found: dict[str, Any] = partition
    return found


@pytest.mark.parametrize("work", ["append", "read", "verify"])
def test_each_benchmark_uses_all_records_and_removes_its_files(
    work: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    document = measured(run, work, *FEW)
    assert (document["work"], document["records"]) == (work, 1000)
    assert document["bytes"] > 1000 * 100
    assert list(tmp_path.iterdir()) == []
    if work == "verify":
        assert document["latencyMs"] is None
    else:
        mean, *percentiles = document["latencyMs"].values()
        assert percentiles == sorted(percentiles)
        assert 0 < mean <= percentiles[-1]


def test_keeps_and_reuses_a_named_directory(run: Run, tmp_path: Path) -> None:
    first = measured(run, "append", *FEW, "--dir", tmp_path)
    partition = partition_of(run, tmp_path)
    assert (partition["nextOffset"], partition["size"]) == (1000, first["bytes"])
    measured(run, "append", *FEW, "--codec", "lz4", "--dir", tmp_path)
    partition = partition_of(run, tmp_path)
    assert partition["nextOffset"] == 2000
    assert sorted(partition["codecs"]) == ["lz4", "none"]
    for work in ("read", "verify"):
        document = measured(run, work, "--dir", tmp_path)
        assert (document["records"], document["bytes"]) == (2000, partition["size"])
    assert run("verify", tmp_path).code == 0


def test_batches_have_the_requested_size(run: Run, tmp_path: Path) -> None:
    measured(run, "append", "--records", "100", "--record-size", "1000", "--batch-size", "1", "--dir", tmp_path)
    partition = partition_of(run, tmp_path)
    assert [segment["batches"] for segment in partition["segments"]] == [100]
    large = measured(run, "append", "--records", "2", "--record-size", "3000000", "--dir", tmp_path / "large")
    assert large["bytes"] > 6_000_000


def test_stops_after_the_given_seconds(run: Run) -> None:
    for work in ("append", "read"):
        document = measured(run, work, "--seconds", "0", "--record-size", "0")
        assert document["records"] > 0


def test_text_output_has_rates_and_latencies(run: Run) -> None:
    ran = run("perf", "read", *FEW)
    assert ran.code == 0
    first, second = ran.lines
    assert re.fullmatch(r"read: 1,000 records, \d+\.\d KiB in \d+\.\d\d s: [\d,]+ records/s, [\d,]+\.\d\d MB/s", first)
    assert re.fullmatch(r"ms of each read \(1\): mean [\d.]+, p50 [\d.]+, p95 .*, p99 .*, p999 .*, max [\d.]+", second)


@pytest.mark.parametrize(
    "arguments",
    [
        ("write",),
        ("append", "--codec", "brotli"),
        ("append", "--records", "0"),
        ("verify", "--seconds", "1"),
    ],
)
def test_refuses_invalid_options(arguments: tuple[str, ...], run: Run) -> None:
    ran = run("perf", *arguments)
    assert (ran.code, ran.text) == (2, "")
    assert ran.err.startswith("seglog: ")
    assert ran.err.count("\n") == 1
