"""Spark Connect needs no more than the installed package. In a process of its own: it starts a server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from seglog.records.record import NewRecord
from seglog.spark.java import ensure_java
from tests.spark.logs import write_partition

pytestmark = pytest.mark.xdist_group("spark-processes")


def test_a_log_through_a_connect_server(tmp_path: Path) -> None:
    write_partition(tmp_path / "logs" / "t-0", [[NewRecord(b"1", b"a"), NewRecord(b"2", b"b"), NewRecord(b"3", b"b")]])
    environment = dict(os.environ)
    ensure_java(environment)
    root = Path(__file__).parents[2]
    environment |= {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)]),
        "PYTHONWARNINGS": "ignore",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.connect_client", str(tmp_path / "logs")],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "rows [Row(offset=1, value='2'), Row(offset=2, value='3')]" in done.stdout
    assert "count 3" in done.stdout
