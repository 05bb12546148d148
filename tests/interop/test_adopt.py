"""A stock Kafka opens what was adopted, or taken over by a running broker, reads every record of it, and goes on; its
tools find nothing wrong."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

from seglog.core.types import TopicPartition
from seglog.records.compression import Codec
from seglog.records.record import NewRecord, encode_batch
from seglog.storage.adopt import AdoptResult, StagedPart, StagingWriter, adopt, staged_at
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.offline.findings import has_damage
from seglog.storage.offline.verify import verify
from tests.client.produce.written import numbers
from tests.interop.test_log_dir import complaints, consumed, send
from tests.kafka import KafkaNode, tools
from tests.kafka.jars import CURRENT
from tests.kit.broker_process import BrokerProcess
from tests.kit.topics import write
from tests.spark.write.directories.broker_runs import CONFIG, DirectoryRun

_SMALL: Final = ["--config", "segment.bytes=1048576", "--config", "segment.index.bytes=4096"]
_NOW: Final = 1_790_000_000_000


def job(directory: LogDir, number: int, tasks: list[dict[int, list[bytes]]]) -> AdoptResult:
    """Each task writes its records of each partition of topic t."""
    parts = []
    for task, partitions in enumerate(tasks):
        for partition, payloads in partitions.items():
            one = TopicPartition("t", partition)
            where = staged_at(one, f"job-{number}", f"{task}")
            path = str(Path(directory.path) / where)
            writer = StagingWriter(directory.fs, directory.clock, path, directory.log(*one).config)
            for at in range(0, len(payloads), 100):
                records = [NewRecord(value, b"k", _NOW + at) for value in payloads[at : at + 100]]
                writer.append(encode_batch(records, codec=Codec.ZSTD if task % 2 else Codec.NONE))
            parts.append(StagedPart.of(one, where, writer.finish()))
    return adopt(directory, f"job-{number}", parts, "query:q", number, allow_foreign=True)


def test_kafka_continues_a_log_with_adopted_segments(own_kafka: KafkaNode) -> None:
    tools.topics(own_kafka.bootstrap, "--create", "--topic", "t", "--partitions", "2", *_SMALL)
    expected: dict[str, list[bytes | None]] = {"t-0": [], "t-1": []}
    rng = random.Random(4)
    for turn in range(2):
        theirs = [b"theirs %d %d" % (turn, at) for at in range(50)]
        send(own_kafka.bootstrap, "t", 0, theirs)
        expected["t-0"] += theirs
        own_kafka.stop()
        large = [b"%d %d " % (turn, at) + rng.randbytes(900) for at in range(3_000)]
        small = [b"small %d %d" % (turn, at) for at in range(30)]
        with LogDir.open(str(own_kafka.log_dir)) as opened:
            opened.alter_config("t", {"segment.bytes": 1 << 20, "segment.index.bytes": 4096})
            done = job(opened, turn, [{0: large, 1: small}, {0: small, 1: large}, {0: small}])
            assert done.records == 2 * 3_000 + 3 * 30
        expected["t-0"] += [*large, *small, *small]
        expected["t-1"] += [*small, *large]
        for directory in (own_kafka.log_dir / "t-0", own_kafka.log_dir / "t-1"):
            assert len(list(directory.glob("*.log"))) > 2
            said = tools.dump_log_segments(CURRENT, sorted(directory.glob("*.log")), "--deep-iteration")
            assert "isvalid: false" not in said
            indexes = sorted([*directory.glob("*.index"), *directory.glob("*.timeindex")])
            said = tools.dump_log_segments(CURRENT, indexes, "--verify-index-only")
            assert not [line for line in said.splitlines() if "mismatch" in line.lower() or "not found" in line.lower()]
        assert not has_damage(verify([str(own_kafka.log_dir)]).findings)
        own_kafka.start()
        assert consumed(own_kafka, "t-0", "t-1") == expected
    assert complaints(own_kafka) == []


def test_kafka_continues_a_log_whose_segments_our_broker_took_over(own_kafka: KafkaNode) -> None:
    tools.topics(own_kafka.bootstrap, "--create", "--topic", "t", "--partitions", "2", *_SMALL)
    place = TopicPartition("t", 0)
    for turn in range(2):
        assert write(own_kafka.bootstrap, "t", f"{1000 + turn}") is None
        own_kafka.stop()
        with LogDir.open(str(own_kafka.log_dir)) as opened:
            opened.alter_config("t", CONFIG)
        with BrokerProcess(own_kafka.log_dir) as ours:  # Kafka removes our __consumer_offsets, which has the marks
            DirectoryRun(own_kafka.log_dir, f"q{turn}").batch(0, [range(100 * turn, 100 * turn + 100)])
            ours.stop()
        assert len(list((own_kafka.log_dir / "t-0").glob("*.log"))) > turn + 1
        assert not has_damage(verify([str(own_kafka.log_dir)]).findings)
        own_kafka.start()
    expected = [1000, *range(0, 100, 2), 1001, *range(100, 200, 2)]
    assert numbers(own_kafka.bootstrap, place) == expected
    assert write(own_kafka.bootstrap, "t", "1002") is None
    assert numbers(own_kafka.bootstrap, place) == [*expected, 1002]
    assert complaints(own_kafka) == []
