"""The driver of a stream from one log into another, which dies at a named step: `python -m tests.spark.killed_stream`.

Its arguments are the fields of `Life` as JSON. What it prints first is the process id of its JVM.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition, WriterCommitMessage
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from seglog.client.produce.batch_producer import BatchProducer
from seglog.client.produce.group_mark import GroupMark
from seglog.sources.options.read_options import parse_options
from seglog.spark import get_spark
from seglog.spark.read.schema import check_schema
from seglog.spark.read.stream_reader import SeglogStreamReader
from seglog.spark.runtime.processes import driver_pid
from seglog.spark.source import SeglogDataSource
from seglog.spark.write.brokers.sink import BrokerStreamWriter, BrokerTaskCommit
from seglog.spark.write.directories.commit_client import CommitClient
from seglog.spark.write.sink import SeglogStreamWriter, TaskCommit

INTERPRETED: Final = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Queries here have a few hundred rows: to compile Java code for them would cost more than it saves."""
STEPS: Final = (
    "end",  # the end of a batch is known, and not in Spark's checkpoint
    "plan",  # the tasks are planned
    "begin",  # the coordinator has the job
    "half",  # a task has staged some of its rows
    "staged",  # a task has staged all of them
    "commit",  # all tasks have, and nothing is adopted
    "adopting",  # the commit goes on without the driver
    "together",  # driver, commit and coordinator die while it goes on
    "adopted",  # it is done, and Spark does not know
    "known",  # Spark has written its own commit file
)
SHORT_LIVED: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a JVM that runs small jobs: its optimizing compiler would cost more than it saves, and take a core from them."""
BROKER_STEPS: Final = (
    "end",
    "plan",
    "half",  # a task has a transaction with some of its rows
    "written",  # a task has written all of them, and its transaction is open
    "commit",  # all tasks have
    "decided",  # the mark is durable, and no transaction is committed
    "ending",  # the commit goes on without the driver
    "ended",  # it is done, and Spark does not know
    "known",
)
"""Of a stream whose sink writes through a broker."""
TO_THE_END: Final = "none"
NEVER: Final = "never"
"""The driver goes on."""
ANY: Final = "any"
"""The driver is killed from outside."""
_LONGEST_COMMIT: Final = 0.03
"""Seconds within which a commit is killed that has begun."""


def committed(checkpoint: Path | str) -> int:
    """How many batches Spark knows to be done."""
    return len(list(Path(checkpoint, "commits").glob("[0-9]*")))


@dataclass(frozen=True, kw_only=True)
class Life:
    """A driver's: it reads ``source``, writes to ``target``, and dies at ``step`` once ``batches`` are committed.

    At its death there is a file ``mark``. With `TO_THE_END` it reads what is there, and ends. If it ``is_shared``, the
    driver has other work: only the Python process of the query dies that comes to the step, which ends the query. With
    ``through_broker`` the target is a broker's address.
    """

    source: str
    target: str
    checkpoint: str
    mark: str
    step: str
    batches: int
    seed: int
    partitions: int
    is_shared: bool = False
    through_broker: bool = False

    def command(self) -> list[str]:
        return [sys.executable, "-m", "tests.spark.killed_stream", json.dumps(asdict(self))]

    def is_over_at(self, *steps: str) -> bool:
        return self.step in steps and committed(self.checkpoint) >= self.batches

    def end(self, *others: int) -> None:
        """Kill the driver, if it has no other work, ``others`` and this process."""
        Path(self.mark).touch()
        drivers = [] if self.is_shared else [driver_pid()]
        for pid in (*drivers, *others, os.getpid()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def pass_by(self, step: str) -> None:
        if self.is_over_at(step):
            self.end()


def mortal(life: Life) -> type[SeglogDataSource]:
    """Source and sink called "mortal", which pass by the steps of ``life``."""

    class Reader(SeglogStreamReader):
        def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, dict[str, int]]:
            found = super().latestOffset(start, limit)
            life.pass_by("end")
            return found

        def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
            found = super().partitions(start, end)
            life.pass_by("plan")
            return found

        def commit(self, end: dict[str, Any]) -> None:
            super().commit(end)
            life.pass_by("known")

    class Writer(SeglogStreamWriter):
        def write(self, iterator: Iterator[Any]) -> TaskCommit:
            if life.is_over_at("half"):
                super().write(batch.slice(0, batch.num_rows // 2) for batch in iterator)
                life.end()
            staged = super().write(iterator)
            life.pass_by("staged")
            return staged

        def commit(self, messages: list[WriterCommitMessage | None], batch_id: int) -> None:
            life.pass_by("commit")
            if life.is_over_at("adopting", "together"):
                threading.Thread(target=self._end_soon, args=(driver_pid(), batch_id), daemon=True).start()
            super().commit(messages, batch_id)
            life.pass_by("adopted")

        def _end_soon(self, driver: int, batch_id: int) -> None:
            delay = random.Random(life.seed + batch_id).uniform(0, _LONGEST_COMMIT)
            coordinator = CommitClient(life.target, linger=5).status()["pid"] if life.step == "together" else None
            time.sleep(delay)  # the kill comes at any moment of the commit
            if coordinator is not None:
                life.end(coordinator)
            Path(life.mark).touch()
            os.kill(os.getpid() if life.is_shared else driver, signal.SIGKILL)

    class Source(SeglogDataSource):
        @classmethod
        def name(cls) -> str:
            return "mortal"

        def streamReader(self, schema: StructType) -> SeglogStreamReader:
            return Reader(check_schema(schema), parse_options(self.options, stream=True))

        def streamWriter(self, schema: StructType, overwrite: bool) -> SeglogStreamWriter | BrokerStreamWriter:
            if life.through_broker:
                return broker_writer(life)(schema, self.options, overwrite=overwrite)
            writer = Writer(schema, self.options, overwrite=overwrite)
            life.pass_by("begin")
            return writer

    return Source


def broker_writer(life: Life) -> type[BrokerStreamWriter]:
    """A sink through brokers that passes by the steps of ``life``."""

    class BrokerWriter(BrokerStreamWriter):
        def write(self, iterator: Iterator[Any]) -> BrokerTaskCommit:
            if life.is_over_at("half"):
                self._end_after(BatchProducer, "flush")
                super().write(batch.slice(0, batch.num_rows // 2) for batch in iterator)
            done = super().write(iterator)
            life.pass_by("written")
            return done

        def commit(self, messages: list[WriterCommitMessage | None], batch_id: int) -> None:
            life.pass_by("commit")
            if life.is_over_at("decided"):
                self._end_after(GroupMark, "change")
            if life.is_over_at("ending"):
                threading.Thread(target=self._end_soon, args=(driver_pid(), batch_id), daemon=True).start()
            super().commit(messages, batch_id)
            life.pass_by("ended")

        def _end_after(self, of: type, method: str) -> None:
            """In this process, which dies there."""
            original = getattr(of, method)

            def last(*arguments: object) -> None:
                original(*arguments)
                life.end()

            pytest.MonkeyPatch().setattr(of, method, last)

        def _end_soon(self, driver: int, batch_id: int) -> None:
            # the kill comes at any moment of the commit
            time.sleep(random.Random(life.seed + batch_id).uniform(0, _LONGEST_COMMIT))
            Path(life.mark).touch()
            os.kill(os.getpid() if life.is_shared else driver, signal.SIGKILL)

    return BrokerWriter


def start(spark: SparkSession, life: Life) -> StreamingQuery:
    spark.dataSource.register(mortal(life))
    stream = (
        spark.readStream.format("mortal")
        .options(subscribe="t", until="logEnd", startingOffsets="earliest")
        # Tasks keep their order in a directory, where they are committed one after the other, and not in a broker.
        .options(**({"minPartitions": "2"} if life.through_broker else {"maxBytesPerPartition": "128k"}))
        .load(life.source)
    )
    writer = (
        stream.select("value", "partition")
        .writeStream.format("mortal")
        .options(topic="t", checkpointLocation=life.checkpoint)
    )
    if life.through_broker:
        writer = writer.option("kafka.bootstrap.servers", life.target)
    else:
        writer = writer.option("numPartitions", life.partitions)
    if life.step == TO_THE_END:
        writer = writer.trigger(availableNow=True)
    return writer.start(None if life.through_broker else life.target)


def live(life: Life) -> None:
    spark = get_spark("mortal", master="local[2]", config=INTERPRETED)
    assert spark._jvm is not None
    print(spark._jvm.java.lang.ProcessHandle.current().pid(), flush=True)
    start(spark, life).awaitTermination()


if __name__ == "__main__":
    live(Life(**json.loads(sys.argv[1])))
