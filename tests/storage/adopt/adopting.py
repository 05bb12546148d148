"""Jobs with several tasks and partitions, on a disk in memory: staged, adopted, and looked for afterwards."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any, Final

from seglog.core.fs import Fs
from seglog.core.ground import Ground
from seglog.core.types import TopicPartition
from seglog.records.record import NewRecord, encode_batch
from seglog.storage.adopt import NO_INTAKE, AdoptResult, Intake, StagedPart, StagingWriter, adopt, staged_at
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.log.log import Log
from seglog.storage.offline.findings import Finding, Severity
from seglog.storage.offline.verify import verify
from tests.kit.manual_clock import ManualClock
from tests.storage.disk import values

DIR: Final = "/logs"
T: Final = TopicPartition("t", 0)
SMALL: Final[Mapping[str, object]] = {
    "internal.segment.bytes": 4000,
    "segment.index.bytes": 1200,
    "index.interval.bytes": 200,
    "retention.ms": -1,
    "file.delete.delay.ms": 0,
}
_BATCH: Final = 3
"""Records of a batch: some 270 bytes."""

Texts = Mapping[TopicPartition, Sequence[bytes]]
"""Records by partition, by their values."""


def open_dir(fs: Fs, **options: Any) -> LogDir:
    config = {"num.recovery.threads.per.data.dir": 1}
    return LogDir.open(DIR, ground=Ground(fs=fs, clock=ManualClock(), rng=random.Random(1)), config=config, **options)


def texts(name: str, count: int) -> list[bytes]:
    return [f"{name}:{at}:".encode().ljust(60, b".") for at in range(count)]


def batches_of(payloads: Sequence[bytes]) -> list[bytes]:
    return [
        bytes(
            encode_batch(
                [
                    NewRecord(value, key=value[:4], timestamp=1_000 + at)
                    for at, value in enumerate(payloads[first : first + _BATCH], first)
                ]
            )
        )
        for first in range(0, len(payloads), _BATCH)
    ]


def stage(
    directory: LogDir, payloads: Sequence[bytes], *, job: str, task: str, partition: TopicPartition
) -> StagedPart:
    """Stage records as a task does. The result is passed through JSON, as its message to the driver is."""
    where = staged_at(partition, job, task)
    config = directory.log(*partition).config
    writer = StagingWriter(directory.fs, directory.clock, f"{directory.path}/{where}", config)
    for batch in batches_of(payloads):
        writer.append(batch)
    assert writer.next_offset == len(payloads)
    part = StagedPart.of(partition, where, writer.finish(), keyed=writer.keyed)
    return StagedPart.from_json(json.loads(json.dumps(part.to_json())))


def run_job(
    directory: LogDir,
    tasks: Sequence[Texts],
    *,
    job: str = "job",
    application: str = "query:q",
    version: int = 0,
    intake: Intake = NO_INTAKE,
) -> AdoptResult:
    """Stage what the tasks have for their partitions, and adopt all of it."""
    parts = [
        stage(directory, payloads, job=job, task=f"{number}", partition=partition)
        for number, task in enumerate(tasks)
        for partition, payloads in task.items()
    ]
    return adopt(directory, job, parts, application, version, intake=intake)


def found(log: Log) -> list[bytes]:
    """The log's values, without a hole."""
    log.check()
    here = values(log)
    assert list(here) == list(range(log.log_start_offset, log.log_end_offset))
    return list(here.values())


def damage(fs: Fs) -> list[Finding]:
    """The damage that verification finds in the closed directory."""
    return [one for one in verify([DIR], fs=fs, workers=1).findings if one.severity is Severity.DAMAGE]
