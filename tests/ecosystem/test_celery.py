"""Celery with Kafka as its broker: every task is carried out, also those that a killed worker had begun."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.ecosystem.artefacts import python_packages
from tests.ecosystem.places import Place
from tests.ecosystem.processes import APPS, running
from tests.ecosystem.results import Report
from tests.ecosystem.tails import Tail

_TASKS: Final = 400
_HALF: Final = _TASKS // 2
_PINS: Final = ("celery==5.7.0", "confluent-kafka==2.16.1")


def test_celery_runs_every_task(place: Place, tmp_path: Path, report: Report) -> None:
    report.of("Celery", "5.7.0", "tasks, acknowledged late; worker killed")
    place.create("tasks", partitions=1)
    place.create("copies")
    environment = {"PYTHONPATH": str(python_packages(*_PINS))}

    def command(*role: str) -> list[str]:
        return [sys.executable, str(APPS / "celery_app.py"), place.bootstrap, str(place.replicas), *role]

    def send(first: int, last: int) -> None:
        subprocess.run(command("send", str(first), str(last)), env=environment, cwd=tmp_path, check=True, timeout=300)

    send(0, _HALF)
    with Tail(place.bootstrap, "copies") as tail:
        with running(command("worker"), tmp_path, environment):
            tail.read_until(lambda records: len(records) >= _HALF // 2)
            place.disturb()
            tail.read_until(lambda records: len(records) >= _HALF)
            send(_HALF, _TASKS)
            tail.read_until(lambda records: len(records) > _HALF)
        with running(command("worker"), tmp_path, environment):
            tail.read_until(lambda records: len({one.value for one in records}) >= _TASKS, 180)
            records = tail.read_on(3)
    report.counted(_TASKS, len(records))
    assert {one.value for one in records} == {f"line {number}" for number in range(_TASKS)}
