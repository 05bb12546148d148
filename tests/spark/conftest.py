from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import seglog
from seglog.spark.runtime.java import ensure_java
from tests.spark.killed_stream import SHORT_LIVED
from tests.spark.stream_driver import SMALL


@pytest.fixture
def logs(tmp_path: Path) -> seglog.LogDir:
    """An open directory with topic ``t`` of two partitions."""
    directory = seglog.open(tmp_path / "log")
    directory.create_topic("t", partitions=2, config=SMALL)
    return directory


@pytest.fixture
def environment() -> dict[str, str]:
    """Configuration of a driver in a separate process, and of its executors."""
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))}
    found |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "JDK_JAVA_OPTIONS": SHORT_LIVED}
    ensure_java(found)
    return found
