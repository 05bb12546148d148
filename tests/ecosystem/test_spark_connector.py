"""Spark's own Kafka connector copies a topic, is killed, and continues from its checkpoint: at least once."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Final

from tests.ecosystem.places import Place
from tests.ecosystem.processes import APPS, running
from tests.ecosystem.results import Report
from tests.ecosystem.tails import Tail, TailRecord, fill
from tests.kafka.connector import CONNECTOR

_RECORDS: Final = [(f"k{number % 40}", f"line {number}") for number in range(6_000)]
_HALF: Final = len(_RECORDS) // 2


def test_spark_connector_copies_a_topic(place: Place, tmp_path: Path, report: Report) -> None:
    report.of("Spark", f"{version('pyspark')}, connector {CONNECTOR}", "source and sink, at least once; killed")
    place.create("lines", "copies")
    fill(place.bootstrap, "lines", _RECORDS[:_HALF])
    command = [sys.executable, str(APPS / "spark_app.py"), place.bootstrap, str(tmp_path / "checkpoint")]
    environment = {"PYTHONPATH": str(Path(__file__).parents[2])}
    with Tail(place.bootstrap, "copies") as tail:
        with running(command, tmp_path, environment):
            tail.read_until(lambda records: len(records) >= _HALF, 300)
            place.disturb()
            fill(place.bootstrap, "lines", _RECORDS[_HALF:])
            tail.read_until(lambda records: len(records) > _HALF, 180)
        with running(command, tmp_path, environment):
            tail.read_until(lambda records: len(set(records)) >= len(_RECORDS), 300)
            records = tail.read_on(3)
    report.counted(len(_RECORDS), len(records))
    assert set(records) == {TailRecord(*one) for one in _RECORDS}
