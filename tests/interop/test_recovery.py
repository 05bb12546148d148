"""After a crash our recovery leaves the files that Kafka's leaves: the same cut, the same indexes and snapshots."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from seglog.core.config import LogConfig
from seglog.core.fs import OsFs
from seglog.core.ground import Ground
from seglog.core.types import TopicPartition
from seglog.storage.formats.paths import MANIFEST, WITNESS
from seglog.storage.log.dir_health import DirHealth
from seglog.storage.log.recovery import LogCheckpoint, load_log
from tests import golden
from tests.kafka import CURRENT, oracle
from tests.kit.manual_clock import ManualClock

NOW_MS = 1_800_000_000_000
CONFIG = {"index.interval.bytes": "300", "segment.index.bytes": "4096", "retention.ms": "-1"}


def logs(partition: Path) -> list[Path]:
    return sorted(partition.glob("*.log"))


def as_it_is(partition: Path) -> None:
    del partition


def torn_tail(partition: Path) -> None:
    last = [log for log in logs(partition) if log.stat().st_size][-1]
    last.write_bytes(last.read_bytes()[:-37])


def bad_batch(partition: Path) -> None:
    """Flip a byte somewhere, and all that follows is lost."""
    rng = random.Random(partition.name)
    log = rng.choice([log for log in logs(partition) if log.stat().st_size > 200])
    data = bytearray(log.read_bytes())
    data[rng.randrange(70, len(data))] ^= 0x40
    log.write_bytes(data)


def zeros(partition: Path) -> None:
    with logs(partition)[-1].open("ab") as log:
        log.write(bytes(4096))


def no_derived_files(partition: Path) -> None:
    for kind in ("*.index", "*.timeindex", "*.txnindex", "*.snapshot"):
        for file in partition.glob(kind):
            file.unlink()


def files(partition: Path) -> dict[str, bytes]:
    ours = (MANIFEST, WITNESS)
    return {file.name: file.read_bytes() for file in partition.iterdir() if file.is_file() and file.name not in ours}


@pytest.mark.parametrize("harm", [as_it_is, torn_tail, bad_batch, zeros, no_derived_files])
@pytest.mark.parametrize("topic", ["rolled-0", "txn-rolled-0", "compacted-txn-0", "idempotent-0", "epochs-0"])
def test_recovery_is_kafkas(tmp_path: Path, topic: str, harm: Callable[[Path], None]) -> None:
    source = golden.log_dir(golden.unpack(tmp_path, CURRENT)) / topic
    harm(source)
    ours, theirs = tmp_path / "ours" / "t-0", tmp_path / "theirs" / "t-0"
    for copy in (ours, theirs):
        shutil.copytree(source, copy)
    log = load_log(
        ground=Ground(fs=OsFs(), clock=ManualClock(NOW_MS)),
        path=str(ours),
        topic_partition=TopicPartition("t", 0),
        config=LogConfig.from_mapping(CONFIG),
        health=DirHealth(str(ours)),
        known=LogCheckpoint(),
    ).log
    log.close()
    (end,) = oracle.append_batches(theirs, [], now_ms=NOW_MS, config=CONFIG, clean=False)
    assert (log.log_start_offset, log.log_end_offset) == (end["logStartOffset"], end["logEndOffset"])
    assert log.last_stable_offset == end["lastStableOffset"]
    assert [segment.base_offset for segment in log.segments] == end["segments"]
    found, expected = files(ours), files(theirs)
    for name in {*found, *expected} - {"partition.metadata"}:
        if name.endswith(".txnindex") and not found.get(name) and not expected.get(name):
            continue  # an empty one is as good as none
        assert found.get(name) == expected.get(name), name
