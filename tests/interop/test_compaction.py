"""Our compaction and Kafka's own cleaner over the same directories: the same files."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from seglog.core.config import LogConfig
from seglog.core.fs import OsFs
from seglog.core.ground import Ground
from seglog.records.compression import Codec
from seglog.records.record import NewRecord, encode_batch
from seglog.storage.compaction.log_cleaner import CompactionStats, compact
from seglog.storage.compaction.round import COMPILED, PLAIN
from seglog.storage.log.dir_health import DirHealth
from seglog.storage.log.log import Log
from seglog.storage.log.recovery import LogCheckpoint, load_log
from seglog.storage.log.transaction_index import AbortedTxn
from tests.cases import case
from tests.kafka.oracle import clean_log
from tests.kit.manual_clock import ManualClock
from tests.storage.compaction.compacted import START_MS, Batch, Writer, batches, config, index_of_aborted
from tests.storage.disk import PARTITION

_KINDS = (".log", ".index", ".timeindex", ".txnindex")


def _open(path: Path, clock: ManualClock, log_config: LogConfig) -> Log:
    return load_log(
        ground=Ground(fs=OsFs(), clock=clock),
        path=str(path),
        topic_partition=PARTITION,
        config=log_config,
        health=DirHealth(str(path)),
        known=LogCheckpoint(clean=True, recovery_point=0),
    ).log


def _files(path: Path, active: int) -> dict[str, bytes]:
    """The files of the segments before the active one."""
    return {
        file.name: file.read_bytes()
        for file in path.iterdir()
        if file.suffix in _KINDS and int(file.stem) < active and (file.suffix != ".txnindex" or file.stat().st_size)
    }


def _times(path: Path, active: int) -> dict[str, int]:
    """When the segments before the active one changed last, in ms."""
    return {
        file.name: file.stat().st_mtime_ns // 1_000_000
        for file in path.iterdir()
        if file.suffix == ".log" and int(file.stem) < active
    }


class _Triplets:
    """The same log three times: Kafka cleans one, our two engines the others."""

    def __init__(self, directory: Path, seed: int, codecs: tuple[int, ...], *, legacy: bool) -> None:
        self.config = config(cleanup_policy="delete", retention_ms=-1)  # a compacted topic takes no keyless records
        self.clock = ManualClock(START_MS)
        self.kafka, self.plain, self.compiled = (directory / name / "t-0" for name in ("kafka", "plain", "compiled"))
        for path in (self.kafka, self.plain, self.compiled):
            path.mkdir(parents=True)
        self._rng = random.Random(seed)
        self._codecs = codecs
        self._legacy = legacy
        self._writer: Writer | None = None
        self.first_dirty = 0

    def write(self, steps: int) -> None:
        """More records, the same in all three."""
        log = _open(self.plain, self.clock, self.config)
        if self._writer is None:
            self._writer = Writer(log, self._rng, codecs=self._codecs, keyless=not self._legacy)
        self._writer.log = log
        self._writer.write(steps, legacy=self._legacy)
        self._writer.end_all()
        log.roll()
        log.close()
        for path in (self.kafka, self.compiled):
            shutil.rmtree(path)
            shutil.copytree(self.plain, path)

    def clean(self, now_ms: int, map_keys: int) -> None:
        """A round in each, with the same figures."""
        self.clock.set_wall(now_ms)
        found = [self._clean(path, engine, map_keys) for path, engine in self._ours()]
        theirs = clean_log(
            self.kafka,
            now_ms=now_ms,
            config=self.config.overrides(),
            first_dirty=self.first_dirty,
            first_uncleanable=found[0].first_uncleanable,
            map_bytes=map_keys * 24,
        )[0]
        for stats in found:
            assert theirs == {
                "nextDirtyOffset": stats.end_offset,
                "mapMessagesRead": stats.mapped_messages,
                "messagesRead": stats.messages_read,
                "messagesWritten": stats.messages_written,
                "bytesRead": stats.bytes_read,
                "bytesWritten": theirs["bytesWritten"] if len(self._codecs) > 1 else stats.bytes_written,
                "invalidMessagesRead": stats.keyless,
            }
        self.first_dirty = found[0].end_offset

    def _ours(self) -> tuple[tuple[Path, str], ...]:
        return ((self.plain, PLAIN), (self.compiled, COMPILED))

    def _clean(self, path: Path, engine: str, map_keys: int) -> CompactionStats:
        log = _open(path, self.clock, self.config)
        try:
            return compact(log, first_dirty=self.first_dirty, map_bytes=map_keys * 24, engine=engine, in_child=False)
        finally:
            log.close()

    def assert_same_files(self) -> None:
        """All bytes of all inactive segments and their indexes, and the times of change of their logs."""
        active = max(int(file.stem) for file in self.kafka.glob("*.log"))
        for path, _ in self._ours():
            assert _files(path, active) == _files(self.kafka, active)
            assert _times(path, active) == _times(self.kafka, active)

    def assert_same_contents(self) -> None:
        """Segments, all batches but for their size and checksum, aborted transactions."""
        for path, _ in self._ours():
            assert self._contents(path) == self._contents(self.kafka)

    def _contents(self, path: Path) -> tuple[list[Batch], list[AbortedTxn], list[int]]:
        log = _open(path, self.clock, self.config)
        found = [batch._replace(header=batch.header._replace(length=0, crc=0), data=b"") for batch in batches(log)]
        bases = [segment.base_offset for segment in log.segments]
        aborted = index_of_aborted(log)
        log.close()
        return found, aborted, bases


@pytest.mark.parametrize("legacy", [False, True], ids=["v2", "mixed formats"])
@pytest.mark.parametrize("seed", range(3))
def test_uncompressed_logs_come_out_byte_for_byte(tmp_path: Path, seed: int, legacy: bool) -> None:
    """Three rounds, each after more records; the clock passes the delete horizons of the rounds before."""
    case()
    logs = _Triplets(tmp_path, seed, (Codec.NONE,), legacy=legacy)
    for at, (map_keys, after_ms) in enumerate([(7, 0), (1000, 5_000), (1000, 60_000)]):
        logs.write(60)
        logs.clean(START_MS + 10_000_000 * at + after_ms, map_keys)
        logs.assert_same_files()


@pytest.mark.parametrize("seed", range(100, 102))
def test_compressed_logs_have_the_same_contents_after_compaction(tmp_path: Path, seed: int) -> None:
    case()
    logs = _Triplets(tmp_path, seed, tuple(Codec), legacy=seed % 2 == 0)
    for at, map_keys in enumerate([9, 1000, 1000]):
        logs.write(60)
        logs.clean(START_MS + 10_000_000 * at, map_keys)
        logs.assert_same_contents()


def test_a_larger_log_comes_out_byte_for_byte(tmp_path: Path) -> None:
    """Several megabytes: more than all buffers, batches of up to 700 records, a map that grows, a map that is full."""
    rng = random.Random(5)
    keys = config(cleanup_policy="delete", retention_ms=-1, internal_segment_bytes=5 << 20, segment_index_bytes=1 << 20)
    for map_keys in (60_000, 9_000):
        case()
        paths = [tmp_path / str(map_keys) / name / "t-0" for name in ("ours", "kafka")]
        paths[0].mkdir(parents=True)
        clock = ManualClock(START_MS)
        log = _open(paths[0], clock, keys)
        while log.log_end_offset < 130_000:
            records = [
                NewRecord(
                    None if rng.random() < 0.1 else rng.randbytes(rng.choice([0, 20, 150])),
                    b"%d" % rng.randrange(40_000),
                    START_MS + rng.randrange(10_000),
                )
                for _ in range(rng.choice([1, 1, 30, 255, 256, 257, 700]))
            ]
            log.append(encode_batch(records))
        log.roll()
        log.close()
        shutil.copytree(paths[0], paths[1])
        log = _open(paths[0], clock, keys)
        stats = compact(log, first_dirty=0, map_bytes=map_keys * 24, engine=COMPILED, in_child=False)
        log.close()
        theirs = clean_log(paths[1], now_ms=START_MS, config=keys.overrides(), map_bytes=map_keys * 24)[0]
        assert theirs["nextDirtyOffset"] == stats.end_offset
        active = max(int(file.stem) for file in paths[1].glob("*.log"))
        assert _files(paths[0], active) == _files(paths[1], active)
