"""Jobs that keep a table up while its log grows, each killed with -9 at a random moment; sometimes there are two.

    python -m tests.table.killed_builders LOG TABLE KILLS SEED

Each job is a child of this process. The table is compacted, old snapshots go, and files without a name are swept after
each commit. Prints a line of JSON at the end. Fails if the table is not whole after a kill.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Final, NoReturn
from unittest.mock import patch

from seglog.core.errors import TableInUseError
from seglog.table import maintenance, small_files
from seglog.table.building import update_table
from seglog.table.iceberg import log_table
from seglog.table.iceberg.log_table import LogTable
from tests.table.tables import append, flights, scanned, stored

PARTITIONS: Final = 3
_PER_APPEND: Final = 7
_RUNS_OF_A_LIFE: Final = 2


def main(log: Path, table: Path, kills: int, seed: int) -> None:
    for partition in range(PARTITIONS):
        append(log, flights(0, _PER_APPEND), partition=partition, partitions=PARTITIONS)
    scanned(log)  # compiles what the children share
    _run_to_the_end(log, table)
    chance = random.Random(seed)
    commits = 0
    appender = os.fork()
    if not appender:
        _append_for_ever(log)
    try:
        started = time.monotonic()
        _run_to_the_end(log, table)
        longest = (time.monotonic() - started) * _RUNS_OF_A_LIFE
        for _ in range(kills):
            before = _whole(table)
            _live_and_die(log, table, chance, longest)
            commits += _whole(table) != before
    finally:
        os.kill(appender, signal.SIGKILL)
        os.waitpid(appender, 0)
    _run_to_the_end(log, table)
    print(json.dumps({"kills": kills, "lives_with_commits": commits, "records": _whole(table)}))


def _run_to_the_end(log: Path, table: Path) -> None:
    """In a child, since what Delta starts in a process does not survive a fork."""
    child = os.fork()
    if not child:
        try:
            update_table(log, table, topic="flights", workers=1, delta=True)
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _append_for_ever(log: Path) -> NoReturn:
    """The directory is closed each time, which publishes the high watermarks."""
    try:
        for number in range(1, sys.maxsize):
            append(log, flights(number * _PER_APPEND, _PER_APPEND), partition=number % PARTITIONS)
    finally:
        os._exit(1)


def _live_and_die(log: Path, table: Path, chance: random.Random, longest: float) -> None:
    """One job, or two of which only the catalog decides, for some time."""
    count = 1 if chance.random() < 0.7 else 2
    jobs = [_job(log, table, is_alone=count == 1) for _ in range(count)]
    time.sleep(chance.uniform(0.0, longest))
    for job in jobs:
        os.kill(job, signal.SIGKILL)
        os.waitpid(job, 0)


def _job(log: Path, table: Path, *, is_alone: bool) -> int:
    """The process id of a job that runs until it is killed."""
    child = os.fork()
    if child:
        return child
    try:
        with (
            patch.object(small_files, "FAN_IN", 4),
            patch.object(log_table, "KEPT_SNAPSHOTS", 3),
            patch.object(maintenance, "SWEEP_MS", 0),
            nullcontext() if is_alone else patch.object(LogTable, "locked", _without_a_lock),
        ):
            _run_for_ever(log, table)
    finally:
        os._exit(1)


def _run_for_ever(log: Path, table: Path) -> NoReturn:
    while True:
        try:
            update_table(log, table, topic="flights", workers=1)
        except TableInUseError:
            continue


@contextmanager
def _without_a_lock(table: LogTable) -> Iterator[None]:
    """As on two machines."""
    table.refresh()
    yield


def _whole(table: Path) -> int:
    """The number of records, if the table has each up to its positions once."""
    with LogTable.open(table) as opened:
        positions = opened.positions()
    assert positions is not None
    rows = stored(table)
    found = list(zip(rows.column("partition").to_pylist(), rows.column("offset").to_pylist(), strict=True))
    assert found == [(number, at) for number, end in sorted(positions.partitions.items()) for at in range(end.upto)]
    return rows.num_rows


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
