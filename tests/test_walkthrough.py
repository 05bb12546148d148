"""docs/walkthrough.md, hop by hop: in memory, on a clock that stands still. If a hop moves, the page moves with it."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from seglog.core.config import LogConfig
from seglog.core.errors import CorruptBatchError
from seglog.core.ground import Ground
from seglog.records.batch import read_header
from seglog.records.record import NewRecord, encode_batch
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.log.admit import AppendPlan, Origin, admit
from seglog.storage.log.producers import Producers
from tests.kit.manual_clock import ManualClock
from tests.kit.memory_fs import MemoryFs

_ROOT = Path(__file__).parent.parent
_PAGE = _ROOT / "docs" / "walkthrough.md"
_NOW = 1_790_000_000_000


def opened(fs: MemoryFs) -> LogDir:
    return LogDir.open("/data", ground=Ground(fs=fs, clock=ManualClock(_NOW), rng=random.Random(1)))


def test_following_one_record() -> None:
    fs = MemoryFs(clock=ManualClock(_NOW))
    fs.mkdir("/data")
    fs.fsync_dir("/")
    directory = opened(fs)
    directory.create_topic("t", config={"internal.segment.bytes": 1000, "index.interval.bytes": 0})
    log = directory.log("t")

    # 1. A batch is made.
    batch = bytes(
        encode_batch([NewRecord(b"v", key=b"k", timestamp=_NOW)], producer_id=7, producer_epoch=0, base_sequence=0)
    )

    # 2. May it in? Pure: a damaged one is refused, a good one changes twelve bytes, one that is here is a duplicate.
    damaged = batch[:-1] + bytes([batch[-1] ^ 1])
    with pytest.raises(CorruptBatchError):
        log.append(damaged)
    plan = admit(
        batch,
        end_offset=5,
        config=LogConfig(),
        producers=Producers(),
        latest_epoch=3,
        leader_epoch=3,
        origin=Origin.CLIENT,
        now_ms=_NOW,
    )
    assert isinstance(plan, AppendPlan)
    assert (plan.data[:8], plan.data[12:16], plan.data[16:]) == ((5).to_bytes(8), (3).to_bytes(4), batch[16:])
    assert log.log_end_offset == 0

    # 3.-6. The segment, one write, the index, the producer; readers see it, the disk has nothing yet.
    assert not log.append(batch, origin=Origin.CLIENT).duplicate
    again = log.append(batch, origin=Origin.CLIENT)
    assert (again.duplicate, again.first_offset) == (True, 0)
    for at in range(20):
        log.append_records([NewRecord(b"x" * 100, timestamp=_NOW + at)])
    assert len(log.segments) > 1
    assert log.segments[0].offset_index.count > 0
    assert log.high_watermark == log.log_end_offset == 21
    rolled_up_to = log.segments[-1].base_offset
    assert log.recovery_point == rolled_up_to

    # 8. By offset: a slice; 9. by time.
    fetched = log.read(0)
    assert read_header(fetched.read()).producer_id == 7
    assert next(fetched.records()).value == b"v"
    found = log.offset_for_timestamp(_NOW + 19)
    assert found is not None
    assert found.offset == 20

    # The side door: the power fails. What was rolled was flushed and is there; 7. flush makes all of it safe.
    fs.crash(random.Random(2))
    directory = opened(fs)
    log = directory.log("t")
    assert log.log_end_offset >= rolled_up_to
    directory.flush()
    end = log.log_end_offset
    fs.crash(random.Random(3))
    assert opened(fs).log("t").log_end_offset == end


def test_every_file_that_the_page_names_is_there() -> None:
    named = set(
        re.findall(r"`((?:cli|core|records|sources|storage|spark|table|testing)/[a-z_/]+)[.`]", _PAGE.read_text())
    )
    assert len(named) > 10
    assert [name for name in sorted(named) if not (_ROOT / "src" / "seglog" / f"{name}.py").exists()] == []
