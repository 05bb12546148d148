"""From the acknowledgement of a record to its place in a table that `seglog table --every 1` keeps up.

The broker and the job are processes; a reader asks the catalog for the table's positions again and again.

    python -m bench table_visible
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final

from bench.commands import ENVIRONMENT, seglog
from seglog.core.errors import UnknownTableError
from seglog.table.iceberg.log_table import LogTable
from seglog.testing import Broker
from tests.kit.topics import write
from tests.kit.waiting import wait_until

_RECORDS: Final = 20
_EVERY: Final = "1"


def main() -> None:
    with TemporaryDirectory(prefix="seglog-bench-") as root, Broker(process=True) as broker:
        broker.create_topic("t", 2)
        for name, log in (("from a directory", str(broker.data_dir)), ("through brokers", broker.bootstrap)):
            _measure(name, log, broker.bootstrap, Path(root) / name.replace(" ", "-"))


def _measure(name: str, log: str, bootstrap: str, warehouse: Path) -> None:
    command = seglog("table", log, warehouse, "--topic", "t", "--every", _EVERY)
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL) as job:
        try:
            _seconds_until_visible(bootstrap, warehouse / "t")  # the job starts
            taken = [_seconds_until_visible(bootstrap, warehouse / "t") for _ in range(_RECORDS)]
        finally:
            job.terminate()
    print(
        f"--every {_EVERY}, {name}: from append to visible, {_RECORDS} records: median {median(taken):.2f} s, "
        f"longest {max(taken):.2f} s",
        flush=True,
    )


def _seconds_until_visible(bootstrap: str, path: Path) -> float:
    before = _records(path)
    assert write(bootstrap, "t", "v") is None
    started = time.perf_counter()
    wait_until(lambda: _records(path) > before, "the record in the table")
    return time.perf_counter() - started


def _records(path: Path) -> int:
    try:
        with LogTable.open(path) as table:
            positions = table.positions()
    except UnknownTableError:
        return 0
    return 0 if positions is None else sum(one.upto for one in positions.partitions.values())


if __name__ == "__main__":
    main()
