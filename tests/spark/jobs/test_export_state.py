"""A power cut at every change of the disk that an export's driver makes: a run is visible whole, or not yet."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from seglog.core.errors import CorruptCheckpointError
from seglog.core.fs import Fs, make_directories
from seglog.core.types import TopicPartition
from seglog.spark.jobs.export_files import DayWriter
from seglog.spark.jobs.export_state import (
    OWN,
    ExportState,
    StagedFile,
    clear_staging,
    commit,
    finish,
    read_state,
    staging_of,
    write_state,
)
from tests.cases import case
from tests.kit.crash_fs import Call, CrashFs
from tests.kit.manual_clock import ManualClock
from tests.kit.memory_fs import MemoryFs

_OUT = "/data/out"
_OUTCOMES = 3
_T0 = TopicPartition("t", 0)


def _visible(fs: MemoryFs) -> dict[str, bytes]:
    """The files that a reader of Parquet finds."""
    return {
        path.removeprefix(_OUT + "/"): data
        for path, data in fs.files().items()
        if path.endswith(".parquet") and f"/{OWN}/" not in path
    }


def _staged(fs: Fs, run: str, days: list[int]) -> list[StagedFile]:
    """A worker's files, one for each day."""
    directory = staging_of(run)
    make_directories(fs, f"{_OUT}/{directory}")
    writer = DayWriter(fs, _OUT, f"{directory}/task", "t", run, compression="none", max_file_bytes=1 << 20)
    batch = pa.RecordBatch.from_arrays([pa.array([f"{run} {day}" for day in days])], names=["value"])
    writer.write(batch, np.array(days))
    return writer.finish()


def _after(state: ExportState, files: list[StagedFile]) -> ExportState:
    return replace(state, offsets={_T0: state.records + len(files)}, records=state.records + len(files))


def _next_run(fs: MemoryFs) -> ExportState:
    """The first steps of the next export: finish the last run, and clear its staging files."""
    state = read_state(fs, _OUT) or ExportState()
    state = finish(fs, _OUT, state)
    clear_staging(fs, _OUT)
    return state


class _Run:
    """A run that adds ``files`` to those that are ``held``. ``seen``: whether it counts after a crash."""

    def __init__(self, fs: MemoryFs, before: ExportState, files: list[StagedFile]) -> None:
        self._fs = fs
        self._before = before
        self.after = _after(before, files)
        self._held = _visible(fs)
        self.new = {one.final: fs.files()[f"{_OUT}/{one.staged}"] for one in files}
        self.seen = set[bool]()

    def crash(self, call: Call) -> None:
        for outcome in range(_OUTCOMES):
            case()
            self.check(self._fs.after_crash(random.Random(call.number * _OUTCOMES + outcome)))

    def check(self, left: MemoryFs) -> None:
        """A reader finds nothing twice, and the next run puts in place all or nothing."""
        both = self._held | self.new
        assert self._held.items() <= _visible(left).items() <= both.items()
        state = _next_run(left)
        counts = state.records == self.after.records
        self.seen.add(counts)
        expected = self.after if counts else self._before
        assert (state.offsets, state.records, state.pending) == (expected.offsets, expected.records, ())
        assert _visible(left) == (both if counts else self._held)
        assert not left.exists(f"{_OUT}/{OWN}/staging")
        assert _next_run(left) == state


def test_a_run_is_visible_whole_or_not_yet() -> None:
    fs = MemoryFs(clock=ManualClock())
    make_directories(fs, f"{_OUT}/{OWN}")
    state = ExportState(shape={"key": "binary"})
    for name, days in (("a", [15_706, 15_707, 15_707, 15_709]), ("b", [15_707, 15_708])):
        files = _staged(fs, name, days)
        run = _Run(fs, state, files)
        crashing = CrashFs(fs, before_change=run.crash)
        state = commit(crashing, _OUT, run.after, files)
        clear_staging(crashing, _OUT)
        assert run.seen == {True, False}
        assert _visible(fs).items() >= run.new.items()
        assert read_state(fs, _OUT) == state == run.after
    assert len(_visible(fs)) == 5


def test_a_file_missing_in_staging_and_output_is_an_error() -> None:
    fs = MemoryFs(clock=ManualClock())
    make_directories(fs, f"{_OUT}/{OWN}")
    files = _staged(fs, "a", [15_706])
    fs.unlink(f"{_OUT}/{files[0].staged}")
    with pytest.raises(CorruptCheckpointError, match=r"neither .*staged nor .*topic=t/date=2013-01-01/a-0000"):
        commit(fs, _OUT, _after(ExportState(), files), files)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"version": 2}', b'{"version": 1, "shape": 3}'])
def test_refuses_a_state_of_another_format(content: bytes) -> None:
    fs = MemoryFs(clock=ManualClock())
    make_directories(fs, f"{_OUT}/{OWN}")
    write_state(fs, _OUT, ExportState())
    fs.write(f"{_OUT}/{OWN}/state.json", content)
    with pytest.raises(CorruptCheckpointError, match="not the state of an export"):
        read_state(fs, _OUT)
