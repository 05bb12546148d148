"""Clients that read, process and write in transactions with their group's offsets: killed, and started again."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.clients.versions import CLIENTS, version_of
from tests.ecosystem.artefacts import npm_modules
from tests.ecosystem.places import Place
from tests.ecosystem.processes import APPS, running
from tests.ecosystem.results import Report
from tests.ecosystem.tails import Tail, fill

_RECORDS: Final = [(f"k{number % 40}", f"line {number}") for number in range(6_000)]
_HALF: Final = len(_RECORDS) // 2
_KAFKAJS: Final = "2.2.4"


class Copier(NamedTuple):
    product: str
    version: str
    app: str
    arguments: tuple[str, ...] = ()
    job: str = "read, process, write"

    def command(self, bootstrap: str) -> Sequence[str]:
        program = "node" if self.app.endswith(".js") else sys.executable
        return [program, str(APPS / self.app), bootstrap, *self.arguments]

    def environment(self) -> dict[str, str]:
        if not self.app.endswith(".js"):
            return {}
        return {
            "NODE_PATH": str(npm_modules(f"kafkajs@{_KAFKAJS}") / "node_modules"),
            "KAFKAJS_NO_PARTITIONER_WARNING": "1",
        }


_COPIERS: Final = [
    Copier("confluent-kafka", version_of(CLIENTS["confluent"]), "confluent_app.py", ("classic",)),
    Copier("confluent-kafka", version_of(CLIENTS["confluent"]), "confluent_app.py", ("consumer",)),
    Copier("aiokafka", version_of(CLIENTS["aiokafka"]), "aiokafka_app.py"),
    Copier("kafkajs", _KAFKAJS, "kafkajs_app.js"),
]


@pytest.mark.parametrize("copier", _COPIERS, ids=lambda copier: "-".join((copier.product, *copier.arguments)))
def test_copier_copies_every_record_once(place: Place, copier: Copier, tmp_path: Path, report: Report) -> None:
    report.of(copier.product, copier.version, f"{' '.join((copier.job, *copier.arguments))}; killed")
    place.create("lines", "copies")
    fill(place.bootstrap, "lines", _RECORDS[:_HALF])
    with Tail(place.bootstrap, "copies") as tail:
        with running(copier.command(place.bootstrap), tmp_path, copier.environment()):
            tail.read_until(lambda records: len(records) >= _HALF)
            place.disturb()
            fill(place.bootstrap, "lines", _RECORDS[_HALF:])
            tail.read_until(lambda records: len(records) > _HALF)
        with running(copier.command(place.bootstrap), tmp_path, copier.environment()):
            tail.read_until(lambda records: len(records) >= len(_RECORDS), 180)
            records = tail.read_on(3)
    report.counted(len(_RECORDS), len(records))
    assert sorted(records) == sorted(_RECORDS)
