"""Runs of a keyed table that are killed right after one of their steps, and a run after each of them.

    python -m tests.table.keyed.killed_keyed_runs DIRECTORY

prints a line of JSON for each: whether it was killed, whether the table was the old one or the new one then, and
whether it is whole after the next run.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

from seglog.records.key_bucket_kernels import warm_key_buckets
from seglog.records.newest_kernels import warm_newest
from seglog.table.iceberg.log_table import LogTable
from tests.table.keyed.keyed_log import KeyedLog, by_dictionary, stored
from tests.table.killed_runs import in_child, is_killed_after

STEPS: Final = (
    "seglog.table.keyed.changed_rows.ChangedRows.finish",
    "seglog.table.files.record_files._RecordFile.finish",
    "seglog.table.iceberg.log_table.encode_positions",
    "seglog.table.iceberg.log_table.described_file",
    "pyiceberg.table.update.snapshot.write_manifest_list",
    "pyiceberg.catalog.sql.SqlCatalog._write_metadata",
    "pyiceberg.catalog.sql.SqlCatalog.commit_table",
    "seglog.table.iceberg.log_table.LogTable.exchange",
)


def main(root: Path) -> None:
    log = KeyedLog(root)
    log.write((b"key %d" % number, b"0") for number in range(30))
    # The children share what is imported and compiled.
    by_dictionary(log.path)
    warm_newest()
    warm_key_buckets()
    LogTable.open_or_create(root / "other" / "t").close()
    in_child(log.update)
    for number, step in enumerate(STEPS):
        old = dict(log.newest)
        log.write([(b"key %d" % number, None), (b"key 20", b"%d" % number), (b"new %d" % number, b"1")])
        log.write([(b"key 20", b"%d" % number)], partition=1)
        killed = is_killed_after(step, log.update)
        found = stored(log.table)
        in_child(log.update)
        run = {"step": step, "killed": killed, "is_old": found == old, "is_new": found == log.newest}
        print(json.dumps({**run, "is_whole": stored(log.table) == log.newest}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
