from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

import seglog
from seglog.spark import get_spark
from seglog.spark.runtime.java import ensure_java
from tests.kit.ports import free_port
from tests.spark.killed_stream import INTERPRETED
from tests.spark.stream_driver import SMALL

_ROOT: Final = Path(__file__).parents[2]
SHORT_LIVED: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a JVM that runs small jobs: its optimizing compiler would cost more than it saves, and take a core from them."""


@pytest.fixture
def logs(tmp_path: Path) -> seglog.LogDir:
    """An open directory with topic ``t`` of two partitions."""
    directory = seglog.open(tmp_path / "log")
    directory.create_topic("t", partitions=2, config=SMALL)
    return directory


@pytest.fixture
def environment() -> dict[str, str]:
    """Of a driver in a process of its own, and of its executors."""
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))}
    found |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "JDK_JAVA_OPTIONS": SHORT_LIVED}
    ensure_java(found)
    return found


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One session for all tests of the group ``spark``; it is a Connect server too. Its output is in ``spark.log``.

    A session takes seven seconds to start and its first jobs ten more.
    """
    directory: Path = tmp_path_factory.mktemp("spark")
    with contextlib.chdir(_ROOT):  # Python workers import `tests` from where the JVM was started
        session = get_spark(
            "seglog tests",
            master="local[2]",
            config={
                "spark.sql.shuffle.partitions": "1",
                "spark.sql.adaptive.enabled": "false",
                **INTERPRETED,
                "spark.sql.warehouse.dir": str(directory / "warehouse"),
                "spark.driver.extraJavaOptions": f"{SHORT_LIVED} -Dderby.system.home={directory}",
                "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
                "spark.connect.grpc.binding.address": "127.0.0.1",
                "spark.connect.grpc.binding.port": str(free_port()),
            },
            jvm_log=str(directory / "spark.log"),
        )
    yield session
    session.stop()
