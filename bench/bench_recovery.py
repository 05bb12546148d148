"""Recovery after a crash beside Kafka's own log: every batch of one segment checked, and its indexes made again.

Both sides recover a small log first, in the same process, so that no start and no compiling is in what is timed. Log
files are hard links to one that is in the page cache.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

from bench import kafka
from bench.commands import show
from bench.segments import Made, Recipe, make, megabytes, rounds
from bench.sides import Compared, Cost, measure, median_of
from seglog.core.config import LogConfig
from seglog.core.ground import Ground
from seglog.core.types import MAX_INT32, TopicPartition
from seglog.storage.formats.paths import segment_paths
from seglog.storage.log.dir_health import DirHealth
from seglog.storage.log.log import Log
from seglog.storage.log.recovery import LogCheckpoint, load_log

_CONFIG: Final = {"segment.bytes": str(MAX_INT32), "retention.ms": "-1"}
_INDEX: Final = 10 << 20
_WARM_UP: Final = 16 << 20


def _crashed(made: Made, target: Path) -> Path:
    """The partition as a crash leaves it: the log, and indexes with room for entries of which none is on the disk."""
    shutil.rmtree(target.parent, ignore_errors=True)
    target.mkdir(parents=True)
    paths = segment_paths(str(target), 0)
    os.link(made.log, paths.log)
    for index in (paths.offset_index, paths.timeindex):
        with open(index, "wb") as file:
            file.truncate(_INDEX // 12 * 12)
    return target


def _ours(path: Path, end: int) -> Cost:
    config = LogConfig.from_mapping(_CONFIG)

    def load() -> None:
        loaded = load_log(
            ground=Ground(),
            path=str(path),
            topic_partition=TopicPartition("t", 0),
            config=config,
            health=DirHealth(str(path)),
            known=LogCheckpoint(clean=False, recovery_point=0),
        )
        assert loaded.log.log_end_offset == end
        logs.append(loaded.log)

    logs: list[Log] = []
    cost = measure(load)
    logs[0].close()
    return cost


def _theirs(small: Path, path: Path, end: int) -> Cost:
    lines = list(kafka.run_ours("RecoverTimed", [small, path], _CONFIG))
    assert lines[-1]["logEndOffset"] == end
    timed = [line for line in lines if "seconds" in line][-1]
    return Cost(timed["seconds"], timed["cpuSeconds"])


def _compare(root: Path, recipe: Recipe) -> None:
    small = make(root / "small", recipe, _WARM_UP)
    made = make(root / "large", recipe, megabytes() << 20)
    _ours(_crashed(small, root / "warm" / "t-0"), small.records)
    costs: tuple[list[Cost], list[Cost]] = ([], [])
    for number in range(rounds()):
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            target = _crashed(made, root / "run" / "t-0")
            if side == 0:
                costs[0].append(_ours(target, made.records))
            else:
                costs[1].append(_theirs(_crashed(small, root / "warm" / "t-0"), target, made.records))
    print(f"{recipe}: {made.size / 1e6:.0f} MB, {made.records} records")
    show("recovery", Compared(median_of(costs[0]), median_of(costs[1])), made.size)


def main() -> None:
    print(f"recovery after a crash, medians of {rounds()} rounds, {kafka.describe(kafka.BROKER)}")
    with tempfile.TemporaryDirectory(prefix="seglog-bench-") as name:
        for recipe in (Recipe(1000), Recipe(100, batch_bytes=1)):
            _compare(Path(name), recipe)


if __name__ == "__main__":
    main()
