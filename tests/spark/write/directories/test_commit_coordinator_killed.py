"""A commit whose coordinator is killed with -9 before any of its steps: asked again, it is in the log once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import seglog
from seglog.core.fs import OsFs
from seglog.spark.write.directories.commit_client import CommitClient
from seglog.spark.write.directories.commit_coordinator import READY
from seglog.storage.adopt import InputMark, Intake, read_ledger
from seglog.storage.offline.verify import verify
from tests.spark.write.directories.test_commit_coordinator import all_records, end, stage

_KEEPER = """
import os, signal, sys
from seglog.core.fs import OsFs
from seglog.spark.write.directories.commit_coordinator import keep

class Fatal(OsFs):
    '''The system call that is named, and its file, is the last thing before the end.'''
    def __getattribute__(self, name):
        found = super().__getattribute__(name)
        if name in ("write", "rename", "unlink", "rmdir", "fsync_dir", "map") and os.environ["CALL"] == name:
            def fatal(path, *arguments, **named):
                if any(os.environ["FILE"] in str(part) for part in (path, *arguments)):
                    os.kill(os.getpid(), signal.SIGKILL)
                return found(path, *arguments, **named)
            return fatal
        return found

sys.exit(keep(sys.argv[1], 30, fs=Fatal()))
"""
STEPS = [
    ("fsync_dir", "/staging/"),  # before the manifest: files rebased, nothing decided
    ("write", "seglog.adopt"),  # the manifest, half written at most
    ("rename", "seglog.adopt"),  # whole, not in its place yet
    ("rename", "/00000000000000000002.log"),  # decided; a segment about to come in
    ("rename", "/00000000000000000002.timeindex"),  # half of its files have come in
    ("write", "recovery-point-offset-checkpoint"),  # all partitions done
    ("write", "seglog.ledger"),
    ("rename", "seglog.ledger"),
    ("unlink", "seglog.adopt"),  # in the ledger, the manifest still there
    ("rmdir", "/staging/job"),  # the answer is all that is missing, and the rubbish
]
TELLING = {STEPS[1], STEPS[3], STEPS[6], STEPS[9]}
"""Before the decision, right behind it, before the ledger, behind everything. `tests/storage/adopt/test_crash.py` stops
the same commit at every change of the disk."""


@pytest.mark.parametrize(
    ("call", "file"),
    [
        pytest.param(*step, id="-".join(step), marks=[] if step in TELLING else [pytest.mark.everything])
        for step in STEPS
    ],
)
def test_a_commit_is_done_once(tmp_path: Path, call: str, file: str) -> None:
    path = tmp_path / "log"
    with seglog.open(path) as directory:
        directory.create_topic("t", 2, {"segment.bytes": str(1 << 20)})
        for partition in range(2):
            directory.log("t", partition).append_records([seglog.NewRecord(b"before")] * 2)
    big, small = [b"%d" % number + bytes(90_000) for number in range(9)], [b"c", b"d"]
    parts = [stage(path, "job", big), stage(path, "job", small, task="1-0-b"), stage(path, "job", small, partition=1)]
    environment = {**os.environ, "CALL": call, "FILE": file, "PYTHONPATH": os.pathsep.join(sys.path)}
    coordinator = subprocess.Popen([sys.executable, "-c", _KEEPER, str(path)], stdout=subprocess.PIPE, env=environment)
    with coordinator:
        assert coordinator.stdout is not None
        assert coordinator.stdout.readline().decode().strip() == READY
        intake = Intake(((None, InputMark("t", "id", "/in", 1, 2, 3, 13, "head", "tail")),), "digest")
        done = CommitClient(str(path), linger=0.5).commit("job", "job:job", 0, parts, intake=intake)
    assert coordinator.returncode == -signal.SIGKILL
    assert done.already or done.records == 13
    assert CommitClient(str(path), linger=0.5).commit("job", "job:job", 0, parts).already
    assert read_ledger(OsFs(), str(path)).inputs == (intake.marks[0][1],)
    end(path, signal.SIGTERM)
    with seglog.open(path, create=False) as directory:
        found = [[bytes(record.value or b"") for record in all_records(directory.log("t", one))] for one in range(2)]
    assert found == [[b"before"] * 2 + big + small, [b"before"] * 2 + small]
    assert list(verify([str(path)], strict=True).findings) == []
    assert list(path.glob("t-*/.seglog/staging/*")) == []
