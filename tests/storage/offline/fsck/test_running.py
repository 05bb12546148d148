"""No false alarm: at any file-system call of a check, a broker may append, compact, delete segments or the topic."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from seglog.core.fs import File, FileStat, OsFs
from seglog.core.ground import Ground
from seglog.records.record import NewRecord, encode_batch
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.log.admit import Origin
from seglog.storage.offline.findings import Severity
from seglog.storage.offline.fsck.check import Place, PlaceCall, check
from tests.cases import case, is_long
from tests.kit.manual_clock import ManualClock

_START_MS = 1_790_000_000_000
_HOUR_MS = 3_600_000


class _Interrupted(OsFs):
    """Does something before the call of that number, from 1."""

    def __init__(self, number: int, act: Callable[[], object]) -> None:
        self.calls = 0
        self._number = number
        self._act = act

    def _count(self) -> None:
        self.calls += 1
        if self.calls == self._number:
            self._act()

    def open(self, path: str, *, create: bool = False, write: bool = True) -> File:
        self._count()
        return super().open(path, create=create, write=write)

    def read(self, path: str) -> bytes:
        self._count()
        return super().read(path)

    def listdir(self, path: str) -> list[str]:
        self._count()
        return super().listdir(path)

    def exists(self, path: str) -> bool:
        self._count()
        return super().exists(path)

    def stat(self, path: str) -> FileStat:
        self._count()
        return super().stat(path)


def _open(path: Path, clock: ManualClock) -> LogDir:
    return LogDir.open(
        str(path), config={"log.cleaner.backoff.ms": 1}, ground=Ground(fs=OsFs(), clock=clock, rng=random.Random(1))
    )


def _append(opened: LogDir, count: int) -> None:
    log = opened.log("t")
    for number in range(count):
        records = [NewRecord(bytes(90), b"%d" % (number % 4), log.clock.now_ms())]
        log.append(encode_batch(records), origin=Origin.CLIENT)


def _made(path: Path, policy: str) -> None:
    with _open(path, ManualClock(_START_MS)) as opened:
        config = {
            "cleanup.policy": policy,
            "internal.segment.bytes": 700,
            "index.interval.bytes": 100,
            "retention.bytes": 2000 if policy == "delete" else -1,
            "min.cleanable.dirty.ratio": 0,
            "file.delete.delay.ms": 1,
        }
        opened.create_topic("t", 1, config)
        _append(opened, 30)


def _compact(opened: LogDir) -> None:
    opened.run_compaction()
    _append(opened, 3)


def _retain(opened: LogDir) -> None:
    opened.run_retention()
    _append(opened, 3)


def _delete_records(opened: LogDir) -> None:
    opened.delete_records("t", 0, opened.log("t").high_watermark - 2)
    opened.run_retention()


def _delete_topic(opened: LogDir) -> None:
    opened.delete_topic("t")


def _create_again(opened: LogDir) -> None:
    opened.delete_topic("t")
    opened.create_topic("t", 1, {})
    _append(opened, 2)


ACTS: Sequence[tuple[str, Callable[[LogDir], object]]] = (
    ("delete", lambda opened: _append(opened, 12)),
    ("compact", _compact),
    ("delete", _retain),
    ("delete", _delete_records),
    ("delete", _delete_topic),
    ("delete", _create_again),
)


@pytest.mark.parametrize(("policy", "act"), ACTS)
def test_what_a_broker_does_meanwhile_is_no_damage(
    tmp_path: Path, policy: str, act: Callable[[LogDir], object]
) -> None:
    _made(tmp_path / "made", policy)
    calls = _check(tmp_path, 0, act).calls
    every = range(1, calls + 1)
    for number in every if is_long() else random.Random(policy).sample(every, 4):
        _check(tmp_path, number, act)
        case()


def _check(tmp_path: Path, number: int, act: Callable[[LogDir], object]) -> _Interrupted:
    data, replica = tmp_path / "data", tmp_path / "replica"
    for path in (data, replica):
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(tmp_path / "made", path)
    with _open(data, ManualClock(_START_MS + _HOUR_MS)) as opened:
        fs = _Interrupted(number, partial(act, opened))

        def run(calls: Sequence[PlaceCall]) -> list[Any]:
            return [call.function(fs, *call.arguments) for call in calls]

        report = check([Place(str(data)), Place(str(replica))], run, workers=1)
    found = [one for _, each in report.places for one in each.verified.findings if one.severity is Severity.DAMAGE]
    assert found == [], number
    differences = [one for each in report.partitions for one in each.differences]
    if act is _create_again:  # it has another id in the end, unless the check was over by then
        differences = [one for one in differences if "different ids" not in one.what]
    assert differences == [], number
    return fs
