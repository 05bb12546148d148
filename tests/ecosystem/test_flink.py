"""Flink copies a topic, fails once on the way, and starts again from its checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.ecosystem.artefacts import java_app
from tests.ecosystem.places import Place
from tests.ecosystem.results import Report
from tests.ecosystem.tails import Tail, fill
from tests.kafka.process import JavaProcess

_RECORDS: Final = [f"reading {number}" for number in range(20_000)]
_FAIL_AFTER: Final = 7_000
_HALF: Final = len(_RECORDS) // 2
_JVM: Final = (
    "-Xmx640m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
)


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_flink_copies_a_topic(place: Place, guarantee: str, tmp_path: Path, report: Report) -> None:
    report.of("Flink", "2.0.0, connector 4.0.1", f"source and sink, {guarantee}; a task fails")
    place.create("readings", "copies")
    fill(place.bootstrap, "readings", ((None, value) for value in _RECORDS[:_HALF]))
    process = JavaProcess(
        main="FlinkApp",
        class_path=java_app("flink"),
        arguments=[
            place.bootstrap,
            guarantee,
            (tmp_path / "checkpoints").as_uri(),
            "readings",
            "copies",
            "flink",
            str(_FAIL_AFTER),
        ],
        log_file=tmp_path / "flink.log",
        jvm_options=_JVM,
    )
    try:
        with Tail(place.bootstrap, "copies") as tail:
            tail.read_until(lambda records: len(records) >= _HALF, 180)
            place.disturb()
            fill(place.bootstrap, "readings", ((None, value) for value in _RECORDS[_HALF:]))
            tail.read_until(lambda records: len({one.value for one in records}) >= len(_RECORDS), 180)
            found = [one.value for one in tail.read_on(3)]
    finally:
        process.kill()
    assert b"the failure that the job was told to have" in process.log_file.read_bytes()
    report.counted(len(_RECORDS), len(found))
    assert sorted(found if guarantee == "exactly_once" else set(found)) == sorted(_RECORDS)
