"""Compaction beside Kafka's own cleaner, over the same log: all of it dirty, 500,000 keys.

Each side cleans a small log first, in the same process, so that neither compiles in the time that is taken; starts of
processes are not in it either. Log files are hard links to one set: no cleaner changes a file that it has not made.

    python -m bench compaction                  256 MB, two kinds of batches
    SEGLOG_BENCH_MB=1024 python -m bench compaction
"""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from seglog.core.config import LogConfig
from seglog.core.ground import Ground
from seglog.core.types import TopicPartition
from seglog.records.compression import Codec
from seglog.records.record import NewRecord, encode_batch
from seglog.storage.compaction.log_cleaner import compact
from seglog.storage.compaction.round import COMPILED
from seglog.storage.log.admit import Origin
from seglog.storage.log.dir_health import DirHealth
from seglog.storage.log.log import Log
from seglog.storage.log.recovery import LogCheckpoint, load_log
from tests.kafka.jars import CURRENT, class_path

_KEYS: Final = 500_000
_VALUE: Final = 100
_DISTINCT: Final = 1 << 20
"""Records that are made; a log is made of their batches again and again, in another order each time."""
_MAP_BYTES: Final = 128 << 20
_HEAP: Final = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
_WARM_UP_MB: Final = 32


class Kind(NamedTuple):
    name: str
    records: int
    codec: Codec


_KINDS: Final = (
    Kind("batches of 130 records (16 KB)", 130, Codec.NONE),
    Kind("batches of 130 records, lz4", 130, Codec.LZ4),
    Kind("batches of one record", 1, Codec.NONE),
)


def _config(megabytes: int) -> LogConfig:
    segment = max(1 << 20, min(128 << 20, (megabytes << 20) // 8))
    return LogConfig.from_mapping(
        {"cleanup.policy": "delete", "retention.ms": "-1", "segment.bytes": segment, "file.delete.delay.ms": "0"}
    )


def _open(path: Path, megabytes: int) -> Log:
    return load_log(
        ground=Ground(),
        path=str(path),
        topic_partition=TopicPartition("t", 0),
        config=_config(megabytes),
        health=DirHealth(str(path)),
        known=LogCheckpoint(clean=True, recovery_point=0),
    ).log


def _value(rng: random.Random) -> bytes:
    """100 bytes that compress like a small JSON object."""
    text = b'{"id":%d,"state":"%s","price":%d.%02d,"quantity":%d,"comment":"none so far"}' % (
        rng.randrange(10**9),
        rng.choice((b"open", b"paid", b"shipped", b"returned")),
        rng.randrange(1000),
        rng.randrange(100),
        rng.randrange(50),
    )
    return text.ljust(_VALUE, b" ")[:_VALUE]


def _batches(kind: Kind) -> Iterator[bytes]:
    """Endless: batches at offset 0 with random keys."""
    rng = random.Random(1)
    made: list[bytes] = []
    for _ in range(_DISTINCT // kind.records):
        records = [
            NewRecord(_value(rng), b"key-%08d" % rng.randrange(_KEYS), 1_790_000_000_000 + at)
            for at in range(kind.records)
        ]
        made.append(bytes(encode_batch(records, codec=kind.codec)))
        yield made[-1]
    while True:
        rng.shuffle(made)
        yield from made


def _make(path: Path, kind: Kind, megabytes: int) -> int:
    """A log of so many uncompressed MB; how many bytes it has on disk."""
    path.mkdir(parents=True)
    log = _open(path, megabytes)
    records = (megabytes << 20) // (_VALUE + 24)
    batches = _batches(kind)
    while log.log_end_offset < records:
        run = [next(batches) for _ in range(max(1, 130 // kind.records))]
        for batch in run:
            log.append(batch, origin=Origin.CLIENT)
    log.roll()
    size = log.size
    log.close()
    return size


def _copy(source: Path, target: Path) -> Path:
    shutil.rmtree(target.parent, ignore_errors=True)
    target.mkdir(parents=True)
    for file in source.iterdir():
        if file.suffix == ".log" and file.stat().st_size:
            os.link(file, target / file.name)
        else:
            shutil.copy2(file, target / file.name)
    return target


def _ours(path: Path, megabytes: int, engine: str) -> tuple[float, int]:
    log = _open(path, megabytes)
    start = time.perf_counter()
    stats = compact(log, first_dirty=0, map_bytes=_MAP_BYTES, engine=engine, in_child=False)
    seconds = time.perf_counter() - start
    log.close()
    return seconds, stats.messages_written


def _theirs(paths: list[Path], megabytes: int) -> tuple[float, int]:
    command = ["java", *_HEAP, "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]
    command += ["-cp", class_path(CURRENT, with_ours=True), "CleanTimed"]
    command += ["--dirs", ",".join(map(str, paths)), "--now-ms", str(time.time_ns() // 1_000_000)]
    for key, value in _config(megabytes).overrides().items():
        command += ["--config", f"{key}={value}"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = [json.loads(line) for line in out.split("\n") if line]
    last = [line for line in lines if "seconds" in line][-1]
    return last["seconds"], last["messagesWritten"]


def _compare(root: Path, kind: Kind, megabytes: int, rounds: int) -> None:
    source, small = root / "source" / "t-0", root / "small" / "t-0"
    size = _make(source, kind, megabytes)
    _make(small, kind, _WARM_UP_MB)
    _ours(_copy(small, root / "warm" / "t-0"), megabytes, COMPILED)
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            target = _copy(source, root / "run" / "t-0")
            if side == 0:
                seconds, ours = _ours(target, megabytes, COMPILED)
            else:
                seconds, theirs = _theirs([_copy(small, root / "warm" / "t-0"), target], megabytes)
            times[side].append(seconds)
        assert ours == theirs
    ours_s, theirs_s = (statistics.median(side) for side in times)
    print(
        f"  {kind.name}, {size / 1e6:.0f} MB on disk, {ours} records stay: "
        f"seglog {ours_s:.2f} s ({size / 1e6 / ours_s:.0f} MB/s), "
        f"Kafka {CURRENT} {theirs_s:.2f} s ({size / 1e6 / theirs_s:.0f} MB/s): {theirs_s / ours_s:.1f}x as fast"
    )
    shutil.rmtree(root)


def main() -> None:
    megabytes = int(os.environ.get("SEGLOG_BENCH_MB", "256"))
    rounds = int(os.environ.get("SEGLOG_BENCH_ROUNDS", "3"))
    print(
        f"compaction of {megabytes} MB of records, all dirty, {_KEYS} keys, {_MAP_BYTES >> 20} MiB map, medians of "
        f"{rounds} rounds; java {' '.join(_HEAP)}"
    )
    for kind in _KINDS:
        with tempfile.TemporaryDirectory(prefix="seglog-bench-") as root:
            _compare(Path(root) / "logs", kind, megabytes, rounds)


if __name__ == "__main__":
    main()
