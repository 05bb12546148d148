"""A real cluster of Spark beside three brokers with addresses of their own; executors have the archive and no mount."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Producer

from seglog.core.types import TopicPartition
from tests.broker.python_clients import NewTopic
from tests.client.produce.written import numbers
from tests.kit.cluster import SeglogCluster
from tests.kit.network import Loopback, Namespaces
from tests.kit.standalone_spark import StandaloneSpark
from tests.kit.topics import create_topics
from tests.kit.waiting import wait_until

pytestmark = [pytest.mark.xdist_group("spark-processes"), pytest.mark.everything, pytest.mark.timeout(1200)]

_IN, _OUT = 4, 2
_HALF: Final = 3000
_SECONDS: Final = 600
_SETTINGS: Final = {
    "transaction.state.log.num.partitions": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
}
_OPTIONS: Final = {
    "spark.cores.max": "2",
    "spark.executor.memory": "512m",
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
_APP: Final = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession

bootstrap = sys.argv[1]
spark = SparkSession.builder.getOrCreate()
rows = spark.readStream.format("seglog").option("kafka.bootstrap.servers", bootstrap).option("subscribe", "in")
rows = rows.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 1500).load()
sink = rows.select("key", "value").writeStream.format("seglog").option("kafka.bootstrap.servers", bootstrap)
query = sink.option("topic", "out").option("checkpointLocation", "checkpoint").start()
while not Path("stop").exists():
    query.awaitTermination(1)
query.stop()
"""


def test_a_stream_on_a_cluster_is_exact_while_a_broker_dies(tmp_path: Path) -> None:
    told = package(tmp_path / "seglog.tar.gz")
    network: Loopback = Namespaces(3) if Namespaces.can_be_made() else Loopback()
    with (
        SeglogCluster(tmp_path / "brokers", settings=_SETTINGS, network=network) as brokers,
        StandaloneSpark(tmp_path / "spark") as spark,
    ):
        create_topics(brokers.bootstrap, NewTopic("in", _IN, 3), NewTopic("out", _OUT, 3))
        produce(brokers.bootstrap, range(_HALF))
        with driver(spark, tmp_path / "driver", told["unpack"], told["sparkSubmit"], brokers.bootstrap) as running:
            wait_for(running, brokers.bootstrap, 1)
            victim = brokers.leader("in", 0)
            assert victim is not None
            brokers[victim].kill()
            produce(brokers.bootstrap, range(_HALF, 2 * _HALF))
            wait_for(running, brokers.bootstrap, 2 * _HALF)
            brokers[victim].start()
            brokers.wait_healthy()
        found = written(brokers.bootstrap)
        assert sorted(itertools.chain.from_iterable(found)) == [*range(2 * _HALF)]
        for key in range(7):
            of_key = [[number for number in partition if number % 7 == key] for partition in found]
            assert [len(some) for some in of_key].count(0) == _OUT - 1
            assert all(some == sorted(some) for some in of_key)
        executors = {path.parents[2] for path in spark.files("seglog/bin/python")}
        assert len(executors) == 2
        for executor in executors:  # nothing was compiled there
            loops = {str(path.relative_to(executor / "seglog")) for path in executor.glob("seglog/cache/**/*.nb?")}
            assert loops == packed_loops(tmp_path / "seglog.tar.gz")


def package(archive: Path) -> Any:
    """The archive, and what the command tells of it."""
    command = [sys.executable, "-m", "seglog", "spark", "package", str(archive), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@contextmanager
def driver(
    spark: StandaloneSpark, directory: Path, unpack: str, submit: str, bootstrap: str
) -> Iterator[subprocess.Popen[bytes]]:
    """The program, started by the commands that `seglog spark package` printed; it ends with its query."""
    directory.mkdir()
    (directory / "app.py").write_text(_APP)
    subprocess.run(["sh", "-c", unpack], cwd=directory, check=True)
    options = " ".join(f"--conf {name}={value}" for name, value in _OPTIONS.items())
    command = f"exec env {submit} --master {spark.master} {options} app.py {bootstrap}"
    with (directory / "driver.log").open("wb") as log:
        running = subprocess.Popen(["sh", "-c", command], env=spark.environment, cwd=directory, stdout=log, stderr=log)
        try:
            yield running
            (directory / "stop").touch()
            assert running.wait(_SECONDS) == 0, (directory / "driver.log").read_text()[-5000:]
        finally:
            running.kill()
            running.wait()


def wait_for(running: subprocess.Popen[bytes], bootstrap: str, count: int) -> None:
    """Wait until the topic has ``count`` committed records; raises an error if the driver ends before."""

    def there() -> bool:
        assert running.poll() is None, "the driver has ended: driver.log says why"
        return sum(map(len, written(bootstrap))) >= count

    wait_until(there, f"{count} records", _SECONDS, every=0.5)


def written(bootstrap: str) -> list[list[int]]:
    return [numbers(bootstrap, TopicPartition("out", partition)) for partition in range(_OUT)]


def produce(bootstrap: str, values: range) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True, "log_level": 0})
    for value in values:
        producer.produce("in", str(value).encode(), key=str(value % 7).encode())
    assert producer.flush(120) == 0


def packed_loops(archive: Path) -> set[str]:
    with tarfile.open(archive) as opened:
        return {name for name in opened.getnames() if name.startswith("cache/") and ".nb" in name}
