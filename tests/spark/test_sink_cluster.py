"""Exactly once under fire: executors that are processes of their own are killed with -9, and then their driver."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from seglog.spark.session import get_spark
from tests.kafka.waiting import wait_until
from tests.spark.test_sink import numbers, path, rows, save

__all__ = ["path"]

pytestmark = pytest.mark.xdist_group("spark-processes")

_MASTER: Final = "local-cluster[2,1,512]"
"""A standalone master and two workers in the driver's JVM; each executor has a JVM of its own."""
_DRIVER: Final = """
import os, signal, sys, uuid
from pathlib import Path
from seglog.spark import get_spark
from seglog.spark.owners import driver_pid
from seglog.spark.sink import SeglogWriter
from seglog.spark.source import SeglogDataSource

master, log, marks = sys.argv[1:]

class Dying(SeglogWriter):
    def write(self, iterator):
        from pyspark import TaskContext
        context = TaskContext.get()
        task, attempt = context.partitionId(), context.attemptNumber()
        (Path(marks) / f"{task}-{uuid.uuid4().hex}").write_text(str(driver_pid()))
        first = len(list(Path(marks).glob(f"{task}-*"))) == 1
        if task == 1 and first:
            super().write(batch.slice(0, 400) for batch in iterator)
            os.kill(driver_pid(), signal.SIGKILL)  # of the executor: half of the rows are staged
        staged = super().write(iterator)
        if task == 2 and first:
            raise OSError("fails behind its last row, all of them staged")
        if task == 3 and first:
            os.kill(driver_pid(), signal.SIGKILL)
        return staged

class Killed(Dying):
    def commit(self, messages):
        super().commit(messages)
        os.kill(driver_pid(), signal.SIGKILL)  # of the driver: it never hears of its commit

class DyingSource(SeglogDataSource):
    @classmethod
    def name(cls):
        return "dying"
    def writer(self, schema, overwrite):
        kind = Killed if "txnappid" in {key.lower() for key in self.options} else Dying
        return kind(schema, self.options, overwrite=overwrite)

config = {
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.executor.memory": "512m",
    "spark.executor.cores": "1", "spark.task.maxFailures": "6",
    "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
    "spark.speculation": "true", "spark.speculation.minTaskRuntime": "1s", "spark.speculation.interval": "200ms",
    "spark.speculation.multiplier": "1.1", "spark.speculation.quantile": "0.3",
}
spark = get_spark(master=master, config=config)
spark.dataSource.register(DyingSource)
frame = spark.range(0, 6000, 1, 6).selectExpr("CAST(id % 7 AS STRING) AS key", "CAST(id AS STRING) AS value")
writer = lambda: frame.write.format("dying").mode("append").option("topic", "t").option("numPartitions", 2)
writer().save(log)
print("committed", flush=True)
writer().option("txnAppId", "app").option("txnVersion", 1).save(log)
print("never printed", flush=True)
"""


def test_every_record_is_there_once_and_in_order(
    spark: SparkSession, path: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    (tmp_path / "marks").mkdir()
    program = tmp_path / "driver.py"
    program.write_text(_DRIVER)
    command = [sys.executable, str(program), _MASTER, str(path), str(tmp_path / "marks")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert done.stdout.split() == ["committed"], done.stderr[-5000:]
    marks = list((tmp_path / "marks").iterdir())
    assert len(marks) >= 12 + 3  # of two jobs, and three more of the tasks that failed
    executors = {Path("/proc", pid) for mark in marks if (pid := mark.read_text())}
    wait_until(lambda: not any(map(Path.exists, executors)), "executors: they end with their driver, and may write yet")
    # The driver that comes next does not know of the commit either, and asks for it again.
    assert get_spark() is spark
    save(numbers(spark, 6000, tasks=6), path, topic="t", txnAppId="app", txnVersion="1")
    found = rows(path)
    assert sorted(int(value or b"") for some in found.values() for _, value in some) == sorted([*range(6000)] * 2)
    for some in found.values():
        of_one_job = [int(value or b"") for _, value in some]
        middle = len(some) // 2
        assert of_one_job[:middle] == sorted(of_one_job[:middle]) == of_one_job[middle:]
