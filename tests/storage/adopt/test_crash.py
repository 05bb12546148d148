"""Death and power cuts at every change of the disk while a job is adopted: all of it is there, or nothing, once."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import pytest

from seglog.core.fs import Fs
from seglog.core.types import TopicPartition
from seglog.storage.adopt import InputMark, Intake, collect_orphans, read_ledger
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.log.dir_health import Inline
from tests.cases import case, is_long
from tests.kit.crash_fs import Call, CrashFs, SimulatedCrash
from tests.kit.memory_fs import MemoryFs
from tests.storage.adopt.adopting import DIR, SMALL, Texts, damage, found, open_dir, run_job, texts

OUTCOMES: Final = 1
"""How many outcomes are tried at each power cut; in each, the disk forgets other unflushed writes."""
STEP: Final = 3 if is_long() else 8
"""Changes from one death of the process to the next."""
A, B, C = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
BEFORE: Final[Texts] = {A: texts("old", 7), B: [], C: texts("old", 50)}
JOBS: Final[Sequence[Sequence[Texts]]] = [
    # small, several segments, small behind them, and a segment again; small in an empty log; a segment in one
    [
        {A: texts("0", 4), B: texts("0", 5)},
        {A: texts("1", 70)},
        {A: texts("2", 2), C: texts("2", 40)},
        {A: texts("3", 30)},
    ],
    [{A: texts("4", 3), B: texts("4", 60)}, {A: texts("5", 1)}],
]


def intake(version: int) -> Intake:
    """A file that each job has read a little further."""
    marks = [InputMark("a", "id", "/in", 1, 2, 3, 100 * at, "head", "tail") for at in (version, version + 1)]
    return Intake(((marks[0] if version else None, marks[1]),), f"digest {version}")


def before(fs: Fs) -> None:
    with open_dir(fs) as directory:
        directory.create_topic("a", 2, SMALL)
        directory.create_topic("b", 1, SMALL)
        for partition, payloads in BEFORE.items():
            run_job(directory, [{partition: payloads}], application="job:before" + str(partition))


def expected(jobs: int) -> Mapping[TopicPartition, list[bytes]]:
    """The partitions with so many jobs adopted."""
    return {
        partition: [*payloads, *(one for job in JOBS[:jobs] for task in job for one in task.get(partition, ()))]
        for partition, payloads in BEFORE.items()
    }


def contents(directory: LogDir) -> Mapping[TopicPartition, list[bytes]]:
    assert not directory.refused, directory.refused
    return {partition: found(directory.log(*partition)) for partition in BEFORE}


class Never(Inline):
    """A background thread that has too much to do."""

    def submit(self, task: Callable[[], None]) -> None:
        del task


def life(fs: Fs) -> None:
    with open_dir(fs) as directory:
        directory.log(*A).background = Never()
        for version, job in enumerate(JOBS):
            run_job(directory, job, job=f"job-{version}", version=version, intake=intake(version))


def try_again(fs: Fs, *, verified: bool = True, retried: bool = True) -> None:
    """Open what a crash has left: some jobs are there, whole. Then all are tried again, as Spark does, if ``retried``;
    the files are ``verified``."""
    with open_dir(fs) as directory:
        here = contents(directory)
        adopted = [jobs for jobs in range(len(JOBS) + 1) if here == expected(jobs)]
        assert len(adopted) == 1, {str(one): len(there) for one, there in here.items()}
        assert not fs.exists(f"{DIR}/seglog.adopt")
        mark = read_ledger(fs, DIR).input("a", "/in")
        assert (0 if mark is None else mark.position) == 100 * adopted[0]
        if retried:
            _retry(directory, adopted[0])
    assert not verified or damage(fs) == []


def _retry(directory: LogDir, adopted: int) -> None:
    """Run all jobs once more, of which so many are adopted."""
    collect_orphans(directory)
    for version, job in enumerate(JOBS):
        again = run_job(directory, job, job=f"job-{version}-again", version=version, intake=intake(version))
        assert again.already == (version < adopted)
    assert contents(directory) == expected(len(JOBS))
    for partition in BEFORE:
        staging = f"{DIR}/{partition}/.seglog/staging"
        assert not directory.fs.exists(staging) or directory.fs.listdir(staging) == []


def test_a_power_cut_at_every_change_of_the_disk() -> None:
    """After every third one the jobs are tried again; in `make test-long` after each."""
    disk = MemoryFs()
    before(disk)

    def cut(call: Call) -> None:
        for outcome in range(OUTCOMES):
            case()
            left = disk.after_crash(random.Random(call.number * OUTCOMES + outcome))
            try_again(left, verified=call.number % 4 == 0, retried=is_long() or call.number % 3 == 0)

    crashing = CrashFs(disk, before_change=cut)
    life(crashing)
    assert crashing.changes > 150
    try_again(disk)


@pytest.mark.parametrize("torn", [0.0, 0.5])
def test_the_process_dies_in_the_middle_of_a_change(torn: float) -> None:
    """At some of the changes, others for each kind; and once more while the next start completes the rest."""
    number, ended = 1 if torn else 2, False
    while not ended:
        number += STEP
        case()
        disk = MemoryFs()
        before(disk)
        ended = die(disk, number, torn)
        die(disk, 1 + number % 41, torn)
        try_again(disk, verified=number % 2 == 0)
    assert number > 150


def die(disk: MemoryFs, number: int, torn: float) -> bool:
    """Whether life came to its end before change ``number``."""
    crashing = CrashFs(disk, crash_at=number, torn=torn)
    try:
        life(crashing)
    except SimulatedCrash:
        disk.locked.clear()
        return False
    return True
