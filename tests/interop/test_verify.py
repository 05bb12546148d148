"""Verification of what real Kafka writes, in use and stopped, and real Kafka on what repair leaves."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from seglog.core.fs import OsFs
from seglog.core.types import TopicPartition
from seglog.records.batch import patch_offset_and_epoch, read_header
from seglog.records.record import NewRecord, encode_batch
from seglog.storage.formats.checkpoints import (
    MetaProperties,
    write_clean_shutdown,
    write_meta_properties,
    write_offsets,
)
from seglog.storage.formats.paths import HIGH_WATERMARKS, RECOVERY_POINTS
from seglog.storage.offline.repair import carry_out, lock_directory, plan_repair
from tests.cases import case
from tests.kafka import KafkaNode, oracle
from tests.kafka.jars import CURRENT
from tests.kafka.records import Recipe, Record
from tests.kafka.tools import dump_log_segments, produce, topics
from tests.storage import programs
from tests.storage.offline.verify.verified import (
    Flipper,
    batches,
    bits_under_no_crc,
    bytes_of,
    damage,
    flip,
    look,
    make_dir,
)
from tests.storage.programs import START_MS, Append, Clock, Epoch, Retain, Roll

LOG = f"{0:020d}.log"


class _KafkasLog:
    """A partition that Kafka's own log writes, stopped and started again between its steps."""

    def __init__(self, path: Path, config: Mapping[str, str]) -> None:
        self.path = path
        self.config = config
        self.now_ms = START_MS
        self.epoch = 0
        self.start = 0
        self.end = 0

    def play(self, steps: Sequence[programs.Step], *, clean: bool = True) -> None:
        began_ms, wanted = self.now_ms, [oracle.set_leader_epoch(self.epoch)]
        for step in steps:
            match step:
                case Append(data, _):
                    wanted.append(data)
                case Epoch(epoch):
                    self.epoch = epoch
                    wanted.append(oracle.set_leader_epoch(epoch))
                case Clock(now_ms):
                    self.now_ms = now_ms
                    wanted.append(oracle.set_clock(now_ms))
                case Roll():
                    wanted.append(oracle.roll())
                case Retain():
                    wanted.append(oracle.delete_old_segments())
        lines = oracle.append_batches(
            self.path,
            wanted,
            now_ms=began_ms,
            config=self.config,
            transaction_version=0,
            log_start=self.start,
            clean=clean,
        )
        self.start, self.end = lines[-1]["logStartOffset"], lines[-1]["logEndOffset"]


def _config(seed: int, **more: str) -> dict[str, str]:
    rng = random.Random(seed)
    return {
        "internal.segment.bytes": str(rng.choice([14_000, 30_000, 100_000])),
        "index.interval.bytes": str(rng.choice([0, 100, 4096])),
        "segment.index.bytes": str(rng.choice([1000, 10_485_760])),
        "max.message.bytes": "100000",
        "file.delete.delay.ms": "0",
        "retention.ms": "-1",
        **more,
    }


# Nothing on what Kafka writes


@pytest.mark.parametrize("seed", range(4))
def test_a_leaders_log_through_stops_and_crashes(tmp_path: Path, seed: int) -> None:
    log = _KafkasLog(tmp_path / "t-0", _config(seed, **{"retention.bytes": "90000" if seed % 2 else "-1"}))
    steps = list(programs.program(seed, steps=180))
    for at in range(0, 180, 60):
        log.play(steps[at : at + 60], clean=at != 120)
        assert look(log.path, strict=True, fast=bool(seed % 2)).findings == []
        case()


@pytest.mark.parametrize("seed", range(4))
def test_a_compacted_log(tmp_path: Path, seed: int) -> None:
    horizon = "1" if seed % 2 else "1000000000000"
    log = _KafkasLog(tmp_path / "t-0", _config(seed, **{"cleanup.policy": "compact", "delete.retention.ms": horizon}))
    first_dirty = 0
    steps = list(programs.program(seed + 50, steps=160))
    for at in range(0, 160, 80):
        log.play(steps[at : at + 80])
        lines = oracle.clean_log(
            log.path, now_ms=log.now_ms, config=log.config, first_dirty=first_dirty, log_start=log.start
        )
        first_dirty = next(line["nextDirtyOffset"] for line in lines if "nextDirtyOffset" in line)
        assert look(log.path, strict=True, fast=bool(seed % 2)).findings == []
        case()


def test_a_followers_log(tmp_path: Path) -> None:
    """Several batches in one append, of transactions too, as a leader sends them."""
    leader = _KafkasLog(tmp_path / "leader" / "t-0", _config(0))
    leader.play(list(programs.program(3, steps=150)))
    data = b"".join(path.read_bytes() for path in sorted(leader.path.glob("*.log")))
    entries = batches(data)
    rng = random.Random(1)
    steps, at = [], 0
    while at < len(entries):
        taken = entries[at : at + rng.randrange(1, 6)]
        steps.append(data[taken[0].position : taken[-1].position + taken[-1].size])
        at += len(taken)
    follower = tmp_path / "follower" / "t-0"
    lines = oracle.append_batches(follower, steps, now_ms=START_MS, config=_config(1), origin="FOLLOWER")
    assert not [line for line in lines if "error" in line]
    assert look(follower, strict=True).findings == []


def test_a_broker_while_it_writes_after_a_kill_and_after_a_stop(own_kafka: KafkaNode) -> None:
    topic = "busy"
    small = ("--config", "internal.segment.bytes=20000", "--config", "index.interval.bytes=0")
    topics(own_kafka.bootstrap, "--create", "--topic", topic, "--partitions", "2", *small)
    recipe = Recipe()
    recipe.producer("p", {"transactional.id": "t", "compression.type": "lz4"})
    for number in range(60):
        recipe.begin("p")
        for partition in (0, 1):
            recipe.batch("p", topic, [Record(value=b"v" * 500)] * 3, partition=partition)
        (recipe.abort if number % 3 == 0 else recipe.commit)("p")
    writer = threading.Thread(target=produce, args=(own_kafka.bootstrap, recipe))
    writer.start()
    while writer.is_alive():
        assert damage(look(own_kafka.log_dir)) == []
        case()
    writer.join()
    assert damage(look(own_kafka.log_dir)) == []
    own_kafka.kill()
    assert damage(look(own_kafka.log_dir)) == []
    own_kafka.start()
    own_kafka.stop()
    verified = look(own_kafka.log_dir)
    assert damage(verified) == []
    assert verified.records > 300


# Every bit


def _as_log_dir(path: Path, end: int) -> None:
    """The files that a broker keeps beside a partition, as after a clean stop."""
    fs, partition = OsFs(), TopicPartition("t", 0)
    write_meta_properties(fs, str(path), MetaProperties(1, "cluster", 1), START_MS)
    for name in (RECOVERY_POINTS, HIGH_WATERMARKS):
        write_offsets(fs, str(path / name), {partition: end})
    write_clean_shutdown(fs, str(path))


def test_every_bit_that_no_crc_covers_of_a_partition_of_kafkas(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "t-0"
    log = _KafkasLog(path, {"internal.segment.bytes": "30000", "index.interval.bytes": "2000", "retention.ms": "-1"})
    rng = random.Random(5)
    steps: list[programs.Step] = []
    for number in range(24):
        records = [
            NewRecord(rng.randbytes(400), b"k", START_MS + number * 100 + at) for at in range(rng.randrange(1, 9))
        ]
        steps += [Epoch(number // 8), Append(bytes(encode_batch(records, codec=rng.choice([0, 4]))))]
    log.play(steps)
    _as_log_dir(tmp_path / "logs", log.end)
    assert look(tmp_path / "logs", strict=True).findings == []
    for name, data in bytes_of(path).items():
        flipper = Flipper(path / name)
        for position, bit in bits_under_no_crc(name, data):
            flipper.flip(position, bit)
            assert look(tmp_path / "logs", strict=True).is_damaged, (name, position, bit)
            flipper.restore(position)
            case()
        flipper.close()


# Kafka on what was repaired


@pytest.mark.parametrize("kind", ["plain", "transactions", "rolled"])
def test_kafka_goes_on_with_a_repaired_partition(tmp_path: Path, kind: str) -> None:
    logs = tmp_path / "logs"
    partition = make_dir(logs, kind)
    first = partition / LOG
    data = first.read_bytes()
    entries = batches(data)
    data = flip(data, entries[2].position + 80, 0)
    data = flip(data, entries[4].position + 6, 2)
    first.write_bytes(data)
    for path in (*partition.glob("*.index"), *partition.glob("*.snapshot"), *partition.glob("*.txnindex")):
        path.write_bytes(path.read_bytes()[:-3])
    with lock_directory(str(logs)):
        plan = plan_repair(str(logs), salvage=True)
        assert plan.all_refusals == []
        carry_out(plan)
    assert not look(logs).is_damaged
    names = sorted(path.name for path in partition.iterdir() if path.suffix in (".index", ".timeindex"))
    text = dump_log_segments(CURRENT, names, "--verify-index-only", cwd=partition)
    assert "ismatch" not in text
    assert "not found" not in text
    before = bytes_of(partition)
    batch = encode_batch([NewRecord(b"after the repair", timestamp=START_MS)] * 3)
    lines = oracle.append_batches(partition, [oracle.set_leader_epoch(99), bytes(batch)], now_ms=START_MS + 1)
    assert "error" not in lines[1], lines
    last = max(partition.glob("*.log"))
    appended = bytearray(batch)
    patch_offset_and_epoch(appended, 0, lines[1]["firstOffset"], 99)
    assert last.read_bytes() == before[last.name] + appended
    assert lines[1]["firstOffset"] == read_header(appended).base_offset
    copy = tmp_path / "alone" / "t-0"
    shutil.copytree(partition, copy)
    assert not look(copy).is_damaged
