"""Many commits of a table, as `--every 1` makes them: the time of each, and the size of what a table keeps.

A commit has a few records of four partitions; small files are rewritten as they gather. The time is without reading a
log. Processor time is of one thread, so that other work on the machine counts less.

    python -m bench table_commits
    SEGLOG_BENCH_COMMITS=10000 python -m bench table_commits
"""

from __future__ import annotations

import os
import time
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

import pyarrow as pa

from seglog.core.clock import SystemClock
from seglog.records.columns import SCHEMA
from seglog.table.files.record_files import write_records
from seglog.table.iceberg.log_table import LogTable
from seglog.table.iceberg.positions import Position, Positions
from seglog.table.maintenance import maintain

_CHANGED: Final = 4
_RECORDS: Final = 3


class _Spent(NamedTuple):
    processor: float
    wall: float


def main() -> None:
    commits = int(os.environ.get("SEGLOG_BENCH_COMMITS", "2000"))
    print(f"commits of a table; Python {python_version()}, pyiceberg {version('pyiceberg')}")
    for partitions in (_CHANGED, 10_000):
        print(f"{partitions:,} partitions, {_CHANGED} of which change in a commit", flush=True)
        with TemporaryDirectory(prefix="seglog-bench-") as root, LogTable.open_or_create(f"{root}/w/t") as table:
            _run(table, partitions, commits)


def _run(table: LogTable, partitions: int, commits: int) -> None:
    positions = Positions(topic="t", partitions=dict.fromkeys(range(partitions), Position(0)))
    spent: list[_Spent] = []
    for number in range(commits):
        changed = [(number * _CHANGED + at) % partitions for at in range(_CHANGED)]
        starts = {one: positions.partitions[one].upto for one in changed}
        positions = positions.advanced({one: Position(start + _RECORDS) for one, start in starts.items()})
        batches = [_batch(one, start) for one, start in sorted(starts.items())]
        spent.append(_commit(table, batches, positions, starts))
        if (number + 1) % (commits // 5) == 0:
            _show(table, number + 1, spent)
            spent.clear()


def _batch(partition: int, start: int) -> pa.RecordBatch:
    rows = [
        {"value": b"v" * 100, "topic": "t", "partition": partition, "offset": at, "timestampType": 0}
        for at in range(start, start + _RECORDS)
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA).to_batches()[0]


def _commit(table: LogTable, batches: list[pa.RecordBatch], positions: Positions, starts: dict[int, int]) -> _Spent:
    before = _Spent(time.process_time(), time.perf_counter())
    with table.locked():
        written = write_records(table.files, table.path.data, batches, table.form)
        assert written is not None
        table.append([written.path], positions, starts)
        maintain(table.files, table, SystemClock())
    return _Spent(time.process_time() - before.processor, time.perf_counter() - before.wall)


def _show(table: LogTable, number: int, spent: list[_Spent]) -> None:
    with LogTable.open(table.path.root) as opened:
        snapshot = opened.snapshot()
        current = opened.iceberg.current_snapshot()
        assert snapshot is not None
        assert current is not None
        metadata = Path(opened.iceberg.metadata_location.removeprefix("file://")).stat().st_size
        manifests = len(current.manifests(opened.iceberg.io))
    processor, wall = (median(getattr(one, name) for one in spent) * 1000 for name in _Spent._fields)
    print(
        f"  up to commit {number:>6,}: {processor:5.0f} ms of processor, {wall:5.0f} ms; "
        f"metadata {metadata >> 10} KiB, {manifests} manifests, {len(snapshot.files)} files",
        flush=True,
    )


if __name__ == "__main__":
    main()
