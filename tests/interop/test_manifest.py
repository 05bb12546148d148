"""Kafka in a partition with our manifest: it keeps the manifest but deletes its witness, and its changes are
trusted."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from seglog.core.errors import DamagedPartitionError
from seglog.core.fs import OsFs
from seglog.core.ground import Ground
from seglog.records.record import NewRecord, encode_batch
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.formats.paths import MANIFEST, WITNESS
from seglog.storage.log.manifest import read_manifest
from seglog.storage.offline.verify import verify
from tests.kafka import KafkaNode, oracle, tools
from tests.kit.manual_clock import ManualClock
from tests.storage.disk import values

NOW_MS = 1_800_000_000_000
CONFIG = {"internal.segment.bytes": "4000", "segment.index.bytes": "1200", "retention.ms": "-1"}


def open_dir(path: Path) -> LogDir:
    return LogDir.open(path, ground=Ground(fs=OsFs(), clock=ManualClock(NOW_MS), rng=random.Random(1)))


def fill(opened: LogDir, count: int) -> None:
    log = opened.log("t")
    for _ in range(count):
        at = log.log_end_offset
        log.append_records([NewRecord(b"%d" % at * 50, key=b"%d" % (at % 5), timestamp=NOW_MS - 1000 + at)])


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Offsets 0 to 199 in several segments, with a manifest."""
    with open_dir(tmp_path / "logs") as opened:
        opened.create_topic("t", 1, CONFIG)
        fill(opened, 200)
    assert len(read_manifest(OsFs(), str(tmp_path / "logs" / "t-0"))) > 3
    return tmp_path / "logs"


def append(partition: Path) -> None:
    oracle.append_batches(partition, [bytes(encode_batch([NewRecord(b"x" * 3000)]))] * 3, now_ms=NOW_MS, config=CONFIG)


def expire(partition: Path) -> None:
    steps = [oracle.delete_records_before(150), oracle.delete_old_segments()]
    oracle.append_batches(partition, steps, now_ms=NOW_MS, config=CONFIG)


def truncate(partition: Path) -> None:
    oracle.append_batches(partition, [oracle.truncate_to(30)], now_ms=NOW_MS, config=CONFIG)


def clean(partition: Path) -> None:
    oracle.clean_log(partition, now_ms=NOW_MS, config={**CONFIG, "cleanup.policy": "compact"})


@pytest.mark.parametrize("act", [append, expire, truncate, clean])
def test_segments_changed_by_kafka_are_not_damage(logs: Path, act: Callable[[Path], None]) -> None:
    partition = logs / "t-0"
    (logs / ".kafka_cleanshutdown").unlink()  # we were killed; and the checkpoints are older than what Kafka did
    (logs / "recovery-point-offset-checkpoint").write_text("0\n1\nt 0 0\n")
    (logs / "replication-offset-checkpoint").write_text("0\n0\n")
    act(partition)
    assert (partition / MANIFEST).exists(), "Kafka leaves it alone"
    assert not (partition / WITNESS).exists(), "Kafka takes this for a deletion that it has not finished"
    assert not verify([str(logs)]).is_damaged
    with open_dir(logs) as opened:
        assert not opened.refused
        before = values(opened.log("t"))
        fill(opened, 100)
        assert before.items() <= values(opened.log("t")).items()
    assert (partition / WITNESS).exists()
    assert len(read_manifest(OsFs(), str(partition))) == len(list(partition.glob("*.log"))) - 1
    sorted(partition.glob("*.log"))[-2].unlink()
    with open_dir(logs) as opened, pytest.raises(DamagedPartitionError, match="the file is missing"):
        opened.log("t")


def test_a_killed_kafka_is_believed_and_its_segments_are_taken_up(own_kafka: KafkaNode) -> None:
    tools.topics(own_kafka.bootstrap, "--create", "--topic", "t", "--config", "segment.bytes=1048576")
    own_kafka.stop()
    partition = own_kafka.log_dir / "t-0"
    with LogDir.open(own_kafka.log_dir) as opened:
        opened.alter_config("t", {"segment.bytes": 1 << 20})
        log = opened.log("t")
        for at in range(40):
            record = NewRecord(b"%d" % at * 50_000, timestamp=1_700_000_000_000)
            log.append_records([record], leader_epoch=max(log.epochs.latest, 0))
        expected = values(log)
    assert len(read_manifest(OsFs(), str(partition))) >= 2
    own_kafka.start()
    own_kafka.kill()
    assert not (partition / WITNESS).exists()
    min(partition.glob("*.log")).unlink()  # as its retention would have
    with LogDir.open(own_kafka.log_dir) as opened:
        assert not opened.refused
        log = opened.log("t")
        assert values(log).items() <= expected.items()
        assert log.manifest.entries == {}
    bases = sorted(int(file.stem) for file in partition.glob("*.log"))
    assert sorted(read_manifest(OsFs(), str(partition))) == bases[:-1]
