"""The same batches in the same appends give the same files as Kafka's own log: byte for byte, all of them."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from seglog.core.config import LogConfig
from seglog.core.fs import OsFs
from seglog.core.ground import Ground
from seglog.core.types import TopicPartition
from seglog.storage.formats.paths import MANIFEST, WITNESS
from seglog.storage.log.admit import Origin
from seglog.storage.log.dir_health import DirHealth
from seglog.storage.log.log import Log
from seglog.storage.log.recovery import LogCheckpoint, load_log
from tests.cases import case
from tests.kafka import oracle
from tests.kit.manual_clock import ManualClock
from tests.storage import programs
from tests.storage.programs import START_MS, Append, Clock, DeleteRecords, Epoch, Retain, Roll, Step, Truncate


class _Side:
    """Our log, and the same steps in the oracle's words."""

    def __init__(self, path: Path, config: Mapping[str, str]) -> None:
        self.path = path
        self.clock = ManualClock(START_MS)
        self.config = config
        self.epoch = 0
        self.bases: list[int] = []
        self.oracle_steps: list[bytes] = []
        self.known = LogCheckpoint()
        self.started_ms = START_MS
        self.log = self._open(self.known)

    def _open(self, known: LogCheckpoint) -> Log:
        os.makedirs(self.path, exist_ok=True)
        return load_log(
            ground=Ground(fs=OsFs(), clock=self.clock),
            path=str(self.path),
            topic_partition=TopicPartition("t", 0),
            config=LogConfig.from_mapping(self.config),
            health=DirHealth(str(self.path)),
            known=known,
        ).log

    def play(self, steps: Iterable[Step]) -> None:
        for step in steps:
            self.oracle_steps += self._play(step)
            self.log.check()

    def _play(self, step: Step) -> list[bytes]:
        log = self.log
        match step:
            case Append(data, is_marker):
                origin = Origin.COORDINATOR if is_marker else Origin.CLIENT
                self.bases.append(log.append(data, leader_epoch=self.epoch, origin=origin).first_offset)
                return [data]
            case Epoch(epoch):
                self.epoch = epoch
                log.assign_epoch(epoch)
                return [oracle.set_leader_epoch(epoch)]
            case Clock(now_ms):
                self.clock.set_wall(now_ms)
                return [oracle.set_clock(now_ms)]
            case Roll():
                log.roll()
                return [oracle.roll()]
            case Truncate(back):
                target = max(log.log_start_offset, (self.bases[-back:] or [0])[0])
                self.bases = [base for base in self.bases if base < target]
                log.truncate_to(target)
                assert log.log_end_offset <= target
                return [oracle.truncate_to(target)]
            case DeleteRecords(share):
                span = log.high_watermark - log.log_start_offset
                target = log.log_start_offset + int(span * share)
                log.delete_records(target)
                return [oracle.delete_records_before(target)]
            case Retain():
                log.delete_old_segments()
                return [oracle.delete_old_segments()]

    def reopen(self, theirs: Path) -> None:
        """Stop both sides cleanly and continue."""
        self.close_and_compare(theirs)
        before = self.log
        self.known = LogCheckpoint(
            clean=True, recovery_point=before.log_end_offset, log_start_offset=before.log_start_offset
        )
        self.started_ms = self.clock.now_ms()
        self.oracle_steps = [oracle.set_leader_epoch(self.epoch)]
        self.log = self._open(self.known)

    def close_and_compare(self, theirs: Path) -> None:
        start = self.log.log_start_offset
        self.log.close()
        lines = oracle.append_batches(
            theirs,
            self.oracle_steps,
            now_ms=self.started_ms,
            config=self.config,
            transaction_version=0,
            log_start=self.known.log_start_offset,
            recovery_point=self.known.recovery_point or 0,
        )
        refused = [line for line in lines if "error" in line]
        assert not refused
        assert lines[-1]["logStartOffset"] == start
        assert lines[-1]["logEndOffset"] == self.log.log_end_offset
        ours, kafkas = _files(self.path), _files(theirs)
        assert sorted(ours) == sorted(kafkas)
        assert [name for name in sorted(ours) if ours[name] != kafkas[name]] == []


def _files(directory: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in directory.iterdir()
        if path.is_file() and path.name not in ("partition.metadata", MANIFEST, WITNESS)
    }


@pytest.mark.parametrize("seed", range(8))
def test_a_leaders_log(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    config = {
        "internal.segment.bytes": str(rng.choice([14_000, 30_000, 100_000])),
        "index.interval.bytes": str(rng.choice([0, 100, 1000, 4096])),
        "segment.index.bytes": str(rng.choice([100, 1000, 10_485_760])),
        "max.message.bytes": "100000",
        "file.delete.delay.ms": "0",
        "retention.bytes": str(rng.choice([-1, 30_000])),
        "retention.ms": str(rng.choice([-1, 1_800_000])),
        "segment.ms": str(rng.choice([2000, 604_800_000])),
    }
    side = _Side(tmp_path / "ours" / "t-0", config)
    side.play(programs.program(seed, steps=200))
    side.close_and_compare(tmp_path / "kafka" / "t-0")
    case(200)


@pytest.mark.parametrize("seed", range(100, 104))
def test_a_log_that_is_truncated_again_and_again(tmp_path: Path, seed: int) -> None:
    config = {
        "internal.segment.bytes": "14000",
        "index.interval.bytes": "500",
        "max.message.bytes": "100000",
        "file.delete.delay.ms": "0",
        "retention.ms": "-1",
    }
    side = _Side(tmp_path / "ours" / "t-0", config)
    side.play(programs.program(seed, steps=150, truncations=True))
    side.close_and_compare(tmp_path / "kafka" / "t-0")
    case(150)


@pytest.mark.parametrize("seed", range(200, 204))
def test_a_log_that_is_stopped_and_goes_on(tmp_path: Path, seed: int) -> None:
    config = {
        "internal.segment.bytes": "14000",
        "index.interval.bytes": "500",
        "max.message.bytes": "100000",
        "file.delete.delay.ms": "0",
        "retention.bytes": "60000",
    }
    side = _Side(tmp_path / "ours" / "t-0", config)
    steps = list(programs.program(seed, steps=150))
    side.play(steps[:60])
    side.reopen(tmp_path / "kafka" / "t-0")
    side.play(steps[60:])
    side.close_and_compare(tmp_path / "kafka" / "t-0")
    case(150)
