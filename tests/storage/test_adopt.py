"""Adopting staged segments: what the log has then, what is refused, how often, and how many files it takes."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence

import pytest

from seglog.core.types import TopicPartition
from seglog.records.record import NewRecord, encode_batch
from seglog.storage.adopt import StagedPart, StagingWriter, adopt, staged_at
from seglog.storage.log import Log
from seglog.storage.log_dir import LogDir
from seglog.testing import ManualClock, MemoryFs
from tests.storage.disk import values

DIR = "/logs"
T = TopicPartition("t", 0)
SMALL: Mapping[str, object] = {
    "internal.segment.bytes": 4000,
    "segment.index.bytes": 1200,
    "index.interval.bytes": 200,
    "retention.ms": -1,
    "file.delete.delay.ms": 0,
}


def open_dir(fs: MemoryFs, **options: object) -> LogDir:
    return LogDir.open(DIR, fs=fs, clock=ManualClock(), config={"num.recovery.threads.per.data.dir": 1, **options})


def texts(start: int, count: int, job: str = "j") -> list[bytes]:
    return [f"{job}:{start + at}:".encode().ljust(60, b".") for at in range(count)]


def batches_of(payloads: Sequence[bytes], each: int = 3) -> list[bytes]:
    return [
        bytes(
            encode_batch([NewRecord(value, key=value[:4], timestamp=1_000 + at) for value in payloads[at : at + each]])
        )
        for at in range(0, len(payloads), each)
    ]


def stage(
    directory: LogDir, payloads: Sequence[bytes], *, job: str = "job", task: str = "0", partition: TopicPartition = T
) -> StagedPart:
    """What a task does; its message goes over the wire."""
    where = staged_at(partition, job, task)
    log = directory.log(*partition)
    writer = StagingWriter(directory.fs, directory.clock, f"{directory.path}/{where}", log.config)
    for batch in batches_of(payloads):
        writer.append(batch)
    assert writer.next_offset == len(payloads)
    part = StagedPart.of(partition, where, writer.finish(), keyed=writer.keyed)
    return StagedPart.from_json(json.loads(json.dumps(part.to_json())))


def found(log: Log) -> list[bytes]:
    log.check()
    here = values(log)
    assert list(here) == list(range(log.log_start_offset, log.log_end_offset))
    return list(here.values())


@pytest.mark.parametrize("counts", [(5,), (200,), (3, 90, 2, 60)])
def test_parts_are_in_the_log_in_their_order(counts: tuple[int, ...]) -> None:
    fs = MemoryFs()
    directory = open_dir(fs)
    directory.create_topic("t", 1, SMALL)
    log = directory.log("t")
    log.append(batches_of(texts(0, 3, "before"))[0])
    payloads = [texts(0, count, f"task{at}") for at, count in enumerate(counts)]
    parts = [stage(directory, one, task=str(at)) for at, one in enumerate(payloads)]
    adopted = adopt(directory, "job", parts, "job:1", 0)
    expected = [*texts(0, 3, "before"), *(value for one in payloads for value in one)]
    assert adopted == ({T: (3, len(expected))}, False, len(expected) - 3)
    assert found(log) == expected
    assert log.recovery_point == log.log_end_offset
    assert adopt(directory, "job", parts, "job:1", 0).already
    assert found(log) == expected
    log.append(batches_of(texts(0, 3, "after"))[0])
    assert found(log) == [*expected, *texts(0, 3, "after")]
    assert fs.listdir(f"{DIR}/t-0/.seglog/staging") == []
    directory.close()
    fs.crash(random.Random(1))
    with open_dir(fs) as again:
        assert found(again.log("t")) == [*expected, *texts(0, 3, "after")]
