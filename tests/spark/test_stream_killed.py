"""A stream from a growing log whose driver is killed with -9: each record arrives once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import seglog
from seglog.core.types import TopicPartition
from seglog.testing import Broker
from tests.broker.python_clients import NewTopic
from tests.cases import case
from tests.client.produce.written import numbers
from tests.clients.servers import Kind, Server
from tests.kit.topics import create_topics
from tests.kit.waiting import wait_until
from tests.spark.killed_stream import ANY, BROKER_STEPS, NEVER, STEPS, TO_THE_END, Life, committed, start
from tests.spark.write.test_sink import path, rows

__all__ = ["path"]

pytestmark = pytest.mark.xdist_group("spark")

_PARTITIONS: Final = 2
_SECONDS: Final = 180
_KINDS: Final = ("half", "adopting")
"""A task, and the commit of a batch. `make test-long` takes all steps."""
_SLOW: Final = "Python worker failed to connect back"
"""Why a query ends before it has begun on a loaded machine: Spark gives a new Python process ten seconds."""
_APPENDER: Final = """
import select, sys
import seglog

with seglog.open(sys.argv[1]) as directory:
    logs = [directory.log("t", partition) for partition in range(int(sys.argv[2]))]
    number = 0
    while not select.select([sys.stdin], [], [], 0.02)[0]:
        for log in logs:
            log.append_records([seglog.NewRecord(b"%d" % one) for one in range(number, number + 7)])
        number += 7
"""


@pytest.fixture
def source(tmp_path: Path, environment: dict[str, str]) -> Iterator[tuple[Path, Callable[[], None]]]:
    """A log directory to which another process appends, and a function that stops that process."""
    directory = tmp_path / "source"
    with seglog.open(directory) as opened:
        opened.create_topic("t", _PARTITIONS, {"internal.segment.bytes": "65536"})
    command = [sys.executable, "-c", _APPENDER, str(directory), str(_PARTITIONS)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment) as appender:

        def stop() -> None:
            assert appender.stdin is not None
            appender.stdin.close()
            assert appender.wait(_SECONDS) == 0

        try:
            yield directory, stop
        finally:
            appender.kill()


def run(life: Life, environment: dict[str, str], log: Path, rng: random.Random) -> None:
    """A driver from its start to its death, which is where ``life`` says."""
    with (
        log.open("wb") as errors,
        subprocess.Popen(life.command(), stdout=subprocess.PIPE, stderr=errors, env=environment) as driver,
    ):
        try:
            assert driver.stdout is not None
            jvm = int(driver.stdout.readline() or b"0")
            if life.step == ANY:
                wait_until(
                    lambda: committed(life.checkpoint) >= life.batches or driver.poll() is not None,
                    "batches of a driver that is to be killed",
                    _SECONDS,
                )
                with pytest.raises(subprocess.TimeoutExpired):
                    driver.wait(rng.uniform(0, 1))
                os.kill(jvm, signal.SIGKILL)
            driver.wait(_SECONDS)
        except BaseException as error:
            error.add_note(f"{life}\n{log.read_text(errors='replace')[-5000:]}")
            raise
        finally:
            driver.kill()
    if life.step != ANY:
        assert Path(life.mark).exists(), f"{life}: {log.read_text(errors='replace')[-5000:]}"


def run_shared(life: Life, spark: SparkSession) -> None:
    """Run a query until it is killed; the session lives on."""
    while not Path(life.mark).exists():
        with pytest.raises(StreamingQueryException) as ended:
            start(spark, life).awaitTermination(_SECONDS)
        if _SLOW not in str(ended.value):
            assert Path(life.mark).exists(), f"{life}: {ended.value}"


def _wait_for_batch(life: Life, query: StreamingQuery) -> None:
    before = committed(life.checkpoint)
    wait_until(lambda: committed(life.checkpoint) > before or not query.isActive, "a batch", _SECONDS)


class Lives:
    """The lives of a stream, one after another, and in the end whether each record has arrived once: in the directory
    ``path``, or with ``bootstrap`` through that broker."""

    def __init__(
        self, path: Path, source: tuple[Path, Callable[[], None]], seed: int, bootstrap: str | None = None
    ) -> None:
        self._rng = random.Random(seed)
        self._path = path
        self._bootstrap = bootstrap
        self._source, self._stop = source
        self._checkpoint = path.parent / "checkpoint"
        self._number = 0

    def run(self, step: str, environment: dict[str, str]) -> None:
        """Run a separate driver, and kill it."""
        case()
        life = self._next(step)
        run(life, environment, self._path.parent / f"driver-{self._number}.log", self._rng)

    def run_shared(self, step: str, spark: SparkSession) -> None:
        case()
        run_shared(self._next(step, is_shared=True), spark)

    def run_past_kills(self, server: Server, kills: int, spark: SparkSession) -> None:
        """The broker is killed, at any moment of a batch, and started again; the query goes on."""
        left = kills
        while left:
            life = self._next(NEVER, is_shared=True)
            query: Any = start(spark, life)  # its stub takes whole seconds only
            try:
                for _ in range(left):
                    _wait_for_batch(life, query)
                    query.awaitTermination(self._rng.uniform(0, 1))
                    server.kill()
                    server.start()
                    left -= 1
                    case()
                _wait_for_batch(life, query)
                query.awaitTermination(0.1)
            except StreamingQueryException as ended:
                if _SLOW not in str(ended):
                    raise
            finally:
                query.stop()

    def _next(self, step: str, *, is_shared: bool = False) -> Life:
        self._number += 1
        return Life(
            source=str(self._source),
            target=self._bootstrap or str(self._path),
            through_broker=self._bootstrap is not None,
            checkpoint=str(self._checkpoint),
            mark=str(self._path.parent / f"mark-{self._number}"),
            step=step,
            batches=committed(self._checkpoint) + self._rng.randrange(2 if is_shared else 3),
            seed=self._rng.getrandbits(32),
            partitions=_PARTITIONS,
            is_shared=is_shared,
        )

    def end(self, spark: SparkSession) -> None:
        """Let the stream read the rest, and compare."""
        self._stop()
        start(spark, self._next(TO_THE_END, is_shared=True)).awaitTermination(_SECONDS)
        expected = rows(self._source)
        assert min(map(len, expected.values())) > 100 * self._number
        if self._bootstrap is None:
            assert rows(self._path) == expected
            return
        for partition, some in expected.items():
            found = numbers(self._bootstrap, TopicPartition("t", partition))
            assert found == [int(value or b"") for _, value in some]


def test_each_record_arrives_once_whatever_is_killed(
    path: Path, source: tuple[Path, Callable[[], None]], spark: SparkSession
) -> None:
    """Kill the query's process at each kind of step, in a driver that lives on. `make test-long` kills drivers."""
    lives = Lives(path, source, 1)
    for step in _KINDS:
        lives.run_shared(step, spark)
    lives.end(spark)


@pytest.mark.everything
@pytest.mark.timeout(1800)
def test_each_record_arrives_once_through_a_broker_whatever_is_killed(
    path: Path, source: tuple[Path, Callable[[], None]], spark: SparkSession
) -> None:
    with Broker({"t": _PARTITIONS}) as broker:
        lives = Lives(path, source, 3, broker.bootstrap)
        for step in ("half", "decided", "ending"):
            lives.run_shared(step, spark)
        lives.end(spark)


@pytest.mark.everything
@pytest.mark.timeout(10_000)
@pytest.mark.parametrize("kind", ["ours", pytest.param("kafka", marks=pytest.mark.interop)])
def test_each_record_arrives_once_through_a_broker_though_two_hundred_are_killed(
    kind: Kind, path: Path, source: tuple[Path, Callable[[], None]], environment: dict[str, str], spark: SparkSession
) -> None:
    """Of twenty kills one is a driver's with its JVM, ten are the broker's below one query, and nine are those of the
    Python process that comes to a step. ``SEGLOG_KILLS`` says how many there are in all."""
    rng = random.Random(4)
    with Server(kind, path.parent / "server") as server:
        create_topics(server.bootstrap, NewTopic("t", _PARTITIONS, 1))
        lives = Lives(path, source, 4, server.bootstrap)
        steps = rng.sample(BROKER_STEPS, len(BROKER_STEPS))
        for block in range(-(-int(os.environ.get("SEGLOG_KILLS", "200")) // 20)):
            lives.run(ANY if block % 2 else rng.choice(BROKER_STEPS), environment)
            lives.run_past_kills(server, 10, spark)
            for step in steps:
                lives.run_shared(step, spark)
        lives.end(spark)


@pytest.mark.everything
@pytest.mark.timeout(3600)
def test_each_record_arrives_once_though_thirty_drivers_are_killed_at_every_step(
    path: Path, source: tuple[Path, Callable[[], None]], environment: dict[str, str], spark: SparkSession
) -> None:
    lives = Lives(path, source, 2)
    steps = [*STEPS, *STEPS, *[ANY] * 10]
    random.Random(2).shuffle(steps)
    for step in steps:
        lives.run(step, environment)
    lives.end(spark)
