"""Runs that are killed right after one of their steps, each in a child of this process, and a run after each of them.

    python -m tests.table.killed_runs LOG TABLE

prints a line of JSON for each: whether it was killed, whether it had added its records, and whether the table is whole
after the next run.
"""

from __future__ import annotations

import json
import os
import pkgutil
import sys
from collections.abc import Callable
from functools import partial
from inspect import getattr_static
from pathlib import Path
from typing import Any, Final

from seglog.table.building import update_table
from tests.table.tables import append, flights, scanned, stored

STEPS: Final = (
    "seglog.table.files.record_files._RecordFile.finish",
    "seglog.table.iceberg.log_table.encode_positions",
    "seglog.table.iceberg.log_table.parquet_file_to_data_file",
    "pyiceberg.table.update.snapshot.write_manifest_list",
    "pyiceberg.catalog.sql.SqlCatalog._write_metadata",
    "pyiceberg.catalog.sql.SqlCatalog.commit_table",
    "seglog.table.iceberg.log_table.LogTable.append",
)
_KILLED: Final = 9


def main(log: Path, table: Path) -> None:
    append(log, flights(0, 20))
    append(log, flights(0, 20), partition=1)
    scanned(log)  # compiles what the children share
    in_child(lambda: update_table(log, table, topic="flights", workers=1))
    for number, step in enumerate(STEPS):
        append(log, flights(20 + number * 5, 5), partition=number % 2)
        killed = is_killed_after(step, lambda: update_table(log, table, topic="flights", workers=1))
        is_added = stored(table).equals(scanned(log))
        in_child(lambda: update_table(log, table, topic="flights", workers=1))
        run = {"step": step, "killed": killed, "is_added": is_added}
        print(json.dumps({**run, "is_whole": stored(table).equals(scanned(log))}), flush=True)


def is_killed_after(step: str, act: Callable[[], object]) -> bool:
    """Do this in a child that dies right after the step; whether it did."""
    return in_child(partial(_act_until, step, act)) == _KILLED


def _act_until(step: str, act: Callable[[], object]) -> None:
    owner, _, name = step.rpartition(".")
    target = pkgutil.resolve_name(owner)
    real, is_static = getattr(target, name), isinstance(getattr_static(target, name), staticmethod)

    def dies(*given: Any, **named: Any) -> None:
        real(*given, **named)
        os._exit(_KILLED)

    setattr(target, name, staticmethod(dies) if is_static else dies)
    act()


def in_child(act: Callable[[], object]) -> int:
    """The exit code of a child that does this."""
    child = os.fork()
    if not child:
        try:
            act()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
