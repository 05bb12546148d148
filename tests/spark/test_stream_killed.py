"""A stream from a log that is written all the time, whose driver is killed with -9: each record arrives once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

import seglog
from tests.kafka.waiting import wait_until
from tests.spark.killed_stream import ANY, STEPS, TO_THE_END, Life, committed
from tests.spark.write.test_sink import path, rows

__all__ = ["path"]

pytestmark = pytest.mark.xdist_group("spark-processes")

_PARTITIONS: Final = 2
_SECONDS: Final = 180
_APPENDER: Final = """
import select, sys
import seglog

with seglog.open(sys.argv[1]) as directory:
    logs = [directory.log("t", partition) for partition in range(int(sys.argv[2]))]
    number = 0
    while not select.select([sys.stdin], [], [], 0.02)[0]:
        for log in logs:
            log.append_records([seglog.NewRecord(b"%d" % one) for one in range(number, number + 7)])
        number += 7
"""


@pytest.fixture
def source(tmp_path: Path, environment: dict[str, str]) -> Iterator[tuple[Path, Callable[[], None]]]:
    """A log directory to which another process appends, and what stops that process."""
    directory = tmp_path / "source"
    with seglog.open(directory) as opened:
        opened.create_topic("t", _PARTITIONS, {"internal.segment.bytes": "65536"})
    command = [sys.executable, "-c", _APPENDER, str(directory), str(_PARTITIONS)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment) as appender:

        def stop() -> None:
            assert appender.stdin is not None
            appender.stdin.close()
            assert appender.wait(_SECONDS) == 0

        try:
            yield directory, stop
        finally:
            appender.kill()


def run(life: Life, environment: dict[str, str], log: Path, rng: random.Random) -> None:
    """A driver from its start to its death, which is where ``life`` says."""
    with (
        log.open("wb") as errors,
        subprocess.Popen(life.command(), stdout=subprocess.PIPE, stderr=errors, env=environment) as driver,
    ):
        try:
            assert driver.stdout is not None
            jvm = int(driver.stdout.readline() or b"0")
            if life.step == ANY:
                wait_until(
                    lambda: committed(life.checkpoint) >= life.batches or driver.poll() is not None,
                    "batches of a driver that is to be killed",
                    _SECONDS,
                )
                with pytest.raises(subprocess.TimeoutExpired):
                    driver.wait(rng.uniform(0, 1))
                os.kill(jvm, signal.SIGKILL)
            status = driver.wait(_SECONDS)
        except BaseException as error:
            error.add_note(f"{life}\n{log.read_text(errors='replace')[-5000:]}")
            raise
        finally:
            driver.kill()
    if life.step == TO_THE_END:
        assert status == 0, log.read_text(errors="replace")[-5000:]
    elif life.step != ANY:
        assert Path(life.mark).exists(), f"{life}: {log.read_text(errors='replace')[-5000:]}"


def check(
    steps: Sequence[str],
    seed: int,
    path: Path,
    source: tuple[Path, Callable[[], None]],
    environment: dict[str, str],
) -> None:
    """The driver lives once for each of ``steps``, and once more to the end."""
    rng = random.Random(seed)
    directory, stop = source
    checkpoint = path.parent / "checkpoint"
    for number, step in enumerate([*steps, TO_THE_END]):
        if step == TO_THE_END:
            stop()
        life = Life(
            source=str(directory),
            target=str(path),
            checkpoint=str(checkpoint),
            mark=str(path.parent / f"mark-{number}"),
            step=step,
            batches=committed(checkpoint) + rng.randrange(3),
            seed=rng.getrandbits(32),
            partitions=_PARTITIONS,
        )
        run(life, environment, path.parent / f"driver-{number}.log", rng)
    expected = rows(directory)
    assert min(map(len, expected.values())) > 100 * len(steps)
    assert rows(path) == expected


def test_each_record_arrives_once(
    path: Path, source: tuple[Path, Callable[[], None]], environment: dict[str, str]
) -> None:
    check(["half", "together", "adopted"], 1, path, source, environment)


@pytest.mark.everything
@pytest.mark.timeout(3600)
def test_thirty_kills_at_every_step(
    path: Path, source: tuple[Path, Callable[[], None]], environment: dict[str, str]
) -> None:
    steps = [*STEPS, *STEPS, *[ANY] * 10]
    random.Random(2).shuffle(steps)
    check(steps, 2, path, source, environment)
