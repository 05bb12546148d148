"""The sink on a cluster whose executors are killed with -9: every row is written once."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from seglog.core.types import TopicPartition
from seglog.testing import Broker
from tests.client.produce.written import numbers
from tests.kit.waiting import wait_until
from tests.spark.write.test_sink import path, rows

__all__ = ["path"]

pytestmark = pytest.mark.xdist_group("spark-processes")

_MASTER: Final = "local-cluster[2,1,512]"
"""A standalone master and two workers in the driver's JVM; each executor has a separate JVM."""
_DRIVER: Final = """
import os, signal, sys, uuid
from pathlib import Path
from seglog.spark import get_spark
from seglog.spark.runtime.processes import driver_pid
from seglog.spark.write.brokers.sink import BrokerWriter
from seglog.spark.write.sink import SeglogWriter
from seglog.spark.source import SeglogDataSource

master, bootstrap, log, marks = sys.argv[1:]

class Dying(BrokerWriter if bootstrap else SeglogWriter):
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

class DyingSource(SeglogDataSource):
    @classmethod
    def name(cls):
        return "dying"
    def writer(self, schema, overwrite):
        return Dying(schema, self.options, overwrite=overwrite)

config = {
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.executor.memory": "512m",
    "spark.executor.cores": "1", "spark.task.maxFailures": "6",
    "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
    "spark.speculation": "true", "spark.speculation.minTaskRuntime": "1s", "spark.speculation.interval": "200ms",
    "spark.speculation.multiplier": "1.1", "spark.speculation.quantile": "0.3",
    "spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
spark = get_spark(master=master, config=config)
spark.dataSource.register(DyingSource)
frame = spark.range(0, 6000, 1, 4).selectExpr("CAST(id % 7 AS STRING) AS key", "CAST(id AS STRING) AS value")
writer = frame.write.format("dying").mode("append").option("topic", "t")
if bootstrap:
    writer.option("kafka.bootstrap.servers", bootstrap).save()
else:
    writer.option("numPartitions", 2).save(log)
"""


@pytest.mark.everything
def test_writes_every_record_once_and_in_order(path: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    run(tmp_path, environment, "", str(path))
    found = [[int(value or b"") for _, value in some] for some in rows(path).values()]
    assert sorted(itertools.chain.from_iterable(found)) == [*range(6000)]
    assert all(some == sorted(some) for some in found)


@pytest.mark.everything
def test_writes_every_record_once_through_a_broker(tmp_path: Path, environment: dict[str, str]) -> None:
    """Nothing may be left open either, by killed executors and by twins: readers would wait for it."""
    with Broker({"t": 2}) as broker:
        run(tmp_path, environment, broker.bootstrap, "")
        found = [numbers(broker.bootstrap, TopicPartition("t", number)) for number in range(2)]
        assert sorted(itertools.chain.from_iterable(found)) == [*range(6000)]
        all_rows = [
            len(numbers(broker.bootstrap, TopicPartition("t", number), isolation="read_uncommitted"))
            for number in range(2)
        ]
        assert sum(all_rows) > 6000  # the rows of attempts that were not chosen


def run(directory: Path, environment: dict[str, str], bootstrap: str, log: str) -> None:
    """The driver to its end, and its executors."""
    marks = directory / "marks"
    marks.mkdir()
    program = directory / "driver.py"
    program.write_text(_DRIVER)
    command = [sys.executable, str(program), _MASTER, bootstrap, log, str(marks)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    found = list(marks.iterdir())
    assert len(found) >= 4 + 3  # all tasks, and the second attempts of three
    executors = {Path("/proc", pid) for mark in found if (pid := mark.read_text())}
    wait_until(lambda: not any(map(Path.exists, executors)), "executors: they end with their driver, and may write yet")
