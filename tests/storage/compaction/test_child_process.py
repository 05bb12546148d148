"""Compaction in a child process: the same result, errors reach the parent, and no process is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from seglog import worker
from seglog.core.clock import SystemClock
from seglog.core.errors import CorruptBatchError
from seglog.core.fs import OsFs
from seglog.core.ground import Ground
from seglog.records.record import NewRecord, encode_batch
from seglog.storage.compaction.child_process import WorkerFailedError, clean_in_child
from seglog.storage.compaction.cleaner import CleaningAbortedError, clean
from seglog.storage.compaction.log_cleaner import compact, plan
from seglog.storage.compaction.round import COMPILED, PLAIN, CleanedGroup, OffsetMapStats, Round
from seglog.storage.log.dir_health import DirHealth
from seglog.storage.log.log import Log
from seglog.storage.log.recovery import LogCheckpoint, load_log
from tests.kit.manual_clock import ManualClock
from tests.storage.compaction.compacted import config, facts
from tests.storage.disk import PARTITION


@pytest.fixture(autouse=True)
def _children_find_seglog(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it is on `sys.path` only."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))


def _log(path: Path, batches: int = 40) -> Log:
    """A log of several segments, most of it dirty."""
    path.mkdir(exist_ok=True)
    log = load_log(
        ground=Ground(fs=OsFs(), clock=SystemClock()),
        path=str(path),
        topic_partition=PARTITION,
        config=config(),
        health=DirHealth(str(path)),
        known=LogCheckpoint(clean=True, recovery_point=0),
    ).log
    for at in range(batches):
        records = [NewRecord(b"%d" % at, b"key-%d" % (at * count % 13), 1_000 + at) for count in range(1, 5)]
        log.append(encode_batch(records))
    return log


def _round(log: Log, engine: str = PLAIN) -> Round:
    bound = log.active.base_offset
    return plan(log, first_dirty=0, first_uncleanable=bound, map_bytes=1 << 20, engine=engine).round


@pytest.mark.parametrize("engine", [PLAIN, COMPILED])
def test_a_child_does_what_we_would_do_here(tmp_path: Path, engine: str) -> None:
    here, child = _log(tmp_path / "here"), _log(tmp_path / "child")
    first = compact(here, first_dirty=0, engine=engine, in_child=False)
    second = compact(child, first_dirty=0, engine=engine, in_child=True)
    assert first._replace(seconds=0, map_seconds=0) == second._replace(seconds=0, map_seconds=0)
    assert facts(here) == facts(child)
    assert len(facts(child)) < 100
    assert not [name for name in os.listdir(child.path) if name.endswith(".cleaned")]
    for log in (here, child):
        log.close()
    files = [{file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} for name in ("here", "child")]
    assert files[0] == files[1]


def test_damage_is_told_as_if_it_was_found_here(tmp_path: Path) -> None:
    log = _log(tmp_path / "t-0")
    path = Path(log.segments[1].paths.log)
    data = bytearray(path.read_bytes())
    data[80] ^= 1
    path.write_bytes(data)
    found = []
    for in_child in (False, True):
        with pytest.raises(CorruptBatchError) as caught:
            compact(log, first_dirty=0, engine=PLAIN, in_child=in_child)
        found.append((str(caught.value), caught.value.position, caught.value.offset, caught.value.file))
    assert found[0] == found[1]
    assert found[0][3] == str(path)


def test_a_failing_disk_is_told_as_if_it_failed_here(tmp_path: Path) -> None:
    log = _log(tmp_path / "t-0")
    (tmp_path / "t-0" / Path(log.segments[1].paths.log).name).unlink()
    with pytest.raises(FileNotFoundError) as caught:
        list(clean_in_child(_round(log), lambda: False))
    assert caught.value.filename == log.segments[1].paths.log


def test_a_round_that_is_no_longer_wanted_ends_its_child(tmp_path: Path) -> None:
    log = _log(tmp_path / "t-0")
    with pytest.raises(CleaningAbortedError):
        list(clean_in_child(_round(log), lambda: True))
    with closing(clean_in_child(_round(log), lambda: False)) as events:
        assert isinstance(next(events), OffsetMapStats)
    assert compact(log, first_dirty=0, in_child=True, should_stop=lambda: True).aborted
    assert not list((tmp_path / "t-0").glob("*.cleaned"))


class _Doomed(subprocess.Popen[bytes]):
    """A child that is killed as soon as it has started."""

    statuses: ClassVar[list[int]] = []

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.send_signal(signal.SIGKILL)
        self.statuses.append(self.wait())


def test_a_child_that_is_killed_is_an_error_and_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = _log(tmp_path / "t-0")
    before = facts(log)
    monkeypatch.setattr(subprocess, "Popen", _Doomed)
    with pytest.raises(WorkerFailedError, match="-9"):
        compact(log, first_dirty=0, in_child=True)
    assert _Doomed.statuses == [-signal.SIGKILL]
    assert facts(log) == before


def test_a_child_dies_with_its_parent(tmp_path: Path) -> None:
    """Its stdin is a pipe from the parent: when the pipe ends, also through SIGKILL, the child exits."""
    log = _log(tmp_path / "t-0")
    endless = _round(log).to_json().replace('"max_bytes_per_second": Infinity', '"max_bytes_per_second": 0.001')
    child = subprocess.Popen(
        [sys.executable, "-m", "seglog.worker", "compact"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(endless.encode() + b"\n")
    child.stdin.close()
    assert child.wait(60) == 1
    child.stdout.close()
    assert not list((tmp_path / "t-0").glob("*.swap"))


def test_jobs_that_are_none_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert worker.main(["clean", "everything"]) == 2
    assert "clean everything" in capsys.readouterr().err


def test_the_pace_is_kept(tmp_path: Path) -> None:
    log = _log(tmp_path / "t-0")
    waited: list[float] = []
    round_ = replace(_round(log), max_bytes_per_second=1e6)
    events = list(clean(round_, OsFs(), ManualClock(), wait=waited.append))
    groups = [event for event in events if isinstance(event, CleanedGroup)]
    spent = 2 * sum(group.bytes_read for group in groups) + sum(group.bytes_written for group in groups)
    assert waited[-1] == pytest.approx(spent / 1e6), "time stands still: it is asked to wait for all that was done"


def test_all_loops_can_be_compiled_ahead() -> None:
    assert worker.main(["warm"]) == 0
