"""Kafka Connect: a file into a topic, exactly once, and the topic into a file."""

from __future__ import annotations

from pathlib import Path

from tests.ecosystem.connect import ConnectWorker
from tests.ecosystem.places import Place
from tests.ecosystem.results import Report
from tests.ecosystem.tails import Tail
from tests.kit.waiting import wait_until

_LINES = [f"line {number}" for number in range(5_000)]


def test_connect_copies_a_file_through_a_topic(place: Place, tmp_path: Path, report: Report) -> None:
    report.of("Kafka Connect", "4.3.0", "exactly-once file source, file sink; worker killed")
    source, target = tmp_path / "in.txt", tmp_path / "out.txt"
    _append(source, _LINES[:2_000])
    place.create("lines", partitions=1)
    with ConnectWorker(place, tmp_path) as worker, Tail(place.bootstrap, "lines") as tail:
        worker.put(
            "source",
            {
                "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
                "tasks.max": "1",
                "file": str(source),
                "topic": "lines",
                "batch.size": "100",
                "exactly.once.support": "required",
                "transaction.boundary": "poll",
            },
        )
        worker.put(
            "sink",
            {
                "connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector",
                "tasks.max": "1",
                "file": str(target),
                "topics": "lines",
            },
        )
        tail.read_until(lambda records: len(records) >= 2_000)
        place.disturb()
        _append(source, _LINES[2_000:4_000])
        tail.read_until(lambda records: len(records) > 2_000)
        worker.kill()
        worker.start()
        worker.wait_running("source")
        _append(source, _LINES[4_000:])
        tail.read_until(lambda records: len(records) >= len(_LINES), 180)
        found = [one.value for one in tail.read_on(3)]
        wait_until(lambda: _lines(target) >= set(_LINES), "every line in the sink's file", 120)
    report.counted(len(_LINES), len(found))
    assert found == _LINES


def _append(path: Path, lines: list[str]) -> None:
    with path.open("a") as file:
        file.writelines(f"{line}\n" for line in lines)


def _lines(path: Path) -> set[str]:
    return set(path.read_text().splitlines()) if path.exists() else set()
