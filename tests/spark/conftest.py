from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import seglog
from seglog.spark import get_spark
from seglog.spark.runtime.java import ensure_java
from tests.kafka.process import free_port
from tests.spark.stream_driver import SMALL


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
    found |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    ensure_java(found)
    return found


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One session for the whole run: it takes seven seconds to start. What it prints is in ``spark.log``.

    It is a Connect server too.
    """
    directory: Path = tmp_path_factory.mktemp("spark")
    session = get_spark(
        "seglog tests",
        master="local[2]",
        config={
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(directory / "warehouse"),
            "spark.driver.extraJavaOptions": f"-Dderby.system.home={directory}",
            "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(free_port()),
        },
        jvm_log=str(directory / "spark.log"),
    )
    yield session
    session.stop()
