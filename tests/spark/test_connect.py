"""Spark Connect works with the installed package: the client is a process without a JVM."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from seglog.records.record import NewRecord
from seglog.storage.directory.log_dir import LogDir

pytestmark = pytest.mark.xdist_group("spark")


def test_a_log_through_a_connect_server(spark: SparkSession, tmp_path: Path) -> None:
    with LogDir.open(tmp_path / "logs") as directory:
        directory.create_topic("t", 1)
        directory.log("t").append_records([NewRecord(b"1", b"a"), NewRecord(b"2", b"b"), NewRecord(b"3", b"b")])
    root = Path(__file__).parents[2]
    paths = os.pathsep.join([str(root / "src"), str(root)])
    port = spark.conf.get("spark.connect.grpc.binding.port")
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.connect_client", f"sc://127.0.0.1:{port}", str(tmp_path / "logs")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": paths, "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "rows [Row(offset=1, value='2'), Row(offset=2, value='3')]" in done.stdout
    assert "count 3" in done.stdout
    assert "written 2" in done.stdout
    refused = [line for line in done.stdout.splitlines() if line.startswith("refused")]
    wanted = (
        "mode overwrite is not supported, because a log can only be appended to",
        "Spark hands a writer no options of a table in its catalog",
        "unknown option 'subscripe'; did you mean subscribe?",
    )
    for line, sentence in zip(refused, wanted, strict=True):
        assert "seglog.core.errors.InvalidConfigError: " in line
        assert sentence in line
        assert line.endswith("False")
    assert "made False" in done.stdout
